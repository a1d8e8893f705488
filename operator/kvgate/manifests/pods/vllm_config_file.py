"""`--config FILE`: options of vLLM in a YAML file, where the file is in the same input."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import Written
from kvgate.manifests.platforms.fields_as_options import any_options
from kvgate.manifests.pods.mounted_files import FileText
from kvgate.vllm.arguments import Argument

_FLAG = "--config"


def with_config_file(arguments: Sequence[Argument], file_text: FileText) -> tuple[Argument, ...]:
    """Insert the file's options as vLLM does: after the model and before all others, which win. An unreadable file changes nothing."""
    for index, word in enumerate(arguments):
        flag, equals, attached = word.text.partition("=")
        if flag != _FLAG:
            continue
        end = index + (1 if equals else 2)
        name = attached if equals else "".join(after.text for after in arguments[index + 1 : end])
        options = _options(file_text(name))
        if options is None:
            break
        added = [
            Argument(text=each.text, path=word.path, line=word.line) for each in any_options(Written(value=options))
        ]
        first = 0 if arguments[0].text.startswith("-") else 1
        return (*arguments[:first], *added, *arguments[first:index], *arguments[end:])
    return tuple(arguments)


def _options(text: str | None) -> Mapping[str, Any] | None:
    try:
        loaded = value_of(text) if text else None
    except YamlError:
        return None
    return loaded if isinstance(loaded, Mapping) else None

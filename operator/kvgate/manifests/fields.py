"""A platform's own fields: as the options that it makes of them (`maxModelLen: 4096` → `--max-model-len=4096`), or ignored."""

import json
from collections.abc import Collection, Iterator, Mapping

import yaml
from msgspec.structs import replace

from kvgate.documents.nodes import YamlError, compose, construct
from kvgate.documents.written import Written
from kvgate.findings.finding import Located, Place, Severity, located
from kvgate.rules.manifests import FIELD_IGNORED
from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import options


def as_options(fields: Written, flags: Mapping[str, str]) -> Iterator[Argument]:
    """Yield the arguments of every field that is written. `flags`: field (`a.b`) → option."""
    for name, flag in flags.items():
        yield from as_option(fields.get(*name.split(".")), flag)


def as_option(field: Written, flag: str) -> Iterator[Argument]:
    """Yield a switch alone (`--no-…` where it is off), any other option with its value, and nothing for an empty field."""
    if isinstance(field.value, bool):
        option = options().get(flag)
        is_negatable = option is not None and any(value for _, value in option.negatable)
        if field.value or is_negatable:
            yield Argument(text=flag if field.value else f"--no-{flag[2:]}", path=field.path, is_field=True)
    elif isinstance(field.value, Mapping) or any(isinstance(item.value, Mapping | list) for item in field.items()):
        yield Argument(text=f"{flag}={json.dumps(field.value, default=str)}", path=field.path, is_field=True)
    elif isinstance(field.value, list) and field.value:
        yield Argument(text=flag, path=field.path, is_field=True)
        yield from (Argument(text=item.text, path=item.path, is_field=True) for item in field.items())
    elif field.text:
        yield Argument(text=f"{flag}={field.text}", path=field.path, is_field=True)


def option_paths(fields: Written, flags: Mapping[str, str]) -> dict[str, str]:
    """Return where the platform reads each setting, written or not, by vLLM's names; empty where it has no such fields here."""
    if not fields.is_set:
        return {}
    return {flag.lstrip("-").replace("-", "_"): f"{fields.path}.{name}" for name, flag in flags.items()}


def any_options(fields: Written) -> Iterator[Argument]:
    """Yield the options of an object whose fields have vLLM's own names, with `_` or `-`."""
    for name, field in fields.fields():
        yield from as_option(field, f"--{name.replace('_', '-')}")


def options_in(text: str, path: str, *below: str) -> list[Argument] | None:
    """Return the options of a YAML text whose keys have vLLM's own names, each with its line; None where it is no such text.

    `below`: keys that lead to the object of options.
    """
    try:
        node = compose(text)
        value = construct(node) if node else None
    except YamlError:
        return None
    fields = Written(value=value).get(*below)
    if not isinstance(fields.value, Mapping):
        return None
    for name in below:
        node = next((value for key, value in node.value if key.value == name), None) if node else None
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    lines = {key.value: key.start_mark.line for key, _ in pairs}
    found = []
    for name, field in fields.fields():
        words = as_option(field, f"--{name.replace('_', '-')}")
        found += [replace(word, path=path, line=lines.get(name, 0), is_field=False) for word in words]
    return found


def words_of(field: Written) -> list[Argument]:
    return [Argument(text=item.text, path=item.path) for item in field.items()]


def ignored_fields(field: Written, read: Collection[str], elsewhere: Collection[str], reader: str) -> Iterator[Located]:
    """Yield a finding for every field of an object that `reader` does not read, so that it never reaches vLLM.

    `read`: names that it reads here; `elsewhere`: names that have a meaning at another place, which makes the finding a warning.
    """
    from difflib import get_close_matches

    for name, child in field.fields():
        if name in read or not child.is_set:
            continue
        near = get_close_matches(name, read, n=1, cutoff=0.8)
        severity = Severity.WARNING if near or name in elsewhere else Severity.INFO
        message = f"{reader} does not read {name} here: it never reaches vLLM"
        remedy = f"did you mean {near[0]}?" if near else "move it to where it is read, or leave it out"
        yield located(FIELD_IGNORED, Place(name=name, path=child.path), message, remedy, severity=severity)

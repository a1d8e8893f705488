"""Containers that run vLLM: the words of the command line, out of command, args, shell lines, environment and ConfigMaps."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kvgate.manifests.vllm_args import Argument
from kvgate.manifests.written import Written

ConfigValue = Callable[[str, str], str | None]
"""(name of a ConfigMap, key) → the text, where it is in the same input."""

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][\w.\-]*)\))")
"""Kubernetes' `$(NAME)`, and `$$` for one `$`."""
_SHELL = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
"""A shell's `$NAME`, `${NAME}` and `${NAME:-default}`."""
_SHELLS = ("sh", "bash", "ash", "dash", "zsh")
_MODULE = re.compile(r"vllm\.entrypoints\.(?:openai\.)?(?:api_server|cli\.main)")
_ARGUMENT_VARIABLES = (
    "VLLM_ARGS",
    "VLLM_ADDITIONAL_ARGS",
    "VLLM_EXTRA_ARGS",
    "VLLM_SERVE_ARGS",
    "EXTRA_ARGS",
    "MODEL_ARGS",
)
_IMAGES = re.compile(r"(?:^|/)(?:vllm-openai|vllm|[\w.\-]*vllm[\w.\-]*|llm-d(?:-cuda)?|text-generation-vllm)(?=[:@]|$)")
_BREAKS = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "2>&1"})


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandFound:
    """The words after `vllm serve`, or the module's name."""

    arguments: tuple[Argument, ...]
    remarks: tuple[tuple[str, str], ...] = ()


def looks_like_vllm(container: Written) -> bool:
    """By image or by command line."""
    words = " ".join(word.text for word in (*container.get("command").items(), *container.get("args").items()))
    command = container.get("command").text + " " + container.get("args").text + " " + words
    return bool(
        _IMAGES.search(container.get("image").text)
        or re.search(r"\bvllm\s+serve\b", command)
        or _MODULE.search(command)
    )


def environment(container: Written, config_value: ConfigValue) -> dict[str, Written]:
    """Variables with a value that is in the input; later entries may use earlier ones."""
    values: dict[str, Written] = {}
    for entry in container.get("env").items():
        name, value = entry.get("name").text, entry.get("value")
        reference = entry.get("valueFrom", "configMapKeyRef")
        if reference.is_set:
            text = config_value(reference.get("name").text, reference.get("key").text)
            value = Written(value=text, path=entry.get("valueFrom").path)
        if value.text:
            values[name] = Written(value=_expanded(value.text, values), path=value.path)
    return values


def _expanded(text: str, values: Mapping[str, Written]) -> str:
    """Kubernetes' expansion: a name without a value stays as it is."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return values[match[2]].text if match[2] in values else match[0]

    return _REFERENCE.sub(value_of, text)


def command_of(container: Written, config_value: ConfigValue) -> CommandFound:
    """The words that vLLM's parser gets, each with the path that it is written at."""
    values = environment(container, config_value)
    words = [*_words(container.get("command"), values), *_words(container.get("args"), values)]
    words = _through_shell(words, values)
    found = _after_program(words)
    variables = [values[name] for name in _ARGUMENT_VARIABLES if name in values and not _mentions(container, name)]
    for variable in variables:
        found += [Argument(text=text, path=variable.path) for text in _split(variable.text)]
    return CommandFound(arguments=tuple(found), remarks=tuple(_unresolved(found)))


def _mentions(container: Written, name: str) -> bool:
    """The command line itself takes the variable: it is not taken twice."""
    written = [*container.get("command").items(), *container.get("args").items()]
    return any(name in word.text for word in written)


def _words(field: Written, values: Mapping[str, Written]) -> Iterator[Argument]:
    """One word per element; docker-compose and some platforms write one line."""
    if isinstance(field.value, str):
        yield from _words_of_text(_expanded(field.value, values), field.path, {})
    for item in field.items():
        yield Argument(text=_expanded(item.text, values), path=item.path)


def _through_shell(words: list[Argument], values: Mapping[str, Written]) -> list[Argument]:
    """`sh -c "vllm serve …"`: the line's own words; the last script with vLLM in it counts."""
    shells = [i for i, word in enumerate(words) if word.text.rpartition("/")[2] in _SHELLS]
    scripts = [word for word in words[shells[0] + 1 :] if "vllm" in word.text] if shells else []
    if not scripts:
        return words
    script = scripts[-1]
    after = words[words.index(script) + 1 :]
    parameters = [word for word in after if word.text != "--"]
    line: list[Argument] = []
    for word in _words_of_text(script.text, script.path, values):
        line += parameters if word.text in ("$@", "${@}") else [word]
    return line


def _words_of_text(text: str, path: str, values: Mapping[str, Written]) -> Iterator[Argument]:
    """The words of a script, each with its line: found in the text as it is written, where no variable hides it."""
    start = 0
    for word in _split(_shell_expanded(text, values)):
        found = text.find(word, start)
        start = start if found < 0 else found
        yield Argument(text=word, path=path, line=text.count("\n", 0, start))


def _shell_expanded(text: str, values: Mapping[str, Written]) -> str:
    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name in values:
            return values[name].text
        return match[2] if match[2] is not None else match[0]

    return _SHELL.sub(value_of, text.replace("\\\n", " "))


def _split(text: str) -> list[str]:
    """A shell's words; a quotation that does not end is taken as it stands."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _after_program(words: list[Argument]) -> list[Argument]:
    """After the last `vllm serve` or entry point, up to the end of that command; all words where the image has the program."""
    starts = [index + 1 for index in range(len(words)) if _starts_vllm(words, index)]
    rest = words[starts[-1] :] if starts else words
    end = next((i for i, word in enumerate(rest) if word.text in _BREAKS), len(rest))
    return [word for word in rest[:end] if not word.text.startswith(("2>", ">"))]


def _starts_vllm(words: list[Argument], index: int) -> bool:
    text, before = words[index].text, words[index - 1].text if index else ""
    served = text == "serve" and before.rpartition("/")[2] == "vllm"
    return served or bool(_MODULE.fullmatch(text)) or text.endswith("api_server.py")


def _unresolved(words: list[Argument]) -> Iterator[tuple[str, str]]:
    for word in words:
        if _REFERENCE.search(word.text) or _SHELL.search(word.text):
            yield word.path, f"{word.text} is not known here: its variable has no value in the input"

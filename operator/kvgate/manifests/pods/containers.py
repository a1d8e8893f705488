"""Containers that run vLLM: the words that its parser gets, out of command, args, shell scripts and environment."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from kvgate.documents.written import Written
from kvgate.manifests.pods.mounted_files import FileText, no_files
from kvgate.manifests.pods.scripts import unwrapped
from kvgate.manifests.pods.vllm_config_file import with_config_file
from kvgate.record import record
from kvgate.shell.environment import Room, SharedRoom, expanded
from kvgate.shell.words import split
from kvgate.vllm.arguments import Argument

_COMMANDS = {"serve": False, "run-batch": True}
"""Commands of `vllm` that start an engine; whether they take options of their own beside it."""
_SERVERS = re.compile(r"vllm\.entrypoints\.(?:openai\.)?api_server|(?:.*/)?api_server\.py")
_WRAPPERS = re.compile(
    r"dynamo\.vllm|vllm_tgis_adapter|huggingfaceserver|vllm\.entrypoints\.openai\.run_batch|(?:.*/)?inference_api\.py"
)
"""Programs that take options of their own beside vLLM's: Dynamo, the TGIS adapter, KServe, offline batches, KAITO."""
_IMAGE_NAME = re.compile(r"[\w.\-]*")
_IMAGES = frozenset({"llm-d", "llm-d-cuda", "llm-d-dev", "llm-d-rocm", "llm-d-xpu"})
_OTHER_IMAGES = re.compile(
    r"router|proxy|exporter|sidecar|sim(?:ulator)?(?=[:@]|$)|bench|gateway|loader|operator|runtime"
)
"""Images named after vLLM that are not it, or not it alone."""
_SIMULATORS = re.compile(r"[-_/]sim(?:ulator)?(?=[:@]|$)")
_OTHER_SERVERS = re.compile(r"sglang|text-generation-(?:inference|launcher)|tritonserver|trtllm|tensorrt[-_]llm")
_NOT_MODELS = frozenset({
    "bash", "cat", "echo", "env", "huggingface-cli", "hf", "ls", "nvidia-smi", "python", "python3", "ray", "sh", "sleep", "tail", "vllm",
})  # fmt: skip
"""First words that are programs, and no model that an image's own program is started with."""
_ARGUMENT_VARIABLES = (
    "VLLM_ARGS", "VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "VLLM_SERVE_ARGS", "EXTRA_ARGS", "MODEL_ARGS",
)  # fmt: skip
"""Taken by programs of images and of platforms, never by vLLM itself."""


@record
class Start:
    """One start of vLLM."""

    arguments: tuple[Argument, ...]
    """The words after `vllm serve`, or the program's name."""
    before: tuple[Argument, ...] = ()
    """The words before that: variables that are set for it, other programs."""
    is_wrapped: bool = False
    """Another program takes them and hands on vLLM's."""
    is_on_ray: bool = False
    """The container starts Ray beside it."""
    remarks: tuple[tuple[str, str], ...] = ()
    """(path, what was left aside there)."""


def is_vllm_image(image: str) -> bool:
    """True by the image's name; `vllm-router` and its like do not count."""
    *folders, last = image.split("/")
    names = map(_image_name, [*(f"{folder}/" for folder in folders), last])
    found = next((name for name in names if "vllm" in name or name in _IMAGES), None)
    return found is not None and not _OTHER_IMAGES.search(found)


def _image_name(step: str) -> str:
    """Return the name that a step of an image's path is; empty where anything but a tag or a digest follows it."""
    name = _IMAGE_NAME.match(step)
    end = name.end() if name else 0
    return step[:end] if step[end : end + 1] in ("", ":", "@") else ""


def is_simulator(image: str) -> bool:
    """llm-d's stand-in for vLLM and its like, which hold no weights."""
    return _SIMULATORS.search(image) is not None


def names_other_server(words: str) -> bool:
    """True for servers of models that stand where vLLM could."""
    return _OTHER_SERVERS.search(words.lower()) is not None


def starts_of(
    command: Written,
    args: Written,
    variables: Mapping[str, Written],
    image: str,
    *,
    own_program: bool = False,
    file_text: FileText = no_files,
    shared: SharedRoom | None = None,
) -> tuple[Start, ...]:
    """Every start of vLLM in a container. `own_program`: it starts vLLM whatever its image is called."""
    found = _starts_of(command, args, variables, image, own_program=own_program, file_text=file_text, shared=shared)
    served = (start for start in found if not any(map(_asks_for_help, start.arguments)))
    return tuple(replace(start, arguments=with_config_file(start.arguments, file_text)) for start in served)


def _asks_for_help(word: Argument) -> bool:
    """vLLM prints its options, or some of them, and ends."""
    return word.text in ("-h", "--help") or word.text.startswith("--help=")


def _starts_of(
    command: Written,
    args: Written,
    variables: Mapping[str, Written],
    image: str,
    *,
    own_program: bool,
    file_text: FileText,
    shared: SharedRoom | None,
) -> tuple[Start, ...]:
    words = [*_words(command, variables), *_words(args, variables)]
    commands = list(unwrapped(words, variables, file_text, shared=shared))
    started = [start for line in commands if (start := _after_program(line)) is not None]
    if started:
        unused = tuple(_unused(command, args, variables))
        on_ray = any(map(_starts_ray, commands))
        return tuple(replace(start, is_on_ray=on_ray, remarks=unused) for start in _leaders(started))
    if command.is_set or not (own_program or is_vllm_image(image)):
        return ()
    rest = words[1:] if words and words[0].text == "serve" else words
    if rest and rest[0].text.rpartition("/")[2] in _NOT_MODELS:
        return ()
    return (Start(arguments=(*rest, *_from_variables(command, args, variables))),)


def _words(field: Written, variables: Mapping[str, Written]) -> Iterator[Argument]:
    """One word per element; a text, as docker-compose has it, is split."""
    room = Room()
    if isinstance(field.value, str):
        yield from (Argument(text=text, path=field.path) for text in split(expanded(field.value, variables, room)))
    for item in field.items():
        yield Argument(text=expanded(item.text, variables, room), path=item.path)


def _after_program(words: list[Argument]) -> Start | None:
    """The words around the first program that starts vLLM."""
    for index, word in enumerate(words):
        is_wrapped = _is_wrapped(words[index - 1].text if index else "", word.text)
        if is_wrapped is not None:
            before, rest = tuple(words[:index]), tuple(words[index + 1 :])
            return Start(arguments=rest, before=before, is_wrapped=is_wrapped)
    return None


def _is_wrapped(before: str, word: str) -> bool | None:
    """Return whether the program takes options of its own beside vLLM's; None where the word starts nothing."""
    if word in _COMMANDS and before.rpartition("/")[2] in ("vllm", "vllm.entrypoints.cli.main"):
        return _COMMANDS[word]
    if _SERVERS.fullmatch(word):
        return False
    return True if _WRAPPERS.fullmatch(word) else None


def _starts_ray(words: list[Argument]) -> bool:
    """`ray start`, or the script of vLLM's image that does it."""
    texts = [word.text.rpartition("/")[2] for word in words]
    return "multi-node-serving.sh" in texts or any(pair == ("ray", "start") for pair in pairwise(texts))


def _leaders(started: list[Start]) -> Iterable[Start]:
    """Drop the ranks of an engine whose first one is there, and repeated starts."""
    leaders = [start for start in started if not any(word.text == "--headless" for word in start.arguments)]
    return {tuple(word.text for word in start.arguments): start for start in leaders or started}.values()


def from_variables(names: Iterable[str], variables: Mapping[str, Written]) -> list[Argument]:
    """The words of variables that hold arguments, each at the place of the value; `$(NAME)` where that is not in the input."""
    known = {name: variables[name] for name in names if name in variables}
    texts = {name: [f"$({name})"] if value.value is None else split(value.text) for name, value in known.items()}
    return [Argument(text=text, path=known[name].path) for name, words in texts.items() for text in words]


def _from_variables(command: Written, args: Written, variables: Mapping[str, Written]) -> list[Argument]:
    return from_variables(_not_mentioned(command, args, variables), variables)


def _not_mentioned(command: Written, args: Written, variables: Mapping[str, Written]) -> Iterator[str]:
    written = [command.text, args.text, *(word.text for field in (command, args) for word in field.items())]
    for name in _ARGUMENT_VARIABLES:
        if name in variables and not any(name in text for text in written):
            yield name


def _unused(command: Written, args: Written, variables: Mapping[str, Written]) -> Iterator[tuple[str, str]]:
    """vLLM takes no arguments from its environment: what nobody hands on is lost."""
    for name in _not_mentioned(command, args, variables):
        yield variables[name].path, f"{name} is set, and neither command nor args take it: vLLM does not read it"

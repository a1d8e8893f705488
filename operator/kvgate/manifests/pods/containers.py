"""Containers that run vLLM: the words that its parser gets, from command, args, shell scripts, `--config` and environment; and what init
containers download for them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import options_in
from kvgate.manifests.pods.engine_found import ReaderInput
from kvgate.manifests.pods.volumes import FileText, no_files
from kvgate.manifests.pods.which_engine import (
    is_beside_vllm,
    is_vllm_image,
    other_program,
    server_in,
    starts_vllm,
    unseen_script,
    vllm_program,
)
from kvgate.shell.environment import Room, SharedRoom, expanded, variables_of
from kvgate.shell.words import MAX_WORD_CHARACTERS, Variables, commands_of, split
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument
from kvgate.vllm.images import is_own_image
from kvgate.vllm.options import UNKNOWN_PROGRAM, Kind, Program

_NOT_MODELS = frozenset({
    "bash", "cat", "echo", "env", "huggingface-cli", "hf", "ls", "nvidia-smi", "python", "python3", "ray", "sh", "sleep", "tail", "vllm",
})  # fmt: skip
"""First words that are programs; any other first word of an image of vLLM is the model."""
_ARGUMENT_VARIABLES = (
    "VLLM_ARGS", "VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "VLLM_SERVE_ARGS", "EXTRA_ARGS", "MODEL_ARGS",
)  # fmt: skip
"""Variables that programs of images and of platforms read, and vLLM itself never does."""
_HELP = pattern(r"-h|--help(?:=.*)?", re.DOTALL)
_MAX_NESTING = 5
"""Scripts in scripts; nobody writes more."""
MAX_SCRIPT_CHARACTERS = MAX_WORD_CHARACTERS
"""Length of all scripts of a container together, however often one of them is run; a longer one stays as it is written."""
_MAX_PREFIX = 5
"""Words before a shell's name: `exec`, `tini --`, `/usr/bin/env` …"""


_MODEL_VARIABLES = pattern(r"(?:VLLM_|HF_|HUGGINGFACE_|LLM_|BASE_)?MODEL(?:_ID|_NAME|_REPO|_REPO_ID|_TAG)?")
_MOST_SHOWN = 400
_HUB_OPTIONS = ("--source", "--model-uri", "--repo-id", "--repo_id", "--model-id")
_FOLDER_OPTIONS = ("--output-dir", "--local-dir", "--local_dir", "--target-dir")
_MAX_CONTAINERS = 20
"""Init containers of one pod; nobody has more."""
_INSTALLED = pattern(
    r"""\bpip3? install\b[^;&|\n]{0,200}[\s"']vllm(?:\[[\w,]{0,100}\])?==(\d{1,3}\.\d{1,3}\.\d{1,3}(?:\.?[a-z]{1,5}\d{1,3})?)"""
)
_IN_PYTHON = pattern(
    r"""snapshot_download\(\s*(?:repo_id\s*=\s*)?(['"])([\w./\-]{3,200})\1[^)]{0,400}?local_dir\s*=\s*(['"])([^'"]{1,400})\3"""
)
_ID = pattern(r"(?:(?:hf|huggingface|ms)://)?[A-Za-z0-9][\w.\-]*/[\w.\-]+", re.ASCII)


class Start(Struct, frozen=True, kw_only=True):
    arguments: tuple[Argument, ...]
    """The words after `vllm serve`, or the program's name."""
    before: tuple[Argument, ...] = ()
    """The words before that: variables that are set for the program, and other programs."""
    program: Program = UNKNOWN_PROGRAM
    is_wrapped: bool = False
    """Another program takes the arguments and passes vLLM's on."""
    is_on_ray: bool = False
    """The container starts Ray beside it."""
    remarks: tuple[tuple[str, str], ...] = ()
    """(path, what has no effect there)."""


def starts_of(
    command: Written,
    args: Written,
    variables: Mapping[str, Written],
    image: str,
    *,
    own_program: bool = False,
    file_text: FileText = no_files,
    shared: SharedRoom | None = None,
    is_whole: bool = False,
    has_gpus: bool = False,
    words_of_text: Callable[[str], Sequence[str]] = split,
    place_of: Callable[[str], str] = str,
) -> tuple[Start, ...]:
    """Return every start of vLLM in a container. `own_program`: it starts vLLM whatever its image is called. `is_whole`: nothing
    outside the input gives the container another command, so that the entrypoint of vLLM's own image gets the words. `has_gpus`: it gets
    GPUs, so that an image of vLLM starts it, if by a script that is not seen here."""
    words = [*_words(command, variables, words_of_text), *_words(args, variables, words_of_text)]
    is_behind_entrypoint = is_whole and command.value is None and is_own_image(image)
    commands = list(unwrapped(words, variables, file_text, shared=shared))
    starts = [
        Start(arguments=tuple(line[at + 1 :]), before=tuple(line[:at]), program=starter, is_wrapped=is_wrapped)
        for line in commands
        for at, starter, is_wrapped in vllm_program(line)
    ]
    # Variables that hold arguments, and that neither command nor args name.
    written = [command.text, args.text, *(word.text for field in (command, args) for word in field.items())]
    unused = [name for name in _ARGUMENT_VARIABLES if name in variables and not any(name in text for text in written)]
    if starts:
        lost = "is set, but neither command nor args use it, and vLLM itself does not read it"
        remarks = tuple((variables[name].path, f"{name} {lost}") for name in unused)
        # `ray start`, or the script of vLLM's image that does it.
        programs = [[word.text.rpartition("/")[2] for word in line] for line in commands]
        is_on_ray = any("multi-node-serving.sh" in line or ("ray", "start") in pairwise(line) for line in programs)
        # without the ranks of an engine whose first one is there, and without repeated starts
        leaders = [start for start in starts if not any(word.text == "--headless" for word in start.arguments)]
        once = {tuple(word.text for word in start.arguments): start for start in leaders or starts}
        program = Program(kind=Kind.OWN_IMAGE, repeated=tuple(words[:2])) if is_behind_entrypoint else None
        starts = [
            replace(
                start,
                is_on_ray=is_on_ray,
                remarks=remarks,
                program=program or replace(start.program, is_unchanged=is_own_image(image)),
            )
            for start in once.values()
        ]
    elif not command.is_set and (own_program or starts_vllm(image, words, variables, has_words=bool(words or unused))):
        starts = _of_own_program(
            words, {name: variables[name] for name in unused}, is_behind_entrypoint=is_behind_entrypoint
        )
    elif has_gpus and is_vllm_image(image):
        starts = _unseen(commands, variables, image, args.path)
    # With --help vLLM prints its options and ends.
    serving = (start for start in starts if not any(map(_HELP.fullmatch, (word.text for word in start.arguments))))
    return tuple(replace(start, arguments=with_config_file(start.arguments, file_text, place_of)) for start in serving)


def _of_own_program(words: Sequence[Argument], unused: Variables, *, is_behind_entrypoint: bool) -> list[Start]:
    """Return the start of an image's own program by its words and by variables that nothing else uses; none where a word is a program."""
    rest = words[1:] if words and words[0].text == "serve" else words
    if rest and rest[0].text.rpartition("/")[2] in _NOT_MODELS:
        return []
    added = [
        Argument(text=text, path=value.path)
        for name, value in unused.items()
        for text in ([f"$({name})"] if value.value is None else split(value.text))
    ]
    repeated = tuple(words[:1]) if len(rest) < len(words) else ()
    program = Program(kind=Kind.OWN_IMAGE, repeated=repeated) if is_behind_entrypoint else UNKNOWN_PROGRAM
    return [Start(arguments=(*rest, *added), program=program)]


def _unseen(commands: Sequence[Sequence[Argument]], variables: Variables, image: str, path: str) -> list[Start]:
    """Return the start by a script, or by an image's own program, whose options nobody sees: one word stands for all of them.

    The model is known where one variable is called after it.
    """
    script = unseen_script(commands) if any(commands) else Argument(text=image, path=path)
    if script is None:
        return []
    named = {
        each.text: Argument(text=f"--model={each.text}", path=each.path)
        for name, each in variables.items()
        if _MODEL_VARIABLES.fullmatch(name) and _ID.fullmatch(each.text)
    }
    text = " ".join(script.text.replace("`", "'").split())[:_MOST_SHOWN]
    unseen = replace(script, text=f"`{text}`")
    return [Start(arguments=(*(named.values() if len(named) == 1 else ()), unseen), is_wrapped=True)]


def other_server(
    container: Written,
    variables: Mapping[str, Written],
    file_text: FileText = no_files,
    shared: SharedRoom | None = None,
) -> Written:
    """Return the word, or the image with its own program, by which a container starts another model server; NOTHING where none does."""
    command, image = container.get("command"), container.get("image")
    if not command.is_set:
        is_server = server_in(image.text) and not is_vllm_image(image.text) and not is_beside_vllm(image.text)
        return image if is_server else NOTHING
    words = [*_words(command, variables, split), *_words(container.get("args"), variables, split)]
    found = other_program(unwrapped(words, variables, file_text, shared=shared))
    return Written(value=found.text, path=found.path) if found else NOTHING


def _words(
    field: Written, variables: Mapping[str, Written], words_of_text: Callable[[str], Sequence[str]]
) -> Iterator[Argument]:
    """Yield one word per element; a text, which docker-compose takes too, is split."""
    room = Room()
    if isinstance(field.value, str):
        yield from (
            Argument(text=text, path=field.path) for text in words_of_text(expanded(field.value, variables, room))
        )
    for item in field.items():
        yield Argument(text=expanded(item.text, variables, room), path=item.path)


_Script = tuple[Argument, Sequence[Argument], bool]
"""The text of a script that a shell runs, with its place; its parameters; True where the text stands elsewhere, so that its lines are not
lines of the field that names the file."""


def unwrapped(
    command: list[Argument],
    variables: Variables,
    file_text: FileText = no_files,
    depth: int = 0,
    room: Room | None = None,
    shared: SharedRoom | None = None,
) -> Iterator[list[Argument]]:
    """Yield the commands that one command runs, through `sh -c "…" -- $@`, `sh script` and `eval "…"`; any other as it is.

    `shared`: room for the scripts of all containers of the input. Raises OutOfRoom.
    """
    room = room or Room(left=MAX_SCRIPT_CHARACTERS)
    script = _script_of(command, file_text)
    if script is None or depth > _MAX_NESTING or not room.takes(script[0].text):
        yield command
        return
    at, parameters, is_file = script
    if shared:
        shared.take(at.text)
    folder = ""
    for inner in commands_of(at.text, at.path, variables, parameters, first_line=at.line):
        words = [replace(word, line=0) for word in inner] if is_file else inner
        if len(words) == 2 and words[0].text == "cd":
            folder = words[1].text if words[1].text.startswith("/") else ""
        elif folder:  # a script may be called by its place there: `./serve.sh`, `bash serve.sh`
            words = [*(_placed(word, folder, file_text) for word in words[:2]), *words[2:]]
        yield from unwrapped(words, variables, file_text, depth + 1, room, shared)


def _placed(word: Argument, folder: str, file_text: FileText) -> Argument:
    """Return a file of the input that a word names from a folder by its whole path; any other word as it is."""
    path = f"{folder.rstrip('/')}/{word.text.removeprefix('./')}"
    return word if word.text.startswith(("/", "-")) or file_text(path) is None else replace(word, text=path)


def _script_of(command: list[Argument], file_text: FileText) -> _Script | None:
    """Return the script that a command runs; None where it runs no shell and no script of the input."""
    for index, word in enumerate(command[:_MAX_PREFIX]):
        if word.text == "eval" and len(command) > index + 1:
            rest = command[index + 1 :]
            text = " ".join(part.text for part in rest)
            return Argument(text=text, path=rest[0].path, line=rest[0].line), (), False
        if word.text.rpartition("/")[2] in ("sh", "bash", "ash", "dash", "zsh"):
            is_text, words = _after_options(command[index + 1 :])
            if not is_text:
                return _script_in_file(words, file_text)
            return (words[0], words[2:], False) if words else None  # the word behind the text is `$0`
    return _script_in_file(command[1:] if command and command[0].text == "exec" else command, file_text)


def _after_options(words: Sequence[Argument]) -> tuple[bool, Sequence[Argument]]:
    """Return (whether a shell gets `-c`, alone or as in `-lec`, the words behind its options); `-o` has a name after it."""
    is_text = False
    while words and words[0].text.startswith(("-", "+")):
        option, words = words[0].text, words[1:]
        if option == "--":
            break
        if not option.startswith("--"):
            is_text = is_text or "c" in option
            words = words[1:] if "o" in option else words
    return is_text, words


def _script_in_file(words: Sequence[Argument], file_text: FileText) -> _Script | None:
    """Return a script of the input with its parameters; None where the first word is no file of it."""
    text = file_text(words[0].text) if words and words[0].text.startswith("/") else None
    if text is None:
        return None
    return Argument(text=text, path=words[0].path, line=words[0].line), words[1:], True


def with_config_file(
    arguments: Sequence[Argument], file_text: FileText, place_of: Callable[[str], str] = str
) -> tuple[Argument, ...]:
    """Insert the options of `--config FILE`, where the input holds that file. `place_of`: file → path for findings about its lines.

    vLLM puts them after the model and before all other options, which win. A file that cannot be read changes nothing.
    """
    for index, word in enumerate(arguments):
        flag, equals, attached = word.text.partition("=")
        if flag != "--config":
            continue
        end = index + (1 if equals else 2)
        file = attached if equals else "".join(after.text for after in arguments[index + 1 : end])
        text = file_text(file)
        added = options_in(text, place_of(file) or word.path) if text else None
        if added is None:
            break
        first = 0 if arguments[0].text.startswith("-") else 1
        return (*arguments[:first], *added, *arguments[first:index], *arguments[end:])
    return tuple(arguments)


def installed_release(*scripts: Written) -> Written:
    """Return the release of vLLM that scripts install by pip; nothing where they install none, or one of several."""
    texts = [item for script in scripts for item in (script.items() or [script])]
    found = {match[1]: each.path for each in texts for match in _INSTALLED.finditer(each.text)}
    return (
        next((Written(value=release, path=path) for release, path in found.items()), NOTHING)
        if len(found) == 1
        else NOTHING
    )


def downloaded(given: ReaderInput, pod: Written, place: str) -> Written:
    """Return the name on the hub of what an init container of the pod downloads to a folder; nothing where none does."""
    wanted = place.rstrip("/")
    top = wanted.rpartition("/")[0]
    for container in pod.get("initContainers").items()[:_MAX_CONTAINERS]:
        written = str(container.value)
        if wanted not in written and (not top or top not in written):
            continue
        variables = variables_of(container, given.config_data, shared=given.shared)
        for name, folders in _downloads(given, container, variables):
            if wanted in folders and _ID.fullmatch(name.text):
                return Written(value=name.text, path=name.path)
    return NOTHING


def _downloads(
    given: ReaderInput, container: Written, variables: Mapping[str, Written]
) -> Iterator[tuple[Argument, Sequence[str]]]:
    """Yield (name of a repository, folders that may hold it, without a slash at their ends) of every command."""
    room, words = Room(), list[Argument]()
    for field in (container.get("command"), container.get("args")):
        words += [Argument(text=expanded(item.text, variables, room), path=item.path) for item in field.items()]
    given.shared.take(*(word.text for word in words))  # once for each container that it may download for
    for line in unwrapped(words, variables, shared=given.shared):
        name, folder, own = (
            _after(line, (*_HUB_OPTIONS, "download")),
            _after(line, _FOLDER_OPTIONS),
            _after(line, ("--model-name",)),
        )
        if name and folder and folder.text.startswith("/"):
            top, last = folder.text.rstrip("/"), name.text.rpartition("/")[2]
            yield name, (top, f"{top}/{last}", f"{top}/{name.text}", f"{top}/{own.text if own else last}")
    for word in words:
        for match in _IN_PYTHON.finditer(word.text):
            yield Argument(text=match[2], path=word.path), (match[4].rstrip("/"),)


def _after(line: Sequence[Argument], names: Sequence[str]) -> Argument | None:
    """Return the value of the first of these options, behind `=` or in the next word."""
    for word, after in pairwise([*line, Argument(text="", path="")]):
        flag, equals, value = word.text.partition("=")
        if flag in names:
            return Argument(text=value if equals else after.text, path=word.path if equals else after.path)
    return None

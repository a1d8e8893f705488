"""Commands that a command runs: scripts of shells, of files in the input and of `eval`, through to their own commands."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvgate.manifests.pods.mounted_files import FileText, no_files
from kvgate.record import record
from kvgate.shell.environment import Room, SharedRoom
from kvgate.shell.words import MAX_WORD_CHARACTERS, Variables, commands_of
from kvgate.vllm.arguments import Argument

_SHELLS = ("sh", "bash", "ash", "dash", "zsh")
_MAX_NESTING = 5
"""Scripts in scripts; nobody writes more."""
MAX_SCRIPT_CHARACTERS = MAX_WORD_CHARACTERS
"""Length of all scripts of a container together, however often one of them is run; a longer one stays as it is written."""
_MAX_PREFIX = 5
"""Words before a shell's name: `exec`, `tini --`, `/usr/bin/env` …"""


@record
class _Script:
    """A script that a shell runs."""

    at: Argument
    """Its text, and where it stands."""
    parameters: Sequence[Argument] = ()
    is_file: bool = False
    """Its text stands elsewhere: its lines are not those of the field that names it."""


def unwrapped(
    command: list[Argument],
    variables: Variables,
    file_text: FileText = no_files,
    depth: int = 0,
    room: Room | None = None,
    shared: SharedRoom | None = None,
) -> Iterator[list[Argument]]:
    """The commands that one command runs: `sh -c "…" -- $@`, `sh script` and `eval "…"` through, any other as it is.

    `shared`: for the scripts of all containers of the input. Raises OutOfRoom.
    """
    room = room or Room(left=MAX_SCRIPT_CHARACTERS)
    script = _script_of(command, file_text)
    if script is None or depth > _MAX_NESTING or not room.takes(script.at.text):
        yield command
        return
    if shared:
        shared.take(script.at.text)
    at = script.at
    for inner in commands_of(at.text, at.path, variables, script.parameters, first_line=at.line):
        words = [replace(word, line=0) for word in inner] if script.is_file else inner
        yield from unwrapped(words, variables, file_text, depth + 1, room, shared)


def _script_of(command: list[Argument], file_text: FileText) -> _Script | None:
    """None where the command is no shell, and no script of the input."""
    for index, word in enumerate(command[:_MAX_PREFIX]):
        if word.text == "eval" and len(command) > index + 1:
            rest = command[index + 1 :]
            text = " ".join(part.text for part in rest)
            return _Script(at=Argument(text=text, path=rest[0].path, line=rest[0].line))
        if word.text.rpartition("/")[2] in _SHELLS:
            is_text, words = _after_options(command[index + 1 :])
            return _of_text(words) if is_text else _of_file(words, file_text)
    return _of_file(command[1:] if command and command[0].text == "exec" else command, file_text)


def _after_options(words: Sequence[Argument]) -> tuple[bool, Sequence[Argument]]:
    """(whether a shell is given `-c`, alone or as in `-lec`, what stands behind its options); `-o` has a name after it."""
    is_text = False
    while words and words[0].text.startswith(("-", "+")):
        option, words = words[0].text, words[1:]
        if option == "--":
            break
        if not option.startswith("--"):
            is_text = is_text or "c" in option
            words = words[1:] if "o" in option else words
    return is_text, words


def _of_text(words: Sequence[Argument]) -> _Script | None:
    """The script that stands in the command, and its parameters, of which the first is `$0`."""
    return _Script(at=words[0], parameters=words[2:]) if words else None


def _of_file(words: Sequence[Argument], file_text: FileText) -> _Script | None:
    """A script of the input, and its parameters."""
    text = file_text(words[0].text) if words and words[0].text.startswith("/") else None
    if text is None:
        return None
    at = Argument(text=text, path=words[0].path, line=words[0].line)
    return _Script(at=at, parameters=words[1:], is_file=True)

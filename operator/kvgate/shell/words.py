"""Shell scripts in manifests → commands, every word with the place it stands at: enough of a shell to find what is started.

Substitution of commands is not run and no branch is chosen: what cannot be known stays as it is written.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

from kvgate.documents.written import Written
from kvgate.shell.arithmetic import calculated
from kvgate.shell.branches import RESERVED, Names
from kvgate.shell.environment import Room
from kvgate.vllm.arguments import Argument

MAX_WORD_CHARACTERS = 128 << 10
"""Linux starts no program with a longer one."""
Variables = Mapping[str, Written]
"""Variables by name; the value is None where something outside the input sets it."""

_TOKEN = re.compile(
    r"""
    (?P<blank>(?:[ \t\r]|\\\n)+)
  | (?P<newline>\n)
  | (?P<redirect>\d*(?:>>?|<<?-?)(?!\()(?:&\d|&-)?|&>>?)
  | (?P<operator>&&|\|\||;;|[;&|()])
  | '(?P<single>[^']*)'
  | "(?P<double>(?:[^"\\]|\\.)*)"
  | (?P<substituted>[$<>]\((?:[^()]|\((?:[^()]|\([^()]{0,200}\)){0,200}\)){0,500}\)|`[^`]{0,500}`)
  | (?P<variable>\$\{[^}]{0,500}\}|\$\w+|\$[@*\#?])
  | \\(?P<escaped>.)
  | (?P<plain>[^\s'"\\$;&|()<>`]+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_NAMED = re.compile(r"\$(?P<name>[A-Za-z_]\w*)")
_BRACED = re.compile(rf"\$\{{(?P<braced>[A-Za-z_]\w*)(?::?[-=](?P<default>[^}}]*))?\}}|{_NAMED.pattern}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_WHOLE_LIST = re.compile(r"\$(?:[@*]|\{[@*]\}|\{(\w+)\[[@*]\]\})")
"""Every word of the parameters, or of an array."""
_OPENS_LIST = re.compile(r"([A-Za-z_]\w*)(\+?)=")
"""Text before the `(` of `NAME=(…)` and `NAME+=(…)`."""
_DECLARATIONS = ("export", "declare", "local", "readonly", "env")


@dataclass(slots=True)
class _Reader:
    """A word and a command in the making."""

    path: str
    names: Names
    first_line: int
    line: int = 0
    word: str | None = None
    word_line: int = 0
    word_path: str = ""
    is_target: bool = False
    """The next word is a file that output goes to."""
    open_list: str = ""
    """The array whose words are being read."""
    room: Room = field(default_factory=Room)
    command: list[Argument] = field(default_factory=list)
    num_reserved: int = 0
    """Words of the command that are reserved; all of them, where no other stands before."""

    def append(self, text: str, path: str = "") -> None:
        """Part of the current word; a part from a variable keeps its own place while it stands alone."""
        if self.word is None:
            self.word, self.word_line, self.word_path = "", self.line, path or self.path
        elif path != self.word_path:
            self.word_path = self.path
        if len(self.word) < MAX_WORD_CHARACTERS:
            self.word += text

    def takes_list(self, words: Sequence[Argument]) -> bool:
        """Return whether there is room for the words; after the first list without room none is measured again."""
        if len(words) - 1 > self.room.left:
            return False
        fits = self.room.takes(" ".join(word.text for word in words))
        self.room.left *= fits
        return fits

    def end_word(self) -> None:
        if self.word is not None and not self.is_target:
            inside = self.word_path == self.path
            line = self.first_line + self.word_line if inside else 0
            is_reserved = self.word in RESERVED
            self.command.append(Argument(text=self.word, path=self.word_path, line=line))
            if is_reserved and inside and self.num_reserved == len(self.command) - 1:
                self.names.read(self.word)
            self.num_reserved += is_reserved
        self.is_target = self.is_target and self.word is None
        self.word = None

    def end_command(self) -> list[Argument]:
        self.end_word()
        command, self.command, self.is_target = self.command, [], False
        self.num_reserved = 0
        return command


def commands_of(
    text: str, path: str, variables: Variables, parameters: Sequence[Argument] = (), *, first_line: int = 0
) -> Iterator[list[Argument]]:
    """The simple commands of a script; `NAME=value` and `NAME=(a b)` are known to the commands after it."""
    names = Names(path=path, variables=dict(variables), lists={"@": list(parameters)})
    reader = _Reader(path=path, names=names, first_line=first_line)
    end = 0
    while (match := _TOKEN.match(text, end)) is not None:
        end = match.end()
        if reader.word is None and match["plain"] and match[0].startswith("#"):
            end = text.find("\n", match.start())
            end = len(text) if end < 0 else end
            continue
        if match["newline"] or match["operator"]:
            if not _is_of_list(reader, match[0]):
                yield from _ended(reader, match[0])
        else:
            _take(reader, match)
        reader.line += match[0].count("\n")
    yield from _ended(reader)


def _ended(reader: _Reader, mark: str = "\n") -> Iterator[list[Argument]]:
    command = reader.end_command()
    if command and not _remembered(reader.names, command):
        yield command
    if mark in ("&&", "||"):
        reader.names.chain(mark, command)
    elif command and mark != "|":
        reader.names.end_chain()
    if mark == ";;":
        reader.names.start_over("esac")


def _is_of_list(reader: _Reader, mark: str) -> bool:
    """`NAME=(`, its `)`, and the line ends between them, which are blanks there."""
    opening = _OPENS_LIST.fullmatch(reader.word or "") if mark == "(" else None
    if opening:
        _open_list(reader, opening[1], keeps=bool(opening[2]))
        return True
    if not reader.open_list:
        return False
    reader.end_word()
    if mark == ")":
        words = [*reader.names.lists[reader.open_list], *reader.end_command()]
        reader.names.set_list(reader.open_list, words)
        reader.open_list = ""
    return True


def _open_list(reader: _Reader, name: str, *, keeps: bool) -> None:
    reader.open_list, reader.word = name, None
    reader.command.clear()
    reader.num_reserved = 0
    reader.names.set_list(name, reader.names.lists.get(name, []) if keeps else [])


def _remembered(names: Names, command: list[Argument]) -> bool:
    """A command that only sets variables, or the parameters."""
    words = [*dropwhile(lambda word: word.text in RESERVED, command)]
    if [word.text for word in words[:2]] == ["set", "--"]:
        names.set_list("@", words[2:])
        return True
    words = words[1:] if words and words[0].text in _DECLARATIONS else words
    matches = [_ASSIGNMENT.fullmatch(word.text) for word in words]
    if not words or not all(matches):
        return False
    for word, match in zip(words, matches, strict=True):
        if match:
            names.set(match[1], _assigned(names.variables.get(match[1]), match, word.path))
    return True


def _assigned(before: Written | None, match: re.Match[str], path: str) -> Written:
    """`NAME+=value` goes on where the name has a value; after one that nobody knows here the whole stays unknown."""
    if not match[2] or before is None:
        return Written(value=match[3], path=path)
    return Written(value=None if before.value is None else f"{before.text}{match[3]}", path=path)


def _take(reader: _Reader, match: re.Match[str]) -> None:
    """One token that is neither a line's end nor an operator."""
    if match["blank"]:
        reader.end_word()
    elif match["redirect"]:
        reader.end_word()
        reader.is_target = "&" not in match["redirect"].lstrip("&")
    elif match["variable"]:
        _expand(reader, match["variable"])
    elif match["double"] and _WHOLE_LIST.fullmatch(match["double"]):
        _expand(reader, match["double"])
    elif match["double"] is not None:
        reader.append(_quoted(match["double"], reader))
    else:
        kinds = ("single", "substituted", "escaped", "plain", "other")
        text = next(match[kind] for kind in kinds if match[kind] is not None)
        reader.append(calculated(text, reader.names.variables) if match["substituted"] else text)


def _expand(reader: _Reader, written: str) -> None:
    """Outside quotes a value may be several words, or none; quotes in it are its own."""
    words_of_list = _list_of(reader, written)
    if words_of_list is not None and reader.takes_list(words_of_list):
        reader.end_word()
        reader.command += words_of_list
        return
    match = _BRACED.fullmatch(written)
    name = _name(match) if match else ""
    text = _value(match, reader.names.variables) if match else None
    if text is None or not reader.room.takes(text):
        reader.append(written)
        return
    known = reader.names.variables.get(name)
    place = known.path if known and reader.word is None else reader.path
    for index, word in enumerate(text.split()):
        if index:
            reader.end_word()
        reader.append(word, place)


def _list_of(reader: _Reader, written: str) -> list[Argument] | None:
    """None where it is no list, or one that nobody knows here."""
    match = _WHOLE_LIST.fullmatch(written)
    return reader.names.lists.get(match[1] or "@") if match else None


def _value(match: re.Match[str], variables: Variables) -> str | None:
    """None where it is not known; a default counts where nothing is set."""
    known = variables.get(_name(match))
    if known is not None and known.value is not None:
        return known.text
    return match.groupdict().get("default") if known is None else None


def _name(match: re.Match[str]) -> str:
    return match.groupdict().get("braced") or match["name"]


def _quoted(text: str, reader: _Reader) -> str:
    """Inside double quotes."""

    def value_of(match: re.Match[str]) -> str:
        value = _value(match, reader.names.variables)
        return match[0] if value is None or not reader.room.takes(value) else value

    text = re.sub(r'\\([$"`\\])', r"\1", text.replace("\\\n", " "))
    text = calculated(text, reader.names.variables)
    # Behind the last "}" no brace is closed, and each that opens there would be looked for to the end of the text.
    end = text.rfind("}") + 1
    return _BRACED.sub(value_of, text[:end]) + _NAMED.sub(value_of, text[end:])


def split(text: str) -> list[str]:
    """Words of a line that no shell reads: quotes are taken off, nothing else means anything."""
    words: list[list[str]] = []
    in_word = False
    for match in _TOKEN.finditer(text):
        if match["blank"] or match["newline"]:
            in_word = False
            continue
        if not in_word:
            words.append([])
        words[-1].append(_literal(match))
        in_word = True
    return ["".join(parts) for parts in words]


def _literal(match: re.Match[str]) -> str:
    if match["double"] is not None:
        return re.sub(r'\\(["\\])', r"\1", match["double"])
    kinds = ("single", "escaped")
    return next((match[kind] for kind in kinds if match[kind] is not None), match[0])

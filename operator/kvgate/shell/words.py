"""Shell scripts in manifests → commands, every word with its place: enough of a shell to find the program that is started.

Commands are not substituted and no branch is chosen: a value that is not known here stays as it is written.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile

from msgspec import Struct, field

from kvgate.documents.written import Written
from kvgate.shell.branches import RESERVED, Names
from kvgate.shell.environment import Room
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument

_EXPRESSION = pattern(r"\$\(\(((?:[^()]|\([^()]{0,200}\)){0,500})\)\)")
_OPERAND = pattern(r"\$?([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)(?::?-([^}]{0,200}))?\}")
_NUMBERS = pattern(r"[\d\s+\-*/%()]{1,200}")
_MAX_DIGITS = 15
"""More than vLLM takes anywhere; a shell's numbers overflow later."""
_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: math.trunc(left / right),
    ast.Mod: lambda left, right: int(math.fmod(left, right)),
}


def calculated(text: str, variables: Mapping[str, Written]) -> str:
    """Replace every `$((…))` with its number; one with a part that is not known stays as it is written."""
    if "$((" not in text:
        return text

    def value_of(name: re.Match[str]) -> str:
        known = variables.get(name[1] or name[2])
        value = known.text if known is not None else name[3]
        return f"({value})" if value else name[0]

    def result_of(match: re.Match[str]) -> str:
        number = _number(_OPERAND.sub(value_of, match[1]))
        return match[0] if number is None else str(number)

    return _EXPRESSION.sub(result_of, text)


def _number(text: str) -> int | None:
    """Calculate an expression of whole numbers, `+ - * / %` and parentheses; None where it is anything else."""
    if not _NUMBERS.fullmatch(text):
        return None
    try:
        number = _of_node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None
    return number if len(str(number)) <= _MAX_DIGITS else None


def _of_node(node: ast.expr) -> int:
    """Calculate a node of Python's syntax tree. Raises ValueError for any other operation."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value < 10**_MAX_DIGITS:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_of_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_of_node(node.left), _of_node(node.right))
    raise ValueError


MAX_WORD_CHARACTERS = 128 << 10
"""Linux starts no program with a longer one."""
Variables = Mapping[str, Written]
"""Variables by name; the value is None where something outside the input sets it."""

_REPLACEMENT = r"(?:[^}$]|\$(?!\{)|\$\{[^{}]{0,200}\})"
"""A part of what stands behind the operator of `${NAME:-…}`; it may hold variables itself."""
_TOKEN = pattern(
    rf"""
    (?P<blank>(?:[ \t\r]|\\\n)+)
  | (?P<newline>\n)
  | (?P<redirect>\d*(?:>>?|<<?-?)(?!\()(?:&\d|&-)?|&>>?)
  | (?P<operator>&&|\|\||;;|[;&|()])
  | '(?P<single>[^']*)'
  | "(?P<double>(?:[^"\\]|\\.)*)"
  | (?P<substituted>[$<>]\((?:[^()]|\((?:[^()]|\([^()]{{0,200}}\)){{0,200}}\)){{0,500}}\)|`[^`]{{0,500}}`)
  | (?P<variable>\$\{{{_REPLACEMENT}{{0,500}}\}}|\$\w+|\$[@*\#?])
  | \\(?P<escaped>.)
  | (?P<plain>[^\s'"\\$;&|()<>`]+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SUBSTITUTED = pattern(r"(?s)\$\([^)]{0,500}\){1,2}|`[^`]{0,500}`")
"""A value that only a command or a calculation tells, which is one word."""
_NAMED = pattern(r"\$(?P<name>[A-Za-z_]\w*|[1-9])")
_BRACED = pattern(
    rf"\$\{{(?P<braced>[A-Za-z_]\w*|[1-9])(?:(?P<operator>:?[-=+?])(?P<operand>{_REPLACEMENT}*))?\}}|{_NAMED.pattern}"
)
_ASSIGNMENT = pattern(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_WHOLE_ARRAY = pattern(r"\$(?:[@*]|\{[@*]\}|\{(\w+)\[[@*]\]\})")
"""A variable that stands for all words of the parameters, or of an array."""
_OPENS_ARRAY = pattern(r"([A-Za-z_]\w*)(\+?)=")
"""Text before the `(` of `NAME=(…)` and `NAME+=(…)`."""


class _CommandReader(Struct):
    path: str
    names: Names
    first_line: int
    line: int = 0
    word: str | None = None
    word_line: int = 0
    word_path: str = ""
    is_target: bool = False
    """True where the next word names a file for the output."""
    open_array: str = ""
    """The array whose words are being read."""
    room: Room = field(default_factory=Room)
    command: list[Argument] = field(default_factory=list)
    num_reserved: int = 0
    """Words of the command that are reserved; all of them, where no other stands before."""

    def append(self, text: str, path: str = "") -> None:
        """Add a part to the current word; a part from a variable keeps its own place while it stands alone."""
        if self.word is None:
            self.word, self.word_line, self.word_path = "", self.line, path or self.path
        elif path != self.word_path:
            self.word_path = self.path
        if len(self.word) < MAX_WORD_CHARACTERS:
            self.word += text

    def takes_array(self, words: Sequence[Argument]) -> bool:
        """Return whether there is room for the words; after the first array without room no other is measured."""
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
    """Yield the simple commands of a script; `NAME=value` and `NAME=(a b)` are known to the commands after them."""
    names = Names(path=path, variables=dict(variables), arrays={"@": list(parameters)})
    yield from commands_in(text, names, first_line=first_line)


def commands_in(text: str, names: Names, *, first_line: int = 0) -> Iterator[list[Argument]]:
    """Yield the simple commands of a script. `names`: what the names hold before it, and at each command that is yielded."""
    reader = _CommandReader(path=names.path, names=names, first_line=first_line)
    end = 0
    while (match := _TOKEN.match(text, end)) is not None:
        end = match.end()
        if reader.word is None and match["plain"] and match[0].startswith("#"):
            end = text.find("\n", match.start())
            end = len(text) if end < 0 else end
            continue
        if match["newline"] or match["operator"]:
            if not _is_of_array(reader, match[0]):
                yield from _ended(reader, match[0])
        else:
            _take(reader, match)
        reader.line += match[0].count("\n")
    yield from _ended(reader)


def _ended(reader: _CommandReader, mark: str = "\n") -> Iterator[list[Argument]]:
    command = reader.end_command()
    reader.names.skip_loop(command)
    if command and not _remembered(reader.names, command):
        yield command
    if mark in ("&&", "||"):
        reader.names.chain(mark, command)
    elif command and mark != "|":
        reader.names.end_chain()
    if mark == ";;":
        reader.names.start_over("esac")


def _is_of_array(reader: _CommandReader, mark: str) -> bool:
    """Read `NAME=(`, its `)`, and the line ends between them, which are blanks there; False for any other mark."""
    opening = _OPENS_ARRAY.fullmatch(reader.word or "") if mark == "(" else None
    if opening:
        name, keeps = opening[1], bool(opening[2])
        reader.open_array, reader.word = name, None
        reader.command.clear()
        reader.num_reserved = 0
        reader.names.set_array(name, reader.names.arrays.get(name, []) if keeps else [])
        return True
    if not reader.open_array:
        return False
    reader.end_word()
    if mark == ")":
        words = [*reader.names.arrays[reader.open_array], *reader.end_command()]
        reader.names.set_array(reader.open_array, words)
        reader.open_array = ""
    return True


def _remembered(names: Names, command: list[Argument]) -> bool:
    """Note what a command sets that only sets variables, or the parameters; False for any other command."""
    words = [*dropwhile(lambda word: word.text in RESERVED, command)]
    if [word.text for word in words[:2]] == ["set", "--"]:
        names.set_array("@", words[2:])
        return True
    words = words[1:] if words and words[0].text in ("export", "declare", "local", "readonly", "env") else words
    matches = [_ASSIGNMENT.fullmatch(word.text) for word in words]
    if not words or not all(matches):
        return False
    for word, match in zip(words, matches, strict=True):
        if match:
            name, is_added, value = match[1], match[2], match[3]
            before = names.variables.get(name)
            if is_added and before is not None:  # `NAME+=value` after a value that is not known stays unknown
                value = None if before.value is None else f"{before.text}{value}"
            names.set(name, Written(value=value, path=word.path))
    return True


def _take(reader: _CommandReader, match: re.Match[str]) -> None:
    """Add one token that is neither a line's end nor an operator."""
    if match["blank"]:
        reader.end_word()
    elif match["redirect"]:
        reader.end_word()
        reader.is_target = "&" not in match["redirect"].lstrip("&")
    elif match["variable"]:
        _expand(reader, match["variable"])
    elif match["double"] and _WHOLE_ARRAY.fullmatch(match["double"]):
        _expand(reader, match["double"])
    elif match["double"] is not None:
        text = re.sub(r'\\([$"`\\])', r"\1", match["double"].replace("\\\n", " "))
        reader.append(_with_variables(calculated(text, reader.names.variables), reader))
    else:
        kinds = ("single", "substituted", "escaped", "plain", "other")
        text = next(match[kind] for kind in kinds if match[kind] is not None)
        reader.append(calculated(text, reader.names.variables) if match["substituted"] else text)


def _expand(reader: _CommandReader, written: str) -> None:
    """Expand a variable outside quotes, where its value may be several words, or none; quotes in the value mean nothing."""
    whole = _WHOLE_ARRAY.fullmatch(written)
    words_of_array = reader.names.arrays.get(whole[1] or "@") if whole else None
    if words_of_array is not None and reader.takes_array(words_of_array):
        reader.end_word()
        reader.command += words_of_array
        return
    if whole and not whole[1] and words_of_array is None:
        written = "${@}"  # nobody knows the parameters
    match = _BRACED.fullmatch(written)
    name = _name(match) if match else ""
    text = _value(match, reader) if match else None
    if text is None or not reader.room.takes(text):
        reader.append(written)
        return
    known = _known(name, reader.names)
    place = known.path if known and reader.word is None else reader.path
    is_whole = _EXPRESSION.fullmatch(text) or _SUBSTITUTED.fullmatch(text)
    for index, word in enumerate([text] if is_whole else text.split()):
        if index:
            reader.end_word()
        reader.append(word, place)


def _value(match: re.Match[str], reader: _CommandReader) -> str | None:
    """Return the value of a variable, or the word behind its operator where that counts; None where the value is not known."""
    known, found = _known(_name(match), reader.names), match.groupdict(default="")
    text, operator = None if known is None else known.text, found.get("operator", "")
    if known is not None and known.value is None:
        return None
    is_empty = text == "" and operator.startswith(":")
    operand = found.get("operand", "")
    if (
        operand[:1] in ("'", '"') and operand[:1] == operand[-1:] and operand.count(operand[:1]) == 2
    ):  # the shell removes them
        operand = operand[1:-1]
    if operator.endswith("+") and text is not None:
        return "" if is_empty else _with_variables(operand, reader)
    if operator.endswith(("-", "=")) and (text is None or is_empty):
        return _with_variables(operand, reader)
    return text


def _known(name: str, names: Names) -> Written | None:
    """Return a variable, or a parameter by its number; None where it is not set, or nobody knows the parameters."""
    if not name.isdecimal():
        return names.variables.get(name)
    given = names.arrays.get("@", [])[int(name) - 1 : int(name)]
    return Written(value=given[0].text, path=given[0].path) if given else None


def _name(match: re.Match[str]) -> str:
    return match.groupdict().get("braced") or match["name"]


def _with_variables(text: str, reader: _CommandReader) -> str:
    def value_of(match: re.Match[str]) -> str:
        value = _value(match, reader)
        return match[0] if value is None or not reader.room.takes(value) else value

    # Behind the last "}" no brace is closed, and each that opens there would be looked for to the end of the text.
    end = text.rfind("}") + 1
    return _BRACED.sub(value_of, text[:end]) + _NAMED.sub(value_of, text[end:])


def split(text: str) -> list[str]:
    """Split a line that no shell reads into words: quotes are removed, and nothing else has a meaning."""
    words: list[list[str]] = []
    in_word = False
    for match in _TOKEN.finditer(text):
        if match["blank"] or match["newline"]:
            in_word = False
            continue
        if not in_word:
            words.append([])
        if match["double"] is not None:
            words[-1].append(re.sub(r'\\(["\\])', r"\1", match["double"]))
        else:
            words[-1].append(next((match[kind] for kind in ("single", "escaped") if match[kind] is not None), match[0]))
        in_word = True
    return ["".join(parts) for parts in words]


_COMPOSE_TOKEN = pattern(
    r"""
    (?P<blank>[ \t\r\n]+)
  | \\(?P<escaped>.)
  | '(?P<single>[^']*)'
  | "(?P<double>(?:[^"\\]|\\.)*)"
  | (?P<whole>`[^`]*`|\$\([^()]*\)|\$\{[^}]*\}?)
  | (?P<end>[;&|<>])
  | (?P<plain>[^ \t\r\n\\'"`();&|<>$]+|\$)
  | (?P<unclosed>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = pattern(r"\\(.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t"}


def compose_words(text: str) -> list[str] | None:
    """Split a command as docker-compose does without a shell; None where it refuses the text: a quote or a bracket is not closed.

    Quotes and backslashes are removed; blanks and line ends part words; `;`, `&`, `|`, `<` and `>` end the command, and what follows is
    lost. Variables, backticks, `#` and wildcards mean nothing. A backslash takes the next character as it is, also a line's end, which
    becomes a word of its own. Source: github.com/mattn/go-shellwords 1.0.12, as compose-go calls it.
    """
    words: list[str] = []
    word: str | None = None
    for match in _COMPOSE_TOKEN.finditer(text):
        if match["unclosed"]:
            return None
        if match["end"]:
            if match["end"] == ">" and word and word[0].isdigit():  # the number of a file
                word = None
            break
        if match["blank"]:
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + _part(match)
    return words if word is None else [*words, word]


def _part(match: re.Match[str]) -> str:
    """Return the text of one token without its quotes and backslashes."""
    if match["double"] is not None:
        return _ESCAPE.sub(lambda escape: _LETTERS.get(escape[1], escape[1]), match["double"])
    if match["escaped"] is not None:
        return _LETTERS.get(match["escaped"], match["escaped"])
    return next(match[kind] for kind in ("single", "whole", "plain") if match[kind] is not None)

"""Options of `vllm serve` in one release: what its parser's definition registers, in the words of `options.json`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_release.hints import NONE, Hint, alternatives, contains, is_configuration, last_name
from vllm_release.reading import Reading
from vllm_release.source import Module, NotRead, Ref, Source
from vllm_release.values import Bound, EnumMember, Kind, Made, Unread, lineage

ENTRY, COMMAND, METHOD = "vllm/entrypoints/cli/serve.py", "ServeSubcommand", "subparser_init"
"""The method that makes the parser of `vllm serve`; its argument is the parser of `vllm`."""
KEYWORDS = "vllm/engine/arg_utils.py"
"""The file of the function that makes arguments of configuration fields."""
_DEPRECATED = re.compile(
    r"^\W*deprecated\b|^\s*deprecated:|\b(is|are|been) deprecated\b|[\[(]deprecated\b", re.IGNORECASE | re.MULTILINE
)
_SWITCHES = {"argparse.BooleanOptionalAction": True, "store_true": False, "store_false": False}
"""Actions without a value, and whether `--no-…` comes with them."""


@dataclass(frozen=True, kw_only=True)
class OptionFacts:
    """One option in one release; `unread` names what the syntax tree does not show."""

    flag: str
    dest: str
    type: str
    default: Any = None
    choices: tuple[Any, ...] | None = None
    aliases: tuple[str, ...] = ()
    is_negatable: bool = False
    is_deprecated: bool = False
    unread: tuple[str, ...] = ()


def read_options(source: Source) -> dict[str, OptionFacts]:
    """All options by their long names. Raises NotRead where the parser is made in a way that is not known here."""
    command = source.file(ENTRY).find(COMMAND)
    recorded = _Parser()
    reading = _reading()
    method = reading.class_attribute(command, METHOD) if command else None
    if not isinstance(method, Bound):
        raise NotRead(f"{ENTRY} of vLLM {source.version} has no {COMMAND}.{METHOD}; find where its options come from")
    reading.call(method, [recorded], {})
    options = [_facts(flags, keywords) for flags, keywords in recorded.arguments if flags[0].startswith("-")]
    return {option.flag: option for option in sorted(options, key=lambda each: each.flag)}


class _Parser:
    """Stands for the parser and for its groups: keeps what is registered."""

    def __init__(self) -> None:
        self.arguments: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def add_argument(self, *flags: str, **keywords: Any) -> None:
        self.arguments.append((flags, dict(keywords)))

    def add_argument_group(self, *_: Any, **__: Any) -> _Parser:
        return self

    add_parser = add_argument_group


def _reading() -> Reading:
    """A reading that knows what parsers are made of: vLLM's helpers, and the few functions of Python that they call."""
    reading = Reading({})
    reading.natives = {
        "get_kwargs": lambda ref: _keywords(ref, reading),
        "optional_type": lambda value: Kind(f"{_kind(value).removesuffix('?')}?"),
        "parse_type": lambda value: Kind(_kind(value)),
        "load_general_plugins": lambda: None,
        "str": Kind("str"),
        "int": Kind("int"),
        "float": Kind("float"),
        "json.loads": Kind("json"),
        "list": _made(list),
        "dict": _made(dict),
        "set": _made(list),  # as it is written in the table
        "tuple": _made(tuple),
        "sorted": _made(sorted),
        "get_args": _made(tuple),
        "ssl.CERT_NONE": 0,
        "argparse.SUPPRESS": None,
        "os.environ": {},
        "os.getenv": lambda _, default=None: default,
    }
    return reading


def _made(by: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which makes nothing of what is not read."""
    return lambda *values: next((value for value in values if isinstance(value, Unread)), None) or by(*values)


# Keywords of one argument, from a field of a configuration class: vLLM's `get_kwargs`


def _keywords(ref: Ref, reading: Reading) -> dict[str, dict[str, Any]]:
    maker = _maker(ref.module.source)
    return {
        name: _field_keywords(name, alternatives(node.annotation, module), maker)
        | {"default": reading.default(node.value, module) if node.value else None, "help": _doc_of(node, body)}
        for name, (node, module, body) in _fields(ref).items()
    }


def _fields(ref: Ref) -> dict[str, tuple[ast.AnnAssign, Module, list[ast.stmt]]]:
    """Fields of a dataclass, inherited ones first."""
    found: dict[str, tuple[ast.AnnAssign, Module, list[ast.stmt]]] = {}
    for each in reversed(lineage(ref)):
        body: list[ast.stmt] = each.node.body  # type: ignore[attr-defined]
        for statement in body:
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and not _is_no_field(statement)
            ):
                found[statement.target.id] = (statement, each.module, body)
    return found


def _is_no_field(statement: ast.AnnAssign) -> bool:
    outer = statement.annotation.value if isinstance(statement.annotation, ast.Subscript) else statement.annotation
    return last_name(outer) in ("ClassVar", "InitVar")


def _doc_of(node: ast.AnnAssign, body: list[ast.stmt]) -> str:
    """The text below a field."""
    index = body.index(node) + 1
    following = body[index] if index < len(body) else None
    is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    return str(following.value.value) if is_text else ""  # type: ignore[union-attr]


def _field_keywords(name: str, hints: tuple[Hint, ...], maker: _Maker) -> dict[str, Any]:
    if set(hints) == {Hint("bool"), Hint("str"), NONE}:
        return {"type": Kind("str"), "nargs": "?", "const": True}
    if contains(hints, "bool") and not any(map(is_configuration, hints)):
        return {"action": "argparse.BooleanOptionalAction"}
    found = _value_keywords(name, hints, maker)
    if NONE in hints:
        found["type"] = Kind(f"{found['type'].text}?")
        if found.get("choices"):
            found["choices"].append(maker.null_choice)
    return found


def _value_keywords(name: str, hints: tuple[Hint, ...], maker: _Maker) -> dict[str, Any]:
    configuration = next((hint for hint in hints if is_configuration(hint)), None)
    if configuration is not None and configuration.ref is not None:
        return {"type": Kind(f"json:{configuration.ref.name}")}
    if contains(hints, "literal"):
        return _literal_keywords(hints)
    for kind in ("tuple", "list", "set"):
        collection = next((hint for hint in hints if hint.kind == kind), None)
        if collection:
            return _collection_keywords(collection)
    if contains(hints, "int"):
        return {"type": Kind(maker.sized.get(name, "int"))}
    if contains(hints, "float"):
        return {"type": Kind("float")}
    if contains(hints, "dict"):
        takes_text = contains(hints, "str") or any(not hint.is_builtin for hint in hints)
        return {"type": Kind("json|str" if takes_text else "json")}
    return {"type": Kind("str")}


def _literal_keywords(hints: tuple[Hint, ...]) -> dict[str, Any]:
    """Beside plain text a literal only shows what is usual."""
    values = next(hint.values for hint in hints if hint.kind == "literal")
    found: dict[str, Any] = {"type": Kind(type(values[0]).__name__)}
    return found if contains(hints, "str") else found | {"choices": sorted(values)}


def _collection_keywords(hint: Hint) -> dict[str, Any]:
    elements = hint.values
    if elements and elements[0].kind == "literal" and len(elements) == 1:
        return _literal_keywords(elements) | {"nargs": "+"}
    kind = elements[0].kind if len(elements) == 1 else "str"
    return {"type": Kind(kind if kind in ("int", "float", "bool") else "str"), "nargs": "+"}


@dataclass(frozen=True)
class _Maker:
    """Special cases by name in vLLM's function that makes arguments of fields; a release may change them."""

    sized: Mapping[str, str]
    """Fields that take 1k and 1K."""
    null_choice: Any
    """How the choice of no value is written."""


def _maker(source: Source) -> _Maker:
    node = source.definition(KEYWORDS, "_compute_kwargs") or source.definition(KEYWORDS, "get_kwargs")
    if node is None:
        raise NotRead(f"{KEYWORDS} of vLLM {source.version} has no get_kwargs; find how options are made of fields")
    sized: dict[str, str] = {}
    null_choice = None
    for each in ast.walk(node):
        if isinstance(each, ast.If):
            assigned = {last_name(s.value) for s in each.body if isinstance(s, ast.Assign)}
            kind = _SIZED.get(next(iter(assigned & _SIZED.keys()), ""))
            sized |= dict.fromkeys(_words(each.test, node), kind) if kind else {}
        elif isinstance(each, ast.Call) and last_name(each.func) == "append" and "choices" in ast.unparse(each.func):
            null_choice = ast.literal_eval(each.args[0])
    return _Maker(sized, null_choice)


_SIZED = {"human_readable_int": "int(1k,1K)", "human_readable_int_or_auto": "int(1k,1K)|auto"}


def _words(test: ast.expr, function: ast.AST) -> Iterator[str]:
    """Names in a test: `name == "max_model_len"`, `name in names` with a set of them above."""
    for each in ast.walk(test):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
        elif isinstance(each, ast.Name):
            sets = (
                s.value for s in ast.walk(function) if isinstance(s, ast.Assign) and last_name(s.targets[0]) == each.id
            )
            yield from (e.value for s in sets if isinstance(s, ast.Set) for e in s.elts if isinstance(e, ast.Constant))


# One argument as the table has it


def _facts(flags: tuple[str, ...], keywords: Mapping[str, Any]) -> OptionFacts:
    flag = next((each for each in flags if each.startswith("--")), flags[0])
    read = {name: _plain(keywords.get(name)) for name in ("default", "choices")}
    action = keywords.get("action")
    action = action.text if isinstance(action, Unread) else action
    choices = read["choices"]
    is_switch = action in _SWITCHES
    default = read["default"]
    if is_switch and "default" not in keywords and action != "argparse.BooleanOptionalAction":
        default = action == "store_false"
    return OptionFacts(
        flag=flag,
        dest=str(keywords.get("dest") or flag[2:].replace("-", "_")),
        type="bool" if is_switch else _written_type(keywords, action),
        default=None if isinstance(default, Unread) else default,
        choices=None if choices is None or isinstance(choices, Unread) else tuple(choices),
        aliases=tuple(each for each in flags if each != flag),
        is_negatable=_SWITCHES.get(str(action), False),
        is_deprecated=bool(keywords.get("deprecated")) or _says_deprecated(keywords.get("help")),
        unread=tuple(name for name, value in read.items() if isinstance(value, Unread)),
    )


def _says_deprecated(text: Any) -> bool:
    """The option itself, not what it is about (`Whether to allow deprecated …`)."""
    return isinstance(text, str) and _DEPRECATED.search(text) is not None


def _written_type(keywords: Mapping[str, Any], action: Any) -> str:
    kind, nargs = _kind(keywords.get("type")), keywords.get("nargs")
    if nargs == "?" and "const" in keywords:
        return f"{kind}|bare"
    if nargs in ("+", "*") or isinstance(nargs, int) or action == "append":
        is_nullable = kind.endswith("?")
        return f"list[{kind.removesuffix('?')}]{'?' if is_nullable else ''}"
    return kind


_FUNCTIONS = {"union_dict_and_str": "json|str", **_SIZED}


def _kind(value: Any) -> str:
    """The type of an argument from its `type=`."""
    if isinstance(value, Kind):
        return value.text
    if isinstance(value, Ref) and isinstance(value.node, ast.Lambda):
        written = ast.unparse(value.node.body)
        return "str(a-B)" if ".lower()" in written and ".replace('-', '_')" in written else "str"
    return _FUNCTIONS.get(value.name, "str") if isinstance(value, Ref) else "str"


def _plain(value: Any) -> Any:
    """As JSON has it: an object of a configuration class with its own defaults is {}."""
    if isinstance(value, Made):
        is_plain = "dict" in map(last_name, value.ref.node.bases) or is_configuration(Hint("class", ref=value.ref))  # type: ignore[attr-defined]
        return {} if is_plain else Unread(value.ref.name)
    if isinstance(value, EnumMember):
        return _plain(value.value)
    if isinstance(value, list | tuple):
        values = [_plain(each) for each in value]
        return next((each for each in values if isinstance(each, Unread)), values)
    if isinstance(value, dict):
        return json.loads(json.dumps(value)) if all(isinstance(each, str) for each in value) else Unread("a mapping")
    return (
        value if value is None or isinstance(value, bool | int | float | str | Unread) else Unread(type(value).__name__)
    )

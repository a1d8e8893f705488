"""Words of a command line, and the options that are read from them; each with the place that it is written at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from kvgate.text.patterns import pattern

OPEN = pattern(
    r"\$\([^()]{0,500}(?:\([^()]{0,200}\)[^()]{0,200}){0,5}\)|\$\{(?:[^{}]|\{[^{}]{0,200}\}){0,200}\}|\$\w+"
    r"|\{\{[^{}]{0,500}\}\}|`[^`]{0,500}`"
)
"""`$(NAME)`, `$NAME`, `${NAME}`, `$(command)`, and a template's `{{ .Field }}`."""

_VARIABLE = pattern(
    r"\$\((?P<called>[A-Za-z_]\w*)\)"
    r"|\$\{(?P<braced>[A-Za-z_][\w.]*|\d|@)(?:\[[@*]\])?(?:(?P<operator>:?[?=+-])(?P<operand>(?:[^{}]|\$\{[^{}]{0,200}\}){0,200}))?\}"
    r"|\$(?P<plain>\w+|@)|\{\{-?\s*\.?(?P<field>[A-Za-z_][\w.]*)\s*-?\}\}|`(?P<unseen>[^`]{1,200})`"
)
"""Those of them that have a name, as the unseen program whose options stand for themselves: `/run.sh`; commands in `$()` have none."""
_NAMES = ("called", "braced", "plain", "field", "unseen")
_PLACEHOLDER = pattern(
    r"<[A-Za-z][^<>|]{0,80}>|x{3,20}|X{3,20}"
    r"|(?i:your[-_ ][A-Za-z0-9_\-]{1,60}|(?:replace|change|insert)[-_ ]?(?:me|with|here|this)(?:[-_ ][A-Za-z0-9_\-]{0,60})?)"
    r"|(?i:todo|fixme|placeholder)|(?:INSERT|REPLACE|CHANGE|ENTER)_[A-Z0-9_]{1,60}"
)
"""A word that its reader is to replace: `<model-path>`, `REPLACE_ME`, `YOUR_MODEL`."""
_IN_BRACKETS = pattern(r"<[A-Za-z][^<>|]{0,80}>")


class Argument(Struct, frozen=True, kw_only=True):
    """One word of a command line, and the path of the field that it stands in."""

    text: str
    path: str
    line: int = 0
    """Lines below the first one, where the field is a text of several."""
    is_field: bool = False
    """A platform makes it of a field of its own: whoever writes the manifest knows the path, and not the option."""


class GivenOption(Struct, frozen=True, kw_only=True):
    """An option with its value as vLLM reads it."""

    name: str
    """vLLM's name: `max_model_len`."""
    value: Any
    text: str
    """The word as it is written."""
    path: str
    line: int = 0
    is_part: bool = False
    """One key of an option that is an object: `--flag.key`."""
    is_field: bool = False
    """It is a field of a platform, as the argument says."""


def is_open(text: str) -> bool:
    """Return whether a text contains a variable or a template's field that nobody has filled in, or is a placeholder."""
    if ("$" in text or "{{" in text) and OPEN.search(text) is not None:
        return True
    return text[:1] in "<YyIiRrCcTtFfPpXx" and is_placeholder(text)


def variable_in(text: str) -> str:
    """Return the name of the first variable or field of a template in a text; empty for a command, and where there is none."""
    found = _VARIABLE.search(text)
    return next((found[name] for name in _NAMES if found[name]), "") if found else ""


def is_variable(text: str) -> bool:
    """Return whether a word is one variable, and nothing else."""
    return _VARIABLE.fullmatch(text) is not None


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of the variables that have one; `${NAME:+…}` is the text behind the operator, or nothing."""

    def value(found: re.Match[str]) -> str:
        known = values.get(variable_in(found[0]))
        is_switch = known is not None and (found["operator"] or "").endswith("+")
        return found[0] if known is None else with_values(found["operand"], values) if known and is_switch else known

    return _VARIABLE.sub(value, text)


def is_placeholder(text: str, *, in_part: bool = False) -> bool:
    """Return whether a reader is to replace the text, or with `in_part` a part of it in angle brackets."""
    return _PLACEHOLDER.fullmatch(text) is not None or (in_part and _IN_BRACKETS.search(text) is not None)


def shown(text: str) -> str:
    """Return as much of a text as a message can hold."""
    return text if len(text) <= 60 else f"{text[:57]}…"


def option_name(setting: str) -> str:
    """Name a setting for a command line: `max_num_seqs` → `--max-num-seqs`. Variables and paths stay as they are."""
    return setting if "." in setting or setting.isupper() else f"--{setting.replace('_', '-')}"

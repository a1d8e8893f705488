"""Values that are set one by one, as by `helm --set`: `servingEngineSpec.modelSpec[0].tag`.

Names and types: helm.sh, "The Format and Limitations of --set".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.documents.written import Written
from kvgate.record import record

_STEP = re.compile(r"(?:^|\.)((?:[^.\[\]\\]|\\.)+)|\[(\d{1,3})\]")
_WHOLE = re.compile(r"-?[1-9]\d{0,17}|0")
_WORDS = {"true": True, "false": False, "null": None}

Step = str | int
MAX_STEPS = 50
"""Steps from the top of the values down; a chart's are five levels deep."""
MAX_INDICES = 999
"""Sum of the indices of a name: each list on the way gets as many items."""


@record
class SetValue:
    """One value, and the way to it through objects and lists."""

    steps: Sequence[Step]
    value: Any


def read_set(name: str, text: str, *, as_text: bool) -> SetValue | None:
    """`as_text`: as --set-string does. None where the name is none that Helm takes."""
    steps: list[Step] = []
    end = 0
    while match := _STEP.match(name, end):
        steps.append(int(match[2]) if match[2] else re.sub(r"\\(.)", r"\1", match[1]))
        end = match.end()
    if sum(step for step in steps if isinstance(step, int)) > MAX_INDICES:
        return None
    if not 0 < len(steps) <= MAX_STEPS or end != len(name) or isinstance(steps[0], int):
        return None
    return SetValue(steps=steps, value=text if as_text else _typed(text))


def _typed(text: str) -> Any:
    """Numbers with a point stay texts; `{a,b}` is a list."""
    if text.startswith("{") and text.endswith("}"):
        return [_typed(item) for item in text[1:-1].split(",") if item]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return int(text) if _WHOLE.fullmatch(text) else text


def with_set(values: Any, given: SetValue) -> Any:
    """The values with this one; what stands in its way is replaced, a list that is too short gets longer."""
    return _with(values, given.steps, given.value)


def path_below(path: str, given: SetValue) -> str:
    """Return the path of a set value below a path."""
    for step in given.steps:
        path = f"{path}[{step}]" if isinstance(step, int) else Written(value=None, path=path).get(step).path
    return path


def _with(values: Any, steps: Sequence[Step], value: Any) -> Any:
    if not steps:
        return value
    step, *rest = steps
    if isinstance(step, int):
        items = list(values) if isinstance(values, list) else []
        items += [None] * (step + 1 - len(items))
        items[step] = _with(items[step], rest, value)
        return items
    fields = values if isinstance(values, Mapping) else {}
    return {**fields, step: _with(fields.get(step), rest, value)}

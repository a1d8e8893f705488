"""The options of `kvgate sweep` as two axes and the point that is marked."""

from collections.abc import Mapping
from typing import Any

from kvgate.budget.plan import plan
from kvgate.budget.request import Guarantee
from kvgate.sweep import Sweep, UnknownFacts, sweep, with_guarantee
from kvgate.sweep_axes import Axis, parse_axis, with_value
from kvgate.vllm_values import Unusable
from kvgate.what_if import read_request

_SHORTEST = 1024
"""Tokens at the start of the default axis."""


def swept(values: Mapping[str, Any]) -> Sweep:
    """Raises Unusable, BadRequest, UnknownFacts."""
    values = dict(values)
    x_text, y_text, at, named = (values.pop(key, None) for key in ("x", "y", "at", "guarantee"))
    y = parse_axis(y_text) if y_text else parse_axis("max_num_seqs=1..256")
    x = parse_axis(x_text) if x_text else _lengths(values, y)
    _check(values, x, y)
    point = None
    if at is not None:
        x, y, point = _with_point(x, y, at)
    guarantee = with_guarantee(values, x, y, Guarantee(named) if named else None)
    return sweep(values, x, y, guarantee=guarantee, at=point)


def _lengths(values: Mapping[str, Any], y: Axis) -> Axis:
    """Up to the model's own longest request, or what is asked for."""
    request, findings = read_request({**values, y.name: str(y.values[0])})
    if request is None:
        raise UnknownFacts(findings)
    longest = request.shape.max_model_len or plan(request).settings.max_model_len
    return parse_axis(f"max_model_len={min(_SHORTEST, longest)}..{longest}")


def _check(values: Mapping[str, Any], x: Axis, y: Axis) -> None:
    if x.name == y.name:
        raise Unusable(f"both axes are {x.name}; give two settings")
    if given := [axis.name for axis in (x, y) if axis.name in values]:
        raise Unusable(f"{given[0]} is an axis; leave out --{given[0].replace('_', '-')}")


def _with_point(x: Axis, y: Axis, at: str) -> tuple[Axis, Axis, tuple[int, int]]:
    first, comma, second = at.partition(",")
    if not comma:
        raise Unusable(f"--at is {at!r}; write two values, one of {x.name} and one of {y.name}: 32768,16")
    x, column = with_value(x, first)
    y, row = with_value(y, second)
    return x, y, (column, row)

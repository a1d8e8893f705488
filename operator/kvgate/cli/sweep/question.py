"""Options of `kvgate sweep` → two axes, the point that is marked, and the judged cells."""

from collections.abc import Callable, Mapping
from typing import Any

from kvgate.budget import plan
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.cli.stated_workload import promise_of
from kvgate.cli.workload_options import taken_workload
from kvgate.judgement.what_if import UnknownFacts, read_request
from kvgate.planning.sweep import Sweep, judge_pairs
from kvgate.planning.sweep_axes import Axis, parse_axis, read_swept_value, with_value
from kvgate.vllm.arguments import option_name
from kvgate.vllm.given_settings import read_settings
from kvgate.vllm.settings import SWEPT
from kvgate.vllm.values import UnusableValue, ValueProblems

_SHORTEST = 1024
"""Tokens at the start of the default axis."""
_SEQUENCES = "max_num_seqs=1..256"
_UNREAD = Axis(name="", values=())
"""An axis that cannot be read, and is reported."""


def swept(
    values: Mapping[str, Any],
    *,
    models: PublishedModels = NO_MODELS,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Sweep:
    """Read the options and judge every cell. Raises UnusableValue with everything that is wrong with the options, and UnknownFacts."""
    values = dict(values)
    x_text, y_text, at, named = (values.pop(key, None) for key in ("x", "y", "at", "guarantee"))
    workload = taken_workload(values)
    promise_of(named, workload, ())  # a workload that is missing is reported before anything else
    problems = ValueProblems(problem.worded(option_name) for problem in read_settings(values)[1].values())
    y = problems.read_or(_UNREAD, parse_axis, y_text or _SEQUENCES)
    # Without --x the values of max_model_len follow when the model is known.
    x = problems.read_or(_UNREAD, parse_axis, x_text) if x_text else Axis(name="max_model_len", values=())
    problems.read_or(None, _check_axes, values, x, y)
    texts = problems.read_or((), _point, at, x, y) if at is not None else ()
    problems.check()
    if not x_text:
        request, findings = read_request({**values, y.name: str(y.values[0])}, models=models)
        if request is None:
            raise UnknownFacts(findings)
        longest = request.shape.max_model_len or plan(request).resolved.max_model_len
        x = parse_axis(f"max_model_len={min(_SHORTEST, longest)}..{longest}")
    point = None
    if texts:
        (x, column), (y, row) = (with_value(axis, text) for axis, text in zip((x, y), texts, strict=True))
        point = column, row
    guarantee = promise_of(named, workload, {*values, x.name, y.name})
    return judge_pairs(values, x, y, guarantee=guarantee, workload=workload, at=point, models=models, progress=progress)


def _check_axes(values: Mapping[str, Any], x: Axis, y: Axis) -> None:
    if x.name == y.name != "":
        raise UnusableValue(f"both axes are {x.name}; give two settings")
    if given := [axis.name for axis in (x, y) if axis.name in values]:
        raise UnusableValue(f"{given[0]} is an axis; leave out --{given[0].replace('_', '-')}")


def _point(at: str, x: Axis, y: Axis) -> tuple[str, ...]:
    """Read --at as two values that the axes can take. Raises UnusableValue."""
    first, comma, second = at.partition(",")
    if not comma:
        raise UnusableValue(f"--at is {at!r}; write two values, the first of --x, the second of --y: 32768,16")
    problems = ValueProblems()
    for axis, text in ((x, first), (y, second)):
        if axis.name:
            problems.read_or(None, read_swept_value, SWEPT[axis.name], text)
    problems.check()
    return first, second

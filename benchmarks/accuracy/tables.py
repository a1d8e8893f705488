"""The tables of docs/accuracy.md."""

from collections.abc import Iterable, Sequence

from accuracy.constants import LeftOut, scale_of
from accuracy.equality import Equality, total
from accuracy.explanations import Explained, Reason
from accuracy.groups import BySource, by_source
from accuracy.markdown import fixed, signed, table
from accuracy.observed import Corrected
from accuracy.planners import Comparison, Pools, best_of, compare
from accuracy.predictions import Prediction, Summary, grouped, summarize
from accuracy.readings import constants
from accuracy.verdicts import VERDICTS, Matrix

HEADINGS = ("Kind of model", "GPU memory", "vLLM", "GPUs of the engine")
NOTHING = "–"
_ERROR_HEAD = ("", "starts", "median GiB", "p90 GiB", "bias GiB", "median %", "p90 %", "inside", "width %")


def unseen_table(unseen: Sequence[Prediction], told: Sequence[Prediction]) -> str:
    """Return one row per class: from what every user knows, and with the circumstances that the logs show."""
    told_by_id = {each.start.id: each for each in told}
    rows = [_unseen_cells("**all**", unseen, told_by_id)]
    for heading in HEADINGS:
        rows.append([f"*{heading}*", *[""] * 10])
        groups = grouped(unseen, heading=heading)
        rows += [_unseen_cells(name, group, told_by_id) for name, group in groups.items()]
    head = (
        "",
        "sources",
        "starts",
        "median %",
        "p90 %",
        "inside %",
        "width %",
        "median %",
        "p90 %",
        "inside %",
        "width %",
    )
    return table(head, rows)


def _unseen_cells(name: str, group: Sequence[Prediction], told: dict[str, Prediction]) -> list[object]:
    found, known = by_source(group), by_source([told[each.start.id] for each in group])
    return [name, found.sources, found.starts, *_source_cells(found), *_source_cells(known)]


def _source_cells(summary: BySource) -> list[str]:
    return [
        fixed(summary.median_percent),
        fixed(summary.p90_percent),
        fixed(100 * summary.inside, 0),
        fixed(summary.width_percent),
    ]


def constants_table(left_out: dict[str, LeftOut]) -> str:
    """Return the constants that follow from logs; one source is named as such."""
    rows = []
    for name, constant in constants().items():
        if constant.is_guess:
            continue
        scale, unit = scale_of(constant)
        ends = (constant.interval.low, constant.interval.expected, constant.interval.high)
        found = left_out.get(name)
        rows.append(
            (
                f"`{name}`",
                unit,
                *(fixed(end / scale) for end in ends),
                len(constant.starts),
                constant.sources if constant.sources > 1 else "**one**",
                f"{fixed(100 * found.inside, 0)} %" if found else NOTHING,
                fixed(found.error / scale) if found else NOTHING,
            )
        )
    head = ("constant", "unit", "low", "expected", "high", "starts", "sources", "left out: inside", "left out: error")
    return table(head, rows)


def guesses_text() -> str:
    """Return a list of the constants that no log shows."""
    return "\n".join(f"- `{name}`: {constant.why}." for name, constant in constants().items() if constant.is_guess)


def _error_cells(name: str, summary: Summary) -> list[object]:
    return [
        name,
        summary.count,
        fixed(summary.median_gib),
        fixed(summary.p90_gib),
        signed(summary.bias_gib) if summary.bias_gib is not None else NOTHING,
        fixed(summary.median_percent),
        fixed(summary.p90_percent),
        f"{summary.inside} of {summary.count}",
        fixed(summary.median_width_percent),
    ]


def verdict_table(matrices: dict[str, Matrix]) -> str:
    rows = []
    for name, matrix in matrices.items():
        rows.append([f"{name}: started", *(matrix.started[verdict] for verdict in VERDICTS), matrix.started.total()])
        rows.append([f"{name}: refused", *(matrix.refused[verdict] for verdict in VERDICTS), matrix.refused.total()])
    return table(("", *(f"`{verdict}`" for verdict in VERDICTS), "all"), rows)


def planner_table(planners: dict[str, Pools], predictions: Sequence[Prediction]) -> str:
    found = [c for name, pools in planners.items() if (c := compare(name, pools, predictions))]
    rows = [
        (c.planner, f"{c.answered} of {c.starts}", fixed(c.theirs_gib), fixed(c.ours_gib), fixed(c.ratio))
        for c in sorted(found, key=lambda c: (-c.ratio, c.planner))
    ]
    return table(("planner", "answers", "its median GiB", "kvgate's, same starts", "ratio"), rows)


def planner_classes(planners: dict[str, Pools], predictions: Sequence[Prediction]) -> str:
    names = list(planners)
    rows = [_class_cells("**all**", planners, predictions)]
    for heading in HEADINGS:
        rows.append([f"*{heading}*", *[""] * (len(names) + 2)])
        rows += [_class_cells(name, planners, group) for name, group in grouped(predictions, heading=heading).items()]
    return table(("", "starts", *(name.split()[0] for name in names), "nearest"), rows)


def _class_cells(label: str, planners: dict[str, Pools], predictions: Sequence[Prediction]) -> list[object]:
    comparisons = [compare(name, pools, predictions) for name, pools in planners.items()]
    best = best_of(comparisons)
    return [label, len(predictions), *(_ratio(c) for c in comparisons), f"**{fixed(best.ratio)}**" if best else NOTHING]


def _ratio(comparison: Comparison | None) -> str:
    return fixed(comparison.ratio) if comparison else NOTHING


def equality_table(arithmetic: Sequence[Equality], weights: Sequence[Equality]) -> str:
    """Return both results side by side, by kind of attention."""
    pairs = [*zip(arithmetic, weights, strict=True), (total(arithmetic), total(weights))]
    rows = [
        (of.name, of.models, of.rows, of.equal, fixed(of.percent, 1), sizes.rows, sizes.equal, sizes.near)
        for of, sizes in pairs
    ]
    head = ("attention", "models", "settings", "equal", "%", "weights of ranks", "equal", "within 0.1 %")
    return table(head, rows)


def observed_table(same: Sequence[Corrected], near: Sequence[Corrected]) -> str:
    """Return two rows for each group: by the formulas alone, and corrected by the other starts."""
    rows = []
    for name, group in (("starts of the setting known", same), ("only near settings known", near)):
        rows.append(_error_cells(f"{name}: formulas alone", summarize([each.alone for each in group])))
        rows.append(_error_cells(f"{name}: corrected", summarize([each.corrected for each in group])))
    return table(_ERROR_HEAD, rows)


def worst_table(worst: Iterable[Explained]) -> str:
    rows = [
        (
            _what(each.prediction),
            _logged(each.prediction),
            _error(each.prediction),
            fixed(each.prediction.error_percent, 1),
            "yes" if each.prediction.is_inside else "**no**",
            each.number,
        )
        for each in worst
    ]
    return table(("start", "logged GiB", "error GiB", "error %", "inside", "reason"), rows)


def reasons_text(reasons: Iterable[Reason]) -> str:
    return "\n".join(f"{number}. {' '.join(reason['why'].split())}" for number, reason in enumerate(reasons, start=1))


def _error(prediction: Prediction) -> str:
    return NOTHING if prediction.expected is None else signed(prediction.error_gib)


def _what(prediction: Prediction) -> str:
    row = prediction.start.row
    source = f"[{row['id']}]({row['source']})" if row["source"].startswith("http") else f"{row['id']} ({row['source']})"
    sizes = f"TP{row['tensor_parallel_size']}"
    version = row["vllm_version"] or "release not stated"
    return f"{row['logged_model'] or row['model']}, {row['gpu'] or 'GPU not stated'}, {sizes}, {version}: {source}"


def _logged(prediction: Prediction) -> str:
    return fixed(prediction.start.available_gib or 0.0)

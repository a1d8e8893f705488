"""The text of docs/accuracy.md: the prose of template.md with the figures filled in."""

from collections import Counter
from collections.abc import Sequence
from string import Template

from accuracy import tables
from accuracy.constants import left_out_errors
from accuracy.equality import arithmetic_equality, total, weights_equality
from accuracy.explanations import HOW_MANY, explained, worst_of
from accuracy.groups import BySource, by_source
from accuracy.markdown import fixed
from accuracy.observed import held_out, without_own_setting
from accuracy.planners import MIN_STARTS, asked_starts, read_planners
from accuracy.predictions import Prediction, grouped, predict_pools, summarize
from accuracy.readings import constants, readings
from accuracy.starts import HERE, Start, read_starts
from accuracy.unseen import left_out
from accuracy.verdicts import computed_verdicts, matrix_of, refusal_verdicts
from parity.tables import VERSION

PATH = HERE.parent.parent / "docs" / "accuracy.md"
THIN = 3
"""The section "What is not known" names the classes that have fewer sources."""

Values = dict[str, object]


def document() -> str:
    """Return the whole page. Raises Unexplained if one of the worst starts has no explanation that holds."""
    starts = read_starts()
    known = readings(starts)
    unseen, told = left_out(starts, known), left_out(starts, known, circumstances=True)
    pools = [each for each in unseen if each.start.is_scored_for("kv")]
    told_pools = [each for each in told if each.start.is_scored_for("kv")]
    seen = predict_pools(starts)
    values: Values = {"version": VERSION}
    values |= _pools(pools, told_pools, seen) | _verdicts(unseen) | _planners(starts) | _equality()
    values |= _observed(starts) | _sample(pools) | _worst(pools)
    values |= {
        "constants_table": tables.constants_table(left_out_errors(known)),
        "guesses": tables.guesses_text(),
        "one_source": sum(each.sources == 1 for each in constants().values()),
        "derived": sum(not each.is_guess for each in constants().values()),
        "guess_count": sum(each.is_guess for each in constants().values()),
    }
    return Template((HERE / "template.md").read_text(encoding="utf-8")).substitute(values)


def _pools(unseen: Sequence[Prediction], told: Sequence[Prediction], seen: Sequence[Prediction]) -> Values:
    summaries = {"unseen": by_source(unseen), "told": by_source(told), "seen": by_source(seen)}
    figures = {f"{name}_{key}": text for name, each in summaries.items() for key, text in _figures(each).items()}
    return {
        **figures,
        "unseen_table": tables.unseen_table(unseen, told),
        "kv_starts": len(unseen),
        "sources": summaries["unseen"].sources,
        "unanswered": sum(each.expected is None for each in unseen),
        "weights_from_log": sum(each.start.row["weights_from"] == "log" for each in unseen),
        "told_starts": sum(bool(each.start.circumstances) for each in told),
    }


def _figures(summary: BySource) -> dict[str, str]:
    return {
        "median": fixed(summary.median_percent),
        "p90": fixed(summary.p90_percent),
        "inside": fixed(100 * summary.inside, 0),
        "width": fixed(summary.width_percent, 1),
    }


def _verdicts(unseen: Sequence[Prediction]) -> Values:
    judged = [each for each in unseen if each.start.is_scored_for("verdict")]
    logged = matrix_of((each.start.started, each.verdict) for each in judged)
    matrices = {"logged": logged, "refusals": refusal_verdicts(), "computed": computed_verdicts()}
    return {
        "verdict_table": tables.verdict_table(matrices),
        "verdict_starts": logged.count,
        "refused_starts": logged.refused.total(),
        "wrong_verdicts": logged.wrong,
        "open_verdicts": logged.open,
    }


def _planners(starts: Sequence[Start]) -> Values:
    asked, planners = asked_starts(), read_planners()
    group = [p for p in predict_pools(starts, weights_given=True) if p.start.id in asked]
    return {
        "planner_table": tables.planner_table(planners, group),
        "planner_classes": tables.planner_classes(planners, group),
        "min_starts": MIN_STARTS,
        "asked_starts": len(group),
        "asked_answered": summarize(group).answered,
    }


def _equality() -> Values:
    arithmetic, weights = arithmetic_equality(), weights_equality()
    settings, ranks = total(arithmetic), total(weights)
    return {
        "equality_table": tables.equality_table(arithmetic, weights),
        "arithmetic_equal": settings.equal,
        "arithmetic_rows": settings.rows,
        "weights_equal": ranks.equal,
        "weights_near": ranks.near,
        "weights_rows": ranks.rows,
    }


def _observed(starts: Sequence[Start]) -> Values:
    """Return the errors of every start, predicted from the others."""
    same = [found for found in held_out(starts) if found.same_setting]
    near = without_own_setting(starts)
    return {
        "observed_table": tables.observed_table(same, near),
        "held_out_starts": len(same),
        "narrower_starts": sum(found.is_narrower for found in same),
    }


def _worst(unseen: Sequence[Prediction]) -> Values:
    worst, reasons = explained(worst_of(unseen))
    return {
        "how_many": HOW_MANY,
        "worst_table": tables.worst_table(worst),
        "reasons": tables.reasons_text(reasons),
        "not_understood": sum(bool(reasons[each.number - 1].get("not_understood")) for each in worst),
    }


def _sample(predictions: Sequence[Prediction]) -> Values:
    """Return which release and source most starts have, and which classes have few sources."""
    release, count = Counter(p.start.row["vllm_version"] for p in predictions).most_common(1)[0]
    _, largest = Counter(p.start.source for p in predictions).most_common(1)[0]
    thin = [
        f"{name} ({found.sources})"
        for heading in tables.HEADINGS
        for name, group in grouped(predictions, heading=heading).items()
        if (found := by_source(group)).sources < THIN
    ]
    return {
        "largest_share": fixed(100 * largest / len(predictions), 0),
        "most_release": release,
        "most_release_starts": count,
        "thin_limit": THIN,
        "thin_classes": ", ".join(thin) or "none",
    }

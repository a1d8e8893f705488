"""The text of docs/accuracy.md: the prose of template.md with the figures filled in."""

from collections import Counter
from collections.abc import Sequence
from string import Template

from accuracy import tables
from accuracy.equality import arithmetic_equality, total, weights_equality
from accuracy.explanations import worst_of
from accuracy.groups import by_family, by_source, spread_of, with_and_without_terms
from accuracy.markdown import fixed
from accuracy.observed import held_out, without_own_setting
from accuracy.planners import MIN_STARTS, asked_starts, read_planners
from accuracy.predictions import Prediction, grouped, predict_pools, summarize
from accuracy.refit import refitted
from accuracy.starts import HERE, Start, read_starts
from accuracy.verdicts import computed_verdicts, logged_verdicts, refusal_verdicts
from parity.tables import VERSION

PATH = HERE.parent.parent / "docs" / "accuracy.md"
THIN = 5
"""The section "What is not known" names the classes that have fewer starts."""

Values = dict[str, object]


def document() -> str:
    """Return the whole page. Raises Unexplained if one of the worst starts has no explanation."""
    starts = read_starts()
    predictions = predict_pools(starts)
    values: Values = {"version": VERSION, "error_table": tables.error_table(predictions)}
    values |= _observed(starts)
    values |= _pools(starts, predictions) | _verdicts(starts) | _planners(starts) | _equality() | _groups(predictions)
    values |= (
        _unseen(predictions, starts) | _sample(predictions) | {"worst_table": tables.worst_table(worst_of(predictions))}
    )
    return Template((HERE / "template.md").read_text(encoding="utf-8")).substitute(values)


def _pools(starts: Sequence[Start], predictions: Sequence[Prediction]) -> Values:
    summary = summarize(predictions)
    return {
        "kv_starts": summary.count,
        "unanswered": summary.count - summary.answered,
        "inside": summary.inside,
        "median_gib": fixed(summary.median_gib),
        "median_percent": fixed(summary.median_percent),
        "p90_percent": fixed(summary.p90_percent),
        "width_percent": fixed(summary.median_width_percent),
        "weights_from_log": sum(s.row["weights_from"] == "log" for s in starts if s.is_scored_for("kv")),
    }


def _verdicts(starts: Sequence[Start]) -> Values:
    logged = logged_verdicts(starts)
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


def _unseen(predictions: Sequence[Prediction], starts: Sequence[Start]) -> Values:
    """Return the errors with constants fitted only on other sources, and only on other model classes."""
    by_other_sources = summarize(refitted(predictions, starts, lambda start: start.source))
    by_other_families = summarize(refitted(predictions, starts, lambda start: start.family))
    return {
        "unseen_source_median": fixed(by_other_sources.median_percent),
        "unseen_source_p90": fixed(by_other_sources.p90_percent),
        "unseen_family_median": fixed(by_other_families.median_percent),
        "unseen_family_p90": fixed(by_other_families.p90_percent),
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


def _groups(predictions: Sequence[Prediction]) -> Values:
    sources, families = by_source(predictions), by_family(predictions)
    source, family = spread_of(sources), spread_of(families)
    largest = max(map(len, sources.values()))
    return {
        "terms_table": tables.terms_table(*with_and_without_terms(predictions)),
        "family_table": tables.family_table(families),
        "sources": source.groups,
        "families": family.groups,
        "largest_share": fixed(100 * largest / len(predictions), 0),
        "source_median": fixed(source.median_of_medians),
        "source_low": fixed(source.lowest),
        "source_high": fixed(source.highest),
        "family_median": fixed(family.median_of_medians),
        "family_low": fixed(family.lowest),
        "family_high": fixed(family.highest),
    }


def _sample(predictions: Sequence[Prediction]) -> Values:
    """Return which release and GPU most starts have, and which classes have few starts."""
    release, count = Counter(p.start.row["vllm_version"] for p in predictions).most_common(1)[0]
    thin = [
        f"{name} ({len(group)})"
        for heading in tables.HEADINGS
        for name, group in grouped(predictions, heading=heading).items()
        if len(group) < THIN
    ]
    return {
        "h100_starts": sum(p.start.row["gpu"] == "NVIDIA H100 80GB HBM3" for p in predictions),
        "most_release": release,
        "most_release_starts": count,
        "thin_limit": THIN,
        "thin_classes": ", ".join(thin),
    }

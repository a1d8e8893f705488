"""The report of `kvgate check` for people; colours only on a terminal."""

from collections import Counter
from collections.abc import Iterator

import click

from kvgate.api import SKIP_BUDGET_ANNOTATION
from kvgate.cli.check_report import Item, Placed, Report
from kvgate.engine import Decision
from kvgate.manifests import Broken
from kvgate.rules.finding import Finding
from kvgate.summary import alternative_text, changes_text, fruitless

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
_DECISIONS = {
    Decision.ADMIT: ("admitted", "green"),
    Decision.ADMIT_WITH_WARNING: ("admitted with a warning", "yellow"),
    Decision.ADMIT_ADJUSTED: ("admitted after adjustment", "yellow"),
    Decision.REFUSE: ("refused", "red"),
}
_STARTS = {
    "Fits": ("starts", "green"),
    "MayNotFit": ("may not start", "yellow"),
    "DoesNotFit": ("does not start", "red"),
    "Unknown": ("not decided", "yellow"),
    None: ("not understood", "cyan"),
}


def render(report: Report) -> str:
    """All items, then what could not be read, then one line that sums up."""
    blocks = ["\n".join(_item_lines(item)) for item in report.items]
    blocks += ["\n".join(_broken_lines(item)) for item in report.unreadable]
    return "\n\n".join([*blocks, _summary(report)])


def _outcome(item: Item) -> tuple[str, str]:
    return _DECISIONS[item.checked.decision] if item.checked else _STARTS[item.verdict]


def _item_lines(item: Item) -> Iterator[str]:
    outcome, colour = _outcome(item)
    verdict = item.verdict or ("not valid" if item.checked else "")
    said = f"{verdict}, {outcome}" if verdict else outcome
    yield f"{item.document.file}:{item.line}: {_named(item)}: {click.style(said, fg=colour, bold=True)}"
    for placed in item.findings:
        yield from _placed_lines(placed)
    if item.assumed:
        yield f"  assumed: {'; '.join(item.assumed)}"
    if item.checked:
        yield from _own_lines(item)


def _named(item: Item) -> str:
    name = item.name or "(no name)"
    if item.checked:
        return f"{item.namespace}/{name}"
    where = f" on {item.accelerator}" if item.accelerator else ""
    return f"{item.platform} {name}{where}" if item.judged else item.kind


def _own_lines(item: Item) -> Iterator[str]:
    """What goes with a decision about one of our own objects."""
    checked = item.checked
    if checked is None:
        return
    assessment = checked.assessment
    if assessment is None:
        if item.document.is_template:
            yield "      it holds {{ }}: if it is a Helm template, render it first: helm template CHART | kvgate check -"
        return
    if searched := fruitless(assessment):
        yield f"  {searched}"
    if assessment.skip_reason:
        yield f"  {SKIP_BUDGET_ANNOTATION}: {assessment.skip_reason}"
    if checked.decision is Decision.ADMIT_ADJUSTED:
        yield f"  adjusted: {changes_text(assessment)}"
    elif assessment.alternatives:
        yield f"  would fit: {', '.join(map(alternative_text, assessment.alternatives))}"


def _placed_lines(placed: Placed) -> Iterator[str]:
    yield from _finding_lines(f"{placed.file}:{placed.line}:{placed.column}", placed.finding, placed.path)


def _finding_lines(where: str, finding: Finding, path: str) -> Iterator[str]:
    severity = click.style(finding.severity.value, fg=_COLOURS[finding.severity.value])
    shown = f" {path}:" if path and finding.field and not finding.message.startswith(finding.field) else ""
    yield f"  {where}: {severity} {finding.rule}{shown} {finding.message}"
    if finding.remediation:
        yield f"      {finding.remediation}"


def _broken_lines(item: Broken) -> Iterator[str]:
    where = f"{item.file}:{item.position.line}:{item.position.column}"
    yield from (line[2:] for line in _finding_lines(where, item.finding, item.finding.field))


def _summary(report: Report) -> str:
    parts = [_counts(report, ours=True), _counts(report, ours=False)]
    parts = [part for part in parts if part] or [f"no vLLM engine in {', '.join(report.paths)}"]
    if report.unreadable:
        parts.append(f"{_counted(len(report.unreadable), 'document')} could not be read")
    if report.num_others:
        verb = "was" if report.num_others == 1 else "were"
        parts.append(f"{_counted(report.num_others, 'document')} of other kinds {verb} not judged")
    return "; ".join(parts)


def _counts(report: Report, *, ours: bool) -> str:
    items = [item for item in report.items if bool(item.checked) is ours]
    outcomes = Counter(_outcome(item)[0] for item in items)
    noun = "InferenceDeployment" if ours else "engine"
    return f"{_counted(len(items), noun)}: " + ", ".join(f"{n} {o}" for o, n in outcomes.items()) if items else ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

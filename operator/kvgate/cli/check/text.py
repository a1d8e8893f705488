"""The report of `kvgate check` for people; colours only on a terminal."""

from collections import Counter
from collections.abc import Iterator, Sequence

from kvgate.api import SKIP_BUDGET_ANNOTATION
from kvgate.cli.check.report import Item, Placed, Report
from kvgate.cli.terminal import Line, Styled, text_of
from kvgate.documents.discovery import Why
from kvgate.judge.assess import Decision
from kvgate.judge.summary import alternative_text, changes_text, fruitless, shortened
from kvgate.text.inert import inert

MAX_SENTENCE = 700
"""Characters: a finding with its remedy stays on one screen of 80 columns."""
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
_OF_SEVERAL = {"starts": "start", "does not start": "do not start"}


def render(report: Report) -> str:
    """All items, then what could not be read, then one line that sums up."""
    return text_of(_lines(report))


def _lines(report: Report) -> Iterator[Line]:
    for item in report.items:
        yield from _item_lines(item)
        yield ""
    for placed in report.unreadable:
        yield from broken_lines(placed)
        yield ""
    yield summary(report)


def outcome(item: Item) -> str:
    """Return the outcome in words: `admitted`, `does not start` …"""
    return _outcome(item)[0]


def _outcome(item: Item) -> tuple[str, str]:
    if item.is_pardoned:
        return "ignored", "yellow"
    return _DECISIONS[item.checked.decision] if item.checked else _STARTS[item.verdict]


def _item_lines(item: Item) -> Iterator[Line]:
    shown, colour = _outcome(item)
    verdict = item.verdict or ("not valid" if item.checked else "")
    said = f"{verdict}, {shown}" if verdict else shown
    yield f"{item.document.file}:{item.line}: {item.subject}: ", Styled(text=said, colour=colour, is_bold=True)
    yield from finding_lines(item.findings)
    yield from _ignored_lines(item)
    if item.assumed:
        yield f"  assumed: {'; '.join(item.assumed)}"
    if item.checked:
        yield from _own_lines(item)


def _own_lines(item: Item) -> Iterator[str]:
    """Return the lines that go with a decision about one of our own objects."""
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


def finding_lines(findings: Sequence[Placed]) -> Iterator[Line]:
    """Places, severities and rules in columns; what to do below each."""
    places = [inert(f"{placed.file}:{placed.line}:{placed.column}:") for placed in findings]
    width, severity_width, rule_width = (
        max(map(len, column), default=0)
        for column in (places, [p.finding.severity for p in findings], [p.rule for p in findings])
    )
    for placed, place in zip(findings, places, strict=True):
        severity = placed.finding.severity.value
        gap = " " * (severity_width - len(severity))
        rest = f"{gap} {placed.rule:<{rule_width}} {_message(placed)}"
        yield f"  {place:<{width}} ", Styled(text=severity, colour=_COLOURS[severity]), rest
        if placed.finding.remediation:
            yield f"      {shortened(inert(placed.finding.remediation), MAX_SENTENCE)}"


def _ignored_lines(item: Item) -> Iterator[str]:
    """Return the ignored findings, by rule and reason."""
    ignored = [(placed.rule, placed.ignored.reason) for placed in item.told if placed.ignored]
    if ignored:
        yield f"  ignored: {', '.join(f'{rule} ({reason})' for rule, reason in dict.fromkeys(ignored))}"


def _message(placed: Placed) -> str:
    """Put the path of the setting before the sentence, where it does not begin with it."""
    finding = placed.finding
    path = f"{placed.path}: " if placed.path and finding.field and not finding.message.startswith(finding.field) else ""
    return path + shortened(inert(finding.message), MAX_SENTENCE)


def broken_lines(placed: Placed) -> Iterator[Line]:
    """A finding that is not about an engine, at the margin."""
    for line in finding_lines([placed]):
        yield line[2:] if isinstance(line, str) else (str(line[0])[2:], *line[1:])


def summary(report: Report) -> str:
    """Count the outcomes on one line."""
    parts = [_counts(report, ours=True), _counts(report, ours=False)]
    parts = [part for part in parts if part] or [f"no vLLM engine in {', '.join(report.paths)}"]
    if report.unreadable:
        parts.append(f"{_counted(len(report.unreadable), 'document')} could not be read")
    if report.num_others:
        verb = "was" if report.num_others == 1 else "were"
        parts.append(f"{_counted(report.num_others, 'document')} of other kinds {verb} not judged")
    if report.num_ignored:
        parts.append(f"{_counted(report.num_ignored, 'finding')} ignored")
    if report.num_unneeded:
        parts.append(f"{report.num_unneeded} of the baseline no longer needed")
    return "; ".join([*parts, *passed_over(report)])


def passed_over(report: Report) -> Iterator[str]:
    """Return the line about files that were not read; nothing where all were."""
    told = [f"{count} {why.partition('|')[0 if count == 1 else 2]}" for why, count in report.passed_over.items()]
    if told:
        help_ = (
            " (render the chart: helm template CHART | kvgate check -)"
            if Why.CHART_TEMPLATE in report.passed_over
            else ""
        )
        yield f"skipped: {', '.join(told)}{help_}"


def _counts(report: Report, *, ours: bool) -> str:
    items = [item for item in report.items if bool(item.checked) is ours]
    outcomes = Counter(_outcome(item)[0] for item in items)
    noun = "InferenceDeployment" if ours else "engine"
    told = (f"{n} {_OF_SEVERAL.get(said, said) if n > 1 else said}" for said, n in outcomes.items())
    return f"{_counted(len(items), noun)}: {', '.join(told)}" if items else ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

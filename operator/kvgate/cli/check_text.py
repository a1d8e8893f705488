"""The report of `kvgate check` for people; colours only on a terminal."""

from collections import Counter
from collections.abc import Iterator, Sequence

import click

from kvgate.api import SKIP_BUDGET_ANNOTATION
from kvgate.api.fields import field_path
from kvgate.cli.check import Checked
from kvgate.engine import Decision
from kvgate.manifests import Broken, Manifests
from kvgate.rules.finding import Finding
from kvgate.summary import alternative_text, changes_text, fruitless

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
_OUTCOMES = {
    Decision.ADMIT: ("admitted", "green"),
    Decision.ADMIT_WITH_WARNING: ("admitted with a warning", "yellow"),
    Decision.ADMIT_ADJUSTED: ("admitted after adjustment", "yellow"),
    Decision.REFUSE: ("refused", "red"),
}


def report(checked: Sequence[Checked], manifests: Manifests, paths: Sequence[str]) -> str:
    """All objects, then what could not be read, then one line that sums up."""
    blocks = ["\n".join(_object_lines(item)) for item in checked]
    blocks += ["\n".join(_broken_lines(item)) for item in manifests.broken]
    return "\n\n".join([*blocks, _summary(checked, manifests, paths)])


def _object_lines(item: Checked) -> Iterator[str]:
    subject, document = item.subject, item.subject.document
    outcome, colour = _OUTCOMES[item.decision]
    name = f"{subject.namespace}/{subject.name or '(no name)'}"
    verdict = item.verdict or "not valid"
    yield f"{document.file}:{document.position.line}: {name}: {click.style(f'{verdict}, {outcome}', fg=colour, bold=True)}"
    for finding in item.findings:
        position = document.position_of(field_path(finding.field))
        yield from _finding_lines(f"{document.file}:{position.line}:{position.column}", finding)
    if item.assessment and (searched := fruitless(item.assessment)):
        yield f"  {searched}"
    if item.assessment and item.assessment.skip_reason:
        yield f"  {SKIP_BUDGET_ANNOTATION}: {item.assessment.skip_reason}"
    if document.is_template and item.assessment is None:
        yield "      it holds {{ }}: if it is a Helm template, render it first: helm template CHART | kvgate check -"
    if item.decision is Decision.ADMIT_ADJUSTED:
        yield f"  adjusted: {changes_text(item.assessment)}" if item.assessment else ""
    elif item.assessment and item.assessment.alternatives:
        yield f"  would fit: {', '.join(map(alternative_text, item.assessment.alternatives))}"


def _finding_lines(where: str, finding: Finding) -> Iterator[str]:
    severity = click.style(finding.severity.value, fg=_COLOURS[finding.severity.value])
    path = f" {field_path(finding.field)}:" if finding.field and not finding.message.startswith(finding.field) else ""
    yield f"  {where}: {severity} {finding.rule}{path} {finding.message}"
    if finding.remediation:
        yield f"      {finding.remediation}"


def _broken_lines(item: Broken) -> Iterator[str]:
    yield from (
        line[2:] for line in _finding_lines(f"{item.file}:{item.position.line}:{item.position.column}", item.finding)
    )


def _summary(checked: Sequence[Checked], manifests: Manifests, paths: Sequence[str]) -> str:
    outcomes = Counter(_OUTCOMES[item.decision][0] for item in checked)
    parts = [f"{_counted(len(checked), 'InferenceDeployment')}: " + ", ".join(f"{n} {o}" for o, n in outcomes.items())]
    if not checked:
        parts = [f"no InferenceDeployment in {', '.join(paths)}"]
    if manifests.broken:
        parts.append(f"{_counted(len(manifests.broken), 'document')} could not be read")
    if manifests.num_others:
        verb = "was" if manifests.num_others == 1 else "were"
        parts.append(f"{_counted(manifests.num_others, 'document')} of other kinds {verb} not judged")
    return "; ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

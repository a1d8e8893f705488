"""The report of `kvgate check` as JUnit XML: one test case per engine, one suite per file."""

import xml.etree.ElementTree as ET
from collections.abc import Iterable

from kvgate.cli.reports.placed import Placed, shown_file
from kvgate.cli.reports.report import Item, Report
from kvgate.cli.reports.wording import notes, summary, verdict_line
from kvgate.findings.finding import Severity
from kvgate.text.inert import inert_line

DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'


def render(report: Report) -> str:
    """Write refused engines as failures, undecided ones as skipped, unreadable documents as errors."""
    cases = [_engine_case(item) for item in report.items]
    for placed in report.unreadable:
        case = _new_case(placed.file, placed.line, f"line {placed.line}")
        error = ET.SubElement(case, "error", message=inert_line(placed.finding.message), type=placed.rule)
        error.text = _text([placed])
        cases.append(case)
    by_file: dict[str, list[ET.Element]] = {}
    for case in cases:
        by_file.setdefault(case.get("file", ""), []).append(case)
    about = [inert_line(summary(report)), *(inert_line(f"{note.title}: {note.text}") for note in notes(report))]
    root = ET.Element("testsuites", {"name": "kvgate check", **_counts(cases)})
    for file, own in by_file.items():
        ET.SubElement(root, "testsuite", {"name": file, **_counts(own)}).extend(own)
    sentence = ET.SubElement(root, "testsuite", {"name": "what the verdicts rest on", **_counts([])})
    ET.SubElement(sentence, "system-out").text = "\n".join(about)
    ET.indent(root)
    return f"{DECLARATION}\n{ET.tostring(root, encoding='unicode')}"


def _counts(cases: list[ET.Element]) -> dict[str, str]:
    elements = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: sum(case.find(tag) is not None for case in cases) for name, tag in elements.items()}
    return {"tests": str(len(cases)), **{name: str(count) for name, count in counts.items()}}


def _new_case(file: str, line: int, name: str) -> ET.Element:
    shown = inert_line(shown_file(file))
    return ET.Element("testcase", name=inert_line(name), classname=shown, file=shown, line=str(line), time="0")


def _engine_case(item: Item) -> ET.Element:
    case = _new_case(item.file, item.line, f"{item.title} {item.path}".rstrip())
    findings = item.findings
    if item.is_refused or not item.is_decided:
        worst = min(findings, key=lambda placed: list(Severity).index(placed.finding.severity), default=None)
        details = {"type": worst.rule} if worst and item.is_refused else {}
        message = worst.finding.message if worst else item.verdict or "nothing to judge"
        outcome = "failure" if item.is_refused else "skipped"
        ET.SubElement(case, outcome, {"message": inert_line(message), **details}).text = _text(findings)
    else:
        sentence = inert_line(": ".join(filter(None, verdict_line(item))))
        ET.SubElement(case, "system-out").text = "\n".join(filter(None, (sentence, _text(findings))))
    return case


def _text(findings: Iterable[Placed]) -> str:
    lines = []
    for placed in findings:
        place, finding = f"{placed.file}:{placed.line}:{placed.column}", placed.finding
        lines.append(inert_line(f"{place}: {finding.severity.value} {finding.rule}: {finding.message}"))
        if finding.remediation:
            lines.append(inert_line(f"  {finding.remediation}"))
    return "\n".join(lines)

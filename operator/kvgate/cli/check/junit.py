"""The report of `kvgate check` as JUnit XML: one test case per engine, one suite per file."""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator

from kvgate.cli.check.report import Item, Placed, Report
from kvgate.cli.check.results import shown_file
from kvgate.rules.finding import Severity
from kvgate.text.inert import inert_line

DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'


def render(report: Report) -> str:
    """Refused engines are failures, undecided ones are skipped, unreadable documents are errors."""
    cases = [*map(_case, report.items), *map(_unreadable, report.unreadable)]
    by_file: dict[str, list[ET.Element]] = {}
    for case in cases:
        by_file.setdefault(case.get("file", ""), []).append(case)
    root = ET.Element("testsuites", {"name": "kvgate check", **_counts(cases)})
    for file, own in by_file.items():
        ET.SubElement(root, "testsuite", {"name": file, **_counts(own)}).extend(own)
    ET.indent(root)
    return f"{DECLARATION}\n{ET.tostring(root, encoding='unicode')}"


def _counts(cases: list[ET.Element]) -> dict[str, str]:
    def count(name: str) -> str:
        return str(sum(case.find(name) is not None for case in cases))

    return {
        "tests": str(len(cases)),
        "failures": count("failure"),
        "errors": count("error"),
        "skipped": count("skipped"),
    }


def _new_case(file: str, line: int, name: str) -> ET.Element:
    shown = inert_line(shown_file(file))
    return ET.Element("testcase", name=inert_line(name), classname=shown, file=shown, line=str(line), time="0")


def _case(item: Item) -> ET.Element:
    case = _new_case(item.document.file, item.line, f"{item.subject} {item.path}".rstrip())
    outcome = "failure" if item.is_refused else "" if item.is_decided else "skipped"
    told = item.findings
    if outcome:
        first = min(told, key=lambda placed: list(Severity).index(placed.finding.severity), default=None)
        details = {"type": first.rule} if first and item.is_refused else {}
        message = first.finding.message if first else item.verdict or "nothing to judge"
        element = ET.SubElement(case, outcome, {"message": inert_line(message), **details})
        element.text = _text(told)
    elif told:
        ET.SubElement(case, "system-out").text = _text(told)
    return case


def _unreadable(placed: Placed) -> ET.Element:
    case = _new_case(placed.file, placed.line, f"line {placed.line}")
    ET.SubElement(case, "error", message=inert_line(placed.finding.message), type=placed.rule).text = _text([placed])
    return case


def _text(findings: Iterable[Placed]) -> str:
    return "\n".join(line for placed in findings for line in _lines(placed))


def _lines(placed: Placed) -> Iterator[str]:
    finding = placed.finding
    yield inert_line(
        f"{placed.file}:{placed.line}:{placed.column}: {finding.severity.value} {finding.rule}: {finding.message}"
    )
    if finding.remediation:
        yield inert_line(f"  {finding.remediation}")

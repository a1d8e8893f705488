"""The findings of a report one by one, as other programs take them: a level, a sentence, and a mark that they are known by."""

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from kvgate.cli.check.report import Item, Placed, Report
from kvgate.documents.reading import STDIN_NAME
from kvgate.record import record
from kvgate.rules.finding import Severity


@record
class Result:
    """One finding as the outputs for other programs take it: a line, a level, a sentence, and what it is known by."""

    placed: Placed
    item: Item | None
    """None where the document could not be read."""
    fingerprint: str

    @property
    def level(self) -> Severity:
        """Level for other programs; a finding that the policy admits (adjusted, or warned about) is no error."""
        severity = self.placed.finding.severity
        refused = self.item is None or self.item.is_refused
        return Severity.WARNING if severity is Severity.ERROR and not refused else severity

    @property
    def message(self) -> str:
        """Sentence with the engine, the finding and the remedy."""
        finding = self.placed.finding
        subject = f"{self.item.subject}: " if self.item else ""
        return f"{subject}{finding.message}" + (f"; {finding.remediation}" if finding.remediation else "")


def results(report: Report) -> Iterator[Result]:
    """Every finding that counts, in the order of the files; what could not be read comes last."""
    return (result for result in all_results(report) if not result.placed.ignored)


def all_results(report: Report) -> Iterator[Result]:
    """Those that are ignored too: fingerprints count them."""
    marks: Counter[str] = Counter()
    given = [(item, placed) for item in report.items for placed in item.told]
    for item, placed in (*given, *((None, placed) for placed in report.broken)):
        mark = _mark(placed, item)
        marks[mark] += 1
        yield Result(placed=placed, item=item, fingerprint=f"{mark}:{marks[mark]}")


def _mark(placed: Placed, item: Item | None) -> str:
    """Stays when lines move and numbers change: whose finding it is, of which rule, about which setting."""
    owner = (item.kind, item.namespace, item.name, item.path) if item else ()
    parts = (placed.rule, shown_file(placed.file), *owner, placed.finding.field)
    return sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:24]


def shown_file(file: str) -> str:
    """Return the file's name for other programs: below the current folder where it lies there, with slashes."""
    if file == STDIN_NAME:
        return "stdin"
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_posix()

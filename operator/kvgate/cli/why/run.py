"""Texts and files that were given → the report of `kvgate why`, with its exit code and, where somebody wants one, the bundle."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct, to_builtins

from kvgate import __version__
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.exits import BadInput, Exit
from kvgate.cli.why.answer import Answer, Outcome, answer_of
from kvgate.cli.why.bundle import VERSION, Bundle
from kvgate.cli.why.cases import cases_of
from kvgate.cli.why.gathered import Gathered, add_text, gather
from kvgate.cli.why.record import report_record
from kvgate.cli.why.text import in_order, render
from kvgate.documents.bounded_files import write_text
from kvgate.text.inert import inert_json, json_text
from kvgate.vllm.redacting import redacted

_OF_BUNDLE = ("accelerator", "vllm_version")
"""Options that a bundle repeats."""


class Report(Struct, frozen=True, kw_only=True):
    answers: Sequence[Answer]
    notes: Sequence[str]

    @property
    def text(self) -> str:
        return render(self.answers, self.notes)

    @property
    def json(self) -> str:
        return inert_json(to_builtins(report_record(in_order(self.answers), self.notes)), indent=2)

    @property
    def exit_code(self) -> Exit:
        outcomes = {each.outcome for each in self.answers}
        if Outcome.CAUSE_UNKNOWN in outcomes:
            return Exit.FINDINGS
        return (
            Exit.FITS
            if outcomes & {Outcome.CAUSE_FOUND, Outcome.MAY_FAIL, Outcome.NOTHING_WRONG, Outcome.NOT_JUDGED}
            else Exit.UNDECIDED
        )


def run(given: Sequence[str], stdin: BinaryIO, options: Mapping[str, Any], *, bundle: Path | None) -> Report:
    """Read, judge and answer. Raises BadInput, OSError, and ValueError for a word that is no input."""
    found = gather(given, stdin)
    stated = dict(options)
    for each in found.bundles:
        stated |= {key: value for key, value in each.options.items() if stated.get(key) is None}
        for name, text in each.given:
            if text.strip():
                add_text(found, name, text)
    if found.is_empty:
        raise BadInput("; ".join(found.notes) or "nothing in it is a log, a command or a manifest")
    cases, judging, notes = cases_of(found, CheckOptions(**stated))
    answers = [answer_of(case, judging) for case in cases]
    if not answers:
        notes = [*notes, "no vLLM engine, and no line of a vLLM start, is in what was given"]
    report = Report(answers=answers, notes=[*found.notes, *notes])
    if bundle is not None:
        write_text(bundle, bundle_text(found, report, stated) + "\n", inside=None)
    return report


def bundle_text(found: Gathered, report: Report, options: Mapping[str, Any]) -> str:
    """Return the bundle of a run: its texts and its answer, without secrets."""
    # the files of the engines alone: a folder may hold thousands that say nothing about them
    items = (each.case.item for each in report.answers if each.case.item)
    files = dict.fromkeys(
        file for file in (*found.paths, *(item.document.file for item in items)) if Path(file).is_file()
    )
    texts = [*found.read, *((file, Path(file).read_text(encoding="utf-8", errors="replace")) for file in files)]
    made = Bundle(
        kvgateBundle=VERSION,
        kvgate=__version__,
        given=[(name, redacted(text)) for name, text in texts],
        options={key: str(options[key]) for key in _OF_BUNDLE if options.get(key)},
        answer=to_builtins(report_record(in_order(report.answers), report.notes)),
    )
    return json_text(to_builtins(made), indent=2)

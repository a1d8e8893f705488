"""The JSON of `kvgate why` as records: the schema in docs/reference is generated from these."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from kvgate import __version__
from kvgate.budget import Verdict
from kvgate.budget.answers.figures import figures_of
from kvgate.cli import assessment_json
from kvgate.cli.reports.engine_records import SCHEMA_VERSION, LedgerRecord
from kvgate.cli.why.answer import Answer, Happened, Outcome
from kvgate.vllm.redacting import redacted


class FixRecord(Struct, frozen=True, kw_only=True):
    """One change that would help."""

    changes: dict[str, int | str | None]
    """Settings by vLLM's names; null: the option is left out."""
    words: str
    command: str | None
    """The whole command with the change; null where no command was given."""
    patch: list[str] | None
    """The lines of the change as a patch of the file; null where there is none."""
    is_checked: bool
    """True where `kvgate check` says that the engine then starts."""


class WhyRecord(Struct, frozen=True, kw_only=True):
    """The answer about one engine."""

    title: str
    outcome: Outcome
    happened: Happened | None
    """The cause in the words of whatever printed it; null where nothing was printed."""
    why: list[str]
    fixes: list[FixRecord]
    not_known: list[str]
    statement: dict[str, Any]
    """Options and facts by vLLM's names that were judged."""
    verdict: Verdict | None
    ledger: LedgerRecord | None
    other_messages: list[str]
    """Names of other rows whose words the log has."""


class WhyReport(Struct, frozen=True, kw_only=True):
    """The report of `kvgate why`."""

    schemaVersion: str  # noqa: N815 - a key of the report
    kvgate: str
    """Version of kvgate."""
    answers: list[WhyRecord]
    notes: list[str]
    """Sentences about what was left out, or could not be read."""


def report_record(answers: Sequence[Answer], notes: Sequence[str]) -> WhyReport:
    records = list[WhyRecord]()
    for answer in answers:
        case, budget, values = answer.case, answer.case.budget, answer.case.values
        if values is None and case.item and case.item.engine:
            engine = case.item.engine
            named = {"model": engine.model, "gpu": engine.accelerator, "vllm_version": engine.vllm_version}
            values = {**engine.settings, **named}
        fixes = [
            FixRecord(
                changes=dict(fix.changes),
                words=fix.words,
                command=redacted(fix.command) or None,
                patch=redacted(fix.patch).splitlines() or None,
                is_checked=fix.is_checked,
            )
            for fix in answer.fixes
        ]
        record = WhyRecord(
            title=answer.title,
            outcome=answer.outcome,
            happened=answer.happened,
            why=[redacted(each) for each in answer.why],
            fixes=fixes,
            not_known=[redacted(each) for each in answer.not_known],
            statement={key: _plain(key, value) for key, value in (values or {}).items() if value is not None},
            verdict=case.verdict,
            ledger=assessment_json.ledger_record(figures_of(budget), LedgerRecord) if budget else None,
            other_messages=list(case.start.others) if case.start else [],
        )
        records.append(record)
    shown = [redacted(each) for each in notes]
    return WhyReport(schemaVersion=SCHEMA_VERSION, kvgate=__version__, answers=records, notes=shown)


def _plain(key: str, value: Any) -> Any:
    """Return a value as JSON has it, without secrets."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = redacted(f"{key}: {value}")
    changed = text != f"{key}: {value}"
    return text.partition(": ")[2] if changed or not isinstance(value, str | list | dict) else value

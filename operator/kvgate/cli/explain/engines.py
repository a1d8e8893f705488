"""`kvgate explain FILE[#NAME]`: the ledgers of the engines in a manifest, judged as `kvgate check` judges them."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import to_builtins

from kvgate.cli.check.command import report_or_exit
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.exits import Exit
from kvgate.cli.explain.report import added_views, ledger_lines, view_lines
from kvgate.cli.reports.json_report import explain_record
from kvgate.cli.reports.report import Item
from kvgate.cli.reports.text import fact_lines, finding_lines, head_line
from kvgate.cli.terminal import Line, folded, some_of, text_of, width_of_terminal
from kvgate.text.inert import inert_json
from kvgate.vllm.values import UnusableValue

_MAX_NAMES = 20
"""Engines that an error names."""


def explain_engines(
    target: str, options: CheckOptions, output: str, *, why: str | None, lengths: tuple[int, ...] | None
) -> tuple[str, Exit]:
    """Return the answer about the engines that FILE[#NAME] means, and the exit code. Raises UnusableValue."""
    path, _, name = (target, "", "") if Path(target).exists() or "#" not in target else target.rpartition("#")
    report = report_or_exit((path,), options)
    engines = [item for item in report.items if item.verdict is not None]
    meant = [item for item in engines if name in ("", item.name, f"{item.namespace}/{item.name}")]
    if not meant and report.unreadable:
        broken = (placed.finding for placed in report.unreadable)
        raise UnusableValue("; ".join(f"{path} {finding.message}; {finding.remediation}" for finding in broken))
    if not engines:
        raise UnusableValue(f"{path} has no vLLM engine")
    if not meant:
        names = dict.fromkeys(f"{item.namespace}/{item.name}" if item.namespace else item.name for item in engines)
        raise UnusableValue(f"{path} has no engine with the name {name!r}; it has {some_of(names, most=_MAX_NAMES)}")
    if output == "text":
        width = width_of_terminal()
        blocks = (text_of(folded(_lines(item, why=why, lengths=lengths), width)) for item in meant)
        answer = "\n\n\n".join(blocks)
    else:
        budgets = [item.assessment.budget if item.assessment else None for item in meant]
        views = (added_views(budget, why=why, lengths=lengths) for budget in budgets)
        answers = [to_builtins(explain_record(item, **added)) for item, added in zip(meant, views, strict=True)]
        answer = inert_json(answers, indent=2) if output == "json" else "\n".join(map(inert_json, answers))
    if any(item.is_refused for item in meant):
        return answer, Exit.FINDINGS
    is_open = not any(item.is_decided for item in meant) and any(item.is_judged for item in meant)
    return answer, Exit.UNDECIDED if is_open else Exit.FITS


def _lines(item: Item, *, why: str | None, lengths: tuple[int, ...] | None) -> Iterator[Line]:
    """Return the place of an engine, its ledger or the views that are requested, its verdict and what was found."""
    budget = item.assessment.budget if item.assessment else None
    yield head_line(item, f", judged on {item.engine.judged_on}" if item.engine and item.engine.judged_on else "")
    if why is not None or lengths is not None:
        yield from view_lines(budget, why=why, lengths=lengths)
        return
    if budget is not None:
        yield from ledger_lines(budget)
    yield from finding_lines(item.findings)
    yield from fact_lines(item)

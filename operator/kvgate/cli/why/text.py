"""The answer for people, in one order: what happened, why, what would fix it, what is not known."""

from collections.abc import Iterator, Mapping, Sequence

from kvgate.budget import Verdict
from kvgate.cli.terminal import Line, Styled, folded, folded_command, text_of, width_of_terminal
from kvgate.cli.why.answer import Answer, Outcome
from kvgate.judgement.summary import judged_text
from kvgate.sources.start_failure import failure_rows
from kvgate.vllm.redacting import redacted

MAX_ANSWERS = 20
"""Engines whose answers are shown; those that fail come first."""
_ORDER = (
    Outcome.CAUSE_FOUND, Outcome.CAUSE_UNKNOWN, Outcome.MAY_FAIL, Outcome.UNKNOWN, Outcome.NOT_JUDGED, Outcome.NOTHING_WRONG,
)  # fmt: skip
_COLOURS = {
    Outcome.CAUSE_FOUND: "red", Outcome.CAUSE_UNKNOWN: "yellow", Outcome.UNKNOWN: "yellow", Outcome.NOT_JUDGED: "yellow",
    Outcome.MAY_FAIL: "yellow", Outcome.NOTHING_WRONG: "green",
}  # fmt: skip
_HEADS = {
    Outcome.CAUSE_FOUND: "does not start",
    Outcome.CAUSE_UNKNOWN: "failed, and the cause is not known",
    Outcome.MAY_FAIL: "may not start",
    Outcome.UNKNOWN: "not decided",
    Outcome.NOT_JUDGED: "not judged",
    Outcome.NOTHING_WRONG: "nothing wrong found",
}


def in_order(answers: Sequence[Answer]) -> list[Answer]:
    return sorted(answers, key=lambda each: _ORDER.index(each.outcome))


def render(answers: Sequence[Answer], notes: Sequence[str]) -> str:
    """Write the answers, and sentences about what could not be read."""
    lines: list[Line] = []
    shown = in_order(answers)
    for answer in shown[:MAX_ANSWERS]:
        lines += [*_lines(answer), ""]
    if len(shown) > MAX_ANSWERS:
        lines += [f"{len(shown) - MAX_ANSWERS} more engines are not shown; -o json has all", ""]
    lines += [f"note: {redacted(each)}" for each in notes]
    while lines and lines[-1] == "":
        lines.pop()
    return text_of(folded(lines, width_of_terminal()))


def _lines(answer: Answer) -> Iterator[Line]:
    happened = answer.happened
    head = happened.cause if happened else _head(answer)
    yield (
        f"{answer.title}: ",
        Styled(text=answer.outcome.value, colour=_COLOURS[answer.outcome], is_bold=True),
        f": {head}",
    )
    if happened:
        row = f" ({happened.id}, {happened.stage})" if happened.id else ""
        yield f"  what happened{row}, {happened.file}:{happened.line}"
        yield f"    {happened.sentence}"
    if answer.why:
        yield "  why"
        yield from (f"    {redacted(each)}" for each in answer.why)
    yield from _fixes(answer)
    if answer.not_known:
        yield "  not known"
        yield from (f"    - {redacted(each)}" for each in answer.not_known)


def _head(answer: Answer) -> str:
    if answer.case.lacking is not None:
        return failure_rows()["KVCacheTooSmall"].cause
    judged = answer.case.assessment
    if answer.outcome in (Outcome.CAUSE_FOUND, Outcome.MAY_FAIL) and judged is not None and judged.budget is not None:
        return judged_text(judged.verdict, judged.budget)
    return _HEADS[answer.outcome]


_CHECKED: Mapping[Verdict | None, str] = {
    None: "not judged by kvgate",
    Verdict.FITS: "checked: starts",
    Verdict.MAY_NOT_FIT: "checked: may start",
    Verdict.DOES_NOT_FIT: "kvgate would be more careful",
}


def _fixes(answer: Answer) -> Iterator[str]:
    happened, fixes = answer.happened, answer.fixes
    if not fixes and not (happened and happened.do):
        return
    yield "  what would fix it" + (", any one of" if len(fixes) > 1 else "")
    for fix in fixes:
        checked = _CHECKED.get(fix.verdict, _CHECKED[None])
        yield f"    - {fix.words} ({checked})"
        if fix.command:
            yield from folded_command(f"        {redacted(fix.command)}", width_of_terminal())
        yield from (f"        {redacted(line)}" for line in fix.patch.splitlines())
    if happened and happened.do and not any(fix.is_checked for fix in fixes):
        yield f"    - {happened.do}"

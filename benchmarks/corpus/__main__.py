"""Print how `kvgate check` does on tests/manifests/upstream, and every disagreement; fail where a goal is missed: `make corpus`."""

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from corpus.answers import cases
from corpus.comparison import (
    Compared,
    Pair,
    compare,
    errors,
    false_errors,
    idle_warnings,
    is_right_model,
    is_wrong_verdict,
    warnings,
)

_HISTORIES = Path(__file__).with_name("histories.csv")


class Figure(Struct, frozen=True, kw_only=True):
    """A figure and its goal."""

    title: str
    value: float
    counted: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        is_low = self.at_least is not None and self.value < self.at_least
        return not is_low and not (self.at_most is not None and self.value > self.at_most)

    @property
    def line(self) -> str:
        goal = f"goal ≥ {self.at_least:g}" if self.at_least is not None else ""
        goal = goal or (f"goal ≤ {self.at_most:g}" if self.at_most is not None else "")
        return (
            f"{self.title:22} {self.value:6.3f}  {self.counted:14} {goal:12} {'' if self.is_met else 'MISSED'}".rstrip()
        )


def main() -> None:
    compared = [compare(case) for case in cases()]
    for line in _report(compared):
        print(line)
    if not all(figure.is_met for part in _parts(compared).values() for figure in figures(part)):
        sys.exit("make corpus: a goal is missed")


def _parts(compared: Sequence[Compared]) -> dict[str, list[Compared]]:
    """Return the cases at a commit apart from the older ones, so that neither hides the other."""
    return {
        "manifests": [each for each in compared if not each.case.is_at_a_commit],
        "states at a commit": [each for each in compared if each.case.is_at_a_commit],
    }


def _fixes(compared: Sequence[Compared]) -> str:
    """Return how many fixes of a start are found: nothing is said otherwise of the state before than the answer says."""
    agrees = {each.case.name: not each.disagreements for each in compared}
    with _HISTORIES.open(encoding="utf-8", newline="") as file:
        found = [
            agrees[row["case"]]
            for row in csv.DictReader(file)
            if row["kind"].startswith("start refused") and row["case"] and not row["outcome"].startswith("out of scope")
        ]
    return f"fixes of a start that have a case: {sum(found)} of {len(found)} found"


def figures(compared: Sequence[Compared]) -> tuple[Figure, ...]:
    """Return the figures of all cases together. Engines that run on no GPU count for errors and warnings alone."""
    pairs = [pair for each in compared for pair in each.pairs]
    wanted = [pair for pair in pairs if pair.wanted and pair.wanted.runs_on is None]
    found = [pair for pair in wanted if pair.item and pair.wanted and is_right_model(pair.wanted, pair.item)]
    judged = [pair for pair in wanted if pair.item]
    unreadable = sum(len(each.unreadable) for each in compared)
    false, told = (
        sum(len(false_errors(pair)) for pair in pairs) + unreadable,
        sum(len(errors(pair)) for pair in pairs) + unreadable,
    )
    unknown = sum(pair.item is not None and pair.item.verdict == "Unknown" for pair in judged)
    wrong, warned = sum(map(is_wrong_verdict, judged)), sum(len(warnings(pair)) for pair in pairs)
    idle = sum(len(idle_warnings(pair)) for pair in pairs)
    items = sum(pair.item is not None for pair in pairs)
    return (
        Figure(title="precision of errors", value=_share(told - false, told), counted=f"{told - false} of {told}", at_least=1),
        Figure(title="recall of engines", value=_share(len(found), len(wanted)), counted=f"{len(found)} of {len(wanted)}", at_least=0.95),
        Figure(title="Unknown", value=_share(unknown, len(judged)), counted=f"{unknown} of {len(judged)}", at_most=0.15),
        Figure(title="wrong verdicts", value=_share(wrong, len(judged)), counted=f"{wrong} of {len(judged)}", at_most=0),
        Figure(title="warnings per engine", value=_share(warned, items), counted=f"{warned} of {items}", at_most=0.3),
        Figure(title="nobody can act on", value=_share(idle, items), counted=f"{idle} of {items}", at_most=0.1),
    )  # fmt: skip


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _report(compared: Sequence[Compared]) -> Iterator[str]:
    for title, part in _parts(compared).items():
        yield f"{len(part)} {title}, {sum(len(each.case.answer.engines) for each in part)} engines"
        yield from (figure.line for figure in figures(part))
    yield _fixes(compared)
    pairs: list[Pair] = [pair for each in compared for pair in each.pairs]
    rules = Counter(placed.rule for pair in pairs for placed in warnings(pair))
    yield f"warnings: {', '.join(f'{count} {rule}' for rule, count in rules.most_common()) or 'none'}"
    for each in compared:
        told = [
            f"{'' if placed not in idle_warnings(pair) else '(nobody can act) '}{pair.item.name}: {placed.rule}: {placed.finding.message}"
            for pair in each.pairs
            if pair.item
            for placed in warnings(pair)
        ]
        yield from (f"  {each.case.name}: {line}" for line in told)
    for each in compared:
        if each.disagreements:
            yield f"\n{each.case.name}{f' (known: {each.case.answer.known})' if each.case.answer.known else ''}"
            yield from (f"  {told}" for told in each.disagreements)
        elif each.case.answer.known:
            yield f"\n{each.case.name}: agrees, and is still marked as known: {each.case.answer.known}"


if __name__ == "__main__":
    main()

"""Today's answers beside the frozen ones, with every difference grouped by its cause."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from answers.asking import ask
from answers.causes import CAUSES, Cause
from answers.questions import DRAWN
from answers.records import Question, Row, frozen


class Change(Struct, frozen=True, kw_only=True):
    """An answer that is not the frozen one; None on the side that has no such engine."""

    question: Question
    before: Row | None
    after: Row | None

    @property
    def is_of_rest(self) -> bool:
        """True where nothing but digests of other parts of the JSON differ."""
        return bool(self.before and self.after) and self.parts.keys() == {"rest"}

    @property
    def parts(self) -> Mapping[str, tuple[str, str]]:
        """Name of every part of the row that differs → (before, after)."""
        before, after = (asdict(side or Row(key="")) for side in (self.before, self.after))
        return {name: (before[name], after[name]) for name in before if before[name] != after[name] and name != "key"}

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the JSON whose digests differ."""
        before, after = self.parts.get("rest", ("", ""))
        return tuple(sorted({each.partition("=")[0] for each in {*before.split()} ^ {*after.split()}}))

    @property
    def text(self) -> str:
        """Return the key, the question and what differs: `0012~ab34 (gpu=L4-24GB …): verdict Fits → Unknown`."""
        row = self.after or self.before
        asked = " ".join(f"{name}={value}" for name, value in self.question.asked.items())
        told = (
            f"{name} {before or '∅'} → {after or '∅'}" for name, (before, after) in self.parts.items() if name != "rest"
        )
        parts = (*told, *((f"also {', '.join(self.keys)}",) if self.keys else ()))
        return f"{row.key if row else ''} ({asked}): {'; '.join(parts)}"


class Compared(Struct, frozen=True, kw_only=True):
    """All differences by cause."""

    by_cause: Mapping[Cause, Sequence[Change]]
    """Every cause of the table, also one that explains nothing any more."""
    unexplained: Sequence[Change]
    rest: Sequence[Change]
    num_rows: int
    new: Sequence[Question]
    """Questions that are not frozen: a manifest that was added or edited."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Sentences about what must not be: changes without a cause, and drawn questions that are not the frozen ones."""
        drawn = (f"not frozen: {question.kind} {question.key}" for question in self.new if question.kind in DRAWN)
        return (*(f"without a cause: {change.text}" for change in self.unexplained), *drawn)


def compare(questions: Iterable[Question], causes: Sequence[Cause] = CAUSES) -> Compared:
    """Ask the questions, and compare with the frozen answers to the same questions."""
    by_kind: dict[str, dict[str, Question]] = {}
    for question in questions:
        by_kind.setdefault(question.kind, {})[question.key] = question
    by_cause: dict[Cause, list[Change]] = {cause: [] for cause in causes}
    unexplained, rest, new, count = list[Change](), list[Change](), list[Question](), 0
    for kind, asked in by_kind.items():
        before = {row.key: row for row in frozen(kind) if row.question in asked}
        known = {row.question for row in before.values()}
        new += [question for question in asked.values() if question.key not in known]
        after = {row.key: row for row in ask(asked[key] for key in asked if key in known)}
        count += len(after)
        for key, row in {**before, **after}.items():
            if before.get(key) == after.get(key):
                continue
            change = Change(question=asked[row.question], before=before.get(key), after=after.get(key))
            explained = (
                by_cause[each] for each in causes if each.explains(change.question, change.before, change.after)
            )
            (rest if change.is_of_rest else next(explained, unexplained)).append(change)
    return Compared(by_cause=by_cause, unexplained=unexplained, rest=rest, num_rows=count, new=new)


def lines(compared: Compared) -> Iterator[str]:
    """Yield the report for a terminal."""
    yield f"{compared.num_rows} answers compared; {len(compared.unexplained)} differ without a cause"
    for cause, changes in compared.by_cause.items():
        yield f"{cause.name}: {len(changes)}{'' if changes else ' (it explains nothing any more)'}: {cause.sentence}"
        yield from (f"  {change.text}" for change in changes[:3])
    if compared.rest:
        keys = Counter(key for change in compared.rest for key in change.keys)
        yield f"the rest of the JSON alone: {len(compared.rest)} ({', '.join(f'{key} {n}' for key, n in keys.most_common())})"
    if compared.new:
        yield f"{len(compared.new)} questions are not frozen: {', '.join(question.key for question in compared.new[:5])}"
    yield from compared.failures


def markdown(compared: Compared) -> str:
    """Return the table by cause, with counts and three examples each."""
    groups = [(f"{cause.name}: {cause.sentence}", changes) for cause, changes in compared.by_cause.items()]
    groups += [("the rest of the JSON alone", compared.rest), ("without a cause", compared.unexplained)]
    cells = ((why, str(len(changes)), "<br>".join(change.text for change in changes[:3])) for why, changes in groups)
    rows = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in cells)
    return "\n".join(["| cause | answers | examples |", "|---|---|---|", *(f"| {row} |" for row in rows), ""])

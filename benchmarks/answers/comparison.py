"""Today's answers beside the frozen ones, with every difference grouped by its cause."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import asdict, replace

from answers.asking import ask
from answers.causes import CAUSES, Cause
from answers.questions import DRAWN, QUESTIONS
from answers.records import Question, Row, frozen


class Change(Struct, frozen=True, kw_only=True):
    """An answer that is not the frozen one; None on the side that has no such engine."""

    question: Question
    before: Row | None
    after: Row | None

    @property
    def is_of_rest(self) -> bool:
        """True where nothing but digests of other parts of the JSON differ."""
        return (
            self.before is not None
            and self.after is not None
            and replace(self.before, rest=self.after.rest) == self.after
        )

    @property
    def parts(self) -> frozenset[str]:
        """Keys of the JSON whose digests differ."""
        digests = [set(row.rest.split()) if row else set() for row in (self.before, self.after)]
        return frozenset(part.partition("=")[0] for part in digests[0] ^ digests[1])

    @property
    def text(self) -> str:
        """Return the key, and each part of the row that differs: `0012~ab34 (gpu=L4-24GB): verdict Fits → Unknown`."""
        row = self.after or self.before
        before, after = (asdict(side) if side else {} for side in (self.before, self.after))
        names = sorted((before or after).keys() - {"key", "rest"})
        parts = [
            f"{name} {before.get(name) or '∅'} → {after.get(name) or '∅'}"
            for name in names
            if before.get(name) != after.get(name)
        ]
        asked = " ".join(f"{name}={value}" for name, value in self.question.asked.items())
        return f"{row.key if row else self.question.key} ({asked}): {'; '.join(parts or sorted(self.parts))}"


class Compared(Struct, frozen=True, kw_only=True):
    """All differences by cause."""

    by_cause: Mapping[str, Sequence[Change]]
    """Every cause of the table, also one that explains nothing any more."""
    unexplained: Sequence[Change]
    rest: Sequence[Change]
    num_rows: int
    new: Sequence[str]
    """Keys of questions that the frozen answers do not have: a manifest that was added or edited."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Sentences about what must not be: changes without a cause, and drawn questions that are not the frozen ones."""
        return (
            *(f"without a cause: {change.text}" for change in self.unexplained),
            *map("not frozen: {}".format, self.new_drawn),
        )

    @property
    def new_drawn(self) -> tuple[str, ...]:
        return tuple(key for key in self.new if key.partition(":")[0] in DRAWN)


def compare(questions: Iterable[Question], causes: Sequence[Cause] = CAUSES) -> Compared:
    """Ask the questions, and compare with the frozen answers to the same questions."""
    asked = {(question.kind, question.key): question for question in questions}
    by_cause: dict[str, list[Change]] = {cause.name: [] for cause in causes}
    unexplained, rest, new, count = list[Change](), list[Change](), list[str](), 0
    for kind in dict.fromkeys(kind for kind, _ in asked):
        before = {row.key: row for row in frozen(kind) if (kind, row.question) in asked}
        known = {row.question for row in before.values()}
        of_kind = [question for question in asked.values() if question.kind == kind]
        new += [f"{kind}: {question.key}" for question in of_kind if question.key not in known]
        after = {row.key: row for row in ask(question for question in of_kind if question.key in known)}
        count += len(after)
        for change in _changes(kind, asked, before, after):
            cause = next(
                (each.name for each in causes if each.explains(change.question, change.before, change.after)), None
            )
            (rest if change.is_of_rest else by_cause[cause] if cause else unexplained).append(change)
    return Compared(by_cause=by_cause, unexplained=unexplained, rest=rest, num_rows=count, new=new)


def _changes(
    kind: str, asked: Mapping[tuple[str, str], Question], before: Mapping[str, Row], after: Mapping[str, Row]
) -> Iterator[Change]:
    for key in dict.fromkeys(chain(before, after)):
        if before.get(key) != after.get(key):
            question = asked[kind, (before.get(key) or after[key]).question]
            yield Change(question=question, before=before.get(key), after=after.get(key))


def all_questions() -> Iterator[Question]:
    return chain.from_iterable(questions() for questions in QUESTIONS.values())


def lines(compared: Compared, causes: Sequence[Cause] = CAUSES) -> Iterator[str]:
    """Yield the report for a terminal."""
    yield f"{compared.num_rows} answers compared; {len(compared.unexplained)} differ without a cause"
    for cause in causes:
        changes = compared.by_cause[cause.name]
        yield f"\n{cause.name}: {len(changes)}{'' if changes else ' (it explains nothing any more)'}: {cause.sentence}"
        yield from (f"  {change.text}" for change in changes[:3])
    if compared.rest:
        parts = Counter(part for change in compared.rest for part in change.parts)
        yield f"\nthe rest of the JSON alone: {len(compared.rest)} ({', '.join(f'{part} {n}' for part, n in parts.most_common())})"
    if compared.new:
        yield f"\n{len(compared.new)} questions are not frozen: {', '.join(compared.new[:5])}"
    yield from compared.failures


def markdown(compared: Compared, causes: Sequence[Cause] = CAUSES) -> str:
    """Return the table by cause, with counts and three examples each."""
    groups = [(f"{cause.name}: {cause.sentence}", compared.by_cause[cause.name]) for cause in causes]
    groups += [("the rest of the JSON alone", compared.rest), ("without a cause", compared.unexplained)]
    cells = ((why, str(len(changes)), "<br>".join(change.text for change in changes[:3])) for why, changes in groups)
    rows = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in cells)
    return "\n".join(["| cause | answers | examples |", "|---|---|---|", *(f"| {row} |" for row in rows), ""])

"""One case: what `kvgate check` says of it, and where that is not what the answer says."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from corpus.answers import Case, EngineAnswer
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.placed import Placed
from kvgate.cli.reports.report import Item
from kvgate.findings.finding import Severity

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


class Pair(Struct, frozen=True, kw_only=True):
    """An engine of the answer beside the one that was found; None where the other side has none."""

    wanted: EngineAnswer | None
    item: Item | None


class Compared(Struct, frozen=True, kw_only=True):
    """One case and the report of it."""

    case: Case
    pairs: tuple[Pair, ...]
    unreadable: tuple[Placed, ...]
    """Documents that cannot be read, and that the answer does not name."""

    @property
    def disagreements(self) -> tuple[str, ...]:
        """Sentences about everything that is not as the answer says."""
        broken = (f"{placed.rule}: {placed.finding.message}" for placed in self.unreadable)
        return (*broken, *(told for pair in self.pairs for told in _disagreements(pair)))


def compare(case: Case) -> Compared:
    """Check the manifest with the default options, in this process."""
    report = run((str(case.path),), CheckOptions())
    found = [item for item in report.items if item.engine or item.subject]
    wanted = [] if case.answer.optional and not found else case.answer.engines
    broken = (placed for placed in report.unreadable if placed.rule not in case.answer.unreadable)
    return Compared(case=case, pairs=tuple(_pairs(wanted, found)), unreadable=tuple(broken))


def _pairs(wanted: Sequence[EngineAnswer], found: Sequence[Item]) -> Iterator[Pair]:
    """Pair by name, then by model, then in the order of the file."""
    items, partner = list(found), dict[int, Item]()
    for belongs in (_same_name, _same_model, lambda _, __: True):
        for index, engine in enumerate(wanted):
            item = next((each for each in items if index not in partner and belongs(engine, each)), None)
            if item is not None:
                partner[index] = item
                items.remove(item)
    yield from (Pair(wanted=engine, item=partner.get(index)) for index, engine in enumerate(wanted))
    yield from (Pair(wanted=None, item=item) for item in items)


def _same_name(engine: EngineAnswer, item: Item) -> bool:
    return engine.name is not None and engine.name == item.name


def _same_model(engine: EngineAnswer, item: Item) -> bool:
    return engine.model is not None and is_right_model(engine, item)


def is_right_model(engine: EngineAnswer, item: Item) -> bool:
    """Return whether the model is one of the answer's; any is, where nobody can know it."""
    model = item.engine.model if item.engine else None
    return engine.model is None or (model or "").lower() in [each.lower() for each in _any_of(engine.model)]


def _any_of(given: str | Sequence[str | None] | None) -> list[Any]:
    return [given] if given is None or isinstance(given, str) else list(given)


def errors(pair: Pair) -> tuple[Placed, ...]:
    return _of_severity(pair, Severity.ERROR)


def false_errors(pair: Pair) -> tuple[Placed, ...]:
    """Return the errors that the answer does not name."""
    named = {*pair.wanted.must, *pair.wanted.may} if pair.wanted else set()
    return tuple(placed for placed in errors(pair) if placed.rule not in named)


def warnings(pair: Pair) -> tuple[Placed, ...]:
    return _of_severity(pair, Severity.WARNING)


def idle_warnings(pair: Pair) -> tuple[Placed, ...]:
    """Return the warnings on which nobody can act, as the reader of the case says."""
    acts_on = pair.wanted.acts_on if pair.wanted else []
    return tuple(placed for placed in warnings(pair) if placed.rule not in acts_on)


def _of_severity(pair: Pair, severity: Severity) -> tuple[Placed, ...]:
    findings = pair.item.findings if pair.item else ()
    return tuple(placed for placed in findings if placed.finding.severity is severity)


def is_wrong_verdict(pair: Pair) -> bool:
    """Return whether it was decided, and not as the answer says."""
    if pair.wanted is None or pair.item is None or pair.wanted.verdict is None:
        return False
    return pair.item.verdict not in (*_any_of(pair.wanted.verdict), None, "Unknown")


def _disagreements(pair: Pair) -> Iterator[str]:
    wanted, item = pair.wanted, pair.item
    if wanted is None or item is None:
        if item is not None:
            yield f"{item.name}: there is no such engine ({item.platform}, line {item.line}, verdict {item.verdict})"
        elif wanted is not None and wanted.runs_on is None:
            yield f"{wanted.name}: not found"
        return
    about = (*_about_facts(wanted, item), *_about_accelerators(wanted, item), *_about_rules(pair, wanted))
    yield from (f"{wanted.name or item.name}: {each}" for each in about)


def _about_facts(wanted: EngineAnswer, item: Item) -> Iterator[str]:
    if wanted.runs_on is not None or item.engine is None:
        return
    engine, verdicts = item.engine, _any_of(wanted.verdict)
    if not is_right_model(wanted, item):
        yield f"model {engine.model}, not {wanted.model}"
    if item.accelerator not in _any_of(wanted.accelerator):
        yield f"accelerator {item.accelerator}, not {wanted.accelerator}"
    for size in _SIZES:
        given, right = engine.settings.get(size, 1), getattr(wanted, size)
        if right is not None and given != right:
            yield f"{size} {given}, not {right}"
    if wanted.vllm_version != "any" and not _is_release(engine.stated_release, wanted.vllm_version):
        yield f"release {engine.stated_release}, not {wanted.vllm_version}"
    if item.verdict not in verdicts:
        yield f"verdict {item.verdict}, not {' or '.join(map(str, verdicts))}"


def _is_release(found: str | None, right: str | None) -> bool:
    """Return whether it is the release; the fourth number of a patch may be left out."""
    return found == right or bool(found and right and right.startswith(f"{found}."))


def _about_accelerators(wanted: EngineAnswer, item: Item) -> Iterator[str]:
    """GPUs of the catalogue, where the input names none."""
    judged = {each.name: str(each.verdict) for each in getattr(item.engine, "accelerators", None) or ()}
    if judged:
        refused = [name for name in wanted.starts_on if judged.get(name, "DoesNotFit") == "DoesNotFit"]
        yield from (f"starts on {name}, which it says it does not" for name in refused)
        yield from (
            f"does not start on {name}, which it says it does" for name in wanted.not_on if judged.get(name) == "Fits"
        )


def _about_rules(pair: Pair, wanted: EngineAnswer) -> Iterator[str]:
    found = {placed.rule for placed in (pair.item.findings if pair.item else ())}
    yield from (f"{rule} does not appear" for rule in wanted.must if rule not in found)
    yield from (f"{rule} appears" for rule in wanted.must_not if rule in found)
    yield from (
        f"false error {each.rule}: {each.finding.message}"
        for each in false_errors(pair)
        if each.rule not in wanted.must_not
    )

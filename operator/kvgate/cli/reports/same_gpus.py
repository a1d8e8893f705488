"""Both sides of an engine whose GPU nobody named, on the same GPUs: those that it starts on, and one whose figures are compared."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Verdict, plan
from kvgate.cli.reports.report import Item
from kvgate.judgement.assessment import AcceleratorVerdict, OnGpus
from kvgate.judgement.gpus_in_words import starting
from kvgate.judgement.on_accelerators import smallest_that_starts
from kvgate.judgement.possible_worlds import asked

_STARTING = (Verdict.FITS, Verdict.MAY_NOT_FIT)


class SameGpus(Struct, frozen=True, kw_only=True):
    """Both sides on one GPU, and the GPUs that each starts on where nobody named one."""

    before: Item
    after: Item
    gpu: str | None = None
    """The GPU whose figures are compared; None where each side keeps its own."""
    verdicts: tuple[tuple[AcceleratorVerdict, ...], tuple[AcceleratorVerdict, ...]] = ((), ())
    """Verdicts before and after on the GPUs that are asked; empty where a side names its GPU."""
    is_whole: bool = True
    """True where the whole catalogue is asked, not the pools of the repository."""

    @property
    def starts_on(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The GPUs on which each side starts, or may; None where they are the same."""
        old, new = ({each.name: each.verdict for each in side if each.verdict in _STARTING} for side in self.verdicts)
        return (tuple(old), tuple(new)) if old != new else None

    @property
    def starts_on_words(self) -> tuple[str, str]:
        """The same in words, before and after."""
        before, after = (starting(side, is_whole=self.is_whole) for side in self.verdicts)
        return before, after


def on_same_gpus(before: Item, after: Item, pools: Collection[str] = ()) -> SameGpus:
    """Judge both sides on one GPU where one of them names none: the other's, else the smallest on which the new side starts.

    `pools`: names of the GPUs of the repository's node pools, beside which no other is asked.
    """
    old, new = _unnamed(before), _unnamed(after)
    if old is None or new is None:
        named = catalogue.find_accelerator((after if old else before).accelerator or "")
        if named is None or (old is None and new is None):
            return SameGpus(before=before, after=after)
        return SameGpus(before=_on(before, named.name), after=_on(after, named.name), gpu=named.name)
    of_pools = {found.name for name in pools if (found := catalogue.find_accelerator(name))}
    asked_of = [tuple(each for each in side.verdicts if each.name in of_pools) for side in (old, new)]
    is_whole = not all(asked_of)
    sides = (old.verdicts, new.verdicts) if is_whole else (asked_of[0], asked_of[1])
    gpu = smallest_that_starts(sides[1]) or smallest_that_starts(sides[0]) or new.judged_on
    if gpu is None:
        return SameGpus(before=before, after=after)
    return SameGpus(before=_on(before, gpu), after=_on(after, gpu), gpu=gpu, verdicts=sides, is_whole=is_whole)


def _unnamed(item: Item) -> OnGpus | None:
    """Return the verdicts on the GPUs that it may run on, where nobody named one."""
    found = item.engine.on_gpus if item.engine else None
    return found if found and found.judged_on else None


def _on(item: Item, gpu: str) -> Item:
    """Return an engine with the figures of another GPU; its verdict, which is about all that it may have, stays."""
    engine, accelerator = item.engine, catalogue.find_accelerator(gpu)
    assessment = engine.assessment if engine else None
    if engine is None or assessment is None or assessment.budget is None or accelerator is None:
        return item
    if assessment.on_gpus is None or assessment.on_gpus.judged_on in (None, accelerator.name):
        return item
    budget = plan(replace(asked(assessment.budget), accelerator=accelerator))
    on_gpus = replace(assessment.on_gpus, judged_on=accelerator.name)
    assessment = replace(assessment, budget=budget, on_gpus=on_gpus)
    return replace(item, assessment=assessment, engine=replace(engine, assessment=assessment))

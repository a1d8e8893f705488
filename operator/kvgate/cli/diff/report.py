"""Two reports → what a change does to every engine: found again by file, path and name; capacity before and after."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

from kvgate.cli.check.report import Item, Placed, Report
from kvgate.cli.diff.defaults import defaults_between
from kvgate.cli.exits import Exit
from kvgate.documents.reading import STDIN_NAME
from kvgate.record import record
from kvgate.vllm.options import ChangedDefault


@record
class Capacity:
    """The KV cache of one engine as expected; None where nothing is known."""

    num_tokens: int | None = None
    num_blocks: int | None = None
    max_concurrency: float | None = None
    """Whole requests at the same time."""
    headroom_bytes: int | None = None
    """Headroom of a GPU beside the demand."""


FIELDS = ("num_tokens", "num_blocks", "max_concurrency", "headroom_bytes")


def capacity_of(item: Item) -> Capacity:
    """Return the capacity of what is rendered, where a policy adjusts."""
    budget = item.assessment.effective if item.assessment else None
    if budget is None or budget.num_blocks is None or budget.num_tokens is None:
        return Capacity()
    kv_cache, blocks = budget.kv_cache, budget.num_blocks.expected
    return Capacity(
        num_tokens=budget.num_tokens.expected,
        num_blocks=blocks,
        max_concurrency=float(kv_cache.max_concurrency(blocks)) if kv_cache and kv_cache.groups else None,
        headroom_bytes=budget.headroom.expected if budget.headroom else None,
    )


@record
class Change:
    """One engine before and after; one side is None where it is new or gone."""

    before: Item | None
    after: Item | None
    file: str
    """Below the root of its tree; of the new one where it is in both."""
    changed_defaults: tuple[ChangedDefault, ...] = ()
    """Changed defaults of options that neither side sets, where the release differs."""

    @property
    def item(self) -> Item:
        item = self.after or self.before
        if item is None:
            raise ValueError("an engine is in one of the trees at least")
        return item

    @property
    def kind(self) -> str:
        if self.before is None or self.after is None:
            return "new" if self.before is None else "removed"
        same = self.before.verdict == self.after.verdict and self.before.is_refused == self.after.is_refused
        same = same and not self.changed_defaults and capacity_of(self.before) == capacity_of(self.after)
        return "unchanged" if same else "changed"

    @property
    def is_worse(self) -> bool:
        """It does not start, or is refused, and was not before."""
        refused_before = self.before is not None and self.before.is_refused
        return self.after is not None and self.after.is_refused and not refused_before


@record
class Diff:
    """Everything that `kvgate diff` tells."""

    old: Report
    new: Report
    changes: tuple[Change, ...]
    unreadable: tuple[Placed, ...] = ()
    """Unreadable documents, once where both trees have them."""

    @property
    def exit_code(self) -> Exit:
        """1 where something does not start that did, or is new; 2 where neither tree holds anything that can be decided."""
        broken = len(self.new.unreadable) > len(self.old.unreadable)
        if broken or any(change.is_worse for change in self.changes):
            return Exit.FINDINGS
        decided = any(item.is_decided for report in (self.old, self.new) for item in report.items)
        return Exit.FITS if decided else Exit.UNDECIDED


def compare(old: Report, new: Report, roots: tuple[str, str]) -> Diff:
    """Every engine of both, in the order of the new tree; what is gone comes last."""
    befores = [(item, _below(item.document.file, roots[0])) for item in old.items if item.platform != "unknown"]
    afters = [(item, _below(item.document.file, roots[1])) for item in new.items if item.platform != "unknown"]
    pairs = dict(_pairs(befores, afters))
    matched = set(pairs.values())
    changes = [
        _change(befores[pairs[index]][0] if index in pairs else None, item, file)
        for index, (item, file) in enumerate(afters)
    ]
    changes += [
        Change(before=item, after=None, file=file) for index, (item, file) in enumerate(befores) if index not in matched
    ]
    return Diff(old=old, new=new, changes=tuple(changes), unreadable=tuple(_unreadable(old, new, roots)))


def _unreadable(old: Report, new: Report, roots: tuple[str, str]) -> Iterator[Placed]:
    still = {(_below(placed.file, roots[1]), placed.rule) for placed in new.unreadable}
    yield from (placed for placed in old.unreadable if (_below(placed.file, roots[0]), placed.rule) not in still)
    yield from new.unreadable


def _change(before: Item | None, after: Item, file: str) -> Change:
    changed = defaults_between(before, after) if before else ()
    return Change(before=before, after=after, file=file, changed_defaults=changed)


def _below(file: str, root: str) -> str:
    """Empty where the root is the file itself: two files that are compared may have different names."""
    if file == STDIN_NAME or not Path(root).is_dir():
        return ""
    return Path(file).relative_to(root).as_posix()


_InTree = tuple[Item, str]
"""An engine, and its file below the root of its tree."""


def _keys(item: Item, file: str) -> tuple[Hashable, ...]:
    """Return the keys by which two engines are the same one, the surest first."""
    named = (item.kind, item.namespace, item.name)
    return (file, *named, item.path), (file, *named), (*named, item.path), (item.platform, item.name), (file, item.path)


_NUM_KEYS = 5


def _pairs(befores: Sequence[_InTree], afters: Sequence[_InTree]) -> Iterator[tuple[int, int]]:
    """(index after, index before): by each key in turn, where it is the only one of its kind on both sides."""
    open_before, open_after = dict(enumerate(befores)), dict(enumerate(afters))
    for number in range(_NUM_KEYS):
        there = _by_unique_key(open_before, number)
        for key, index in _by_unique_key(open_after, number).items():
            if key in there:
                yield index, there[key]
                del open_before[there[key]], open_after[index]


def _by_unique_key(placed: dict[int, _InTree], number: int) -> dict[Hashable, int]:
    keys = {index: _keys(*each)[number] for index, each in placed.items()}
    counts = Counter(keys.values())
    return {key: index for index, key in keys.items() if counts[key] == 1}

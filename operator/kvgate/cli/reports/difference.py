"""Two reports → what a change does to every engine: the engine before and after, its capacity, and defaults that moved."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from kvgate.budget import Budget, BudgetError, BudgetRequest, UnknownVersion, is_newer_than_known, plan
from kvgate.cli.exits import Exit
from kvgate.cli.provenance import Provenance
from kvgate.cli.reports.placed import Placed
from kvgate.cli.reports.records import EffectRecord
from kvgate.cli.reports.report import Item, Report
from kvgate.cli.reports.same_gpus import SameGpus, on_same_gpus
from kvgate.documents.reading import STDIN_NAME
from kvgate.findings.finding import Finding
from kvgate.rules.facts import KNOWN_DEFECT
from kvgate.statement.passed_through import read_extra_args
from kvgate.vllm.options import ChangedDefault, changed_defaults

_NAMES = {
    "parallelism.tensor": "tensor_parallel_size",
    "parallelism.pipeline": "pipeline_parallel_size",
    "parallelism.data": "data_parallel_size",
    "parallelism.expert": "enable_expert_parallel",
    "parallelism.decode_context": "decode_context_parallel_size",
    "parallelism.prefill_context": "prefill_context_parallel_size",
    "parallelism.all_to_all": "all2all_backend",
    "speculation": "speculative_config",
}
"""Path of a field in the settings of a request → vLLM's name, where they differ."""


def effects_between(old: Budget | None, new: Budget | None) -> tuple[EffectRecord, ...]:
    """Return the settings that differ, each applied alone to the old request; nothing where one side is not known."""
    if old is None or new is None:
        return ()
    changed, old_shape, new_shape = new.request, old.request.shape, new.request.shape
    # a shape of the same content is the same: an entry may only have moved within its file
    before, after = (shape.origin.digest if shape.origin else "" for shape in (old_shape, new_shape))
    is_read_alike = (old_shape.name, old_shape.dtype, old_shape.requested_format) == (
        new_shape.name, new_shape.dtype, new_shape.requested_format
    )  # fmt: skip
    if before and before == after and is_read_alike:
        changed = replace(changed, shape=old_shape)
    if old.request == changed:
        return ()
    base = old.figures.num_tokens
    effects = []
    for setting, before, after, request in _single_changes(old.request, changed):
        try:
            tokens = plan(request).figures.num_tokens
        except BudgetError:  # no such engine: two changes that need each other
            tokens = None
        change = tokens - base if tokens is not None and base is not None else None
        effects.append(
            EffectRecord(
                setting=setting, before=_plain(before), after=_plain(after), tokens=tokens, change_tokens=change
            )
        )
    return tuple(effects)


_Change = tuple[str, Any, Any, BudgetRequest]
"""Name, value before, value after, and the old request with this change."""


def _single_changes(old: BudgetRequest, new: BudgetRequest) -> Iterator[_Change]:
    is_other_model = old.shape.name != new.shape.name
    if is_other_model:
        yield "model", old.shape.name, new.shape.name, replace(old, shape=new.shape)
    elif old.shape != new.shape and old.settings.dtype == new.settings.dtype:
        before, after = (each.shape.quantization and each.shape.quantization.method for each in (old, new))
        name = "quantization" if before != after else "model_config"
        yield name, before, after, replace(old, shape=new.shape)
    if old.accelerator.name != new.accelerator.name:
        yield "accelerator", old.accelerator.name, new.accelerator.name, replace(old, accelerator=new.accelerator)
    for name in ("vllm_version", "shared_by"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield name, before, after, replace(old, **{name: after})
    yield from _changed_settings(old, new)


def _changed_settings(old: BudgetRequest, new: BudgetRequest) -> Iterator[_Change]:
    settings, sizes = old.settings, old.settings.parallelism
    for name in settings.__struct_fields__:
        before, after = getattr(settings, name), getattr(new.settings, name)
        if before == after or name == "parallelism":
            continue
        request = old.with_settings(**{name: after})
        if name == "speculation":
            request = replace(request, draft=new.draft)
        if name == "dtype" and old.shape.name == new.shape.name:
            request = replace(request, shape=new.shape)
        yield _NAMES.get(name, name), before, after, request
    for part in sizes.__struct_fields__:
        before, after = getattr(sizes, part), getattr(new.settings.parallelism, part)
        if before != after:
            changed = old.with_settings(parallelism=replace(sizes, **{part: after}))
            yield _NAMES.get(f"parallelism.{part}", part), before, after, changed


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; of a group of settings, the values that are not vLLM's defaults."""
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, Struct):
        defaults = type(value).__struct_defaults__
        names = value.__struct_fields__
        by_default = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        return {name: _plain(part) for name, part in asdict(value).items() if part != by_default.get(name, ...)}
    return to_builtins(value)


NO_RENAMES: Mapping[str, str] = {}


ChangedSource = tuple[str, Provenance | None, Provenance | None]
"""A fact, and its source before and after."""


class EngineChange(Struct, frozen=True, kw_only=True):
    """One engine before and after; `before` is None where it is new, `after` where it is gone."""

    before: Item | None
    after: Item | None
    file: str
    """Path below the root of its tree; of the new tree where the engine is in both."""
    changed_defaults: tuple[ChangedDefault, ...] = ()
    """Options that neither side sets, and whose default differs between the two releases."""
    effects: tuple[EffectRecord, ...] = ()
    """Settings that differ, and what each alone does to the KV cache before."""
    gpus: SameGpus | None = None
    """Both sides on the same GPUs, where the engine is in both."""
    unread: Provenance | None = None
    """The rule, or the folder, by which the file of an engine that is gone is no longer read."""

    @property
    def changed_sources(self) -> tuple[ChangedSource, ...]:
        """Sources of facts that differ, where the engine changes: a lock file, observed starts, the configuration, an ignored finding."""
        if self.unread is not None:
            return ((self.unread.fact, None, self.unread),)
        if self.before is None or self.after is None or self.kind == "unchanged":
            return ()
        old, new = ({each.fact: each for each in item.provenance} for item in (self.before, self.after))
        pairs = ((fact, old.get(fact), new.get(fact)) for fact in dict.fromkeys((*old, *new)))
        return tuple(
            (fact, before, after)
            for fact, before, after in pairs
            if (before and before.content) != (after and after.content)
        )

    @property
    def defects(self) -> tuple[tuple[bool, Finding], ...]:
        """Known defects of vLLM that concern the engine on one side alone: True for those that the change brings."""
        if self.before is None or self.after is None:
            return ()
        old, new = (
            {each.finding.topic: each.finding for each in item.findings if each.finding.rule == KNOWN_DEFECT}
            for item in (self.before, self.after)
        )
        left = ((False, finding) for topic, finding in old.items() if topic not in new)
        return (*((True, finding) for topic, finding in new.items() if topic not in old), *left)

    @property
    def item(self) -> Item:
        item = self.after or self.before
        if item is None:
            raise ValueError("an engine is in one of the trees at least")
        return item

    @property
    def kind(self) -> Literal["new", "removed", "changed", "unchanged"]:
        if self.before is None or self.after is None:
            return "new" if self.before is None else "removed"
        same = self.before.verdict == self.after.verdict and self.before.is_refused == self.after.is_refused
        same = same and not self.changed_defaults and self.before.figures == self.after.figures
        same = same and not (self.gpus and self.gpus.starts_on) and not self.defects
        return "unchanged" if same else "changed"

    @property
    def is_worse(self) -> bool:
        """True if the engine does not start, or is refused, and was not refused before."""
        refused_before = self.before is not None and self.before.is_refused
        return self.after is not None and self.after.is_refused and not refused_before


class Difference(Struct, frozen=True, kw_only=True):
    """Everything that `kvgate diff` reports."""

    old: Report
    new: Report
    changes: tuple[EngineChange, ...]
    unreadable: tuple[Placed, ...] = ()
    """Unreadable documents, once where both trees have them."""

    @property
    def exit_code(self) -> Exit:
        """1 where an engine got worse or more cannot be read; 2 where nothing could be decided in either tree."""
        broken = len(self.new.unreadable) > len(self.old.unreadable)
        if broken or any(change.is_worse for change in self.changes):
            return Exit.FINDINGS
        engines = [item for report in (self.old, self.new) for item in report.items if not item.is_not_understood]
        judged = [item for item in engines if item.is_judged]
        is_open = any(item.is_unknown for item in judged) and not any(item.is_decided for item in judged)
        return Exit.UNDECIDED if is_open or not engines else Exit.FITS


def compare(old: Report, new: Report, roots: tuple[str, str], renamed: Mapping[str, str] = NO_RENAMES) -> Difference:
    """Return the changes of every engine of both trees in the order of the new tree; engines that are gone come last.

    `renamed`: path below the old root → path below the new one.
    """
    befores, afters = (
        [(item, _below(item.document.file, root)) for item in report.items if not item.is_not_understood]
        for report, root in zip((old, new), roots, strict=True)
    )
    befores = [(item, renamed.get(file, file)) for item, file in befores]
    before_of = dict(_pairs(befores, afters))
    changes = []
    for index, (after, file) in enumerate(afters):
        if index not in before_of:
            changes.append(EngineChange(before=None, after=after, file=file))
            continue
        gpus = on_same_gpus(befores[before_of[index]][0], after, new.pools)
        before, after = gpus.before, gpus.after  # noqa: PLW2901 - the same engine, with the figures of one GPU
        defaults, effects = defaults_between(before, after), effects_between(before.effective, after.effective)
        changes.append(
            EngineChange(before=before, after=after, file=file, changed_defaults=defaults, effects=effects, gpus=gpus)
        )
    matched = set(before_of.values())
    gone = (each for index, each in enumerate(befores) if index not in matched)
    changes += [
        EngineChange(before=item, after=None, file=file, unread=_unread(file, new, roots[1])) for item, file in gone
    ]
    still = {(_below(placed.file, roots[1]), placed.rule) for placed in new.unreadable}
    repaired = [placed for placed in old.unreadable if (_below(placed.file, roots[0]), placed.rule) not in still]
    return Difference(old=old, new=new, changes=tuple(changes), unreadable=(*repaired, *new.unreadable))


def _unread(file: str, report: Report, root: str) -> Provenance | None:
    """Return why a report does not read a file that is skipped; None where it is not among them."""
    path = Path(root, file)
    skipped = next((each for each in report.skipped if each.path and path.is_relative_to(each.path)), None)
    if skipped is None:
        return None
    return Provenance(fact="not read", source="configuration", place=skipped.by or str(skipped.path))


def _below(file: str, root: str) -> str:
    """Return the path below the root; empty where the root is the file itself, for the two files may have different names."""
    if file == STDIN_NAME or not Path(root).is_dir():
        return ""
    return Path(file).relative_to(root).as_posix()


_InTree = tuple[Item, str]
"""An engine, and its file below the root of its tree."""
_NUM_KEYS = 5


def _pairs(befores: Sequence[_InTree], afters: Sequence[_InTree]) -> Iterator[tuple[int, int]]:
    """Yield (index after, index before): by each key in turn, where it is the only one of its kind on both sides."""
    open_before, open_after = dict(enumerate(befores)), dict(enumerate(afters))
    for number in range(_NUM_KEYS):
        unmatched = _by_unique_key(open_before, number)
        for key, index in _by_unique_key(open_after, number).items():
            if key in unmatched:
                yield index, unmatched[key]
                del open_before[unmatched[key]], open_after[index]


def _by_unique_key(placed: dict[int, _InTree], number: int) -> dict[Hashable, int]:
    """Return the engines that are the only ones with their key; of the keys by which two are the same one, the first is the surest."""
    keys: dict[int, Hashable] = {}
    for index, (item, file) in placed.items():
        named, own = (item.kind, item.namespace, item.name), (item.platform, item.name)
        keys[index] = ((file, *named, item.path), (file, *named), (*named, item.path), own, (file, item.path))[number]
    counts = Counter(keys.values())
    return {key: index for index, key in keys.items() if counts[key] == 1}


def defaults_between(before: Item, after: Item) -> tuple[ChangedDefault, ...]:
    """Return the changed defaults of options that neither side sets; nothing where a release is unknown or the same."""
    try:
        old, new = _release(before), _release(after)
        set_before, set_after = _options_set(before), _options_set(after)
        if old is None or new is None or old == new or set_before is None or set_after is None:
            return ()
        budget = after.assessment.budget if after.assessment else None
        is_set = {"model", *set_before, *set_after}
        return changed_defaults(old, new, is_set=is_set, request=budget.request if budget else None)
    except UnknownVersion:
        return ()


def _release(item: Item) -> str | None:
    """Return None where the release is not known, or is newer than those whose source was read for kvgate."""
    version = item.vllm_version
    if version is None or (item.engine and not item.engine.is_release_known) or is_newer_than_known(version):
        return None
    return version


def _options_set(item: Item) -> frozenset[str] | None:
    """Return the options that are set, by vLLM's names; None where the input does not hold all of them."""
    if item.engine:
        return item.engine.options_set
    if item.spec is None:
        return frozenset()
    vllm = item.spec.vllm
    return frozenset(name for name, value in vllm if value is not None) | read_extra_args(vllm).given

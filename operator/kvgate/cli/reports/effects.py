"""Settings that differ between two engines, and what each of them alone does to the KV cache of the first one."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from kvgate.budget import Budget, BudgetError, BudgetRequest, plan

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


class Effect(Struct, frozen=True, kw_only=True):
    """One setting before and after, and the KV cache before with this change alone."""

    setting: str
    before: Any
    after: Any
    num_tokens: int | None
    """None where nothing is known with this change alone."""
    change_tokens: int | None


def effects_between(old: Budget | None, new: Budget | None) -> tuple[Effect, ...]:
    """Return the settings that differ, each applied alone to the old request; nothing where one side is not known."""
    if old is None or new is None:
        return ()
    changed = _with_same_shape(old.request, new.request)
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
            Effect(setting=setting, before=_plain(before), after=_plain(after), num_tokens=tokens, change_tokens=change)
        )
    return tuple(effects)


_Change = tuple[str, Any, Any, BudgetRequest]
"""Name, value before, value after, and the old request with this change."""


def _with_same_shape(old: BudgetRequest, new: BudgetRequest) -> BudgetRequest:
    """Return the new request with the old shape where both are of the same content: an entry may only have moved within its file."""
    before, after = old.shape.origin, new.shape.origin
    is_same = before is not None and after is not None and before.digest != "" and before.digest == after.digest
    is_read_alike = (old.shape.name, old.shape.dtype, old.shape.requested_format) == (
        new.shape.name, new.shape.dtype, new.shape.requested_format
    )  # fmt: skip
    return replace(new, shape=old.shape) if is_same and is_read_alike else new


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

"""Reports of the fetched models, for people and for programs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kvgate.budget.ground.units import format_gib
from kvgate.checkpoint.adapter import read_adapter
from kvgate.checkpoint.not_fetched import NotFetched
from kvgate.checkpoint.published import Published, shape_of, to_json
from kvgate.checkpoint.tensors import CheckpointError
from kvgate.cli.terminal import Line, Styled
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.drafts.reader import DRAFT_CLASSES
from kvgate.text.inert import inert_json

_MOST_DTYPES = 6


def text_report(found: Sequence[Published]) -> Iterator[Line]:
    """Yield the lines about all models."""
    for published in found:
        revision = f"@{published.revision}" if published.revision else ""
        yield (Styled(text=f"{published.name}{revision}", is_bold=True),)
        yield f"  source        {published.source}{f', commit {published.commit}' if published.commit else ''}"
        facts = _facts(published)
        yield from (f"  {name:<12}  {_shown(name, value)}" for name, value in facts.items() if value)


def _shown(name: str, value: Any) -> str:
    if name == "tensors":
        return f"{value:,}"
    if name == "weights" or isinstance(value, int):
        return format_gib(value)
    if isinstance(value, dict):
        return ", ".join(f"{dtype} {format_gib(size)}" for dtype, size in list(value.items())[:_MOST_DTYPES])
    return str(value)


def _facts(published: Published) -> dict[str, Any]:
    """Return what a reader looks for, by the word for it; what is not known is left out."""
    stored: Counter[str] = Counter()
    for group in published.tensors:
        stored[group.dtype] += group.size_bytes
    facts: dict[str, Any] = _model_facts(published) if published.config else _adapter_facts(published)
    if published.checkpoint_bytes:
        facts["weights"] = published.checkpoint_bytes
    if stored:
        facts["formats"] = dict(stored.most_common())
        facts["tensors"] = sum(group.count for group in published.tensors)
    return facts


def _model_facts(published: Published) -> dict[str, Any]:
    try:
        shape = shape_of(published)
    except ModelConfigError as error:
        return {"config": f"cannot be read: {error}"}
    length = f", up to {shape.max_model_len:,} tokens" if shape.max_model_len else ""
    num_layers = len(shape.layers)
    layers = f"{num_layers} layer{'' if num_layers == 1 else 's'}"
    facts = {"architecture": f"{shape.architecture}, {layers}{length}"}
    quantization = published.config.get("quantization_config")
    if isinstance(quantization, dict):
        facts["quantised"] = str(quantization.get("quant_method") or quantization.get("quant_algo") or "yes")
    if shape.architecture in DRAFT_CLASSES:
        facts["draft"] = "for speculative decoding, beside the model that it was trained for"
    elif shape.unmodelled_kinds:
        facts["not modelled"] = ", ".join(shape.unmodelled_kinds)
    return facts


def _adapter_facts(published: Published) -> dict[str, Any]:
    try:
        adapter = read_adapter(published.adapter)
    except CheckpointError as error:
        return {"adapter": f"cannot be read: {error}"}
    base = f" for {adapter.base_model}" if adapter.base_model else ""
    modules = ", ".join(sorted(adapter.target_modules)) or adapter.target_expression
    return {"adapter": f"{adapter.kind} of rank {adapter.largest_rank}{base}", "modules": modules}


def json_report(found: Sequence[Published], missing: Sequence[NotFetched]) -> str:
    """Return all entries, each with what a reader looks for, and the reasons for those that are missing."""
    models = [{**to_json(each), "facts": _facts(each)} for each in found]
    reasons = [
        {"name": each.name, "revision": each.revision, "reason": each.reason.value, "message": each.message,
         "remedies": list(each.remedies)}
        for each in missing
    ]  # fmt: skip
    return inert_json({"models": models, "notFetched": reasons}, indent=2)

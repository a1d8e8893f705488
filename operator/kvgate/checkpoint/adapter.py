"""LoRA's `adapter_config.json` → what decides memory, and what keeps vLLM from loading the adapter."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from kvgate.budget import Accounting
from kvgate.checkpoint.tensors import CheckpointError

ADAPTER_CONFIG = "adapter_config.json"
_LARGEST_RANK = 1 << 16
_MOST_NAMES = 4096
_WEIGHTS_OF_HEADS = frozenset({"classifier", "score"})
_INITIAL_WEIGHTS = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})
"""Ways of initialising that leave the base model as it is."""
_FEATURES = {
    "lora_bias": "biases of its own",
    "alora_invocation_tokens": "activation by tokens (aLoRA)",
    "layer_replication": "replicated layers",
    "use_bdlora": "block-diagonal matrices (BD-LoRA)",
    "use_qalora": "QALoRA",
}
"""Features that vLLM reads only to refuse them (0.32, `PEFTHelper._validate_features`)."""


class Adapter(Struct, frozen=True, kw_only=True):
    rank: int
    """`r`."""
    largest_rank: int
    """The largest of `r` and `rank_pattern`."""
    base_model: str = ""
    """`base_model_name_or_path`; empty where it is not stated."""
    kind: str = "LORA"
    """`peft_type`."""
    target_modules: frozenset[str] = frozenset()
    """Modules that the adapter changes; empty where they are an expression, or `all-linear`."""
    target_expression: str = ""
    whole_modules: frozenset[str] = frozenset()
    """`modules_to_save`: modules that the adapter replaces."""
    has_biases: bool = False
    uses_dora: bool = False
    initial_weights: str = ""
    """Way of initialising, where it is stated by name."""
    features: tuple[str, ...] = ()
    """Words for features that vLLM does not have."""


def read_adapter(config: Mapping[str, Any]) -> Adapter:
    """Read an adapter_config.json. Raises CheckpointError with all problems."""
    problems: list[str] = []
    rank = _rank(config.get("r"), "r", problems)
    pattern = config.get("rank_pattern") or {}
    if not isinstance(pattern, Mapping) or len(pattern) > _MOST_NAMES:
        problems.append("rank_pattern must be an object that gives ranks by name")
        pattern = {}
    ranks = [_rank(value, f"rank_pattern.{str(key)[:40]}", problems) for key, value in pattern.items()]
    targets = config.get("target_modules")
    is_text = isinstance(targets, str)
    modules = frozenset() if is_text else _names(targets, "target_modules", problems)
    if not is_text and not modules and not config.get("target_parameters"):
        problems.append("target_modules is missing; vLLM refuses an adapter without it")
    alpha = config.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        problems.append("lora_alpha is missing, or is no number; vLLM refuses an adapter without it")
    whole = _names(config.get("modules_to_save") or (), "modules_to_save", problems)
    initial = config.get("init_lora_weights")
    if problems:
        raise CheckpointError(*problems[:5])
    return Adapter(
        rank=rank,
        largest_rank=max([rank, *ranks]),
        base_model=str(config.get("base_model_name_or_path") or "")[:256],
        kind=str(config.get("peft_type") or "LORA")[:40],
        target_modules=modules,
        target_expression=str(targets)[:256] if is_text else "",
        whole_modules=whole,
        has_biases=str(config.get("bias") or "none") != "none",
        uses_dora=bool(config.get("use_dora")),
        initial_weights=initial[:40] if isinstance(initial, str) else "",
        features=tuple(words for key, words in _FEATURES.items() if config.get(key)),
    )


def refusals(adapter: Adapter, *, max_lora_rank: int, accounting: Accounting) -> Iterator[str]:
    """Yield the reasons why vLLM refuses to load the adapter (0.32, `PEFTHelper.validate_legal`), as what it is or has."""
    reads_more = accounting.adapters_replace_heads
    rank = adapter.largest_rank if reads_more else adapter.rank
    if rank > max_lora_rank:
        yield f"its rank {rank} is above --max-lora-rank {max_lora_rank}"
    if adapter.kind != "LORA":
        yield f"it is of the kind {adapter.kind}, and vLLM loads LORA only"
    whole = adapter.whole_modules - (_WEIGHTS_OF_HEADS if reads_more else frozenset())
    if whole:
        yield f"it replaces whole modules ({', '.join(sorted(whole)[:5])})"
    if adapter.uses_dora:
        yield "it is DoRA"
    if adapter.has_biases and not accounting.adapters_may_have_biases:
        yield "it has biases"
    if not reads_more:
        return
    if adapter.initial_weights and adapter.initial_weights.lower() not in _INITIAL_WEIGHTS:
        yield f"its initial weights ({adapter.initial_weights}) changed the base model"
    yield from (f"it has {words}" for words in adapter.features)


def is_of_another_model(adapter: Adapter, model: str) -> bool:
    """Return True where the adapter names a base model by another name.

    Copies and quantised copies of a model have names of their own, so this is a remark and no reason to refuse.
    """
    stated, served = (name.rstrip("/").rpartition("/")[2].lower() for name in (adapter.base_model, model))
    return bool(stated and served) and not (stated.startswith(served) or served.startswith(stated))


def _rank(value: object, key: str, problems: list[str]) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST_RANK:
        shown = "missing" if value is None else repr(value)[:40]
        problems.append(f"{key} is {shown}; it must be a whole number from 1 to {_LARGEST_RANK}")
        return 1
    return value


def _names(value: Any, key: str, problems: list[str]) -> frozenset[str]:
    if value is None:
        return frozenset()
    is_list = isinstance(value, list | tuple) and len(value) <= _MOST_NAMES
    if not is_list or not all(isinstance(name, str) and len(name) <= 256 for name in value):
        problems.append(f"{key} must be a list of names")
        return frozenset()
    return frozenset(value)

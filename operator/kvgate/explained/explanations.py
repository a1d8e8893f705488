"""Explanations for `kvgate explain --why`: every figure of the ledger and of the cache, by its name in the machine contract."""

import re

from msgspec import Struct

from kvgate.budget.answers.answer import Budget, Stage
from kvgate.budget.engine.run import built_shape
from kvgate.budget.gpu.ledger import Ledger, weights_of
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import GIB, MIB, format_gib
from kvgate.budget.kv_cache.capacity import PINNED_SAFETY_BYTES, KVCache
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.model.weights import WeightPart, Weights, weight_parts
from kvgate.explained.textbook import textbook_of
from kvgate.text.patterns import pattern

Inputs = tuple[tuple[str, int | str], ...]
_NAME = pattern(r"[a-z_]{2,}")

LEDGER_TERMS = ("total", "requested", "parameter", "weights", "peak_activation", "non_torch", "cuda_graph", "lora")
CACHE_TERMS = ("bytes_per_block", "request")
TERMS = (*LEDGER_TERMS, "available", "bytes_per_block", "blocks", "tokens", "concurrency", "request", "max_model_len")
"""Every figure that has an explanation, in the order of the ledger and of the cache."""
_ALIASES = {
    "available_kv_cache": "available",
    "num_blocks": "blocks",
    "num_tokens": "tokens",
    "max_concurrency": "concurrency",
    "request_blocks": "request",
    "max_model_len_that_fits": "max_model_len",
}

_CAPACITY = "vLLM 0.32, v1/core/kv_cache_utils.py"
_EXACT = "it is exact: vLLM's own arithmetic on whole blocks"
_FOLLOWS = "it is exact for a given KV cache memory, and changes with that memory"
DOUBTS = {
    "weights": (
        "the sizes of 16-bit tensors are known to 0.05 GiB; kernels that repack quantised or expert weights change them by about 1 %"
    ),
    "peak_activation": (
        "it depends on which kernels are fused and whether the compile cache is warm; from vLLM 0.20 on, a cold cache sets a "
        "lower limit to the peak"
    ),
    "non_torch": "it depends on the driver, the links between GPUs and the settings of NCCL, and a configuration names none of them",
    "cuda_graph": "the size of a captured piece depends on the kernels; the constants are fitted to few starts",
    "lora": "the slots are exact for the model classes that were read; other classes may leave a module out",
}
"""Doubts about the terms of the ledger, by name."""


class Explanation(Struct, frozen=True, kw_only=True):
    """One figure of a budget: its formula, the numbers in it, its source, and why it may be off.

    `formula` uses the names of `inputs`; it may leave out the end of a name in `_bytes`.
    """

    name: str
    amount: Interval
    formula: str
    source: str
    doubt: str
    """Reason why the figure may be off."""
    unit: str = "bytes"
    inputs: Inputs = ()
    parts: tuple[WeightPart, ...] = ()
    """Parts of the figure where they are a table; they sum to the expected value."""
    notes: tuple[str, ...] = ()

    @property
    def numbers(self) -> str:
        """The formula with numbers in place of names; empty where it has no names of inputs."""
        known = dict(self.inputs)

        def number(match: re.Match[str]) -> str:
            name = match[0]
            key = next((key for key in (f"{name}_bytes", name, f"{name}_graphs") if key in known), None)
            if key is None:
                return name
            value = known[key]
            return format_bytes(value) if key.endswith("_bytes") and isinstance(value, int) else str(value)

        numbers = _NAME.sub(number, self.formula)
        return "" if numbers == self.formula else numbers


def format_bytes(size: int) -> str:
    """Write a size in the unit in which it has digits."""
    if abs(size) >= GIB // 10:
        return format_gib(size)
    return f"{size / MIB:.2f} MiB" if abs(size) >= MIB // 10 else f"{size} bytes"


def term_named(name: str) -> str | None:
    """Return the term that a name of the machine contract, with or without `_bytes`, means; None for an unknown name."""
    plain = name.strip().replace("-", "_").removesuffix("_bytes")
    plain = _ALIASES.get(plain, plain)
    return plain if plain in TERMS else None


def explain_term(budget: Budget, name: str) -> Explanation | None:
    """Explain one of TERMS; None where the figure is not known: no formula, or no memory for the cache to divide."""
    stage, kv_cache, pool = budget.tightest, budget.kv_cache, budget.num_blocks
    if name == "available":
        if stage and budget.pin:
            return Explanation(
                name="available",
                amount=stage.available,
                formula="floor((low − safety) / bytes_per_block) × bytes_per_block",
                source="vLLM is given this size: --kv-cache-memory-bytes (0.10.2+), or as blocks by --num-gpu-blocks-override",
                doubt="the size is exact; where a start takes more than the low end allows for, it runs out of memory",
                inputs=(
                    ("low_bytes", budget.pin.available.low),
                    ("safety_bytes", PINNED_SAFETY_BYTES),
                    ("bytes_per_block", stage.bytes_per_block),
                ),
            )
        return _available(stage, gives_memory=budget.request.settings.gives_cache_memory) if stage else None
    if name in LEDGER_TERMS:
        return _ledger_figure(name, budget, stage, stage.ledger) if stage and stage.ledger else None
    if kv_cache is None:
        return None
    if name in CACHE_TERMS:
        return _bytes_per_block(kv_cache) if name == "bytes_per_block" else _request(budget, kv_cache)
    return _pool_figure(name, budget, stage, kv_cache, pool) if stage and pool and kv_cache.groups else None


def _ledger_figure(name: str, budget: Budget, stage: Stage, ledger: Ledger) -> Explanation | None:
    gpu = budget.request.accelerator
    if name == "total":
        return Explanation(
            name="total",
            amount=Interval(low=gpu.memory_low_bytes, expected=ledger.total_bytes, high=gpu.memory_high_bytes),
            formula="memory that the driver reports to a process",
            source="second value of cudaMemGetInfo; the accelerator catalogue names the logs",
            doubt="drivers and boards of one product report different sizes",
            inputs=(("accelerator", gpu.name), ("product", gpu.product)),
        )
    if name == "requested":
        return _requested(budget, ledger)
    if name == "parameter":
        if ledger.parameter_bytes is None:
            return None
        return Explanation(
            name="parameter",
            amount=Interval.exactly(ledger.parameter_bytes),
            formula="Σ elements × bytes of every parameter of the rank",
            source="vLLM 0.32, model classes",
            doubt="it is exact for the model classes that were read; loading adds to it (see weights)",
        )
    term = next((line for line in ledger.lines if line.name == name), None)
    if term is None:
        return None
    return Explanation(
        name=term.name,
        amount=term.amount,
        formula=term.formula,
        source=term.source,
        doubt=DOUBTS[term.name],
        inputs=term.inputs,
        parts=_weight_table(budget, stage) if name == "weights" else (),
        notes=tuple(fact.text for fact in term.facts),
    )


def _requested(budget: Budget, ledger: Ledger) -> Explanation:
    keeps_caches = budget.request.shape.keeps_caches
    share = budget.resolved.gpu_memory_utilization if keeps_caches else 1
    return Explanation(
        name="requested",
        amount=Interval.exactly(ledger.requested_bytes),
        formula="ceil(total × gpu_memory_utilization)"
        if keeps_caches
        else "total, because the model keeps no KV cache",
        source="vLLM 0.11+, v1/worker/utils.py request_memory; the default is 0.90, from 0.20 on 0.92",
        doubt="it is exact for this total; the totals that other drivers report widen the range of what is available",
        inputs=(("total_bytes", ledger.total_bytes), ("gpu_memory_utilization", f"{float(share):g}")),
    )


def _weight_table(budget: Budget, stage: Stage) -> tuple[WeightPart, ...]:
    """Return the weights part by part; no parts where the user gave the weights as one figure."""
    request, layers = budget.request, (stage.first, stage.last)
    if request.weights_bytes is not None:
        return ()

    def weigh(shape: ModelShape) -> Weights:
        return weights_of(shape, request, budget.accounting, layers)

    parts = weight_parts(built_shape(request.shape, budget.accounting, request.settings), layers, weigh)
    if request.draft is None or stage.ledger is None or layers[1] != len(request.shape.layers):
        return parts
    return (*parts, WeightPart(name="draft", size_bytes=int(dict(stage.ledger.lines[0].inputs).get("draft_bytes", 0))))


def _available(stage: Stage, *, gives_memory: bool) -> Explanation:
    ledger = stage.ledger
    if gives_memory or ledger is None:
        return Explanation(
            name="available",
            amount=stage.available,
            formula="as given",
            source="the request",
            doubt="nothing is predicted",
        )
    amounts = tuple((f"{line.name}_bytes", line.amount.expected) for line in ledger.lines)
    unexplained = f"{format_gib(ledger.uncertainty_bytes)} that no term explains (drivers, untried releases)"
    return Explanation(
        name="available",
        amount=stage.available,
        formula=" − ".join(("requested", *(line.name for line in ledger.lines))),
        source="vLLM 0.32, v1/worker/gpu_worker.py determine_available_memory",
        doubt=f"the terms err independently, so the squares of their half widths add up, together with {unexplained}",
        inputs=(("requested_bytes", ledger.requested_bytes), *amounts),
    )


def _bytes_per_block(kv_cache: KVCache) -> Explanation:
    widest = max(kv_cache.groups, key=lambda group: group.bytes_between(0, None), default=None)
    inputs: Inputs = ()
    if widest is not None and len(widest.parts) == 1:
        inputs = (("page_bytes", widest.spec.page_size_bytes), ("layers", widest.num_layers))
    return Explanation(
        name="bytes_per_block",
        amount=Interval.exactly(kv_cache.bytes_per_block),
        formula="page × layers" if inputs else "Σ pages",
        source=f"{_CAPACITY} get_kv_cache_groups; a page is one block of one layer",
        doubt=_EXACT,
        inputs=inputs,
        notes=("these are the bytes of the group that holds most; a block of any other group takes as many",),
    )


def _request(budget: Budget, kv_cache: KVCache) -> Explanation:
    textbook = textbook_of(budget)
    return Explanation(
        name="request",
        amount=Interval.exactly(kv_cache.request_bytes),
        formula="request_blocks × bytes_per_block",
        source="vLLM 0.32, v1/kv_cache_interface.py max_memory_usage_bytes; one request of max_model_len tokens",
        doubt=_EXACT,
        inputs=(
            ("max_model_len", kv_cache.reach.max_model_len),
            ("request_blocks", kv_cache.request_blocks),
            ("bytes_per_block", kv_cache.bytes_per_block),
        ),
        notes=(textbook.comparison(kv_cache.request_bytes), *textbook.reasons) if textbook else (),
    )


def _pool_figure(name: str, budget: Budget, stage: Stage, kv_cache: KVCache, pool: Interval) -> Explanation:
    """Explain a figure that needs the number of blocks."""
    if name == "blocks":
        return Explanation(
            name="blocks",
            unit="blocks",
            amount=pool,
            formula="floor(available / bytes_per_block)",
            source=f"{_CAPACITY} get_num_blocks",
            doubt=_FOLLOWS,
            inputs=(("available_bytes", stage.available.expected), ("bytes_per_block", stage.bytes_per_block)),
            notes=("one of them, the null block, serves no request",) if kv_cache.null_blocks else (),
        )
    if name == "tokens":
        return _tokens(budget, kv_cache, pool)
    if name == "concurrency":
        return Explanation(
            name="concurrency",
            unit="requests",
            amount=pool.each(lambda blocks: int(kv_cache.max_concurrency(blocks))),
            formula="blocks / request_blocks",
            source=f"{_CAPACITY} get_max_concurrency_for_kv_cache_config; full-length requests, the null block included",
            doubt=_FOLLOWS,
            inputs=(("blocks", pool.expected), ("request_blocks", kv_cache.request_blocks)),
            notes=(f"vLLM prints {float(kv_cache.max_concurrency(pool.expected)):.2f}x",),
        )
    longest = budget.resolved.max_model_len
    return Explanation(
        name="max_model_len",
        unit="tokens",
        amount=pool.each(lambda blocks: kv_cache.max_model_len_that_fits(blocks, at_most=longest)),
        formula="longest request of at most max_model_len tokens that fits into blocks − null_blocks",
        source=f"{_CAPACITY} _estimate_max_model_len",
        doubt=_FOLLOWS,
        inputs=(("blocks", pool.expected), ("null_blocks", kv_cache.null_blocks), ("max_model_len", longest)),
    )


def _tokens(budget: Budget, kv_cache: KVCache, pool: Interval) -> Explanation:
    by_concurrency = kv_cache.tokens_by_concurrency
    return Explanation(
        name="tokens",
        unit="tokens",
        amount=budget.num_tokens or Interval.exactly(0),
        formula="floor(blocks / request_blocks × max_model_len)" if by_concurrency else "blocks / groups × block_size",
        source="the GPU KV cache size that this release logs",
        doubt=_FOLLOWS,
        inputs=(
            ("blocks", pool.expected),
            ("request_blocks", kv_cache.request_blocks),
            ("max_model_len", kv_cache.reach.max_model_len),
            ("groups", len(kv_cache.groups)),
            ("block_size", min(group.spec.block_size for group in kv_cache.groups)),
        ),
    )

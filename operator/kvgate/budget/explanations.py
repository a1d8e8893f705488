"""Explanations for `kvgate explain --why`: every figure of the ledger and of the cache, by its name in the machine contract."""

import re
from collections.abc import Callable, Mapping

from kvgate.budget.capacity import KVCache
from kvgate.budget.interval import Interval, Term
from kvgate.budget.ledger import Ledger, weights_of
from kvgate.budget.model_shape import ModelShape
from kvgate.budget.plan import Budget, Stage
from kvgate.budget.run import built_shape
from kvgate.budget.textbook import textbook_of
from kvgate.budget.units import GIB, MIB, format_gib
from kvgate.budget.weights import WeightPart, Weights, weight_parts
from kvgate.record import record

Inputs = tuple[tuple[str, int | str], ...]
_NAME = re.compile(r"[a-z_]{2,}")


@record
class Explanation:
    """One figure; `formula` is in the names of `inputs`, where a name that ends in `_bytes` may stand without its end."""

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
        """The formula with the numbers put in; empty where it has no names of inputs."""
        known = dict(self.inputs)
        numbers = _NAME.sub(lambda match: _number(known, match[0]), self.formula)
        return "" if numbers == self.formula else numbers


def _number(inputs: Mapping[str, int | str], name: str) -> str:
    """Return an input by its name or by the beginning of it."""
    key = next((key for key in (f"{name}_bytes", name, f"{name}_graphs") if key in inputs), None)
    if key is None:
        return name
    value = inputs[key]
    return format_bytes(value) if key.endswith("_bytes") and isinstance(value, int) else str(value)


def format_bytes(size: int) -> str:
    """Write a size in the unit in which it has digits."""
    if abs(size) >= GIB // 10:
        return format_gib(size)
    return f"{size / MIB:.2f} MiB" if abs(size) >= MIB // 10 else f"{size} bytes"


DOUBTS = {
    "weights": "tensors in 16 bits are known to 0.05 GiB; kernels that repack quantised or expert weights move about 1 %",
    "peak_activation": (
        "which kernels are fused and whether the compile cache is warm; a cold one puts a floor under the peak from 0.20 on"
    ),
    "non_torch": "driver, links between GPUs and settings of NCCL, none of which a configuration names",
    "cuda_graph": "what a captured piece takes depends on kernels; the constants are fitted on few starts",
}
"""Doubts about the terms of the ledger, by name."""


def of_term(term: Term, parts: tuple[WeightPart, ...] = ()) -> Explanation:
    """A line of the ledger in the same words as every other figure."""
    return Explanation(
        name=term.name,
        amount=term.amount,
        formula=term.formula,
        source=term.source,
        doubt=DOUBTS[term.name],
        inputs=term.inputs,
        parts=parts,
    )


_CAPACITY = "vLLM 0.32, v1/core/kv_cache_utils.py"
_EXACT = "it is exact: vLLM's own arithmetic on whole blocks"
_FOLLOWS = "it is exact for a given KV cache memory, and moves with it"

_ALIASES = {
    "available_kv_cache": "available",
    "num_blocks": "blocks",
    "num_tokens": "tokens",
    "max_concurrency": "concurrency",
    "request_blocks": "request",
    "max_model_len_that_fits": "max_model_len",
}


def term_named(name: str) -> str | None:
    """The term that a name of the machine contract, with or without `_bytes`, means; None for an unknown one."""
    plain = name.strip().replace("-", "_").removesuffix("_bytes")
    plain = _ALIASES.get(plain, plain)
    return plain if plain in TERMS else None


def explain_term(budget: Budget, name: str) -> Explanation | None:
    """None where the figure is not known: no formula, or no memory for the cache to divide."""
    return TERMS[name](budget)


def _of_ledger(
    explain: Callable[[Budget, Stage, Ledger], Explanation | None],
) -> Callable[[Budget], Explanation | None]:
    """Make an explanation of figures in the tightest stage's ledger."""

    def explained(budget: Budget) -> Explanation | None:
        stage = budget.tightest
        return explain(budget, stage, stage.ledger) if stage and stage.ledger else None

    return explained


def _of_cache(explain: Callable[[Budget, KVCache], Explanation | None]) -> Callable[[Budget], Explanation | None]:
    """Make an explanation of figures that need the layout of the cache."""

    def explained(budget: Budget) -> Explanation | None:
        return explain(budget, budget.kv_cache) if budget.kv_cache else None

    return explained


def _of_pool(explain: Callable[[Budget, KVCache, Interval], Explanation]) -> Callable[[Budget], Explanation | None]:
    """Make an explanation of figures that need the number of blocks."""

    def explained(budget: Budget) -> Explanation | None:
        pool, kv_cache = budget.num_blocks, budget.kv_cache
        return explain(budget, kv_cache, pool) if pool and kv_cache and kv_cache.groups else None

    return explained


def _line(name: str) -> Callable[[Budget, Stage, Ledger], Explanation | None]:
    def explained(budget: Budget, stage: Stage, ledger: Ledger) -> Explanation | None:
        term = next(line for line in ledger.lines if line.name == name)
        return of_term(term, _weight_table(budget, stage) if name == "weights" else ())

    return explained


def _weight_table(budget: Budget, stage: Stage) -> tuple[WeightPart, ...]:
    """Nothing where the weights were given as one figure."""
    request = budget.request
    if request.weights_bytes is not None:
        return ()

    def weigh(shape: ModelShape) -> Weights:
        return weights_of(shape, request, budget.accounting, (stage.first, stage.last))

    return weight_parts(
        built_shape(request.shape, budget.accounting, request.settings), (stage.first, stage.last), weigh
    )


def _total(budget: Budget, _stage: Stage, ledger: Ledger) -> Explanation:
    gpu = budget.request.accelerator
    return Explanation(
        name="total",
        amount=Interval(low=gpu.memory_low_bytes, expected=ledger.total_bytes, high=gpu.memory_high_bytes),
        formula="what the driver reports to a process",
        source="second value of cudaMemGetInfo; the accelerator catalogue names the logs",
        doubt="drivers and boards of one product differ",
        inputs=(("accelerator", gpu.name), ("product", gpu.product)),
    )


def _requested(budget: Budget, _stage: Stage, ledger: Ledger) -> Explanation:
    share = budget.resolved.gpu_memory_utilization
    return Explanation(
        name="requested",
        amount=Interval.exactly(ledger.requested_bytes),
        formula="ceil(total × gpu_memory_utilization)",
        source="vLLM 0.11+, v1/worker/utils.py request_memory; the default is 0.90, from 0.20 on 0.92",
        doubt="it is exact for this total; what other drivers report widens what is available",
        inputs=(("total_bytes", ledger.total_bytes), ("gpu_memory_utilization", f"{float(share):g}")),
    )


def _parameter(_budget: Budget, _stage: Stage, ledger: Ledger) -> Explanation | None:
    if ledger.parameter_bytes is None:
        return None
    return Explanation(
        name="parameter",
        amount=Interval.exactly(ledger.parameter_bytes),
        formula="Σ elements × bytes of every parameter of the rank",
        source="vLLM 0.32, model classes",
        doubt="it is exact for the model classes that were read; loading adds to it (see weights)",
    )


def _available(budget: Budget) -> Explanation | None:
    stage = budget.tightest
    if stage is None:
        return None
    if budget.request.settings.gives_cache_memory or stage.ledger is None:
        return Explanation(
            name="available",
            amount=stage.available,
            formula="as given",
            source="the request",
            doubt="nothing is predicted",
        )
    ledger = stage.ledger
    amounts = tuple((f"{line.name}_bytes", line.amount.expected) for line in ledger.lines)
    return Explanation(
        name="available",
        amount=stage.available,
        formula="requested − weights − peak_activation − non_torch − cuda_graph",
        source="vLLM 0.32, v1/worker/gpu_worker.py determine_available_memory",
        doubt=f"the terms err independently, so their half widths add up in squares, with {_uncertainty(ledger)}",
        inputs=(("requested_bytes", ledger.requested_bytes), *amounts),
    )


def _uncertainty(ledger: Ledger) -> str:
    return f"{format_gib(ledger.uncertainty_bytes)} that no term explains (drivers, untried releases)"


def _bytes_per_block(_budget: Budget, kv_cache: KVCache) -> Explanation:
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
        notes=("of the group that holds most; every other group pays the same",),
    )


def _blocks(budget: Budget, kv_cache: KVCache, pool: Interval) -> Explanation:
    stage = budget.tightest
    inputs: Inputs = (("bytes_per_block", stage.bytes_per_block),) if stage else ()
    available: Inputs = (("available_bytes", stage.available.expected),) if stage else ()
    return Explanation(
        name="blocks",
        unit="blocks",
        amount=pool,
        formula="floor(available / bytes_per_block)",
        source=f"{_CAPACITY} get_num_blocks",
        doubt=_FOLLOWS,
        inputs=(*available, *inputs),
        notes=("one of them, the null block, serves no request",) if kv_cache.null_blocks else (),
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


def _concurrency(_budget: Budget, kv_cache: KVCache, pool: Interval) -> Explanation:
    low, expected, high = (int(kv_cache.max_concurrency(blocks)) for blocks in (pool.low, pool.expected, pool.high))
    return Explanation(
        name="concurrency",
        unit="requests",
        amount=Interval(low=low, expected=expected, high=high),
        formula="blocks / request_blocks",
        source=f"{_CAPACITY} get_max_concurrency_for_kv_cache_config; full-length requests, the null block included",
        doubt=_FOLLOWS,
        inputs=(("blocks", pool.expected), ("request_blocks", kv_cache.request_blocks)),
        notes=(f"vLLM prints {float(kv_cache.max_concurrency(pool.expected)):.2f}x",),
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


def _max_model_len(budget: Budget, kv_cache: KVCache, pool: Interval) -> Explanation:
    longest = budget.resolved.max_model_len
    lengths = [kv_cache.max_model_len_that_fits(n, at_most=longest) for n in (pool.low, pool.expected, pool.high)]
    return Explanation(
        name="max_model_len",
        unit="tokens",
        amount=Interval(low=lengths[0], expected=lengths[1], high=lengths[2]),
        formula="the longest request whose blocks fit beside the null block, at most the max_model_len asked for",
        source=f"{_CAPACITY} _estimate_max_model_len",
        doubt=_FOLLOWS,
        inputs=(("blocks", pool.expected), ("null_blocks", kv_cache.null_blocks), ("asked", longest)),
    )


TERMS: dict[str, Callable[[Budget], Explanation | None]] = {
    "total": _of_ledger(_total),
    "requested": _of_ledger(_requested),
    "parameter": _of_ledger(_parameter),
    "weights": _of_ledger(_line("weights")),
    "peak_activation": _of_ledger(_line("peak_activation")),
    "non_torch": _of_ledger(_line("non_torch")),
    "cuda_graph": _of_ledger(_line("cuda_graph")),
    "available": _available,
    "bytes_per_block": _of_cache(_bytes_per_block),
    "blocks": _of_pool(_blocks),
    "tokens": _of_pool(_tokens),
    "concurrency": _of_pool(_concurrency),
    "request": _of_cache(_request),
    "max_model_len": _of_pool(_max_model_len),
}
"""Every explanation by its term, in the order of the ledger and of the cache."""

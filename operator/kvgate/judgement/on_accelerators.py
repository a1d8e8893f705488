"""One question on several accelerators: the verdict on each, and the memory that one GPU must have."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import NOTHING_OBSERVED, Accelerator, Budget, BudgetRequest, Verdict, accounting_of
from kvgate.budget.ground.units import GIB, cdiv, share_of
from kvgate.findings.finding import Severity, error_rules
from kvgate.judgement.assess import judge
from kvgate.judgement.assessment import AcceleratorVerdict, Assessment, MemoryNeeded, joined_verdict
from kvgate.rules.checks import BUDGET_RULES
from kvgate.rules.memory import KV_CACHE_MEMORY_ABOVE_GPU, WEIGHTS_TOO_LARGE
from kvgate.statement.engine import is_for_servers

_SCRATCH_BYTES = GIB
"""More than the sampler's scratch differs between two GPUs: a row of the vocabulary for each multiprocessor (`bytes_of_sampler`)."""


def verdicts_on(request: BudgetRequest, accelerators: Sequence[Accelerator]) -> tuple[AcceleratorVerdict, ...]:
    """Judge a question on each accelerator, in their order; the accelerator of the question itself does not count."""
    verdicts = _verdicts if request.calibration is NOTHING_OBSERVED else _verdicts.__wrapped__
    return verdicts(replace(request, accelerator=accelerators[0]), tuple(accelerators)) if accelerators else ()


@lru_cache(maxsize=512)
def _verdicts(request: BudgetRequest, accelerators: tuple[Accelerator, ...]) -> tuple[AcceleratorVerdict, ...]:
    """Return the verdicts. Many engines of a repository ask the same question, which is answered once."""
    found: dict[str, AcceleratorVerdict] = {}
    kinds: dict[tuple[Any, ...], list[Accelerator]] = {}
    accounting, spreads = accounting_of(request.vllm_version), request.settings.parallelism.num_gpus > 1
    chunks_by_memory = any(encoder.chunk_patch_bytes for encoder in request.shape.encoders)
    for each in sorted(accelerators, key=lambda each: (each.memory_bytes, -each.multiprocessors)):
        limits = accounting.batch_limits(each, request.circumstances.usage_context)
        # everything that the arithmetic and the rules read, except memory and multiprocessors
        kind = (
            each.vendor,
            each.compute_capability or (),
            each.unified_memory,
            each.is_slice,
            spreads and (each.nvlink, each.has_multicast),
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            each.memory_bytes if chunks_by_memory else 0,  # the profile run takes more where there is more
            each.name if request.calibration.starts else "",  # observed starts are those of one product
        )
        kinds.setdefault(kind, []).append(each)
    for alike in kinds.values():
        found |= _verdicts_of_kind(request, alike)
    return tuple(found[each.name] for each in accelerators)


def _verdicts_of_kind(request: BudgetRequest, ordered: Sequence[Accelerator]) -> dict[str, AcceleratorVerdict]:
    """Judge accelerators that differ in memory and multiprocessors alone, ordered by memory.

    Where one fits, one that has no less of everything fits too, and where one does not, one that has no more does not: only those
    that this leaves open are judged, the ends first, then in the middle.
    """
    found: dict[str, AcceleratorVerdict] = {}
    left = list(ordered)
    turn = 0
    while left:
        each = left.pop((0, -1, len(left) // 2)[min(turn, 2)])
        turn += 1
        assessment = judge(replace(request, accelerator=each))
        found[each.name] = judged = _verdict(assessment, each.name)
        budget = assessment.budget
        if judged.verdict is Verdict.FITS:
            is_clear = bool(budget and budget.headroom and budget.headroom.low > _SCRATCH_BYTES)
            same = [other for other in left if _has_no_less(other, each, is_clear=is_clear)]
            found |= {other.name: replace(judged, name=other.name) for other in same}
        elif judged.verdict is Verdict.DOES_NOT_FIT:
            # a reason that is not the bytes does not depend on the scratch either
            stages = budget.stages if budget else ()
            doubt_bytes = max((stage.available.high - stage.available.expected for stage in stages), default=0)
            is_clear = judged.lacking_bytes is None or judged.lacking_bytes > 2 * _SCRATCH_BYTES + doubt_bytes
            same = [other for other in left if _has_no_less(each, other, is_clear=is_clear)]
            found |= {other.name: _smaller(judged, budget, other) for other in same}
        left = [other for other in left if other.name not in found]
    return found


def _has_no_less(one: Accelerator, other: Accelerator, *, is_clear: bool) -> bool:
    """Return whether a GPU surely leaves as much for the KV cache as another of its kind.

    `is_clear`: the sampler's scratch decides nothing.
    """
    more = min(
        one.memory_bytes - other.memory_bytes,
        one.memory_low_bytes - other.memory_low_bytes,
        one.memory_high_bytes - other.memory_high_bytes,
    )
    return more >= (0 if is_clear or one.multiprocessors <= other.multiprocessors else 2 * _SCRATCH_BYTES)


def _smaller(judged: AcceleratorVerdict, budget: Budget | None, other: Accelerator) -> AcceleratorVerdict:
    """Return the verdict on a GPU that has less than one on which it does not fit."""
    if judged.lacking_bytes is None or budget is None:
        return replace(judged, name=other.name)
    less_bytes = share_of(
        budget.request.accelerator.memory_bytes - other.memory_bytes, budget.resolved.gpu_memory_utilization
    )
    return _lacking(other.name, judged.reason, judged.lacking_bytes + less_bytes, budget)


def _lacking(name: str, reason: str, lacking: int, budget: Budget) -> AcceleratorVerdict:
    """Return a refusal for want of bytes; where even the weights leave nothing, they are the reason."""
    reason = str(WEIGHTS_TOO_LARGE) if lacking > (budget.demand_bytes or 0) else reason
    return AcceleratorVerdict(name=name, verdict=Verdict.DOES_NOT_FIT, reason=reason, lacking_bytes=lacking)


def _verdict(assessment: Assessment, name: str) -> AcceleratorVerdict:
    """Return the verdict with the rule of the first finding that decides it."""
    verdict, budget = assessment.verdict, assessment.budget
    if any(each.rule == KV_CACHE_MEMORY_ABOVE_GPU for each in assessment.findings) and verdict is Verdict.FITS:
        return AcceleratorVerdict(name=name, verdict=Verdict.MAY_NOT_FIT, reason=str(KV_CACHE_MEMORY_ABOVE_GPU))
    decides = Severity.ERROR if error_rules(assessment.findings) else Severity.WARNING
    counting = [each.rule for each in assessment.findings if each.severity is decides]
    if verdict in (Verdict.FITS, Verdict.UNKNOWN) or budget is None or not counting:
        return AcceleratorVerdict(name=name, verdict=verdict)
    first = next((rule for rule in counting if rule not in BUDGET_RULES), counting[0])
    if first in BUDGET_RULES and verdict is Verdict.DOES_NOT_FIT and (lacking := budget.lacking_bytes):
        return _lacking(name, first.id, lacking, budget)
    return AcceleratorVerdict(name=name, verdict=verdict, reason=first.id)


def memory_needed(budget: Budget) -> MemoryNeeded | None:
    """Return the memory that one GPU must have, by the ledger of a budget; None where a part has no formula."""
    stage, demand, kv_cache = budget.tightest, budget.demand, budget.kv_cache
    if stage is None or stage.ledger is None or demand is None or kv_cache is None:
        return None
    share, demand_bytes = budget.resolved.gpu_memory_utilization, demand.blocks * stage.bytes_per_block
    request, memory = budget.request, None
    if not request.settings.gives_cache_memory and request.shape.keeps_caches:
        own_bytes = stage.ledger.requested_bytes - stage.ledger.available.low
        memory = cdiv((own_bytes + demand_bytes) * share.denominator, share.numerator)
    return MemoryNeeded(
        weights_bytes=stage.ledger.weights.high,
        request_bytes=demand.startup_blocks * stage.bytes_per_block,
        demand_bytes=demand_bytes,
        memory_bytes=memory,
    )


def joined(low: Sequence[AcceleratorVerdict], high: Sequence[AcceleratorVerdict]) -> Iterator[AcceleratorVerdict]:
    """Join the verdicts of two releases: an accelerator on which they differ may or may not do."""
    for older, newer in zip(low, high, strict=True):
        if older.verdict is newer.verdict:
            yield newer
        else:
            shown = older if newer.verdict is Verdict.FITS else newer
            yield replace(shown, verdict=joined_verdict((older.verdict, newer.verdict)), lacking_bytes=None)


def smallest_that_starts(verdicts: Sequence[AcceleratorVerdict]) -> str | None:
    """Return the GPU with the least memory on which it starts, for servers if one is; else one on which it may; else nothing."""
    known = [(each, accelerator) for each in verdicts if (accelerator := catalogue.find_accelerator(each.name))]
    usual = {each.name for each in catalogue.accelerators()}
    for verdict in (Verdict.FITS, Verdict.MAY_NOT_FIT):
        alike = [accelerator for each, accelerator in known if each.verdict is verdict]
        if alike:
            return min(
                alike, key=lambda each: (each.name not in usual, not is_for_servers(each), each.memory_bytes)
            ).name
    return None

"""The smallest changes of a question that would make its answer cheaper, or possible."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from msgspec.structs import replace

from kvgate.budget import Guarantee, Verdict, largest_max_num_seqs
from kvgate.planning.candidate import Candidate
from kvgate.planning.size import NODE, NODES, Question, candidates_on

HOST_MEMORY = (
    "host memory is never counted as GPU memory: --cpu-offload-gb moves weights there and slows every token down, "
    "--kv-offloading-size keeps evicted blocks there for later requests and makes no room for running ones"
)
"""Note on offloading, which no verdict counts."""


def hints(question: Question, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Return hints about the cheapest answer; where there is none, about the candidate that comes closest."""
    best = next((c for c in candidates if c.verdict is Verdict.FITS), None)
    return tuple(_cheaper(question, best, candidates)) if best else tuple(_possible(question, candidates))


def _cheaper(question: Question, best: Candidate, candidates: Sequence[Candidate]) -> Iterator[str]:
    total = question.concurrency
    if best.replicas > 1 and not question.fills:
        fewer = best.surely * (best.replicas - 1)
        yield f"{fewer} requests at the same time instead of {total} would need {_name(best, best.replicas - 1)}"
    engines, part = best.on_one_gpu
    if engines > 1 and part is not None:
        each = f"each with --gpu-memory-utilization {float(part):g}"
        yield f"one {best.accelerator.name} holds {engines} of these engines, {each} and started one after the other"
    if question.fills:
        return
    for other in cheaper_perhaps(best, candidates)[:1]:
        if question.request.guarantee is not Guarantee.STARTUP:
            sure = (
                f", and is for sure for {other.held} requests at the same time instead of {total}" if other.held else ""
            )
            yield f"{_name(other)} may be enough{sure}"
    if best.num_gpus > min(NODES) > best.parallelism.num_gpus:
        fewest = _fewest(candidates_on(question, best.accelerator, counts=(*NODE, *NODES)))
        if fewest < best.num_gpus:
            yield f"engines over several nodes would need {fewest} × {best.accelerator.name} instead of {best.num_gpus}"
    if "fp8" not in question.kv_cache_dtypes:
        fewest = _fewest(candidates_on(replace(question, kv_cache_dtypes=("fp8",)), best.accelerator))
        if fewest < best.num_gpus:
            yield f"an fp8 KV cache would need {fewest} × {best.accelerator.name} instead of {best.num_gpus}"


def _fewest(candidates: Iterable[Candidate]) -> float:
    """Return the fewest GPUs of a candidate that fits; infinity where none does."""
    return min((c.num_gpus for c in candidates if c.verdict is Verdict.FITS), default=inf)


def cheaper_perhaps(best: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that may fit and cost less than the best; GPUs are counted where a price is not known."""
    return [c for c in candidates if c.verdict is Verdict.MAY_NOT_FIT and _costs_less(c, best)]


def _costs_less(candidate: Candidate, than: Candidate) -> bool:
    if candidate.cost is not None and than.cost is not None:
        return candidate.cost < than.cost
    return candidate.accelerator.name == than.accelerator.name and candidate.num_gpus < than.num_gpus


def _possible(question: Question, candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield the changes of the question that would give an answer."""
    held = max(candidates, key=lambda c: (c.held, -c.num_gpus), default=None)
    if held and held.surely:
        limit = question.gpus_of(held.accelerator)
        most = held.surely * max(1, limit // held.parallelism.num_gpus)
        yield f"{min(most, question.concurrency)} requests at the same time fit within {limit} GPUs, on {_name(held)}"
        return
    longest = max(candidates, key=lambda c: (not c.is_refused, c.longest, -c.num_gpus), default=None)
    if longest and longest.longest and not longest.is_refused:
        yield f"the longest request that starts for sure has {longest.longest} tokens, on {_name(longest)}"
        return
    # fewer sequences, where their states are what does not fit
    tight = [c for c in candidates if not c.is_refused and c.budget.demand and c.budget.demand.is_for_sequences]
    started = [(largest_max_num_seqs(c.budget.request, c.budget.resolved.max_num_seqs), c) for c in tight]
    sequences, candidate = max(started, key=lambda pair: pair[0], default=(0, None))
    if sequences and candidate:
        yield f"--max-num-seqs {sequences} starts for sure, on {_name(candidate)}"
    elif any(c.verdict is Verdict.DOES_NOT_FIT and not c.is_refused for c in candidates):
        yield "the weights leave no room: use a quantised checkpoint, larger GPUs, or more of them (--max-gpus)"


def _name(candidate: Candidate, replicas: int | None = None) -> str:
    """Return the GPUs as text: `4 × H100-SXM-80GB`."""
    replicas = replicas or candidate.replicas
    return f"{replicas * candidate.parallelism.num_gpus} × {candidate.accelerator.name}"

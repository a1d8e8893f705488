"""Search for GPUs, their number and their settings: candidates that the engine judges, cheapest first."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, inf

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.budget import Accelerator, BudgetRequest, Guarantee, Scope, Verdict, plan
from kvgate.budget.answers.decoding import DecodeBound, decode_bound
from kvgate.budget.answers.prefill import PrefillBound, prefill_bound
from kvgate.budget.answers.support import parallelism_refusals
from kvgate.budget.ground.units import GIB, cdiv
from kvgate.budget.kv_cache.capacity import blocks_of_workload, largest, shared_tokens
from kvgate.findings.finding import Finding
from kvgate.judgement import assess
from kvgate.judgement.advisor import OTHER_GPUS, advice, most
from kvgate.judgement.assessment import Confidence
from kvgate.judgement.summary import alternatives_text, most_text
from kvgate.planning.candidate import Candidate, closeness, rank
from kvgate.vllm.arguments import option_name

NODE = (1, 2, 4, 8)
"""GPUs of one engine within a node."""
NODES = (16, 32)
"""GPUs of one engine over several nodes, tried where no node is enough, whatever the GPU."""
MOST_REQUESTS = 1 << 14
"""Requests beyond which nobody asks one engine for more; vLLM's batches limit them long before."""
_FEW = 3
"""Accelerators of which every size of an engine is shown, where the answer is what they hold."""
_FITS = (Verdict.FITS,)
_MAY_FIT = (Verdict.FITS, Verdict.MAY_NOT_FIT)
_NOT_NO = (*_MAY_FIT, Verdict.UNKNOWN)


class Question(Struct, frozen=True, kw_only=True):
    """The load that must be served, and the GPUs that it may run on."""

    request: BudgetRequest
    """Everything but the accelerator, the parallel sizes and the cache dtype, which are searched."""
    accelerators: tuple[Accelerator, ...]
    kv_cache_dtypes: tuple[str, ...] = ("auto", "fp8")
    """Formats in the order of preference where the number of GPUs is the same."""
    prices: Mapping[str, Fraction] = field(default_factory=dict)
    """Price of a GPU per hour, by the accelerator's name."""
    max_gpus: int = 64
    available: Mapping[str, int] = field(default_factory=dict)
    """GPUs that there are of an accelerator, by its name; `max_gpus` for all others."""
    fills: bool = False
    """True where nobody says how many requests there are: the answer is how many the GPUs hold."""
    findings: tuple[Finding, ...] = ()
    """About the model and the release, before anything is judged."""
    keep: frozenset[str] = frozenset()
    """Settings that no hint changes."""
    maximize: str | None = None
    """`context` or `users`: say how much of it settings make room for on the GPUs that are chosen."""

    def gpus_of(self, accelerator: Accelerator) -> int:
        """Return the most GPUs of one accelerator, in all replicas together."""
        return self.available.get(accelerator.name, self.max_gpus)

    @property
    def concurrency(self) -> int:
        """Requests that all replicas together must hold; one where the engines only have to start."""
        workload, guarantee = self.request.workload, self.request.guarantee
        if guarantee is Guarantee.WORKLOAD and workload is not None:
            return workload.peak_concurrency
        return plan(self.request).resolved.max_num_seqs if guarantee is Guarantee.FULL_CONTEXT else 1


def find_candidates(
    question: Question, *, every: bool = False, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> tuple[Candidate, ...]:
    """Return the best candidates of each accelerator, or `every` candidate: those that fit, then those that may fit, then the rest."""
    found = _search(question, NODE, every=every, progress=progress)
    most = max(map(question.gpus_of, question.accelerators))
    if most > max(NODE) and not any(candidate.verdict in _NOT_NO for candidate in found):
        found = _search(question, (*NODE, *NODES), every=every, progress=progress)
    return tuple(sorted(found, key=rank))


def usual(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that a person would build: without those of many engines where others fit."""
    few = [c for c in candidates if c.verdict is not Verdict.FITS or not c.is_of_many]
    return tuple(few if any(c.verdict is Verdict.FITS for c in few) else candidates)


def _search(
    question: Question, counts: tuple[int, ...], *, every: bool, progress: Callable[[int, int], None]
) -> list[Candidate]:
    candidates: list[Candidate] = []
    for number, accelerator in enumerate(question.accelerators, start=1):
        found = list(candidates_on(question, accelerator, counts=counts, every=every))
        is_compared = question.fills and len(question.accelerators) <= _FEW  # which engine holds most is the question
        if (
            not every and not is_compared
        ):  # the cheapest that fits, and what may fit with fewer GPUs; else the candidate that comes closest
            fits = [c for c in found if c.verdict is Verdict.FITS]
            best = sorted(fits, key=lambda c: (c.is_of_many, *rank(c)))[:1]
            may_fit = sorted((c for c in found if c.verdict is Verdict.MAY_NOT_FIT), key=rank)[:1]
            best += [c for c in may_fit if not best or c.num_gpus < best[0].num_gpus]
            found = best or [max(found, key=closeness)]
        candidates += found
        progress(number, len(question.accelerators))
    return candidates


def candidates_on(
    question: Question, accelerator: Accelerator, *, counts: tuple[int, ...] = NODE, every: bool = False
) -> Iterator[Candidate]:
    """Yield cache dtypes × engines of one accelerator × as many replicas as are needed."""
    request = replace(question.request, accelerator=accelerator)
    dtypes = dict[str, str]()  # the first name of each format
    for name in question.kv_cache_dtypes:
        kv_cache = plan(request.with_settings(kv_cache_dtype=name)).kv_cache
        dtypes.setdefault(kv_cache.dtype.name if kv_cache else name, name)
    for dtype in dtypes.values():
        # small engines first; once one holds everything alone, larger ones only cost more
        for engine in engine_sizes(request.with_settings(kv_cache_dtype=dtype), counts):
            if engine.settings.parallelism.num_gpus > question.gpus_of(accelerator):
                break
            found = list(_with_replicas(question, engine))
            yield from found
            holds_all = not question.fills and any(c.verdict is Verdict.FITS and c.replicas == 1 for c in found)
            settled = holds_all and not every
            if settled or found[-1].verdict is Verdict.UNKNOWN:
                break


def engine_sizes(request: BudgetRequest, counts: tuple[int, ...] = NODE) -> Iterator[BudgetRequest]:
    """Yield an engine of each number of GPUs; one GPU alone where the device has no neighbours (a slice, unified memory).

    Tensor parallelism comes first, then fewer ranks and more stages. Where the model refuses every cut, the first one is judged, so
    that the engine reports why.
    """
    accelerator, base = request.accelerator, request.settings.parallelism
    for count in counts[:1] if accelerator.is_slice or accelerator.unified_memory else counts:
        tensors = [tensor for tensor in reversed(NODE) if tensor <= count]
        cuts = [replace(base, tensor=tensor, pipeline=count // tensor) for tensor in tensors]
        possible = (cut for cut in cuts if not parallelism_refusals(request.shape, cut, request.vllm_version))
        yield request.with_settings(parallelism=next(possible, cuts[0]))


def _with_replicas(question: Question, request: BudgetRequest) -> Iterator[Candidate]:
    """Yield the replicas that certainly hold all requests, and fewer that may hold them; or one replica that holds none."""
    alone = assess.judge(_with_share(request, 1), extra=question.findings)
    total = MOST_REQUESTS if question.fills else question.concurrency
    if alone.verdict not in _MAY_FIT:
        yield _candidate(question, request, replicas=1, surely=0, share=1)
        return
    surely = most_requests(request, total)
    perhaps = max(surely, most_requests(request, total, _MAY_FIT)) if surely < total else surely
    if question.fills:
        replicas = question.gpus_of(request.accelerator) // request.settings.parallelism.num_gpus
        yield _candidate(question, request, replicas=replicas, surely=surely, share=surely or perhaps)
        return
    if surely:
        yield _candidate(question, request, replicas=cdiv(total, surely), surely=surely)
    if not surely or cdiv(total, perhaps) < cdiv(total, surely):
        yield _candidate(question, request, replicas=cdiv(total, perhaps), surely=surely)


def _candidate(
    question: Question, request: BudgetRequest, *, replicas: int, surely: int, share: int | None = None
) -> Candidate:
    share = share or cdiv(question.concurrency, replicas)
    assessment = assess.judge(_with_share(request, share), extra=question.findings)
    if assessment.budget is None:
        raise ValueError("a judged request has a budget")
    num_gpus, most = replicas * request.settings.parallelism.num_gpus, question.gpus_of(request.accelerator)
    return Candidate(
        engine=request,
        fills=question.fills,
        assessment=assessment,
        budget=assessment.budget,
        replicas=replicas,
        share=share,
        surely=surely,
        price=question.prices.get(request.accelerator.name),
        beyond=f"needs {num_gpus} GPUs, more than the {most} allowed" if num_gpus > most else "",
    )


def _with_share(request: BudgetRequest, share: int) -> BudgetRequest:
    """Return one replica with its share of the requests; it runs no more at the same time, unless the user sets max_num_seqs."""
    if request.guarantee is Guarantee.FULL_CONTEXT:
        return request.with_settings(max_num_seqs=share)
    if request.guarantee is not Guarantee.WORKLOAD or request.workload is None:
        return request
    given = request.settings.max_num_seqs
    with_share = replace(request, workload=replace(request.workload, peak_concurrency=share))
    return with_share if given else with_share.with_settings(max_num_seqs=share)


def most_requests(request: BudgetRequest, total: int, verdicts: tuple[Verdict, ...] = _FITS) -> int:
    """Return the most requests that one replica holds with one of the verdicts; 0 where it does not hold one."""
    if request.guarantee is Guarantee.STARTUP:
        return int(plan(request).verdict in verdicts)
    whole = plan(_with_share(request, total))
    at_most = min(total, whole.resolved.max_num_batched_tokens)
    if request.guarantee is Guarantee.WORKLOAD and request.settings.max_num_seqs:
        at_most = min(at_most, request.settings.max_num_seqs)
    guess = at_most
    if whole.usable_blocks and whole.demand:
        blocks = whole.usable_blocks.low if verdicts is _FITS else whole.usable_blocks.high
        guess = blocks * total // max(1, whole.demand.blocks)
    return largest(at_most, lambda share: plan(_with_share(request, share)).verdict in verdicts, guess=guess)


BATCHES = (1, 8, 32)
"""Sequences for which a bound is given, beside the most that the engine holds."""


def requests_held(candidate: Candidate) -> int:
    """Return the most requests of the question that one engine holds for sure, whatever number is asked for.

    For Startup these are requests of max_model_len, and the engine keeps its own max_num_seqs; otherwise it has room for so many.
    """
    budget = candidate.budget
    if candidate.engine.guarantee is not Guarantee.STARTUP:
        return candidate.surely if candidate.fills else most_requests(candidate.engine, MOST_REQUESTS)
    usable, kv_cache = budget.usable_blocks, budget.kv_cache
    if usable is None or kv_cache is None or not kv_cache.request_blocks:
        return 0
    return min(max(0, usable.low) // kv_cache.request_blocks, budget.resolved.max_num_seqs)


def sequence_tokens(candidate: Candidate) -> int:
    """Return the mean number of tokens that a decoding sequence has in the cache: the prompt and half of the output, else max_model_len."""
    workload = candidate.budget.request.workload
    if candidate.engine.guarantee is Guarantee.WORKLOAD and workload is not None:
        return workload.mean_tokens - workload.output_tokens // 2 if not workload.lengths else workload.mean_tokens
    return candidate.budget.resolved.max_model_len


def decode_bounds(candidate: Candidate, held: int) -> tuple[DecodeBound, ...]:
    """Return the bounds of one engine for small batches and for all that it holds; none where a figure is not known."""
    workload, tokens = candidate.budget.request.workload, sequence_tokens(candidate)
    shared = workload.shared_prefix_tokens if workload is not None else 0
    batches = sorted({batch for batch in BATCHES if batch <= max(1, held)} | {held} - {0})
    bounds = (decode_bound(candidate.budget, batch=b, sequence_tokens=tokens, shared_tokens=shared) for b in batches)
    return tuple(bound for bound in bounds if bound is not None)


class CacheOfRequests(Struct, frozen=True, kw_only=True):
    """One request of the load in the cache of an engine, and where tokens are kept."""

    tokens: int
    blocks: int
    """Blocks of all its groups of layers; none is shared with another request but by a whole block of a prefix."""
    saved_bytes: int
    """Bytes of each GPU that a shared prefix saves, because it is held once."""
    gpu_tokens: int
    """Tokens that the GPUs of the engine hold, at the low end."""
    tokens_per_gib: int
    """Tokens that a GiB of host memory or of a disk keeps, of the caches of all ranks together."""
    prefill: PrefillBound | None = None
    """The least time for its prompt; None where a figure is not known."""

    @property
    def reload_bytes_per_second(self) -> int | None:
        """Bandwidth to an engine from which on reading its tokens back is surely faster than computing them again."""
        if self.prefill is None or not self.tokens_per_gib:
            return None
        return ceil(self.prefill.tokens_per_second * GIB / self.tokens_per_gib)


def cache_of_requests(candidate: Candidate) -> CacheOfRequests | None:
    """Return the request of the workload, or one of max_model_len, in the cache; None for a model that keeps none."""
    budget = candidate.budget
    workload = budget.request.workload if candidate.engine.guarantee is Guarantee.WORKLOAD else None
    kv_cache, pool, stage = budget.kv_cache, budget.num_blocks, budget.tightest
    if kv_cache is None or pool is None or stage is None or not kv_cache.request_blocks:
        return None
    tokens = new_tokens = workload.request_tokens if workload else budget.resolved.max_model_len
    blocks, saved = kv_cache.blocks_of(tokens), 0
    if workload:  # all requests share the prefix, which is not computed again
        new_tokens = max(1, workload.prompt_tokens - workload.shared_prefix_tokens)
    if workload and workload.shared_prefix_tokens:
        shared = shared_tokens(kv_cache, budget.resolved, workload)
        held = [blocks_of_workload(kv_cache, workload, workload.peak_concurrency, count) for count in (0, shared)]
        saved = held[0] - held[1]
    of_all_ranks = sum(each.bytes_per_block for each in budget.stages) * candidate.parallelism.tensor
    return CacheOfRequests(
        tokens=tokens,
        blocks=blocks,
        saved_bytes=saved * stage.bytes_per_block,
        gpu_tokens=max(0, kv_cache.num_tokens(pool.low)),
        tokens_per_gib=GIB * tokens // (blocks * of_all_ranks),
        prefill=prefill_bound(budget, new_tokens),
    )


HOST_MEMORY = (
    "host memory is never counted as GPU memory: --cpu-offload-gb moves weights there and slows every token down, "
    "--kv-offloading-size keeps evicted blocks there for later requests and makes no room for running ones"
)
"""Note on offloading, which no verdict counts."""


def hints(question: Question, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Return hints about the cheapest answer; where there is none, about the candidate that comes closest."""
    best = next((c for c in candidates if c.verdict is Verdict.FITS), None)
    if best is None:
        return (*_possible(question, candidates), *_changed(question, candidates))
    maximum = (
        (most_text(most(best.budget.request, question.maximize, Scope(keep=question.keep)), question.maximize),)
        if question.maximize
        else ()
    )
    return (*_cheaper(question, best, candidates), *maximum)


def _changed(question: Question, candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield the changes with which the GPUs that come closest would be enough."""
    unknown = (Verdict.UNKNOWN, Verdict.FITS)
    near = [c for c in candidates if c.verdict not in unknown and not c.is_refused and not c.beyond]
    closest = max(near, key=closeness, default=None)
    if closest is None or closest.assessment.confidence is not Confidence.KNOWN:
        return
    found = advice(closest.budget.request, Scope(keep=question.keep | OTHER_GPUS))
    if found:
        yield f"on {_name(closest)} it would fit with {alternatives_text(found, naming=option_name)}"


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
    found = list[Candidate]()
    for candidate in (each for each in candidates if each.verdict is Verdict.MAY_NOT_FIT):
        if candidate.cost is not None and best.cost is not None:
            is_cheaper = candidate.cost < best.cost
        else:
            is_cheaper = candidate.accelerator.name == best.accelerator.name and candidate.num_gpus < best.num_gpus
        if is_cheaper:
            found.append(candidate)
    return found


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
    if any(c.verdict is Verdict.DOES_NOT_FIT and not c.is_refused for c in candidates):
        yield "the weights leave no room: use a quantised checkpoint, larger GPUs, or more of them (--max-gpus)"


def _name(candidate: Candidate, replicas: int | None = None) -> str:
    """Return the GPUs as text: `4 × H100-SXM-80GB`."""
    replicas = replicas or candidate.replicas
    return f"{replicas * candidate.parallelism.num_gpus} × {candidate.accelerator.name}"

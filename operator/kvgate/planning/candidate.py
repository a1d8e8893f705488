"""One way to serve a model: replicas of an engine on a number of GPUs, its verdict, and what it costs."""

from fractions import Fraction
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget import Accelerator, Budget, BudgetRequest, Guarantee, Parallelism, Verdict, largest_max_model_len
from kvgate.budget.answers.sharing import engines_per_gpu
from kvgate.budget.engine.settings import longest_context
from kvgate.budget.ground.units import format_gib
from kvgate.findings.finding import Severity, error_rules
from kvgate.judgement.assess import pinned_option
from kvgate.judgement.assessment import Assessment, Confidence
from kvgate.rules.checks import BUDGET_RULES
from kvgate.rules.memory import WEIGHTS_TOO_LARGE
from kvgate.rules.support import UNMODELLED_KIND

MANY_ENGINES = 8
"""Engines beyond which a candidate is left out where fewer engines are enough."""
_ORDER = (Verdict.FITS, Verdict.MAY_NOT_FIT, Verdict.UNKNOWN, Verdict.DOES_NOT_FIT)


class Candidate(Struct, frozen=True, kw_only=True):
    """Equal replicas of one engine; one of them is judged with its share of the requests."""

    engine: BudgetRequest
    """One replica before it has a share of the requests."""
    assessment: Assessment
    budget: Budget
    replicas: int
    share: int
    """Requests of one replica at the same time."""
    surely: int
    """The most requests whose guarantee one replica meets even at the low end of its interval."""
    price: Fraction | None
    fills: bool = False
    """True where the replicas are as many as the GPUs allow, and the requests as many as they hold."""
    beyond: str = ""
    """The limit of the question that it breaks, in words; empty where it breaks none."""

    @property
    def verdict(self) -> Verdict:
        """Verdict of the engine; a candidate that breaks a limit of the question does not fit."""
        return Verdict.DOES_NOT_FIT if self.beyond else self.assessment.verdict

    @property
    def is_refusal(self) -> bool:
        """True where it is sure that it does not fit: the facts about the model are neither assumed nor contradictory."""
        is_sure = self.assessment.confidence is Confidence.KNOWN
        return self.assessment.is_refusal or bool(self.beyond and is_sure)

    @property
    def accelerator(self) -> Accelerator:
        return self.budget.request.accelerator

    @property
    def parallelism(self) -> Parallelism:
        return self.budget.request.settings.parallelism

    @property
    def kv_cache_dtype(self) -> str:
        return self.budget.request.settings.kv_cache_dtype

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.parallelism.num_gpus

    @property
    def cost(self) -> Fraction | None:
        """Price of all GPUs per hour; None where it is not known."""
        return None if self.price is None else self.price * self.num_gpus

    @property
    def options(self) -> dict[str, Any]:
        """vLLM's names of the options that the search chose → their values."""
        settings, parallelism = self.budget.request.settings, self.parallelism
        found = {
            "tensor_parallel_size": parallelism.tensor,
            "pipeline_parallel_size": parallelism.pipeline if parallelism.pipeline > 1 else None,
            "max_model_len": self.budget.resolved.max_model_len,
            "max_num_seqs": settings.max_num_seqs or None,
            "kv_cache_dtype": settings.kv_cache_dtype if settings.kv_cache_dtype != "auto" else None,
        }
        return {name: value for name, value in found.items() if value is not None} | pinned_option(self.budget)

    @property
    def is_of_many(self) -> bool:
        """True for more engines than a person would build for requests that fewer engines can hold."""
        return self.replicas > MANY_ENGINES and not self.fills

    @property
    def held(self) -> int:
        """Requests that all replicas hold for sure."""
        return self.surely * self.replicas

    @property
    def on_one_gpu(self) -> tuple[int, Fraction | None]:
        """(How many of these engines one GPU holds with equal parts, the part of each); (0, None) for an engine of several GPUs."""
        if self.verdict is not Verdict.FITS or self.parallelism.num_gpus > 1:
            return 0, None
        return engines_per_gpu(self.budget.request)

    @property
    def full_requests(self) -> Fraction:
        """Requests of max_model_len that one replica is expected to hold, as vLLM prints it."""
        kv_cache, pool = self.budget.kv_cache, self.budget.num_blocks
        return kv_cache.max_concurrency(pool.expected) if kv_cache and pool else Fraction(0)

    @property
    def longest(self) -> int:
        """The longest request that one replica starts with even at the low end, up to the model's own limit."""
        request, max_model_len = self.budget.request, self.budget.resolved.max_model_len
        start = replace(request, guarantee=Guarantee.STARTUP, workload=None)
        return largest_max_model_len(
            start.with_settings(max_model_len=longest_context(request.shape, self.budget.accounting) or max_model_len)
        )

    @property
    def is_refused(self) -> bool:
        """True where vLLM refuses a setting, whatever memory there is."""
        return bool(error_rules(self.assessment.findings) - BUDGET_RULES)


def rank(candidate: Candidate) -> tuple[object, ...]:
    """Rank fitting candidates first, then cheaper ones; unknown prices come last, then few GPUs and little memory, then names.

    Where the candidates hold different numbers of requests, price and GPUs count per request.
    """
    cost, accelerator, parallelism = candidate.cost, candidate.accelerator, candidate.parallelism
    requests = max(1, candidate.held) if candidate.fills else 1
    return (
        _ORDER.index(candidate.verdict),
        cost is None,
        Fraction(cost or 0) / requests,
        Fraction(candidate.num_gpus, requests),
        accelerator.memory_bytes * candidate.num_gpus,
        candidate.kv_cache_dtype != "auto",
        accelerator.name,
        parallelism.num_gpus,
        parallelism.pipeline,
        candidate.kv_cache_dtype,
    )


def closeness(candidate: Candidate) -> tuple[object, ...]:
    """Rank candidates that fail, the closest last.

    Closest are those that only break a limit of the question; then those short of bytes (by the longest request that starts, then the
    larger engine); then those that vLLM refuses (the smaller engine).
    """
    bytes_decide = candidate.verdict is Verdict.DOES_NOT_FIT and not candidate.is_refused
    num_gpus = candidate.parallelism.num_gpus
    return (
        bool(candidate.beyond),
        bytes_decide,
        candidate.longest if bytes_decide else 0,
        num_gpus * (1 if bytes_decide else -1),
    )


def why_not(candidate: Candidate) -> str:
    """Return in a few words, with the numbers, why the candidate is not a certain answer; empty where it fits."""
    if candidate.beyond or candidate.verdict is Verdict.FITS:
        return candidate.beyond
    shown = [f for f in candidate.assessment.findings if f.severity is not Severity.INFO]
    errors = [f for f in shown if f.severity is Severity.ERROR]
    refused = [f for f in errors if f.rule not in BUDGET_RULES]
    if refused:
        return refused[0].message
    if any(f.rule == WEIGHTS_TOO_LARGE for f in errors):
        ledger = candidate.budget.tightest.ledger if candidate.budget.tightest else None
        if ledger is None:
            return "weights too large"
        own = sum(term.expected for name, term in ledger.terms if name != "weights")
        return (
            f"weights too large: {format_gib(ledger.weights.expected)} and {format_gib(own)} for vLLM itself, "
            f"of {format_gib(ledger.requested_bytes)} per GPU"
        )
    # a kind without a formula goes before any other finding
    others = sorted(shown, key=lambda finding: finding.rule != UNMODELLED_KIND)
    return _missing(candidate.budget) or next((finding.message for finding in others), "")


def _missing(budget: Budget) -> str:
    """Return the missing bytes per GPU: at the high end, or at the low end where it may fit; empty where none lack."""
    demand, stage, usable = budget.demand, budget.tightest, budget.usable_blocks
    if budget.demand_bytes is None or stage is None or usable is None or demand is None:
        return ""
    needed = f"{demand.requests} requests need"
    if demand.is_for_sequences:
        needed = f"a state for each of {budget.resolved.max_num_seqs} sequences (max_num_seqs) needs"
    elif demand.requests == 1 or demand.blocks == demand.startup_blocks:
        needed = f"one request of {budget.resolved.max_model_len} tokens needs"
    size = stage.bytes_per_block
    end, word = (usable.high, "at least") if budget.verdict is Verdict.DOES_NOT_FIT else (usable.low, "up to")
    missing = budget.demand_bytes - max(0, end) * size
    if missing <= 0:  # the doubt is none about bytes: facts that contradict each other, say
        return ""
    return (
        f"KV cache {word} {format_gib(missing)} too small: {needed} {format_gib(budget.demand_bytes)} of "
        f"{format_gib(max(0, usable.expected) * size)} per GPU"
    )

"""The answer to a question about one engine: both verdicts, how sure they are, the findings and the figures."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget import Adjustment, Alternative, Budget, CacheFigures, Guarantee, Knob, Verdict
from kvgate.findings.finding import Finding, error_rules
from kvgate.judge.skipping import Skip
from kvgate.judge.worlds import Confidence, World

WORST_FIRST = (Verdict.DOES_NOT_FIT, Verdict.MAY_NOT_FIT, Verdict.UNKNOWN, Verdict.FITS)
"""Verdicts in the order in which one of several counts."""


class Decision(StrEnum):
    """Decision that the admission policy makes of a verdict."""

    ADMIT = "Admit"
    ADMIT_WITH_WARNING = "AdmitWithWarning"
    ADMIT_ADJUSTED = "AdmitAdjusted"
    SKIPPED = "Skipped"
    """The policy refuses it, and the break-glass annotation admits it."""
    REFUSE = "Refuse"


NO_FIGURES = CacheFigures()


class Answer(Struct, frozen=True, kw_only=True):
    """One of the two answers to every question: does it start, and does it hold the promise."""

    guarantee: Guarantee | None
    """None for the load of an engine that promises none."""
    verdict: Verdict | None
    requests: float | None
    """Requests that the KV cache is expected to hold at once: of the declared workload, else of max_model_len."""
    headroom_ratio: float | None
    """(capacity − demand of this answer) / capacity, both as expected; None where no capacity is expected."""


class AcceleratorVerdict(Struct, frozen=True, kw_only=True):
    """Verdict on one accelerator."""

    name: str
    """Name in the catalogue."""
    verdict: Verdict
    reason: str = ""
    """Id of the rule that decides; empty where it fits."""
    lacking_bytes: int | None = None
    """Bytes of KV cache that one GPU lacks, as expected; None where the reason is another one."""


class MemoryNeeded(Struct, frozen=True, kw_only=True):
    """Memory of one GPU that an engine needs, in bytes, at the safe end of the prediction."""

    weights_bytes: int
    request_bytes: int
    """KV cache of one request of max_model_len."""
    demand_bytes: int
    """KV cache of the guarantee that was judged."""
    memory_bytes: int | None
    """Least memory of a GPU, at the engine's gpu_memory_utilization; None where the size of the KV cache is given."""


class OnGpus(Struct, frozen=True, kw_only=True):
    """The answer on each GPU that the engine may run on, where not one alone is named."""

    verdicts: tuple[AcceleratorVerdict, ...]
    needed: MemoryNeeded | None = None
    """Memory that one GPU must have; None where GPUs are named, or a part has no formula."""
    judged_on: str | None = None
    """The GPU whose figures are shown, where none is named: the smallest on which the engine starts, else the largest."""


class Assessment(Struct, frozen=True, kw_only=True):
    """The whole answer. The doors translate it and decide nothing."""

    verdict: Verdict
    """Verdict on the spec as it is written, of the answer that decides."""
    guarantee: Guarantee
    """Guarantee that is judged. Startup: there is no promise beyond the start, which decides alone."""
    start_verdict: Verdict | None = None
    """Verdict on the start; None where nothing could be judged."""
    confidence: Confidence = Confidence.KNOWN
    decision: Decision = Decision.ADMIT
    findings: tuple[Finding, ...] = ()
    budget: Budget | None = None
    """Budget of the spec as it is written; None where facts are missing."""
    on_gpus: OnGpus | None = None
    """None where one GPU is named, or nothing can be judged."""
    adjustment: Adjustment | None = None
    alternatives: tuple[Alternative, ...] = ()
    skip: Skip | None = None
    """The break-glass annotation, where it admits what the policy would refuse."""
    chosen: tuple[str, ...] = ()
    """vLLM's names of the settings that the spec leaves out, and that were chosen so that the promise holds."""
    sought: tuple[Knob, ...] = ()
    """Knobs that policy Adjust was allowed to turn. If there is no adjustment, none of their settings fits."""

    @property
    def is_refusal(self) -> bool:
        """True for DoesNotFit, unless nothing but facts that are assumed or contradict each other says so."""
        is_sure = self.confidence is Confidence.KNOWN or bool(error_rules(self.findings))
        return self.verdict is Verdict.DOES_NOT_FIT and is_sure

    @property
    def decides(self) -> Literal["starts", "holds"]:
        """The answer whose verdict this is."""
        return "starts" if self.guarantee is Guarantee.STARTUP else "holds"

    @property
    def starts(self) -> Answer:
        """The answer of vLLM's own check with these settings."""
        budget = self.budget
        ratio = budget.headroom_ratio_beside(budget.demand.checked_blocks) if budget and budget.demand else None
        return Answer(
            guarantee=Guarantee.STARTUP,
            verdict=self.start_verdict or self.verdict,
            requests=budget.requests_held if budget else None,
            headroom_ratio=ratio,
        )

    @property
    def holds(self) -> Answer:
        """The answer on the load that is promised; without a promise, the requests that the KV cache holds."""
        budget, is_promised = self.budget, self.decides == "holds"
        return Answer(
            guarantee=self.guarantee if is_promised else None,
            verdict=self.verdict if is_promised else None,
            requests=budget.requests_held if budget else None,
            headroom_ratio=budget.figures.headroom_ratio if budget and is_promised else None,
        )

    @property
    def figures(self) -> CacheFigures:
        """CacheFigures of the KV cache that is rendered; none where facts are missing."""
        return self.effective.figures if self.effective else NO_FIGURES

    @property
    def effective(self) -> Budget | None:
        """Budget of the settings that are rendered."""
        return self.adjustment.budget if self.adjustment and self.decision is Decision.ADMIT_ADJUSTED else self.budget

    @property
    def world(self) -> World:
        """Both answers, and how sure the facts are."""
        starts = self.starts.verdict or self.verdict
        return World(verdict=self.verdict, start_verdict=starts, confidence=self.confidence)

    def in_world(self, world: World) -> Assessment:
        """Return the same with other answers."""
        return replace(self, verdict=world.verdict, start_verdict=world.start_verdict, confidence=world.confidence)

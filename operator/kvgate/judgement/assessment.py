"""The answer to a question about one engine: both verdicts, how sure they are, the findings and the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, Literal, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget import Adjustment, Alternative, Budget, CacheFigures, Guarantee, Knob, Verdict
from kvgate.findings.finding import Finding, Located, error_rules
from kvgate.judgement.skipping import Skip


class Confidence(StrEnum):
    """Certainty of the facts about the model, the surest first. Nothing is refused on facts that are assumed or contradictory."""

    KNOWN = "Known"
    ASSUMED = "Assumed"
    """They are those of another model, by the name."""
    CONTRADICTORY = "Contradictory"
    """Two sources of them disagree, or the name and the config do."""


class World(Struct, frozen=True, kw_only=True):
    verdict: Verdict
    start_verdict: Verdict
    confidence: Confidence = Confidence.KNOWN

    def changed(self, change: Callable[[Verdict], Verdict]) -> World:
        """Return a world both of whose answers are changed alike."""
        return World(verdict=change(self.verdict), start_verdict=change(self.start_verdict), confidence=self.confidence)


def joined(worlds: Sequence[World]) -> World:
    """Join worlds of which one holds, and nobody knows which; there is one at least."""
    return World(
        verdict=joined_verdict(each.verdict for each in worlds),
        start_verdict=joined_verdict(each.start_verdict for each in worlds),
        confidence=max((each.confidence for each in worlds), key=list(Confidence).index),
    )


def joined_verdict(worlds: Iterable[Verdict]) -> Verdict:
    """Return the verdict of all worlds where they agree, else MayNotFit.

    A world that cannot be judged (Unknown) takes the certainty from the others, and no more: the answer is Unknown where none can.
    """
    verdicts = set(worlds)
    return verdicts.pop() if len(verdicts) == 1 else Verdict.MAY_NOT_FIT


def refusing_nothing(verdict: Verdict) -> Verdict:
    """Return the verdict of one world beside others that nobody sees: it is no refusal, because they may start."""
    return Verdict.MAY_NOT_FIT if verdict is Verdict.DOES_NOT_FIT else verdict


def refuse_apart(verdict: Verdict, *, is_error_common: bool) -> bool:
    """Return whether each world refuses for a reason of its own, so that the errors of one stay errors."""
    return verdict is Verdict.DOES_NOT_FIT and not is_error_common


WORST_FIRST = (Verdict.DOES_NOT_FIT, Verdict.MAY_NOT_FIT, Verdict.UNKNOWN, Verdict.FITS)
"""Verdicts in the order in which one of several counts."""


class Decision(StrEnum):
    """Decision that the admission policy makes of a verdict."""

    ADMIT = "Admit"
    ADMIT_WITH_WARNING = "AdmitWithWarning"
    ADMIT_ADJUSTED = "AdmitAdjusted"
    SKIPPED = "Skipped"
    """The policy refuses it, and the break-glass annotation admits it."""
    WOULD_REFUSE = "WouldRefuse"
    """The policy refuses it, and the audit mode of the installation admits it."""
    REFUSE = "Refuse"

    @property
    def recorded(self) -> str:
        """Value for records: an admission stays the same one when the audit mode ends, and other releases can read it."""
        return (Decision.ADMIT_WITH_WARNING if self is Decision.WOULD_REFUSE else self).value


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
    is_whole: bool = True
    """False where a name means these GPUs alone."""


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
        return replace(self, verdict=world.verdict, start_verdict=world.start_verdict, confidence=world.confidence)


class Unjudged(StrEnum):
    """The answer about an engine that kvgate does not judge: it is not vLLM, or its hardware is no GPU of NVIDIA or AMD.

    It is no verdict of the arithmetic, and nothing fails for it.
    """

    NOT_JUDGED = "NotJudged"


NOT_JUDGED: Final = Unjudged.NOT_JUDGED


class Judged(Struct, frozen=True, kw_only=True):
    """One engine with one release of vLLM on one GPU, or in several of these worlds that are joined."""

    assessment: Assessment | None
    """None where the engine could not be assessed."""
    verdict: Verdict | Unjudged
    vllm_version: str
    """The newest release that it may be; empty for an engine that is not vLLM."""
    findings: tuple[Located, ...] = ()

    @property
    def world(self) -> World:
        verdict = Verdict.UNKNOWN if self.verdict is NOT_JUDGED else self.verdict
        return self.assessment.world if self.assessment else World(verdict=verdict, start_verdict=verdict)

    def in_world(self, world: World) -> Self:
        """Return the same judgement with other answers. An engine that is not judged stays so."""
        assessment = self.assessment.in_world(world) if self.assessment else None
        verdict = self.verdict if self.verdict is NOT_JUDGED else world.verdict
        return replace(self, verdict=verdict, assessment=assessment)

    def with_answers(self, change: Callable[[Verdict], Verdict]) -> Self:
        """Return the same judgement with both answers changed alike."""
        return self.in_world(self.world.changed(change))

    def softened(self) -> Self:
        """Return a judgement that refuses nothing."""
        findings = tuple(each.softened() for each in self.findings)
        return replace(self.with_answers(refusing_nothing), findings=findings)


J = TypeVar("J", bound=Judged)


def joined_worlds(shown: J, worlds: Sequence[Judged]) -> J:
    """Return the judgement that is shown, with the answers of all worlds."""
    return shown.in_world(joined([each.world for each in worlds]))

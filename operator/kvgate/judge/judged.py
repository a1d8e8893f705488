"""An engine as it is judged in one of the worlds that it may be in, and the answers of several worlds joined.

Verdicts of a judgement are set here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget import Verdict
from kvgate.findings.finding import Located
from kvgate.judge.assessment import Assessment
from kvgate.judge.worlds import World, joined, refusing_nothing


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
        """Both answers, and how sure the facts are."""
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

"""The longest requests that running pods serve, where vLLM chose the length itself (`--max-model-len auto`). Pure.

Since 0.20 vLLM tells the length at `/v1/models`; before, its front end keeps the model's own, and the length follows from the blocks that
the engine reports, as vLLM computes it.
"""

from collections.abc import Iterable

from msgspec import Struct

from kvgate.api.base import Document
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.status import MAX_LENGTHS, ObservedLength
from kvgate.budget import Budget
from kvgate.rendering.observation import Observation, Statement


class Lengths(Struct, frozen=True, kw_only=True):
    """The lengths of the ready pods of the current spec, and the length that is promised."""

    floor: int | None = None
    """Tokens of the longest request that every pod must serve; None where nobody states one."""
    tokens: tuple[tuple[int, str], ...] = ()
    """(tokens, pod), the shortest first."""
    unknown: tuple[tuple[str, Reason, str], ...] = ()
    """(pod, reason, message) of pods that do not tell it."""

    @property
    def document(self) -> list[Document] | None:
        shown = (ObservedLength(pod=pod, max_model_len=length) for length, pod in self.tokens[:MAX_LENGTHS])
        return [each.model_dump(by_alias=True) for each in shown] or None


def lengths_of(observation: Observation | None, budget: Budget | None, template_hash: str) -> Lengths:
    """Return the lengths where `budget`, that of the current spec, leaves them to vLLM; else nothing."""
    if observation is None or budget is None or budget.auto_from is None:
        return Lengths()
    engines = observation.of(template_hash)
    if budget.accounting.tells_auto_length:
        told = {each.pod: each for each in observation.lengths}
        answers = [told[engine.pod] for engine in engines if engine.pod in told]
        found: Iterable[tuple[int, str]] = ((each.tokens, each.pod) for each in answers if each.tokens is not None)
        unknown = tuple((each.pod, each.reason, each.message) for each in answers if each.tokens is None)
    else:
        found = ((budget.auto_length(engine.reading.num_gpu_blocks), engine.pod) for engine in engines)
        unknown = ()
    return Lengths(floor=budget.request.least_model_len, tokens=tuple(sorted(found)), unknown=unknown)


def length_statement(lengths: Lengths, *, existed: bool) -> list[Statement]:
    """Return the condition LengthBelowFloor, which exists from the first time that there is a floor."""
    kind, floor = ConditionType.LENGTH_BELOW_FLOOR, lengths.floor
    if floor is None:
        return [(kind, False, Reason.LENGTH_HELD, "no length is promised")] if existed else []
    short = [(tokens, pod) for tokens, pod in lengths.tokens if tokens < floor]
    if short:
        (tokens, pod), others = short[0], len(short) - 1
        more = f"; {others} more {'is' if others == 1 else 'are'} below it" if others else ""
        text = (
            f"pod {pod} serves requests of at most {tokens:,} tokens, {floor - tokens:,} fewer than the floor of {floor:,}{more}: "
            "see what else uses the memory of its GPU, raise spec.vllm.gpuMemoryUtilization, or lower spec.admission.adjust.minMaxModelLen"
        )
        return [(kind, True, Reason.LENGTH_TOO_SHORT, text)]
    if lengths.unknown:
        (pod, reason, message), others = lengths.unknown[0], len(lengths.unknown) - 1
        more = f"; nor do {others} more pods tell their longest request" if others else ""
        return [(kind, None, reason, f"pod {pod} {message}{more}")]
    if not lengths.tokens:
        return [(kind, None, Reason.NOT_OBSERVED, "no pod of the current spec has told its longest request")]
    shortest = lengths.tokens[0][0]
    return [
        (
            kind,
            False,
            Reason.LENGTH_HELD,
            f"every pod serves requests of {shortest:,} tokens, and the floor is {floor:,}",
        )
    ]

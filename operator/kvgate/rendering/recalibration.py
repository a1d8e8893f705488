"""Today's prediction beside the one that was admitted: whether it differs, why, and whether it takes its place. Pure.

The figures that are shown change only when today's prediction moves by more than 1 % and a block, so that nothing flaps.
"""

from contextlib import suppress
from math import ceil

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from kvgate import __version__
from kvgate.api.base import Document
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.status import Effective, RecalibratedStatus
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.judgement.assess import effective_values
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.summary import accepted, shortened
from kvgate.rendering.admission import Admitted, Prediction, as_bytes, prediction_of
from kvgate.rendering.observation import Statement
from kvgate.rendering.workload import PodFigures

SAME_PERCENT = 1
"""Sizes that differ by no more than this, or by a block, are the same."""
MAX_RECALIBRATIONS = 3
"""Times that the pods of one spec are replaced because of better predictions: starts that contradict each other must not replace them for
ever."""
_MAX_REASON = 600
_AS_ADMITTED = "kvgate would judge the spec today as it did"


class Figured(Struct, frozen=True, kw_only=True):
    """A judgement that has a budget, in the words of the status."""

    prediction: Prediction
    accepted: str
    message: str
    effective: Effective
    block_tokens: int
    """Tokens of a block; a difference of one block is none."""
    has_neighbours: bool
    """True where starts of other settings moved the prediction or made it wider."""

    @classmethod
    def of(cls, owner: InferenceDeployment, assessment: Assessment) -> "Figured | None":
        """Return None where a part of the budget is unknown: that is no better prediction."""
        prediction, judged = prediction_of(assessment), assessment.effective
        if prediction is None or judged is None or judged.num_blocks is None:
            return None
        status, _, message = accepted(assessment)
        correction = judged.tightest.ledger.correction if judged.tightest and judged.tightest.ledger else None
        return cls(
            prediction=prediction,
            accepted="Unknown" if status is None else str(status),
            message=shortened(message, _MAX_REASON) if assessment.decision is Decision.REFUSE else "",
            effective=effective_values(owner.spec, assessment),
            block_tokens=ceil(prediction.capacity_tokens / max(1, judged.num_blocks.expected)),
            has_neighbours=correction is not None and not correction.is_same_setting,
        )


def recalibrated(
    owner: InferenceDeployment, admitted: Admitted, then: Assessment, assessed: Assessment, previous: object
) -> Document | None:
    """Return status.recalibrated; None where today's prediction is the one that was admitted.

    `then` is judged with the observed starts of the admission and `assessed` with all of them, both with this release's catalogue.
    `previous` is the present status.recalibrated, which stays as long as it is still right.
    """
    if _is_as_admitted(owner, assessed, admitted):
        return None
    now, shown = Figured.of(owner, assessed), None
    with suppress(ValidationError):
        shown = RecalibratedStatus.from_document(previous)
    if now is None or not _differs(now, admitted, tolerance=0.5 if shown else 1.0):
        return None
    if (
        shown is not None
        and (shown.verdict, shown.accepted) == (now.prediction.verdict, now.accepted)
        and (now.accepted == "False" or _is_alike(now.effective, shown.effective or admitted.record.effective))
        and _is_same(now.prediction.capacity_tokens, shown.capacity_tokens, now.block_tokens)
    ):
        return shown.model_dump(by_alias=True, exclude_none=True)
    today, was = now.prediction, admitted.predicted_tokens
    status = RecalibratedStatus(
        verdict=today.verdict,
        accepted=now.accepted,
        capacity_tokens=today.capacity_tokens,
        difference_percent=f"{(today.capacity_tokens / was - 1) * 100:+.1f}" if was else None,
        available_kv_cache_bytes=as_bytes(today.figures["available_kv_cache_bytes"]),
        headroom_percent=today.figures.expected("headroom_percent"),
        effective=_other_values(now, admitted),
        message="; ".join(filter(None, (_why(now, Figured.of(owner, then), admitted), now.message))),
        kvgate_version=__version__,
    )
    return status.model_dump(by_alias=True, exclude_none=True)


def _is_as_admitted(owner: InferenceDeployment, today: Assessment, admitted: Admitted) -> bool:
    """Return True where no figure has changed: so it is for nearly all objects, and costs the least."""
    budget, was, record = today.effective, admitted.prediction, admitted.record
    if budget is None or was is None or today.decision.value != record.decision or budget.num_tokens is None:
        return False
    verdict = budget.verdict if today.decision is Decision.ADMIT_ADJUSTED else today.verdict
    return (
        budget.num_tokens.expected == was.capacity_tokens
        and verdict.value == was.verdict
        and effective_values(owner.spec, today) == record.effective
    )


def outdated(
    document: Document | None, owner: InferenceDeployment, admitted: Admitted | None, *, existed: bool
) -> list[Statement]:
    """Return the condition PredictionOutdated, which exists from the first time that today's prediction differed."""
    if document is None or admitted is None:
        return [(ConditionType.PREDICTION_OUTDATED, False, Reason.AS_ADMITTED, _AS_ADMITTED)] if existed else []
    was = admitted.prediction
    is_moved = (document["verdict"], document["accepted"]) != (was.verdict if was else None, admitted.record.accepted)
    size = f"{document['capacityTokens']:,} tokens of KV cache"
    text = f"{document['verdict']} with {size} today"
    if was:
        text += f", {was.verdict} with {was.capacity_tokens:,} when it was admitted ({document['differencePercent']} %)"
    runs = admitted.record.effective.model_dump(by_alias=True)
    others = (document.get("effective") or {}).items()
    values = ", ".join(f"{name} {value}" for name, value in others if runs.get(name) != value)
    text += f", and {values} would be rendered" if values else ""
    return [(
        ConditionType.PREDICTION_OUTDATED, True,
        Reason.VERDICT_MOVED if is_moved or values else Reason.FIGURES_MOVED,
        f"{text}: {document['message']}; {_consequence(document, owner, admitted)}",
    )]  # fmt: skip


def _consequence(document: Document, owner: InferenceDeployment, admitted: Admitted) -> str:
    if document["accepted"] == "False":
        return "what runs keeps running, and the next edit of the spec would be refused"
    if not owner.spec.admission.recalibrate:
        return "what was admitted stands until the spec is edited, or spec.admission.recalibrate is set to true"
    if (admitted.record.recalibrations or 0) >= MAX_RECALIBRATIONS:
        return f"the pods of this spec were replaced {admitted.record.recalibrations} times already, so it waits for the next edit"
    return "it is not used at once, because it follows fewer observed starts than the admission did"


def taking_over(
    owner: InferenceDeployment, admitted: Admitted, today: Assessment, figures: PodFigures, *, revision: int
) -> PodFigures | None:
    """Return the figures that take the place of the admitted ones, where today's prediction is a better one.

    It is not where observed starts are gone, nor where nothing would be admitted. `revision` is that of the newest known start.
    """
    now, record = Figured.of(owner, today), admitted.record
    if now is None or now.accepted == "False" or not _differs(now, admitted):
        return None
    followed = admitted.prediction.observed_starts if admitted.prediction else None
    if (followed and not now.prediction.observed_starts) or revision < (record.calibration_revision or 0):
        return None
    if figures.effective == record.effective:  # only the prediction moves, and no pod
        return replace(figures, placement=record.placement, load_seconds=record.load_seconds)
    return figures if (admitted.record.recalibrations or 0) < MAX_RECALIBRATIONS else None


def recalibrated_from(admitted: Admitted, before: Admitted) -> Admitted:
    """Return the admission that takes the place of an earlier one, with the number of times that pods were replaced for that."""
    is_moved, recalibrations = admitted.figures.effective != before.figures.effective, before.record.recalibrations or 0
    return replace(
        admitted,
        record=admitted.record.model_copy(update={"recalibrations": recalibrations + is_moved or None}),
        template_digest=None if is_moved else before.template_digest,
    )


def _differs(now: Figured, admitted: Admitted, *, tolerance: float = 1.0) -> bool:
    """Return True where the prediction is another one; with a smaller tolerance what is shown does not vanish at the limit."""
    was = admitted.prediction
    return (
        was is None
        or now.prediction.verdict != was.verdict
        or now.accepted != admitted.record.accepted
        or _other_values(now, admitted) is not None
        or not _is_same(now.prediction.capacity_tokens, was.capacity_tokens, now.block_tokens, tolerance)
    )


def _other_values(now: Figured, admitted: Admitted) -> Effective | None:
    """Return the values that would be rendered today, where they are others."""
    if now.accepted == "False" or _is_alike(now.effective, admitted.record.effective):
        return None
    return now.effective


def _is_alike(one: Effective, other: Effective) -> bool:
    """Compare all but the pinned size, which follows the capacity."""
    return (
        one.kv_cache_dtype == other.kv_cache_dtype
        and one.gpu_memory_utilization == other.gpu_memory_utilization
        and _is_same(one.max_model_len, other.max_model_len, 0)
        and _is_same(one.max_num_seqs, other.max_num_seqs, 0)
    )


def _is_same(one: int | None, other: int | None, block: int, tolerance: float = 1.0) -> bool:
    if one is None or other is None:
        return one == other
    return abs(one - other) <= tolerance * max(other * SAME_PERCENT / 100, block)


def _why(now: Figured, then: Figured | None, admitted: Admitted) -> str:
    """Return which starts or which upgrade makes the difference."""
    starts = now.prediction.observed_starts
    followed = admitted.prediction.observed_starts if admitted.prediction else None
    if followed and not starts:
        return "the observed starts that the admission followed are not recorded any more, or are not believed"
    causes = []
    if then is None or _differs(then, admitted):
        version = admitted.record.kvgate_version
        causes.append(
            f"kvgate {version} admitted the spec, and kvgate {__version__} computes other figures"
            if version not in (None, __version__)
            else "what is known about the model, the GPU, the release of vLLM or earlier starts has changed"
        )
    if then is not None and not _is_same(
        now.prediction.capacity_tokens, then.prediction.capacity_tokens, now.block_tokens
    ):
        causes.append(f"it follows {_starts_text(starts)}")
    elif now.has_neighbours:
        causes.append("observed starts of other settings say more, or make it less certain")
    elif starts:
        causes.append(f"it is certain by {_starts_text(starts)}")
    return "; ".join(causes) or "the facts have changed"


def _starts_text(count: int | None) -> str:
    return (
        "1 observed start of the same setting" if count == 1 else f"{count or 'no'} observed starts of the same setting"
    )

"""Assessment and what is seen in the cluster → the status document; no clock, no calls."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvgate.api import field_path
from kvgate.api.base import Document
from kvgate.api.conditions import ConditionType, Reason, set_condition
from kvgate.api.status import Condition, InferenceDeploymentStatus
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget.plan import Budget
from kvgate.judge.assess import Assessment, Decision, effective_values
from kvgate.judge.summary import accepted, changes_text, finding_text
from kvgate.rendering.labels import selector
from kvgate.rendering.observation import (
    Observation,
    Statement,
    compared,
    crash_text,
    observed_statements,
    observed_status,
)
from kvgate.rendering.rollout import Rollout, rollout_of
from kvgate.rendering.standing import Admitted, budget_status, dumped
from kvgate.rendering.workload import NotRendered, predicted_tokens
from kvgate.rules import Finding

OVER_QUOTA = "exceeded quota"
"""Words of the API server's plugin ResourceQuota, which other controllers pass on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    """Obstacle that kept the manifests from being applied."""

    reason: Reason
    message: str

    @property
    def is_transient(self) -> bool:
        """It is tried again without anybody's doing."""
        return self.reason is Reason.API_UNAVAILABLE


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviousStatus:
    """Status before this run: conditions keep their transition times, and old pods their effective values."""

    status: Mapping[str, Any]
    """Status that we wrote last; where that is not known, the object's."""
    generation: int
    now: str
    live: Mapping[str, Any] | None = None
    """Status of the object, where somebody may have edited it; None: the same."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those that can still be read."""
        try:
            return tuple(map(Condition.from_document, self.status.get("conditions", ())))
        except ValidationError:
            return ()

    def renewed(self, statements: Iterable[Statement]) -> tuple[Condition, ...]:
        conditions = self.conditions
        for kind, status, reason, message in statements:
            conditions = set_condition(
                conditions, kind, status=status, reason=reason, message=message,
                generation=self.generation, now=self.now,
            )  # fmt: skip
        return conditions


def previous_status(document: Mapping[str, Any], now: str, written: Mapping[str, Any] | None = None) -> PreviousStatus:
    """Return the previous status of an object as the API server has it; `written` is the status that we wrote last."""
    status = document.get("status")
    live = status if isinstance(status, Mapping) else {}
    return PreviousStatus(
        status=live if written is None else written,
        generation=document["metadata"].get("generation", 1),
        now=now,
        live=live,
    )


def status_of(
    owner: InferenceDeployment,
    assessment: Assessment,
    *,
    calibration_revision: int = 0,
    left_out: NotRendered | None,
    obstacle: Obstacle | None,
    deployment: Mapping[str, Any] | None,
    before: PreviousStatus,
    observation: Observation | None = None,
    template_hash: str = "",
    admitted: Admitted | None = None,
    is_kept: bool = False,
    drift: str = "",
) -> Document:
    """The whole status of an object that could be read; the hash is that of what is rendered.

    `admitted` is what is rendered; `is_kept` says that it was admitted before, so that its verdict stands and the assessment of now
    is not asked. `drift` says what differs from it for good.
    """
    rollout = rollout_of(deployment) if deployment else Rollout(wanted=owner.spec.replicas)
    budget = None if left_out and admitted else assessment.effective
    crash = observation.crash_of(template_hash) if observation else None
    expected = admitted.record.predicted_tokens if admitted else predicted_tokens(assessment)
    about_pods, observed = _seen(observation, budget, template_hash, expected, before)
    verdict, figures = (
        _standing_verdict(admitted, before)
        if admitted is not None and is_kept
        else _verdict_of_now(assessment, left_out, calibration_revision)
    )
    statements = [
        *verdict,
        *_progress(left_out, obstacle, rollout, (crash.reason, crash_text(crash, budget)) if crash else None, admitted),
        *_drifted(drift, before),
        *about_pods,
    ]
    effective = before.status.get("effective") if left_out else _dumped(effective_values(owner.spec, assessment))
    return _document(
        before,
        statements,
        observed=observed,
        effective=_dumped(admitted.record.effective) if admitted else effective,
        **figures,
        **_counts(owner.name, rollout),
        standing=dumped(admitted.record) if admitted else None,
    )


def _verdict_of_now(
    assessment: Assessment, left_out: NotRendered | None, calibration_revision: int
) -> tuple[list[Statement], dict[str, object]]:
    statements = [
        (ConditionType.ACCEPTED, *accepted(assessment)),
        (ConditionType.PREDICTED, *_predicted(assessment)),
        (ConditionType.ADJUSTED, *_adjusted(assessment, left_out)),
    ]
    alternatives = [{"field": field_path(a.field), "value": str(a.value)} for a in assessment.alternatives]
    return statements, {
        "budget": budget_status(assessment),
        "calibrationRevision": calibration_revision or None,
        "alternatives": alternatives or None,
    }


def _standing_verdict(admitted: Admitted, before: PreviousStatus) -> tuple[list[Statement], dict[str, object]]:
    """Return the verdict as of the admission; its alternatives are gone where another spec was judged meanwhile."""
    record = admitted.record
    reason = Reason(record.reason) if record.reason in set(Reason) else Reason.AS_WRITTEN
    was_admitted = {"True": True, "Unknown": None}[record.accepted]
    predicted = (True, *_LEDGER) if admitted.budget else (False, reason, record.message)
    adjusted = (True, Reason.ADJUSTED, record.changes) if record.changes else (False, *_AS_WRITTEN)
    statements: list[Statement] = [
        (ConditionType.ACCEPTED, was_admitted, reason, record.message),
        (ConditionType.PREDICTED, *predicted),
        (ConditionType.ADJUSTED, *adjusted),
    ]
    was_standing = (before.status.get("standing") or {}).get("budget") is None and not any(
        condition.type == ConditionType.ACCEPTED and condition.status == "False" for condition in before.conditions
    )
    return statements, {
        "budget": admitted.budget,
        "calibrationRevision": record.calibration_revision,
        "alternatives": before.status.get("alternatives") if was_standing else None,
    }


def invalid_status(
    name: str,
    findings: Iterable[Finding],
    *,
    deployment: Mapping[str, Any] | None,
    before: PreviousStatus,
    observation: Observation | None = None,
    template_hash: str = "",
    obstacle: Obstacle | None = None,
    admitted: Admitted | None = None,
    drift: str = "",
) -> Document:
    """Return the status of an object that this release cannot read: all findings, and the pods that still run."""
    message = "; ".join(map(finding_text, findings))
    rollout = rollout_of(deployment) if deployment else Rollout()
    left_out = NotRendered(reason=Reason.INVALID_SPEC, message="the spec cannot be read")
    expected = admitted.record.predicted_tokens if admitted else None
    about_pods, observed = _seen(observation, None, template_hash, expected, before)
    statements = [
        (ConditionType.ACCEPTED, False, Reason.INVALID_SPEC, message),
        (ConditionType.PREDICTED, False, Reason.INVALID_SPEC, left_out.message),
        (ConditionType.ADJUSTED, False, Reason.NOT_RENDERED, "nothing was rendered for this spec"),
        *_progress(left_out, obstacle, rollout, None, admitted),
        *_drifted(drift, before),
        *about_pods,
    ]
    return _document(
        before,
        statements,
        observed=observed,
        effective=_dumped(admitted.record.effective) if admitted else before.status.get("effective"),
        **_counts(name, rollout),
        standing=dumped(admitted.record) if admitted else None,
    )


def halted_status(obstacle: Obstacle, before: PreviousStatus) -> Document:
    """Keep the previous status and mark it Stalled when the facts cannot be read."""
    statements = [
        (ConditionType.RECONCILING, False, obstacle.reason, _WAITING),
        (ConditionType.STALLED, True, obstacle.reason, obstacle.message),
    ]
    return {**before.status, "conditions": [_dumped(condition) for condition in before.renewed(statements)]}


def failed_status(before: PreviousStatus, error: Exception) -> Document:
    """Return the status of an object on which kvgate itself fails: a previous status of this generation stays."""
    message = (
        f"kvgate failed on this object ({type(error).__name__}); what runs is left alone. The controller's log has the traceback: "
        "please report it with this object. A change of the spec may help meanwhile"
    )
    is_of_now = before.status.get("observedGeneration") == before.generation
    statements: list[Statement] = [
        *([] if is_of_now else [(ConditionType.ACCEPTED, None, Reason.CANNOT_BE_JUDGED, message)]),
        (ConditionType.RECONCILING, False, Reason.CANNOT_BE_JUDGED, _WAITING),
        (ConditionType.STALLED, True, Reason.CANNOT_BE_JUDGED, message),
    ]
    conditions = [_dumped(condition) for condition in before.renewed(statements)]
    return {**before.status, "observedGeneration": before.generation, "conditions": conditions}


def is_changed(before: PreviousStatus, status: Document) -> bool:
    """True where a write is due; fields that are not ours to write do not count."""
    live = before.status if before.live is None else before.live
    return {key: value for key, value in live.items() if key in _OURS} != status


_OURS = frozenset(field.alias or name for name, field in InferenceDeploymentStatus.model_fields.items())


def status_patch(before: PreviousStatus, status: Document) -> Document:
    """The JSON merge patch that makes the object say this; what somebody else added to our fields goes."""
    live = before.status if before.live is None else before.live
    return _merge_patch({key: value for key, value in live.items() if key in _OURS}, status)


def _merge_patch(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> Document:
    patch: Document = {key: None for key in live if key not in wanted}
    for key, value in wanted.items():
        there = live.get(key)
        if isinstance(there, Mapping) and isinstance(value, Mapping):
            if there != value:
                patch[key] = _merge_patch(there, value)
        elif there != value:
            patch[key] = value
    return patch


def _seen(
    observation: Observation | None,
    budget: Budget | None,
    template_hash: str,
    expected: int | None,
    before: PreviousStatus,
) -> tuple[list[Statement], Document | None]:
    """Conditions and status.observed; until somebody has looked, what was said before stays."""
    previous = before.status.get("observed") or {}
    if observation is None and any(condition.type == ConditionType.OBSERVED for condition in before.conditions):
        return [], previous or None
    figures = compared(observation, budget, template_hash, expected)
    return observed_statements(observation or Observation(), figures), observed_status(figures, previous, before.now)


def _document(before: PreviousStatus, statements: Iterable[Statement], **parts: object) -> Document:
    conditions = [_dumped(condition) for condition in before.renewed(statements)]
    present = {key: value for key, value in parts.items() if value is not None}
    return {"observedGeneration": before.generation, "conditions": conditions, **present}


def _dumped(model: Any) -> Document:
    dumped: Document = model.model_dump(by_alias=True, exclude_none=True)
    return dumped


def _counts(name: str, rollout: Rollout) -> Document:
    (label,) = selector(name).items()
    return {"replicas": rollout.existing, "readyReplicas": rollout.ready, "selector": "=".join(label)}


def _predicted(assessment: Assessment) -> tuple[bool, Reason, str]:
    if budget_status(assessment) is not None:
        return True, *_LEDGER
    _, reason, message = accepted(assessment)
    return False, reason, message


def _adjusted(assessment: Assessment, left_out: NotRendered | None) -> tuple[bool, Reason, str]:
    if left_out is not None:
        return False, Reason.NOT_RENDERED, "nothing was rendered for this spec"
    if assessment.decision is Decision.ADMIT_ADJUSTED:
        return True, Reason.ADJUSTED, changes_text(assessment)
    return False, *_AS_WRITTEN


_LEDGER = (Reason.LEDGER_COMPUTED, "the ledger stands in status.budget")
_AS_WRITTEN = (Reason.AS_WRITTEN, "rendered as written")
_WAITING = "waiting for a change by somebody"


def _drifted(drift: str, before: PreviousStatus) -> list[Statement]:
    """The condition is there from the first time on that something differed for good."""
    if drift:
        return [(ConditionType.DRIFTED, True, Reason.CORRECTION_UNDONE, drift)]
    if any(condition.type == ConditionType.DRIFTED for condition in before.conditions):
        return [(ConditionType.DRIFTED, False, Reason.AS_RENDERED, "Deployment and Service are as they were rendered")]
    return []


def _progress(
    left_out: NotRendered | None, obstacle: Obstacle | None, rollout: Rollout, crash: tuple[Reason, str] | None,
    admitted: Admitted | None = None,
) -> list[Statement]:  # fmt: skip
    """The three conditions that `kubectl wait`, Helm and Flux look at."""
    if left_out is not None and admitted is not None and admitted.owner is not None:
        return _earlier(left_out, obstacle, rollout, admitted.record.generation)
    if left_out is not None:
        stale = f"; {rollout.existing} pods of an earlier spec were left alone" if rollout.existing else ""
        return _halted(left_out.reason, left_out.message + stale, Reason.NOT_RENDERED)
    if obstacle is not None and not obstacle.is_transient:
        return _halted(obstacle.reason, obstacle.message, Reason.REPLICAS_NOT_READY)
    if crash is not None and not rollout.is_complete:
        return _halted(*crash, crash[0])
    ready, reconciling, stalled = _rollout(rollout)
    if obstacle is not None:
        reconciling = (ConditionType.RECONCILING, True, obstacle.reason, obstacle.message)
    return [ready, reconciling, stalled]


def _earlier(left_out: NotRendered, obstacle: Obstacle | None, rollout: Rollout, generation: int) -> list[Statement]:
    """The present generation is refused, and an earlier one stays in force: Ready speaks of the pods that run."""
    reason = Reason.REPLICAS_READY if rollout.is_complete else Reason.REPLICAS_NOT_READY
    ready = (
        f"{rollout.available} of {rollout.wanted} replicas of generation {generation} are ready; this one is refused"
    )
    more = f"; {obstacle.message}" if obstacle else ""
    _, reconciling, stalled = _halted(
        left_out.reason, f"{left_out.message}; generation {generation} stays in force{more}", left_out.reason
    )
    return [(ConditionType.READY, rollout.is_complete, reason, ready), reconciling, stalled]


def _rollout(rollout: Rollout) -> list[Statement]:
    ready = f"{rollout.available} of {rollout.wanted} replicas are ready"
    if rollout.is_complete:
        return [
            (ConditionType.READY, True, Reason.REPLICAS_READY, ready),
            (ConditionType.RECONCILING, False, Reason.UP_TO_DATE, "all replicas are of the current spec"),
            (ConditionType.STALLED, False, Reason.UP_TO_DATE, "nothing stands in the way"),
        ]
    if rollout.refused:
        reason = Reason.QUOTA_EXCEEDED if OVER_QUOTA in rollout.refused else Reason.PODS_REFUSED
    else:
        reason = Reason.PROGRESS_DEADLINE_EXCEEDED if rollout.stuck else Reason.ROLLING_OUT
    trouble = rollout.refused or rollout.stuck
    return [
        (ConditionType.READY, False, Reason.REPLICAS_NOT_READY, ready),
        (ConditionType.RECONCILING, not trouble, reason, trouble or ready),
        (ConditionType.STALLED, bool(trouble), reason, trouble or "nothing stands in the way"),
    ]


def _halted(reason: Reason, message: str, ready: Reason) -> list[Statement]:
    return [
        (ConditionType.READY, False, ready, message),
        (ConditionType.RECONCILING, False, reason, _WAITING),
        (ConditionType.STALLED, True, reason, message),
    ]

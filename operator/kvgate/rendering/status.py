"""Assessment and what is seen in the cluster → the status document; no clock, no calls."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvgate.api.base import Document
from kvgate.api.conditions import ConditionType, Reason, set_condition
from kvgate.api.fields import field_path
from kvgate.api.status import Condition, InferenceDeploymentStatus
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget.plan import Budget
from kvgate.engine import Assessment, Decision, effective_values
from kvgate.rendering.budget_status import budget_status
from kvgate.rendering.labels import selector
from kvgate.rendering.observation import (
    Claim,
    Observation,
    crash_text,
    figures_of,
    observed_claims,
    observed_status,
)
from kvgate.rendering.rollout import Rollout, rollout_of
from kvgate.rendering.workload import NotRendered
from kvgate.rules import Finding
from kvgate.summary import accepted, changes_text, finding_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    """What kept the manifests from being applied."""

    reason: Reason
    message: str

    @property
    def is_transient(self) -> bool:
        """It is tried again without anybody's doing."""
        return self.reason is Reason.API_UNAVAILABLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """What the object said before: conditions keep their transition times, and old pods their effective values."""

    status: Mapping[str, Any]
    generation: int
    now: str

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those that can still be read."""
        try:
            return tuple(map(Condition.from_document, self.status.get("conditions", ())))
        except ValidationError:
            return ()

    def renewed(self, claims: Iterable[Claim]) -> tuple[Condition, ...]:
        conditions = self.conditions
        for kind, status, reason, message in claims:
            conditions = set_condition(
                conditions, kind, status=status, reason=reason, message=message,
                generation=self.generation, now=self.now,
            )  # fmt: skip
        return conditions


def before(document: Mapping[str, Any], now: str) -> Before:
    """Of an object as the API server has it."""
    status = document.get("status")
    return Before(
        status=status if isinstance(status, Mapping) else {},
        generation=document["metadata"].get("generation", 1),
        now=now,
    )


def status_of(
    owner: InferenceDeployment,
    assessment: Assessment,
    *,
    calibration_revision: int = 0,
    left_out: NotRendered | None,
    obstacle: Obstacle | None,
    deployment: Mapping[str, Any] | None,
    before: Before,
    observation: Observation | None = None,
    template_hash: str = "",
) -> Document:
    """The whole status of an object that could be read; the hash is that of what is rendered."""
    rollout = rollout_of(deployment) if deployment else Rollout(wanted=owner.spec.replicas)
    budget = assessment.effective
    crash = observation.crash_of(template_hash) if observation else None
    claims_of_pods, observed = _seen(observation, budget, template_hash, before)
    claims = [
        (ConditionType.ACCEPTED, *accepted(assessment)),
        (ConditionType.PREDICTED, *_predicted(assessment)),
        (ConditionType.ADJUSTED, *_adjusted(assessment, left_out)),
        *_progress(left_out, obstacle, rollout, (crash.reason, crash_text(crash, budget)) if crash else None),
        *claims_of_pods,
    ]
    return _document(
        before,
        claims,
        observed=observed,
        effective=before.status.get("effective") if left_out else _dumped(effective_values(owner.spec, assessment)),
        budget=budget_status(assessment),
        calibrationRevision=calibration_revision or None,
        alternatives=[{"field": field_path(a.field), "value": str(a.value)} for a in assessment.alternatives] or None,
        **_counts(owner.name, rollout),
    )


def invalid_status(
    name: str,
    findings: Iterable[Finding],
    *,
    deployment: Mapping[str, Any] | None,
    before: Before,
    observation: Observation | None = None,
) -> Document:
    """Of an object that this release cannot read: all findings, and what still runs."""
    message = "; ".join(map(finding_text, findings))
    rollout = rollout_of(deployment) if deployment else Rollout()
    left_out = NotRendered(reason=Reason.INVALID_SPEC, message="the spec cannot be read")
    claims_of_pods, observed = _seen(observation, None, "", before)
    claims = [
        (ConditionType.ACCEPTED, False, Reason.INVALID_SPEC, message),
        (ConditionType.PREDICTED, False, Reason.INVALID_SPEC, left_out.message),
        (ConditionType.ADJUSTED, False, Reason.NOT_RENDERED, "nothing was rendered for this spec"),
        *_progress(left_out, None, rollout, None),
        *claims_of_pods,
    ]
    return _document(
        before, claims, observed=observed, effective=before.status.get("effective"), **_counts(name, rollout)
    )


def halted_status(obstacle: Obstacle, before: Before) -> Document:
    """Where not even the facts could be read: all that was said stays, and says that it may be old."""
    claims = [
        (ConditionType.RECONCILING, False, obstacle.reason, "waiting for a change by somebody"),
        (ConditionType.STALLED, True, obstacle.reason, obstacle.message),
    ]
    return {**before.status, "conditions": [_dumped(condition) for condition in before.renewed(claims)]}


def is_changed(before: Before, status: Document) -> bool:
    """Whether a write is due; fields that are not ours to write do not count."""
    ours = {field.alias or name for name, field in InferenceDeploymentStatus.model_fields.items()}
    return {key: value for key, value in before.status.items() if key in ours} != status


def _seen(
    observation: Observation | None, budget: Budget | None, template_hash: str, before: Before
) -> tuple[list[Claim], Document | None]:
    """Conditions and status.observed; until somebody has looked, what was said before stays."""
    previous = before.status.get("observed") or {}
    if observation is None and any(condition.type == ConditionType.OBSERVED for condition in before.conditions):
        return [], previous or None
    figures = figures_of(observation, budget, template_hash)
    return observed_claims(observation or Observation(), figures), observed_status(figures, previous, before.now)


def _document(before: Before, claims: Iterable[Claim], **parts: object) -> Document:
    conditions = [_dumped(condition) for condition in before.renewed(claims)]
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
        return True, Reason.LEDGER_COMPUTED, "the ledger stands in status.budget"
    _, reason, message = accepted(assessment)
    return False, reason, message


def _adjusted(assessment: Assessment, left_out: NotRendered | None) -> tuple[bool, Reason, str]:
    if left_out is not None:
        return False, Reason.NOT_RENDERED, "nothing was rendered for this spec"
    if assessment.decision is Decision.ADMIT_ADJUSTED:
        return True, Reason.ADJUSTED, changes_text(assessment)
    return False, Reason.AS_WRITTEN, "rendered as written"


def _progress(
    left_out: NotRendered | None, obstacle: Obstacle | None, rollout: Rollout, crash: tuple[Reason, str] | None
) -> list[Claim]:
    """The three conditions that `kubectl wait`, Helm and Flux look at."""
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


def _rollout(rollout: Rollout) -> list[Claim]:
    ready = f"{rollout.available} of {rollout.wanted} replicas are ready"
    if rollout.is_complete:
        return [
            (ConditionType.READY, True, Reason.REPLICAS_READY, ready),
            (ConditionType.RECONCILING, False, Reason.UP_TO_DATE, "all replicas are of the current spec"),
            (ConditionType.STALLED, False, Reason.UP_TO_DATE, "nothing stands in the way"),
        ]
    stuck = bool(rollout.stuck)
    reason = Reason.PROGRESS_DEADLINE_EXCEEDED if stuck else Reason.ROLLING_OUT
    return [
        (ConditionType.READY, False, Reason.REPLICAS_NOT_READY, ready),
        (ConditionType.RECONCILING, not stuck, reason, rollout.stuck or ready),
        (ConditionType.STALLED, stuck, reason, rollout.stuck or "nothing stands in the way"),
    ]


def _halted(reason: Reason, message: str, ready: Reason) -> list[Claim]:
    return [
        (ConditionType.READY, False, ready, message),
        (ConditionType.RECONCILING, False, reason, "waiting for a change by somebody"),
        (ConditionType.STALLED, True, reason, message),
    ]

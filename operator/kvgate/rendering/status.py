"""The status document, from the assessment and the state of the cluster; no clock, no calls."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from kvgate.api import field_path
from kvgate.api.base import Document
from kvgate.api.conditions import ConditionType, Reason, set_condition
from kvgate.api.status import Condition, Effective, InferenceDeploymentStatus, WorkloadShare
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget import TOGETHER, Budget, Guarantee, Verdict, plan
from kvgate.findings.finding import Finding
from kvgate.judgement.assess import chosen_settings, effective_values, field_name
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.summary import accepted, changes_text, finding_text, together_text, value_text
from kvgate.rendering.admission import Admitted, admission_status, budget_status, prediction_of
from kvgate.rendering.drift import LASTS_SECONDS
from kvgate.rendering.expectations import with_expectation
from kvgate.rendering.hindrances import Hindrance
from kvgate.rendering.labels import selector
from kvgate.rendering.lengths import length_statement, lengths_of
from kvgate.rendering.observation import (
    WAITING,
    Observation,
    Obstacle,
    Rollout,
    Statement,
    compared,
    crash_text,
    observed_statements,
    observed_status,
    progress,
    rollout_of,
)
from kvgate.rendering.pod_conditions import pod_conditions, was_ready
from kvgate.rendering.recalibration import outdated
from kvgate.rendering.workload import NotRendered, predicted_tokens
from kvgate.statement.deployment import guarantee_of, workload_of


class PreviousStatus(Struct, frozen=True, kw_only=True, dict=True):
    """The status before this run. From it conditions keep their transition times, and old pods their effective values."""

    status: Mapping[str, Any]
    """The status that this process wrote last; where that is not known, the object's."""
    generation: int
    now: str
    live: Mapping[str, Any] | None = None
    """The status in the object, which somebody may have edited; None where it is the same."""
    dropped: frozenset[str] = frozenset()
    """Fields that the CRD in the cluster does not know: the API server drops them, and to write them again would change nothing."""

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The previous conditions; none where one of them cannot be read."""
        try:
            return tuple(map(Condition.from_document, self.status.get("conditions", ())))
        except ValidationError:
            return ()

    def has(self, kind: ConditionType) -> bool:
        return any(condition.type == kind for condition in self.conditions)

    def is_older(self, condition: Condition) -> bool:
        """Return True where a condition began more than LASTS_SECONDS ago."""
        try:
            began, now = map(datetime.fromisoformat, (condition.last_transition_time, self.now))
            return (now - began).total_seconds() > LASTS_SECONDS
        except (ValueError, TypeError):  # somebody wrote it
            return True

    def renewed(self, statements: Iterable[Statement]) -> tuple[Condition, ...]:
        conditions = self.conditions
        for kind, status, reason, message in statements:
            conditions = set_condition(
                conditions, kind, status=status, reason=reason, message=message,
                generation=self.generation, now=self.now,
            )  # fmt: skip
        return conditions


def previous_status(
    document: Mapping[str, Any],
    now: str,
    written: Mapping[str, Any] | None = None,
    dropped: frozenset[str] = frozenset(),
) -> PreviousStatus:
    """Return the previous status of an object as the API server has it; `written` is the status that this process wrote last."""
    status = document.get("status")
    live = status if isinstance(status, Mapping) else {}
    return PreviousStatus(
        status=live if written is None else written,
        generation=document["metadata"].get("generation", 1),
        now=now,
        live=live,
        dropped=dropped,
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
    hindrances: Sequence[Hindrance] = (),
    template_hash: str = "",
    admitted: Admitted | None = None,
    is_kept: bool = False,
    skip_ended: str = "",
    drift: tuple[Reason, str] | None = None,
    awaits_turn: Statement | None = None,
    resolved: Statement | None = None,
    recalibration: Document | None = None,
    nodes: Statement | None = None,
) -> Document:
    """Return the whole status of an object that could be read.

    `admitted` is the spec that is rendered, and `template_hash` the hash of its pods. `is_kept` means that it was admitted before, so that
    its verdict stands and the present assessment does not count. `skip_ended` says why the break glass that admitted it counts no more.
    `drift` reports differences that kvgate does not correct any more. `resolved` is the condition ModelResolved of the present spec, where
    the hub is asked for its model. `recalibration` is status.recalibrated of a spec whose verdict stands. `nodes` is the condition
    NodesDiffer, where nodes are watched.
    """
    rollout = rollout_of(deployment) if deployment else Rollout(wanted=owner.spec.wanted_replicas)
    rollout = replace(rollout, is_suspended=bool(owner.spec.suspend))
    budget = None if left_out and admitted else assessment.effective
    crash = observation.crash_of(template_hash) if observation else None
    cause = (crash.reason, crash_text(crash, budget)) if crash else None
    is_lost = not rollout.is_complete and was_ready(before.conditions, before.generation, rollout)
    runs_for = admitted.owner if admitted and admitted.owner else owner
    needs = [with_expectation(each, runs_for, admitted, assessment.effective, before.now) for each in hindrances]
    runs = admitted.prediction if admitted else prediction_of(assessment)
    expected = admitted.predicted_tokens if admitted else predicted_tokens(assessment)
    pinned = runs.figures["pinned_blocks"] if runs else None  # none where vLLM measures
    about_pods, observed = _seen(observation, budget, template_hash, expected, before, pinned)
    verdict, figures = (
        _standing_verdict(admitted, before, skip_ended)
        if admitted is not None and is_kept
        else _verdict_of_now(assessment, left_out, calibration_revision)
    )
    statements = [
        *verdict,
        *progress(
            left_out,
            obstacle,
            rollout,
            cause,
            admitted,
            hindrances=needs,
            may_pass=bool(crash and crash.may_pass),
            was_ready=is_lost,
        ),
        *pod_conditions(None if admitted else left_out, rollout, cause, needs, was_ready=is_lost),
        *_drifted(drift, before),
        *_awaiting(awaits_turn, before),
        *_resolved(resolved, admitted if is_kept else None, before),
        *_scaled(owner, assessment.effective if is_kept else None, before),
        *_nodes(nodes, before),
        *outdated(recalibration, owner, admitted, existed=before.has(ConditionType.PREDICTION_OUTDATED)),
        *about_pods,
    ]
    effective = (
        before.status.get("effective") if left_out else _effective(effective_values(owner.spec, assessment), owner)
    )
    judged = admitted.owner if admitted and is_kept else owner
    share = workload_of(judged.spec) if judged and guarantee_of(judged.spec) is Guarantee.WORKLOAD else None
    return _document(
        before,
        statements,
        observed=observed,
        effective=_effective(admitted.record.effective, admitted.owner) if admitted else effective,
        workloadShare=_dumped(WorkloadShare(engines=share.engines, requests=share.peak_concurrency)) if share else None,
        **figures,
        **_counts(owner.name, rollout),
        recalibrated=recalibration,
        admission=admission_status(admitted) if admitted else None,
    )


def _verdict_of_now(
    assessment: Assessment, left_out: NotRendered | None, calibration_revision: int
) -> tuple[list[Statement], dict[str, object]]:
    admission, budget = accepted(assessment), budget_status(prediction_of(assessment))
    if left_out is not None and left_out.reason is Reason.RESOLVING:
        admission = (None if left_out.is_waiting else False, left_out.reason, left_out.message)
    if left_out is not None:
        adjusted = (False, *_NOTHING_RENDERED)
    elif assessment.decision is Decision.ADMIT_ADJUSTED:
        adjusted = (True, Reason.ADJUSTED, changes_text(assessment))
    else:
        adjusted = (False, *_AS_WRITTEN)
    statements: list[Statement] = [
        (ConditionType.ACCEPTED, *admission),
        (ConditionType.PREDICTED, *((True, *_LEDGER) if budget is not None else (False, *admission[1:]))),
        (ConditionType.ADJUSTED, *adjusted),
    ]
    alternatives = [
        {"field": TOGETHER, "value": together_text(each)}
        if each.field == TOGETHER
        else {"field": field_name(each.field), "value": value_text(each.value)}
        for each in assessment.alternatives
    ]
    return statements, {
        "budget": budget,
        "calibrationRevision": calibration_revision or None,
        "alternatives": alternatives or None,
    }


def _standing_verdict(
    admitted: Admitted, before: PreviousStatus, skip_ended: str
) -> tuple[list[Statement], dict[str, object]]:
    """Return the conditions and figures of the admission; the alternatives are dropped where another spec was judged meanwhile."""
    record = admitted.record
    reason = Reason(record.reason) if record.reason in set(Reason) else Reason.AS_WRITTEN
    was_admitted = {"True": True, "Unknown": None}[record.accepted]
    predicted = (True, *_LEDGER) if admitted.prediction else (False, reason, record.message)
    adjusted = (True, Reason.ADJUSTED, record.changes) if record.changes else (False, *_AS_WRITTEN)
    message = record.message
    if skip_ended:
        stays = "what was admitted keeps running, and the next change is judged without it"
        reason, message = Reason.SKIP_ENDED, f"{skip_ended}; {stays}; {message}"
    statements: list[Statement] = [
        (ConditionType.ACCEPTED, was_admitted, reason, message),
        (ConditionType.PREDICTED, *predicted),
        (ConditionType.ADJUSTED, *adjusted),
    ]
    budget = budget_status(admitted.prediction)
    return statements, {
        "budget": budget,
        "calibrationRevision": record.calibration_revision,
        "alternatives": before.status.get("alternatives") if before.status.get("budget") == budget else None,
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
    drift: tuple[Reason, str] | None = None,
) -> Document:
    """Return the status of an object that this release cannot read: all its findings, and the state of the pods that still run."""
    message = "; ".join(map(finding_text, findings))
    rollout = rollout_of(deployment) if deployment else Rollout()
    left_out = NotRendered(reason=Reason.INVALID_SPEC, message="the spec cannot be read")
    expected = admitted.predicted_tokens if admitted else None
    about_pods, observed = _seen(observation, None, template_hash, expected, before, None)
    statements = [
        (ConditionType.ACCEPTED, False, Reason.INVALID_SPEC, message),
        (ConditionType.PREDICTED, False, Reason.INVALID_SPEC, left_out.message),
        (ConditionType.ADJUSTED, False, *_NOTHING_RENDERED),
        *progress(left_out, obstacle, rollout, None, admitted),
        *pod_conditions(None if admitted else left_out, rollout, None, (), was_ready=False),
        *_drifted(drift, before),
        *about_pods,
    ]
    return _document(
        before,
        statements,
        observed=observed,
        effective=_effective(admitted.record.effective, admitted.owner) if admitted else before.status.get("effective"),
        **_counts(name, rollout),
        **(
            {"admission": admission_status(admitted)}
            if admitted
            else {name: before.status.get(name) for name in _ADMISSIONS}  # a later release may read it again
        ),
    )


_ADMISSIONS = ("admission", "standing", "provenance")
"""Fields about an admission, with those of an earlier release. They stay as they are where neither the spec nor the record can be read."""


def halted_status(obstacle: Obstacle, before: PreviousStatus) -> Document:
    """Return the previous status, marked as Stalled, for an object whose facts cannot be read."""
    statements = [
        (ConditionType.RECONCILING, False, obstacle.reason, WAITING),
        (ConditionType.STALLED, True, obstacle.reason, obstacle.message),
    ]
    return {**before.status, "conditions": [_dumped(condition) for condition in before.renewed(statements)]}


def failed_status(before: PreviousStatus, error: Exception) -> Document:
    """Return the status of an object on which kvgate itself fails; the rest of a previous status of this generation stays."""
    message = (
        f"kvgate failed on this object because of a defect ({type(error).__name__}); what runs keeps running. The controller's log has the "
        "traceback: please report it with this object. Until it is repaired, a change of the spec may help"
    )
    is_of_now = before.status.get("observedGeneration") == before.generation
    statements: list[Statement] = [
        *([] if is_of_now else [(ConditionType.ACCEPTED, None, Reason.CANNOT_BE_JUDGED, message)]),
        (ConditionType.RECONCILING, False, Reason.CANNOT_BE_JUDGED, WAITING),
        (ConditionType.STALLED, True, Reason.CANNOT_BE_JUDGED, message),
    ]
    conditions = [_dumped(condition) for condition in before.renewed(statements)]
    return {**before.status, "observedGeneration": before.generation, "conditions": conditions}


def is_changed(before: PreviousStatus, status: Document) -> bool:
    """Return True where the status must be written; fields that kvgate does not write do not count."""
    live = before.status if before.live is None else before.live
    wanted = {key: value for key, value in status.items() if key not in before.dropped}
    return {key: value for key, value in live.items() if key in _OURS} != wanted


_OURS = frozenset(field.alias or name for name, field in InferenceDeploymentStatus.model_fields.items())


def status_patch(before: PreviousStatus, status: Document) -> Document:
    """Return the JSON merge patch to this status; it removes what somebody else added to kvgate's fields."""
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
    pinned_blocks: int | None,
) -> tuple[list[Statement], Document | None]:
    """Return the conditions about the pods, and status.observed; until the pods were read, the previous ones stay."""
    previous = before.status.get("observed") or {}
    if observation is None and before.has(ConditionType.OBSERVED):
        return [], previous or None
    figures = compared(observation, budget, template_hash, expected, pinned_blocks)
    lengths = lengths_of(observation, budget, template_hash)
    statements = [
        *observed_statements(observation or Observation(), figures),
        *(length_statement(lengths, existed=before.has(ConditionType.LENGTH_BELOW_FLOOR)) if budget else ()),
    ]
    return statements, observed_status(figures, lengths.document, previous, before.now)


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


_NOTHING_RENDERED = (Reason.NOT_RENDERED, "nothing was rendered for this spec")
_LEDGER = (Reason.LEDGER_COMPUTED, "the memory ledger is in status.budget")
_AS_WRITTEN = (Reason.AS_WRITTEN, "rendered as written")


def _drifted(drift: tuple[Reason, str] | None, before: PreviousStatus) -> list[Statement]:
    """Return the condition Drifted, which exists from the first change by somebody else; one that was taken back is shown for a while."""
    if drift is not None:
        return [(ConditionType.DRIFTED, True, *drift)]
    previous = next((each for each in before.conditions if each.type == ConditionType.DRIFTED), None)
    if previous is None:
        return []
    if previous.status == "True" and previous.reason != Reason.CORRECTION_UNDONE and not before.is_older(previous):
        return [(ConditionType.DRIFTED, True, Reason(previous.reason), previous.message)]
    return [(ConditionType.DRIFTED, False, Reason.AS_RENDERED, "Deployment and Service are as they were rendered")]


def _nodes(nodes: Statement | None, before: PreviousStatus) -> list[Statement]:
    """Return the condition NodesDiffer, which exists from the first time that there was something to say."""
    if nodes is None or (nodes[2] in (Reason.NODES_AGREE, Reason.NODES_UNKNOWN) and not before.has(nodes[0])):
        return []
    return [nodes]


def _awaiting(turn: Statement | None, before: PreviousStatus) -> list[Statement]:
    """Return the condition ReplacementPending, which exists from the first wait."""
    if turn is not None or not before.has(ConditionType.REPLACEMENT_PENDING):
        return [turn] if turn is not None else []
    return [(ConditionType.REPLACEMENT_PENDING, False, Reason.AS_RENDERED, "the pods are those that kvgate renders")]


def _effective(effective: Effective, owner: InferenceDeployment | None) -> Document:
    """Return status.effective: the values, and the names of those that the spec leaves to kvgate."""
    chosen = chosen_settings(owner.spec, effective.max_num_seqs) if owner else ()
    return {
        **_dumped(effective),
        **({"chosen": [field_path(name).rpartition(".")[2] for name in chosen]} if chosen else {}),
    }


def _scaled(owner: InferenceDeployment, judged: Budget | None, before: PreviousStatus) -> list[Statement]:
    """Return the condition ScaledBelowWorkload, which exists from the first time that the replicas held less than the workload.

    `judged` is the budget of a verdict that stands, with the share of the replicas of that time. Without replicas nothing is promised.
    """
    kind, then = ConditionType.SCALED_BELOW_WORKLOAD, judged.request.workload if judged else None
    today = workload_of(owner.spec)
    if judged and then and today and owner.spec.wanted_replicas and today.peak_concurrency > then.peak_concurrency:
        verdict = plan(replace(judged.request, workload=today)).verdict
        sequences = judged.resolved.max_num_seqs
        if verdict is not Verdict.FITS or today.peak_concurrency > sequences:
            holds = "holds them" if verdict is Verdict.FITS else "may not hold them"
            message = (
                f"each engine now has {today.requests_text}, and {then.requests_text} were judged with {then.engines} engines; "
                f"the KV cache {holds}, and maxNumSeqs is {sequences}: raise spec.replicas"
            )
            return [(kind, True, Reason.SHARE_TOO_LARGE, message)]
    held = "each engine holds its share of the workload"
    return [(kind, False, Reason.SHARE_HELD, held)] if before.has(kind) else []


def _resolved(resolved: Statement | None, kept: Admitted | None, before: PreviousStatus) -> list[Statement]:
    """Return the condition ModelResolved, which exists from the first time that the hub was asked; a standing verdict keeps it."""
    previous = next((each for each in before.conditions if each.type == ConditionType.MODEL_RESOLVED), None)
    if kept is not None and kept.record.model_source:
        return [(ConditionType.MODEL_RESOLVED, True, Reason.FOUND, kept.record.model_source)]
    if kept is not None and previous is not None and previous.reason in set(Reason):
        status = {"True": True, "False": False}.get(previous.status)
        return [(ConditionType.MODEL_RESOLVED, status, Reason(previous.reason), previous.message)]
    if kept is None and resolved is not None:
        return [resolved]
    if kept is None and previous is not None:
        message = "the catalogue or configFrom has the model, its weights come from elsewhere, or models.resolve is off"
        return [(ConditionType.MODEL_RESOLVED, None, Reason.NOT_ASKED, message)]
    return []

"""Condition types and reasons, one sentence each, and the one function that changes a list of conditions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from kvgate.text.inert import inert_line

if TYPE_CHECKING:  # the reasons are words for the command line too, which starts without pydantic
    from kvgate.api.status import Condition


class ConditionType(StrEnum):
    """Subject of a condition."""

    ACCEPTED = "Accepted"
    """The budget's verdict: True is rendered, False is not, Unknown is rendered as written."""
    PREDICTED = "Predicted"
    """Facts were found and the ledger was computed."""
    ADJUSTED = "Adjusted"
    """The rendered values differ from the spec."""
    READY = "Ready"
    """All replicas of the current spec are ready."""
    RECONCILING = "Reconciling"
    """The cluster is on its way to the current spec."""
    STALLED = "Stalled"
    """It will not get there without a change by somebody."""
    DRIFTED = "Drifted"
    """The Deployment or the Service differs from what kvgate renders, and comes back to that after each correction."""
    OBSERVED = "Observed"
    """Running pods said how large their KV cache is."""
    PREDICTION_DRIFT = "PredictionDrift"
    """The reported capacity differs from the prediction by more than 5 %."""


class Reason(StrEnum):
    """Why, in one word."""

    FITS = "Fits"
    """The demand fits even at the low end."""
    MAY_NOT_FIT = "MayNotFit"
    """The demand lies inside the predicted interval."""
    BUDGET_EXCEEDED = "BudgetExceeded"
    """The demand does not fit even at the high end."""
    SETTING_REFUSED = "SettingRefused"
    """vLLM would refuse a setting before it looks at memory."""
    ADJUSTED = "Adjusted"
    """Smaller values that fit are rendered."""
    AS_WRITTEN = "AsWritten"
    """The pods are rendered as the spec is written."""
    POLICY_WARN = "PolicyWarn"
    """It does not fit and is rendered all the same, because the policy is Warn."""
    BUDGET_SKIPPED = "BudgetSkipped"
    """The break-glass annotation is set."""
    UNKNOWN_MODEL = "UnknownModel"
    """The catalogue has no such model and configFrom does not say what it is."""
    UNKNOWN_ACCELERATOR = "UnknownAccelerator"
    """The catalogue has no such accelerator."""
    UNKNOWN_VERSION = "UnknownVersion"
    """No accounting is known for this release of vLLM."""
    INVALID_MODEL_CONFIG = "InvalidModelConfig"
    """configFrom points at nothing, or at something that is not a config.json."""
    UNMODELLED_KIND = "UnmodelledKind"
    """A part of the model or a setting has no formula here."""
    ASSESSMENT_STOPPED = "AssessmentStopped"
    """Judging the object took longer than it may, and was stopped before there was a verdict."""
    INVALID_SPEC = "InvalidSpec"
    """The stored object does not pass the schema of this release."""
    LEDGER_COMPUTED = "LedgerComputed"
    """The ledger stands in status.budget."""
    REPLICAS_READY = "ReplicasReady"
    """All replicas are ready."""
    REPLICAS_NOT_READY = "ReplicasNotReady"
    """Some replicas are not ready yet."""
    ROLLING_OUT = "RollingOut"
    """Pods of the current spec are being created or replaced."""
    UP_TO_DATE = "UpToDate"
    """Nothing is left to do."""
    NOT_RENDERED = "NotRendered"
    """Nothing was rendered for this spec; what runs already was left alone."""
    CANNOT_BE_JUDGED = "CannotBeJudged"
    """kvgate failed on this object by a defect of its own; the controller's log has the traceback."""
    CORRECTION_UNDONE = "CorrectionUndone"
    """Somebody, or an admission webhook, changes back what kvgate corrects."""
    AS_RENDERED = "AsRendered"
    """Deployment and Service are as kvgate rendered them."""
    API_FORBIDDEN = "ApiForbidden"
    """The controller may not do what it must; its role lacks a rule."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A ResourceQuota of the namespace leaves no room for a rendered object or its pods."""
    ADMISSION_DENIED = "AdmissionDenied"
    """An admission policy or webhook of the cluster refuses a rendered object; its own words say why."""
    PODS_REFUSED = "PodsRefused"
    """The API server refuses the pods of the Deployment; its own words say why."""
    API_REJECTED = "ApiRejected"
    """The API server refused a rendered object; its own words say why."""
    API_UNAVAILABLE = "ApiUnavailable"
    """The API server failed to take a rendered object; it is tried again."""
    NAME_TAKEN = "NameTaken"
    """A Deployment or Service of this name belongs to somebody else and is left alone."""
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """The pods did not become ready in the time that loading takes."""
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    """vLLM ends at its start: its KV cache does not hold one request, or the states of all sequences."""
    OUT_OF_MEMORY = "OutOfMemory"
    """vLLM ends at its start: the GPU has no memory left, by its own doing or a neighbour's."""
    ENGINE_REFUSED_TO_START = "EngineRefusedToStart"
    """vLLM ends at its start: it refuses a setting, whatever memory there is."""
    ENGINE_CRASHED = "EngineCrashed"
    """The engine ends again and again, for a cause that is not known here."""
    CAPACITY_REPORTED = "CapacityReported"
    """Ready pods reported the size of their KV cache."""
    NO_READY_PODS = "NoReadyPods"
    """There is no ready pod that could be asked."""
    SCRAPE_TIMED_OUT = "ScrapeTimedOut"
    """A pod does not answer within two seconds."""
    POD_UNREACHABLE = "PodUnreachable"
    """No connection to a pod: most often a NetworkPolicy."""
    SCRAPE_REFUSED = "ScrapeRefused"
    """A pod answers something else than 200 on /metrics."""
    ANSWER_TOO_LARGE = "AnswerTooLarge"
    """A pod answers more than 1 MiB."""
    NOT_VLLM = "NotVLLM"
    """The pod's answer has no metrics of vLLM, or they are switched off."""
    METRICS_UNREADABLE = "MetricsUnreadable"
    """vLLM's metrics do not say how large the KV cache is."""
    CAPACITY_DIFFERS = "CapacityDiffers"
    """The smallest KV cache differs from the expected one by more than 5 %."""
    WITHIN_TOLERANCE = "WithinTolerance"
    """The smallest KV cache is the expected one, within 5 %."""
    NOT_OBSERVED = "NotObserved"
    """No pod of the current spec has reported yet, or there is no prediction to hold it against."""


def set_condition(
    conditions: Sequence[Condition],
    kind: ConditionType,
    *,
    status: bool | None,
    reason: Reason,
    message: str,
    generation: int,
    now: str,
) -> tuple[Condition, ...]:
    """The conditions with one of them renewed; its transition time moves only with its status."""
    from kvgate.api.status import Condition

    kept = tuple(condition for condition in conditions if condition.type != kind)
    before = next((condition for condition in conditions if condition.type == kind), None)
    text = "Unknown" if status is None else str(status)
    since = before.last_transition_time if before is not None and before.status == text else now
    renewed = Condition.from_document({
        "type": kind.value, "status": text, "reason": reason.value, "message": inert_line(message)[:4096],
        "lastTransitionTime": since, "observedGeneration": generation,
    })  # fmt: skip
    return tuple(sorted((*kept, renewed), key=lambda condition: condition.type))

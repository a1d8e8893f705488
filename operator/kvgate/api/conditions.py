"""Types and reasons of conditions, one sentence for each, and the function that renews one condition in a list."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from kvgate.text.inert import inert_line

if TYPE_CHECKING:
    from kvgate.api.status import Condition


class ConditionType(StrEnum):
    """Type of a condition: its subject."""

    ACCEPTED = "Accepted"
    """The verdict on the budget. True: the pods are rendered; False: they are not; Unknown: they are rendered as the spec is written."""
    PREDICTED = "Predicted"
    """All facts were found, and the ledger was computed."""
    ADJUSTED = "Adjusted"
    """The rendered values differ from the spec."""
    READY = "Ready"
    """All replicas of the current spec are ready."""
    RECONCILING = "Reconciling"
    """The cluster is on its way to the current spec."""
    STALLED = "Stalled"
    """The cluster will not get to the current spec unless somebody changes something."""
    DRIFTED = "Drifted"
    """The Deployment or the Service differs from what kvgate renders, and differs again after each correction."""
    OBSERVED = "Observed"
    """Running pods reported how large their KV cache is."""
    MODEL_RESOLVED = "ModelResolved"
    """The hub has published facts about a model that the catalogue lacks; present only where kvgate was told to ask the hub."""
    PREDICTION_DRIFT = "PredictionDrift"
    """The reported capacity differs from the prediction by more than 5 %."""
    PREDICTION_OUTDATED = "PredictionOutdated"
    """The spec would be judged otherwise today than when it was admitted; the verdict of the admission stands."""


class Reason(StrEnum):
    """Reason of a condition, in one word."""

    FITS = "Fits"
    """The demand fits even at the low end of the predicted interval."""
    MAY_NOT_FIT = "MayNotFit"
    """The demand lies inside the predicted interval."""
    BUDGET_EXCEEDED = "BudgetExceeded"
    """The demand does not fit even at the high end of the predicted interval."""
    SETTING_REFUSED = "SettingRefused"
    """vLLM would refuse a setting before it looks at memory."""
    ADJUSTED = "Adjusted"
    """Smaller values that fit are rendered."""
    AS_WRITTEN = "AsWritten"
    """The pods are rendered as the spec is written."""
    POLICY_WARN = "PolicyWarn"
    """The deployment does not fit, and is rendered all the same, because the policy is Warn."""
    MODEL_ASSUMED = "ModelAssumed"
    """The deployment would not fit if its model is like the one whose facts are assumed; it is rendered all the same."""
    SOURCES_CONTRADICT = "SourcesContradict"
    """The deployment does not fit, and is rendered all the same, because two sources state different facts about its model."""
    BUDGET_SKIPPED = "BudgetSkipped"
    """The break-glass annotation is set."""
    UNKNOWN_MODEL = "UnknownModel"
    """The catalogue has no such model, and there is no configFrom."""
    UNKNOWN_ACCELERATOR = "UnknownAccelerator"
    """The catalogue has no such accelerator."""
    UNKNOWN_VERSION = "UnknownVersion"
    """No accounting is known for this release of vLLM."""
    INVALID_MODEL_CONFIG = "InvalidModelConfig"
    """configFrom refers to nothing, or to something that is not a config.json."""
    FOUND = "Found"
    """The hub has the model; the message has the commit."""
    NOT_ASKED = "NotAsked"
    """The hub is not asked any more: configFrom or the catalogue has the model, its weights come from elsewhere, or it is switched off."""
    RESOLVING = "Resolving"
    """kvgate fetches what the hub has published about the model, and renders nothing meanwhile."""
    GATED = "Gated"
    """The publisher of the model lets in only accounts that it accepted."""
    NOT_FOUND = "NotFound"
    """The hub has no such repository, or shows it to its owners only."""
    REVISION_NOT_FOUND = "RevisionNotFound"
    """The repository of the model has no such branch, tag or commit."""
    FILE_NOT_FOUND = "FileNotFound"
    """The repository has no file that describes a model."""
    INVALID_NAME = "InvalidName"
    """No hub has a model of this name or revision."""
    HUB_UNREACHABLE = "HubUnreachable"
    """The hub did not answer, or answered with an error of its own."""
    OFFLINE = "Offline"
    """HF_HUB_OFFLINE forbids the controller to ask the hub."""
    RATE_LIMITED = "RateLimited"
    """The hub answers no more requests for a while."""
    TOO_LARGE = "TooLarge"
    """The files that the hub has of the model are larger than kvgate reads or stores."""
    BROKEN = "Broken"
    """The answer of the hub is not what it must be: truncated, of another type, or it leads elsewhere."""
    TIME_OVER = "TimeOver"
    """The hub did not answer completely in the time that a fetch may take."""
    NOT_INSTALLED = "NotInstalled"
    """The image of the controller has no huggingface_hub."""
    TOO_MANY_MODELS = "TooManyModels"
    """The namespace names more unknown models than kvgate fetches or stores."""
    UNMODELLED_KIND = "UnmodelledKind"
    """A part of the model or a setting has no formula here."""
    ASSESSMENT_STOPPED = "AssessmentStopped"
    """Judging the object took longer than it may, and was stopped before there was a verdict."""
    INVALID_SPEC = "InvalidSpec"
    """The stored object does not pass the schema of this release."""
    LEDGER_COMPUTED = "LedgerComputed"
    """The ledger is in status.budget."""
    REPLICAS_READY = "ReplicasReady"
    """All replicas are ready."""
    REPLICAS_NOT_READY = "ReplicasNotReady"
    """Some replicas are not ready yet."""
    ROLLING_OUT = "RollingOut"
    """Pods of the current spec are being created or replaced."""
    UP_TO_DATE = "UpToDate"
    """kvgate has nothing left to do."""
    NOT_RENDERED = "NotRendered"
    """Nothing was rendered for this spec; pods that run already were left alone."""
    CANNOT_BE_JUDGED = "CannotBeJudged"
    """kvgate failed on this object by a defect of its own; the controller's log has the traceback."""
    CORRECTION_UNDONE = "CorrectionUndone"
    """Somebody, or an admission webhook, undoes the corrections of kvgate."""
    AS_RENDERED = "AsRendered"
    """Deployment and Service are as kvgate rendered them."""
    API_FORBIDDEN = "ApiForbidden"
    """The API server forbids the controller a request that it must make: its role lacks a rule."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A ResourceQuota of the namespace leaves no room for a rendered object or its pods."""
    ADMISSION_DENIED = "AdmissionDenied"
    """An admission policy or webhook of the cluster refuses a rendered object; its message says why."""
    PODS_REFUSED = "PodsRefused"
    """The API server refuses the pods of the Deployment; its message says why."""
    API_REJECTED = "ApiRejected"
    """The API server refused a rendered object; its message says why."""
    API_UNAVAILABLE = "ApiUnavailable"
    """The API server failed to store a rendered object; kvgate tries again."""
    NAME_TAKEN = "NameTaken"
    """A Deployment or Service of this name belongs to somebody else; kvgate leaves it alone."""
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """The pods did not become ready in the time that loading the model takes."""
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    """vLLM stops while it starts: its KV cache does not hold one request, or the states of all sequences."""
    OUT_OF_MEMORY = "OutOfMemory"
    """vLLM stops while it starts: the GPU has no memory left, because of vLLM itself or of another process."""
    ENGINE_REFUSED_TO_START = "EngineRefusedToStart"
    """vLLM stops while it starts: it refuses a setting, whatever memory there is."""
    ENGINE_CRASHED = "EngineCrashed"
    """vLLM stops again and again, for a reason that kvgate does not know."""
    CAPACITY_REPORTED = "CapacityReported"
    """Ready pods reported the size of their KV cache."""
    NO_READY_PODS = "NoReadyPods"
    """There is no ready pod that could report."""
    SCRAPE_TIMED_OUT = "ScrapeTimedOut"
    """A pod did not answer within two seconds."""
    POD_UNREACHABLE = "PodUnreachable"
    """There is no connection to a pod; most often a NetworkPolicy forbids it."""
    SCRAPE_REFUSED = "ScrapeRefused"
    """A pod answers /metrics with another status than 200."""
    ANSWER_TOO_LARGE = "AnswerTooLarge"
    """A pod answers more than 1 MiB."""
    ANSWER_CUT = "AnswerCut"
    """A pod sends only the first part of its metrics."""
    NOT_VLLM = "NotVLLM"
    """The pod's answer has no metrics of vLLM, or they are switched off."""
    RELEASE_UNKNOWN = "ReleaseUnknown"
    """The pod has metrics of vLLM under names or labels that kvgate does not know."""
    METRICS_UNREADABLE = "MetricsUnreadable"
    """The metrics of vLLM do not contain the size of the KV cache."""
    CAPACITY_CHANGES = "CapacityChanges"
    """A pod reports another KV cache than before, and its container did not restart."""
    CAPACITY_DIFFERS = "CapacityDiffers"
    """The smallest KV cache differs from the expected one by more than 5 %."""
    CAPACITY_IMPOSSIBLE = "CapacityImpossible"
    """vLLM reports more KV cache than its GPU would hold in the layout that the spec gives."""
    WITHIN_TOLERANCE = "WithinTolerance"
    """The smallest KV cache is the expected one, within 5 %."""
    VERDICT_MOVED = "VerdictMoved"
    """Today the spec would get another verdict, or other values would be rendered; what was admitted keeps running."""
    FIGURES_MOVED = "FiguresMoved"
    """Today another size of the KV cache would be predicted, with the same verdict."""
    AS_ADMITTED = "AsAdmitted"
    """Today's prediction is the one that was admitted, within 1 % or a block."""
    NOT_OBSERVED = "NotObserved"
    """No pod of the current spec has reported yet, or there is no prediction to compare with."""


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
    """Return the conditions with one of them renewed. Its transition time changes only when its status changes."""
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

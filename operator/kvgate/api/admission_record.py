"""AdmissionRecord: what kvgate decided about one spec, with the spec itself and all figures. It never changes.

An object of its own, and not a ControllerRevision: both never change, and this one is read by its own columns, needs no right over
revisions of StatefulSets and DaemonSets, and is nothing that those or their selectors touch (docs/concepts/admission-records.md).
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from kvgate.api.base import CelRule, Document
from kvgate.api.status import Effective, Placement, Recorded

RECORD_KIND = "AdmissionRecord"
RECORD_PLURAL = "admissionrecords"


def _number(value: Any) -> Any:
    """Read a number as it is stored."""
    if type(value) is not int:
        float(value)
    return value


Number = Annotated[
    int | str, PlainValidator(_number), WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32})
]
"""A whole number, or a decimal number as text: the API has no floats."""


class RecordedFigure(Recorded):
    """One figure of the table of figures."""

    expected: Number
    """Expected value of a prediction, or the value itself."""
    low: Number | None = None
    """Low end of a prediction; absent where nothing is predicted."""
    high: Number | None = None
    """High end of a prediction."""


class AdmissionRecordSpec(Recorded):
    """One admission: the spec, the decision, and the figures that it was made with."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            rule="self == oldSelf", message="a record never changes: kvgate makes another one", holds=lambda _: True
        ),
    )
    inference_deployment: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the InferenceDeployment that was admitted."""
    generation: Annotated[int, Field(ge=1)]
    """Generation of the InferenceDeployment at its admission."""
    spec_digest: Annotated[str, Field(max_length=64)]
    """SHA-256 of all parts of the spec that a verdict depends on, and of the break-glass annotation."""
    decision: Literal["Admit", "AdmitWithWarning", "AdmitAdjusted", "Skipped"]
    """Decision of the admission policy."""
    accepted: Literal["True", "Unknown"]
    """Status of the condition Accepted."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    """Reason of the condition Accepted."""
    message: Annotated[str, Field(max_length=4096)]
    """Message of the condition Accepted."""
    changes: Annotated[str, Field(max_length=4096)] | None = None
    """Changes that the policy Adjust made."""
    skip_reason: Annotated[str, Field(max_length=256)] | None = None
    """Reason in the annotation kvgate.io/skip-budget."""
    config_digest: Annotated[str, Field(max_length=64)] | None = None
    """SHA-256 of the text behind configFrom; absent where there was none."""
    model_source: Annotated[str, Field(max_length=1024)] | None = None
    """Names, commits and hub of the models whose facts were fetched; absent where none was."""
    model_assumed: bool | None = None
    """True where the spec was admitted with facts that are assumed from another model; it is judged anew once its own are known."""
    calibration_revision: Annotated[int, Field(ge=0)] | None = None
    """Number of the newest observed start that was known; absent where there was none."""
    effective: Effective
    """The values that the pods are rendered from."""
    placement: Placement
    """Rules by which the pods find their GPU, as the catalogue had them at that time."""
    load_seconds: Annotated[int, Field(ge=1, le=86_400)]
    """Seconds that the start of a pod may take."""
    verdict: Literal["Fits", "MayNotFit", "DoesNotFit", "Unknown"] | None = None
    """Verdict on the effective values, or on the spec as it is written where the break glass admits it; absent without figures."""
    guarantee: str | None = None
    """Guarantee that the verdict is about."""
    figures: Annotated[dict[str, RecordedFigure], Field(default_factory=dict)]
    """Figures of the verdict by their names in the table of figures; none where a part of them could not be computed."""
    kvgate_version: Annotated[str, Field(max_length=64)] | None = None
    """Release of kvgate that admitted the spec."""
    recalibrations: Annotated[int, Field(ge=0)] | None = None
    """Number of times that admission.recalibrate has changed the pods of this spec; absent where it has not."""
    admitted: Annotated[Document, WithJsonSchema({
        "type": "object", "x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic",
    })] | None = None  # fmt: skip
    """The spec as it was admitted; absent where the record would be larger than the API server stores."""

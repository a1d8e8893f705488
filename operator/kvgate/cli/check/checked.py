"""One InferenceDeployment and what became of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.api.conditions import Reason
from kvgate.budget.calibration import Calibration
from kvgate.cli.model_config import ModelConfig
from kvgate.judge import assess, facts, summary
from kvgate.judge.assess import Assessment, Decision
from kvgate.judge.facts import Facts
from kvgate.manifests import InputDocuments, Subject
from kvgate.record import record
from kvgate.rules.finding import Finding

if TYPE_CHECKING:
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec


@record
class Checked:
    """One object and what became of it."""

    subject: Subject
    assessment: Assessment | None
    """None where the schema refuses the object."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.assessment.findings if self.assessment else self.subject.findings

    @property
    def decision(self) -> Decision:
        return self.assessment.decision if self.assessment else Decision.REFUSE

    @property
    def verdict(self) -> str | None:
        """None where there is nothing to judge: the object is not valid."""
        return self.assessment.verdict.value if self.assessment else None

    @property
    def reason(self) -> tuple[Reason, str]:
        """Reason and message of the condition Accepted, as webhook and controller word them."""
        if self.assessment is None:
            return Reason.INVALID_SPEC, "; ".join(finding.message for finding in self.findings)
        return summary.accepted(self.assessment)[1:]


def check_subject(
    subject: Subject, manifests: InputDocuments, config: ModelConfig | None, calibration: Calibration
) -> Checked:
    """Facts from the input, then the one judgement."""
    deployment = subject.deployment
    if deployment is None:
        return Checked(subject=subject, assessment=None)
    known = facts.gather(deployment.spec, manifests.lookup(subject.namespace), calibration)
    if known.shape is None and config is not None:
        known = _with_config(known, deployment.spec, config)
    return Checked(
        subject=subject, assessment=assess.assess(deployment.spec, known, skip_reason=deployment.skip_reason)
    )


def _with_config(known: Facts, spec: InferenceDeploymentSpec, config: ModelConfig) -> Facts:
    """The facts with the model that somebody's config.json describes."""
    shape, problems = facts.shape_of_text(
        config.text,
        name=spec.model.name,
        where=config.where,
        quantization=spec.vllm.quantization,
        dtype=spec.vllm.dtype,
    )
    others = tuple(finding for finding in known.findings if finding.rule in ("UnknownAccelerator", "UnknownVersion"))
    classes = facts.look_up_model_class(shape, spec.vllm.version) if shape else ()
    return replace(known, shape=shape, findings=(*problems, *others, *classes))

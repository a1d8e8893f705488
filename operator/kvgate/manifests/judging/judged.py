"""Judgement of an engine that a reader found, and defaults for facts that its manifest does not state."""

from dataclasses import field, replace

from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.budget.interval import Verdict
from kvgate.budget.request import Workload
from kvgate.judge.assess import Assessment
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.record import record
from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import Located


@record
class Defaults:
    """Facts that a manifest does not state, from the command line or `.kvgate.yaml`."""

    accelerator: str | None = None
    vllm_version: str | None = None
    model_config: str | None = None
    """Text of a config.json, for models that the catalogue does not know."""
    workload: Workload | None = None
    """Load that the engine is expected to serve; it replaces max_num_seqs whole requests."""
    calibration: Calibration = NOTHING_OBSERVED


@record
class JudgedEngine:
    """Judgement of one engine."""

    engine: FoundEngine
    assessment: Assessment | None
    """None where nothing could be asked."""
    verdict: Verdict
    accelerator: str | None
    vllm_version: str
    """The newest that it may be."""
    is_release_known: bool = True
    options_set: frozenset[str] | None = None
    """Options of its command line by vLLM's names; None where the input does not hold all of it."""
    findings: tuple[Located, ...] = ()
    assumed: tuple[str, ...] = field(default=())
    """Assumptions about facts that the manifest does not state."""


def softened(each: Located) -> Located:
    """A warning instead of an error: something that is not seen here may put it right."""
    if each.finding.severity is not Severity.ERROR:
        return each
    return replace(each, finding=replace(each.finding, severity=Severity.WARNING))

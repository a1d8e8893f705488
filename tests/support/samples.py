"""deploy/samples, judged as the command line judges them."""

from pathlib import Path

from kvgate.budget.observed.calibration import NOTHING_OBSERVED
from kvgate.cli.check.run import judge_deployment
from kvgate.judgement.assessment import Assessment
from kvgate.manifests import Subject, read_manifests

SAMPLES = {path.name: path for path in sorted((Path(__file__).parents[2] / "deploy" / "samples").glob("*.yaml"))}


def judged(name: str) -> tuple[Subject, Assessment]:
    """The one object of a sample, and what becomes of it."""
    manifests = read_manifests((str(SAMPLES[name]),))
    (subject,) = manifests.subjects
    assessment = judge_deployment(subject, manifests, None, NOTHING_OBSERVED)
    assert assessment is not None
    return subject, assessment

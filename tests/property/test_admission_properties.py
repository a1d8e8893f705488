"""What stands: after any history of edits, scalings, observations and restarts, the last admitted spec with its own figures."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import parse_document
from kvgate.budget.observed.calibration import NOTHING_OBSERVED, Calibration
from kvgate.controller import decision
from kvgate.controller.decision import Judged, Situation
from kvgate.rendering.admission import Admitted
from kvgate.rendering.live_deployment import annotated
from kvgate.rendering.status import previous_status
from kvgate.rendering.workload import NotRendered, PodFigures, figures_of_verdict, rendered
from support.admissions import read_back
from support.manifests import NOW, a_document
from support.starts import a_start

pytestmark = pytest.mark.slow

settings.register_profile("kvgate", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("kvgate")

SPECS: dict[str, dict[str, Any]] = {
    "small": {},
    "longer": {"vllm": {"maxNumSeqs": 4, "maxModelLen": 16384}},
    "another model": {"model": {"name": "openai/gpt-oss-20b"}},
    "unknown model": {"model": {"name": "nobody/novel-7b"}},
    "adjusted": {"vllm": {"maxNumSeqs": 64}, "admission": {"policy": "Adjust", "adjust": {"minMaxNumSeqs": 2}}},
    "pinned": {"admission": {"capacity": "Pinned"}},
    "too many": {"vllm": {"maxNumSeqs": 64}},
    "unknown GPU": {"accelerator": {"type": "H900-1TB"}},
    "unreadable": {"vllm": {"maxNumSeqs": -1}},
}
CALIBRATIONS = (NOTHING_OBSERVED, Calibration(starts=(a_start(-2.0, max_num_seqs=4),)))

steps = st.lists(
    st.one_of(
        st.tuples(st.just("edit"), st.sampled_from(sorted(SPECS))),
        st.tuples(st.just("scale"), st.integers(0, 5)),
        st.tuples(st.just("observe"), st.sampled_from(range(len(CALIBRATIONS)))),
        st.tuples(st.just("look again"), st.none()),
    ),
    min_size=1,
    max_size=12,
)


@cache
def judged_of(name: str, calibration: int) -> Judged | None:
    """The judgement of a spec, which does not depend on its replicas."""
    owner = decision.read_owner(a_document(**SPECS[name]))
    if not isinstance(owner, InferenceDeployment):
        return None
    return decision.assess_owner(owner, decision.NO_CONFIG, CALIBRATIONS[calibration])


@cache
def figures_of(name: str, calibration: int) -> PodFigures | None:
    """The figures of an admission; None where the spec is not rendered."""
    judged = judged_of(name, calibration)
    if judged is None:
        return None
    owner = parse_document(a_document(**SPECS[name]))
    figures = figures_of_verdict(owner, judged.assessment, judged.accelerator)
    return None if isinstance(figures, NotRendered) else figures


@dataclass
class History:
    """An object, and beside it what ought to stand: the name of a spec and its figures."""

    name: str = "small"
    replicas: int = 1
    generation: int = 1
    calibration: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    admitted: Admitted | None = None
    """The spec whose record is stored."""
    stands: tuple[str, PodFigures] | None = None

    def step(self, kind: str, value: Any) -> None:
        if kind == "edit" and value != self.name:
            self.name, self.generation = value, self.generation + 1
        elif kind == "scale" and value != self.replicas:
            self.replicas, self.generation = value, self.generation + 1
        elif kind == "observe":
            self.calibration = value
        self.reconcile()

    def reconcile(self) -> None:
        """One run of a controller that has just started: it knows of the past what the record and the status say."""
        document = a_document(generation=self.generation, **SPECS[self.name], replicas=self.replicas)
        document["status"] = self.status
        situation = Situation(
            document=document, owner=decision.read_owner(document), standing=read_back(self.admitted, document)
        )
        intent = decision.decide(situation, judged_of(self.name, self.calibration))
        self.admitted = intent.admitted
        self.status = decision.status_after(
            intent, name="qwen", deployment=None, before=previous_status(document, NOW), observation=None
        )
        figures = figures_of(self.name, self.calibration)
        if figures is not None and (self.stands is None or self.stands[0] != self.name):
            self.stands = (self.name, figures)
        self.check(document, intent)

    def check(self, document: dict[str, Any], intent: decision.Intent) -> None:
        found = read_back(self.admitted, document)
        assert (found is None) == (self.stands is None)
        if found is None or self.stands is None:
            assert intent.deployment is None
            return
        name, figures = self.stands
        assert found.figures == figures
        owner = found.scaled(self.replicas)
        wanted = parse_document(a_document(**SPECS[name], replicas=self.replicas))
        assert owner is not None
        assert owner.spec == wanted.spec
        assert intent.deployment is not None
        assert intent.deployment.wanted == annotated(rendered(wanted, figures), found).deployment
        assert self.status["effective"] == figures.effective.model_dump(by_alias=True, exclude_none=True)


@given(steps)
def test_the_spec_that_was_admitted_last_stands_with_its_own_figures(history: list[tuple[str, Any]]) -> None:
    life = History()
    life.reconcile()
    for kind, value in history:
        life.step(kind, value)


def test_the_specs_of_the_histories_are_admitted_and_refused() -> None:
    admitted = {name for name in SPECS if figures_of(name, 0) is not None}
    assert admitted == {"small", "longer", "another model", "unknown model", "adjusted", "pinned"}
    assert figures_of("small", 0) != figures_of("small", 1), "an observed start changes the prediction"

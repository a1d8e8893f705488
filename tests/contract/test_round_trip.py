"""What the controller renders, `kvgate check` reads back as the engine that was judged: the same settings, to the byte."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from kvgate.api.base import KeyRef
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.budget.engine.request import Guarantee
from kvgate.controller.decision import Judged, assess_owner, config_text
from kvgate.judgement import assess
from kvgate.judgement.skipping import skip_of
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.judging.engine_budget import Defaults
from kvgate.manifests.judging.judgement import JudgedEngine, judge_engine
from kvgate.rendering.workload import Rendered, render
from support.tables import table

TESTS = Path(__file__).parents[1]
SOURCES = sorted([*TESTS.glob("contract/*/request.yaml"), *TESTS.glob("rendering/input/*.yaml")])


@dataclass(frozen=True, kw_only=True)
class Case:
    """An object, what it was judged to be, and what is applied for it."""

    owner: InferenceDeployment
    config: str | None
    """Text of its model's config.json, where a ConfigMap has it."""
    judged: Judged
    manifests: Rendered


def rendered(source: Path) -> Case | None:
    """None where the schema or the policy refuses it."""
    documents = list(yaml.safe_load_all(source.read_text(encoding="utf-8")))
    document = next(document for document in documents if document["kind"] == "InferenceDeployment")
    document["metadata"] |= {"namespace": "serving", "uid": "uid-1", "generation": 1}
    try:
        owner = parse_document(document)
    except InvalidDocument:
        return None
    model = owner.spec.model
    reference = model.config_from.config_map_key_ref if model.config_from else KeyRef(name="none", key="none")
    maps = (
        other for other in documents if other["kind"] == "ConfigMap" and other["metadata"]["name"] == reference.name
    )
    text = config_text(reference, next(maps, None))
    judged = assess_owner(owner, text, skip=skip_of(owner, datetime.now(UTC)))
    outcome = render(owner, judged.assessment, judged.accelerator)
    config = text if isinstance(text, str) else None
    return Case(owner=owner, config=config, judged=judged, manifests=outcome) if isinstance(outcome, Rendered) else None


def read_back(folder: Path, manifests: Rendered, defaults: Defaults) -> JudgedEngine:
    path = folder / "rendered.yaml"
    path.write_text(yaml.safe_dump_all([manifests.service, manifests.deployment]), encoding="utf-8")
    (found,) = find_engines(read_manifests([str(path)])).engines
    return judge_engine(found, defaults)


def numbers(assessment: assess.Assessment | None) -> dict[str, Any] | None:
    budget = assessment.budget if assessment else None
    if budget is None:
        return None
    settings = budget.resolved
    return {
        "blocks": budget.num_blocks,
        "weights": [stage.ledger.weights if stage.ledger else None for stage in budget.stages],
        "available": [stage.available for stage in budget.stages],
        "settings": (settings.max_model_len, settings.max_num_seqs, settings.max_num_batched_tokens),
    }


@cache
def cases() -> dict[str, Case]:
    """Those that are rendered, by the name of their source."""
    outcomes = {f"{source.parent.name}/{source.stem}": rendered(source) for source in SOURCES}
    return {name: outcome for name, outcome in outcomes.items() if outcome}


@table("case", cases)
def test_the_rendered_pod_is_judged_as_the_object_was(case: str, tmp_path: Path) -> None:
    outcome = cases()[case]
    spec = outcome.owner.spec
    defaults = Defaults(accelerator=spec.accelerator.type, vllm_version=spec.vllm.version, model_config=outcome.config)
    back = read_back(tmp_path, outcome.manifests, defaults)
    errors = [
        each.finding
        for each in back.findings
        if each.finding.rule.id in ("OptionUnknown", "TooFewGpus", "NotUnderstood")
    ]
    assert errors == []
    judged_on = outcome.judged.accelerator
    assert judged_on is not None
    assert back.accelerator == judged_on.name
    assert any("as configured" in note.text for note in back.assumed) == (
        not judged_on.gpu_labels or spec.accelerator.resource_claim is not None or bool(spec.vllm.image)
    )  # a claim's template, which has the device, stands beside the pod
    effective = outcome.judged.assessment.effective
    if effective is None:
        assert numbers(back.assessment) is None
        return
    alone = replace(effective.request, guarantee=Guarantee.STARTUP, shared_by=1)  # a pod does not say how many share
    started = assess.judge(alone)
    assert back.verdict is started.verdict
    assert numbers(back.assessment) == numbers(started)


def test_most_cases_are_rendered() -> None:
    assert len(cases()) >= 20

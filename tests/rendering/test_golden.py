"""input/CASE.yaml → output/CASE.yaml, byte for byte; README.md says how to rewrite them."""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from kvgate.api.base import KeyRef
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import parse_document
from kvgate.budget.releases.versions import DEFAULT_VERSION
from kvgate.controller.decision import assess_owner, config_text
from kvgate.rendering.status import previous_status, status_of
from kvgate.rendering.workload import NotRendered, Rendered, render
from kvgate.text.expansion import expand_references
from support.tables import table

FOLDER = Path(__file__).parent
CASES = sorted(path.stem for path in (FOLDER / "input").glob("*.yaml"))
UID = "00000000-0000-0000-0000-00000000000a"


def read(case: str) -> tuple[InferenceDeployment, Any]:
    text = (FOLDER / "input" / f"{case}.yaml").read_text(encoding="utf-8")
    document, *others = yaml.safe_load_all(text)
    document["metadata"] |= {"namespace": "serving", "uid": UID, "generation": 1}
    return parse_document(document), next(iter(others), None)


def rendered(case: str) -> list[dict[str, Any]]:
    owner, config_map = read(case)
    reference = owner.spec.model.config_from.config_map_key_ref if owner.spec.model.config_from else None
    text = config_text(reference or KeyRef(name="none", key="none"), config_map)
    judged = assess_owner(owner, text)
    outcome = render(owner, judged.assessment, judged.accelerator)
    if isinstance(outcome, NotRendered):
        return [{"notRendered": {"reason": outcome.reason.value, "message": outcome.message}}]
    assert isinstance(outcome, Rendered)
    document = {"metadata": owner.metadata}
    status = status_of(
        owner, judged.assessment, left_out=None, obstacle=None, deployment=None,
        before=previous_status(document, "2026-11-21T00:00:00Z"),
    )  # fmt: skip
    assert {c["type"] for c in status["conditions"]} >= {"Accepted", "Predicted", "Adjusted", "Ready"}
    return [each for each in (outcome.claim, outcome.deployment, outcome.service) if each is not None]


@table("case", CASES)
def test_the_rendering_is_the_golden_one(case: str) -> None:
    text = yaml.safe_dump_all(rendered(case), sort_keys=False, allow_unicode=True, width=120)
    if case == "unset":  # the next release of vLLM is another default
        text = re.sub(r"(render-hash: )\w+", r"\1{hash}", text.replace(DEFAULT_VERSION, "{default}"))
    golden = FOLDER / "output" / f"{case}.yaml"
    if os.environ.get("KVGATE_UPDATE_GOLDEN") == "1":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@table("case", CASES)
def test_no_text_of_a_container_depends_on_a_variable(case: str) -> None:
    """What the kubelet expands in the container of vLLM: command, args and env values; nothing rendered mounts by subPathExpr."""
    for document in rendered(case):
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ())[:1]:  # the others are as their author wrote them
            assert container["name"] == "vllm"
            texts = [*container["command"], *container["args"], *(each.get("value", "") for each in container["env"])]
            assert [
                text
                for text in texts
                if expand_references(text, lambda _: "a") != expand_references(text, lambda _: "b")
            ] == []
            assert "subPathExpr" not in str(container)


def test_every_golden_output_has_an_input() -> None:
    assert sorted(path.stem for path in (FOLDER / "output").glob("*.yaml")) == CASES
    assert len(CASES) >= 8

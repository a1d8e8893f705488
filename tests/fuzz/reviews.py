"""InferenceDeployments through the three doors: admission, the controller's pure functions, and `kvgate check`.

Admission and controller get what the API server stores, `kvgate check` what was written. XX
"""

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fuzz.configs import config_text
from fuzz.mutation import mutated
from kvgate import catalogue
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.report import Report
from kvgate.controller import decision as pure
from kvgate.rendering.status import previous_status
from kvgate.rendering.workload import Rendered, render
from kvgate.text.expansion import expand_references
from kvgate.webhook.review import INVALID, ReviewError, review

TESTS = Path(__file__).parents[1]
NOW = "2026-11-21T12:00:00Z"
UID = "00000000-0000-0000-0000-000000000001"
MAX_STATUS_BYTES = 256 << 10
"""etcd takes 1.5 MiB of an object, and its spec is somebody else's."""
MAX_MESSAGE = 32_768
"""Characters of a condition's message that the API server takes."""
CRD = TESTS.parent / "crds" / "kvgate.io_inferencedeployments.yaml"
KEPT = {"x-kubernetes-preserve-unknown-fields": True}
EXPANDED = "expanded-by-the-kubelet"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What one seed asks of the doors."""

    document: Any
    config: str | None
    """The text under the key that configFrom names."""
    body: Any
    """The AdmissionReview, which may be spoilt as well."""


@lru_cache(maxsize=1)
def examples() -> tuple[Any, ...]:
    paths = sorted((*TESTS.glob("contract/*/request.yaml"), *TESTS.glob("rendering/input/*.yaml")))
    documents = [d for path in paths for d in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    return tuple(document for document in documents if document["kind"] == "InferenceDeployment")


def case_of(seed: int) -> Case:
    chance = random.Random(f"reviews {seed}")
    document = _plausible(chance) if chance.random() < 0.5 else copy.deepcopy(chance.choice(examples()))
    if chance.random() < 0.7:
        document = mutated(document, chance)
    body = review_of(document)
    if chance.random() < 0.1:
        body = mutated(body, chance)
    return Case(document=document, config=config_text(chance) if chance.random() < 0.8 else None, body=body)


def _plausible(chance: random.Random) -> dict[str, Any]:
    """A spec that the schema takes and that may mean anything."""
    vllm = {
        "version": chance.choice(
            ("0.33.0", "0.32.0", "0.29.1", "v0.14.0", "0.11.0", "0.8.5", "0.6.1", "0.5.0", "0.99.0", "1.0.0rc1")
        ),
        "maxModelLen": chance.choice((1, 16, 4096, 8192, 40960, 131072, 10**6, 10**8)),
        "maxNumSeqs": chance.choice((1, 4, 64, 1024, 10**6)),
        "kvCacheDtype": chance.choice(("auto", "fp8", "fp8_e5m2", "nvfp4", "bfloat16")),
        "gpuMemoryUtilization": chance.choice(("0.90", "0.1", "0.999", "1", "0.5")),
        "tensorParallelSize": chance.choice((1, 2, 3, 8, 64)),
        "pipelineParallelSize": chance.choice((1, 2, 4)),
        "enforceEager": chance.random() < 0.5,
        "blockSize": chance.choice((1, 16, 48, 64, 256)),
        "maxNumBatchedTokens": chance.choice((1, 2048, 8192, 10**6)),
        "extraArgs": [
            chance.choice(("--seed=1", "--enable-lora", "--x", "$(A)", "--swap-space=4", "--api-key=$(K)", ""))
        ],
        "quantization": chance.choice(("fp8", "awq", "bitsandbytes", "none")),
    }
    chosen = {name: vllm[name] for name in chance.sample(sorted(vllm), chance.randint(0, 6))}
    spec: dict[str, Any] = {
        "model": {"name": chance.choice((*catalogue.model_names(), "x/unknown"))},
        "accelerator": {
            "type": chance.choice((*(a.name for a in catalogue.accelerators()), "A100", "NVIDIA H100 80GB HBM3"))
        },
        "vllm": chosen,
        "admission": {"policy": chance.choice(("Reject", "Adjust", "Warn"))},
    }
    if chance.random() < 0.3:
        spec["model"]["configFrom"] = {"configMapKeyRef": {"name": "config", "key": "config.json"}}
    if chance.random() < 0.3:
        spec["workload"] = {"peakConcurrency": chance.choice((1, 64, 10**6)), "promptTokens": 1000, "outputTokens": 100}
    if chance.random() < 0.3:
        spec["template"] = {
            "env": [
                {"name": chance.choice(("A", "K", "HF_HOME")), "value": chance.choice(("$(A)", "x", "$$(B)", "$(", ""))}
            ],
            "labels": {"a": "b"},
            "nodeSelector": {"zone": "a"},
        }
    metadata = {"name": "fuzzed", "namespace": "fuzz", "annotations": _annotations(chance)}
    return {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "metadata": metadata, "spec": spec}


def _annotations(chance: random.Random) -> dict[str, str]:
    note = {"note": chance.choice(("", "x", "$(A)"))}
    if chance.random() < 0.8:
        return note
    until = chance.choice(
        ("2020-01-01T00:00:00Z", "2126-12-24T18:00:00+14:00", "0001-01-01T00:00:00+14:00", "2126-12-24", "soon", "")
    )
    return note | {"kvgate.io/skip-budget": chance.choice(("", "x", "load test")), "kvgate.io/skip-budget-until": until}


def review_of(document: Any) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": UID,
            "operation": "CREATE",
            "kind": {"group": "kvgate.io", "version": "v1alpha1", "kind": "InferenceDeployment"},
            "resource": {"group": "kvgate.io", "version": "v1alpha1", "resource": "inferencedeployments"},
            "namespace": "fuzz",
            "name": "fuzzed",
            "object": document,
        },
    }


def violations(case: Case, folder: Path) -> Iterator[str]:
    yield from _answered(case.body)
    if not isinstance(case.document, dict) or not _is_stored(case.document):
        return
    decisions: dict[str, str] = {}
    stored = replace(case, document=pruned(case.document, crd_schema()))
    yield from _controlled(stored, decisions)
    yield from _reviewed(stored, decisions)
    yield from _checked(case, folder, decisions)
    if len(set(decisions.values())) > 1:
        yield f"the doors decide {decisions}"


@lru_cache(maxsize=1)
def crd_schema() -> dict[str, Any]:
    crd = yaml.safe_load(CRD.read_text(encoding="utf-8"))
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def pruned(value: Any, schema: dict[str, Any]) -> Any:
    """As the API server stores it: without the fields that the schema does not have, and without a word about them."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"] | ({"metadata": KEPT} if "kind" in schema["properties"] else {})
        return {key: pruned(child, known[key]) for key, child in value.items() if key in known}
    if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        return {key: pruned(child, schema["additionalProperties"]) for key, child in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [pruned(child, schema["items"]) for child in value]
    return value


def _is_stored(document: dict[str, Any]) -> bool:
    """What the API server would hand to a controller at all: text that is Unicode, an object with a name, numbers that JSON has."""
    metadata = document.get("metadata")
    try:
        json.dumps(document, allow_nan=False).encode()
        json.dumps(document, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        return False
    right = document.get("kind") == "InferenceDeployment" and document.get("apiVersion") == "kvgate.io/v1alpha1"
    return right and isinstance(metadata, dict) and isinstance(metadata.get("name"), str) and bool(metadata["name"])


def _answered(body: Any) -> Iterator[str]:
    """With a verdict, or with 400 for what is no review."""
    try:
        answer = review(body)
    except ReviewError:
        return
    response = answer.body["response"]
    code = response.get("status", {}).get("code", 200)
    if response["allowed"] != (code == 200) or not 200 <= code < 500:
        yield f"admission answers {code}, allowed {response['allowed']}"
    yield from _not_json("the answer", answer.body)


def _reviewed(case: Case, decisions: dict[str, str]) -> Iterator[str]:
    answer = review(review_of(case.document), now=datetime.now(UTC))
    if not _asks_for_config(case.document):
        decisions["webhook"] = "Refuse" if answer.decision == INVALID else answer.decision
    yield from _not_json("the answer", answer.body)


def _asks_for_config(document: dict[str, Any]) -> bool:
    """The webhook does not read ConfigMaps, and leaves such an object to the controller."""
    spec = document.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    return isinstance(model, dict) and model.get("configFrom") is not None


def _controlled(case: Case, decisions: dict[str, str]) -> Iterator[str]:
    document = {**case.document, "metadata": {**case.document["metadata"], "uid": UID, "generation": 1}}
    owner = pure.read_owner(document)
    reference = pure.config_reference(owner)
    config: Any = pure.NO_CONFIG
    if reference is not None:
        data = {"data": {reference.key: case.config}} if case.config is not None else None
        config = pure.config_text(reference, data)
    situation = pure.Situation(document=document, owner=owner, config=config, now=datetime.now(UTC))
    judged = pure.assess_owner(owner, config, skip=situation.skip) if isinstance(owner, InferenceDeployment) else None
    decisions["controller"] = judged.assessment.decision.value if judged else "Refuse"
    intent = pure.decide(situation, judged)
    status = pure.status_after(
        intent, name="fuzzed", deployment=None, before=previous_status(document, NOW), observation=None
    )
    yield from _not_json("the status", status)
    if any(len(condition["message"]) > MAX_MESSAGE for condition in status["conditions"]):
        yield "a condition's message is too long for the API server"
    if judged is not None and isinstance(owner, InferenceDeployment):
        rendered = render(owner, judged.assessment, judged.accelerator)
        if isinstance(rendered, Rendered):
            yield from _expands(rendered)


def _expands(manifests: Rendered) -> Iterator[str]:
    """Nothing that a tenant wrote may become another text in the pod than the one that was judged."""
    yield from _not_json("the Deployment", manifests.deployment)
    yield from _not_json("the Service", manifests.service)
    pod = manifests.deployment["spec"]["template"]["spec"]
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        words = [*container.get("command", ()), *container.get("args", ())]
        words += [variable["value"] for variable in container.get("env", ()) if "value" in variable]
        yield from (
            f"the kubelet expands {word!r}" for word in words if EXPANDED in expand_references(word, lambda _: EXPANDED)
        )


def _checked(case: Case, folder: Path, decisions: dict[str, str]) -> Iterator[str]:
    """`kvgate check` on the same object and the same ConfigMap."""
    text = yaml.safe_dump(case.document, sort_keys=False)
    if yaml.safe_load(text) != case.document:
        return
    path = folder / "review.yaml"
    path.write_text(f"{text}---\n{yaml.safe_dump(_config_map(case))}", encoding="utf-8")
    report = run([str(path)], CheckOptions())
    ours = [item for item in report.items if item.subject]
    if len(ours) != 1:
        yield f"check finds {len(ours)} InferenceDeployments and {len(report.broken)} broken documents"
    elif not _has_unknown_fields(report):
        decisions["check"] = ours[0].decision.value if ours[0].decision else ""


def _config_map(case: Case) -> dict[str, Any]:
    owner = pure.read_owner(case.document)
    reference = pure.config_reference(owner)
    data = {reference.key: case.config} if reference is not None and case.config is not None else {}
    name, namespace = reference.name if reference else "none", case.document["metadata"].get("namespace", "default")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap" if data else "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


def _has_unknown_fields(report: Report) -> bool:
    """The one thing that only those who read files are told: the others never see such a field."""
    told = [placed.finding for item in report.items for placed in item.all_findings]
    return any(finding.message.endswith(" is not a field") for finding in told)


def _not_json(what: str, value: Any) -> Iterator[str]:
    try:
        size = len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        yield f"{what} is not JSON: {type(error).__name__}"
        return
    if size > MAX_STATUS_BYTES:
        yield f"{what} has {size} bytes"


def check_seed(seed: int, folder: Path) -> list[str]:
    return list(violations(case_of(seed), folder))


def written(seed: int) -> bytes:
    case = case_of(seed)
    return json.dumps({"object": case.document, "config": case.config}, indent=1).encode()

"""The running Deployment as a witness: what the API server made of a rendered template is recognised, and nothing else is."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.api.status import Effective, Placement
from kvgate.controller.decision import Situation, assess_owner, decide
from kvgate.rendering.admission import Lost
from kvgate.rendering.live_deployment import (
    annotated,
    as_it_runs,
    lost_record,
    record_of,
    rendered_template,
    template_digest,
)
from kvgate.rendering.workload import PodFigures, Rendered, rendered
from support.admissions import admission_of
from support.manifests import a_document, an_owner

FIGURES = PodFigures(
    effective=Effective(max_model_len=4096, max_num_seqs=4, kv_cache_dtype="auto"),
    placement=Placement(vendor="nvidia", resource="nvidia.com/gpu", gpu_labels=("NVIDIA-H100-80GB-HBM3",)),
    load_seconds=600,
    predicted_tokens=1000,
)
TEMPLATE = {
    "env": [{"name": "EMPTY", "value": ""}, {"name": "A", "value": "b"}],
    "resources": {"requests": {"cpu": "0.0001", "memory": "1000Mi"}},
}


def a_rendering() -> Rendered:
    return rendered(an_owner(template=TEMPLATE), FIGURES)


def fields(value: Any) -> dict[str, Any]:
    """As the API server notes what was applied: lists by their keys, tolerations and arguments whole."""
    if isinstance(value, dict):
        return {f"f:{name}": fields(item) for name, item in value.items() if item != ""}
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        keys = (
            'k:{"name":"%s"}' if "containerPort" not in item else 'k:{"containerPort":8000,"protocol":"TCP"}'
            for item in value
        )
        return {
            key % item["name"] if "%" in key else key: {".": {}, **fields(item)}
            for key, item in zip(keys, value, strict=True)
        }
    return {}


def stored(deployment: dict[str, Any]) -> dict[str, Any]:
    """As the API server keeps a Deployment: with defaults, without empty texts, and with amounts in its own words."""
    live = copy.deepcopy(deployment)
    live["metadata"]["managedFields"] = [
        {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:paused": {}}}},
        {"manager": "kvgate", "operation": "Apply", "fieldsV1": fields({"spec": deployment["spec"]})},
        {"manager": "kvgate", "operation": "Apply", "subresource": "status", "fieldsV1": {}},
    ]
    pod = live["spec"]["template"]["spec"]
    pod |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    (container,) = pod["containers"]
    container["env"] = [{k: v for k, v in each.items() if v != ""} for each in container["env"]]
    container["resources"]["requests"]["cpu"] = "1m"
    container["terminationMessagePath"] = "/dev/termination-log"
    for port in container["ports"]:
        port["protocol"] = "TCP"
    return live


def newer(wanted: Rendered) -> Rendered:
    """As a later release renders the same figures."""
    deployment = copy.deepcopy(wanted.deployment)
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 777
    deployment["spec"]["progressDeadlineSeconds"] = 888
    return Rendered(deployment=deployment, service=wanted.service)


def test_pods_that_run_stay_as_another_release_rendered_them() -> None:
    wanted = a_rendering()
    template = wanted.deployment["spec"]["template"]
    kept = as_it_runs(newer(wanted), stored(wanted.deployment), template_digest(template)).deployment
    assert template_digest(kept["spec"]["template"]) == template_digest(template)
    assert "dnsPolicy" not in kept["spec"]["template"]["spec"], "what others own is not taken over"
    assert kept["spec"]["progressDeadlineSeconds"] == 888, "around the pods this release renders"


def test_a_default_that_is_new_waits_for_the_next_change_of_the_spec() -> None:
    """Pods of a release that did not spread them stay as they are, whatever else of the Deployment changes."""
    document, owner = a_document(), an_owner()
    admitted = admission_of(document)
    wanted = annotated(rendered(owner, admitted.figures), admitted).deployment
    wanted["spec"]["template"]["metadata"]["annotations"]["kvgate.io/render-hash"] = "older"
    pod = wanted["spec"]["template"]["spec"]
    del pod["topologySpreadConstraints"]
    before = annotated(Rendered(deployment=wanted, service={}), admitted).deployment
    live = stored(before)
    standing = replace(admitted, template_digest=rendered_template(live, admitted))
    situation = Situation(document=document, owner=owner, deployment=live, standing=standing)
    kept = decide(situation, assess_owner(owner, "")).deployment
    assert kept is None or kept.wanted["spec"]["template"]["spec"] == pod
    scaled = replace(situation, owner=an_owner(replicas=5, strategy={"type": "Recreate"}))
    change = decide(scaled, assess_owner(scaled.owner, "")).deployment  # type: ignore[arg-type]
    assert change is not None
    assert {path.partition(".")[2].partition(".")[0] for path in change.differs if path.startswith("spec.")} == {
        "replicas",
        "strategy",
    }
    edited = an_owner(template={"labels": {"team": "a"}})
    change = decide(replace(situation, owner=edited), assess_owner(edited, "")).deployment
    assert change is not None
    assert change.wanted["spec"]["template"]["spec"]["topologySpreadConstraints"]


def env_of_others(live: dict[str, Any]) -> None:
    live["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "B", "value": "c"})


def test_what_others_added_does_not_hide_that_the_pods_are_ours() -> None:
    wanted = a_rendering()
    live = stored(wanted.deployment)
    env_of_others(live)
    digest = template_digest(wanted.deployment["spec"]["template"])
    kept = as_it_runs(newer(wanted), live, digest).deployment["spec"]["template"]["spec"]["containers"][0]
    assert [each["name"] for each in kept["env"]][-1] == "A", "and is not taken over: it is removed as before"


def other_arguments(live: dict[str, Any]) -> None:
    live["spec"]["template"]["spec"]["containers"][0]["args"][0] = "--evil"


def other_image(live: dict[str, Any]) -> None:
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "evil"


def taken_field(live: dict[str, Any]) -> None:
    del live["metadata"]["managedFields"][1]["fieldsV1"]["f:spec"]["f:template"]["f:spec"][
        "f:automountServiceAccountToken"
    ]


def no_notes(live: dict[str, Any]) -> None:
    del live["metadata"]["managedFields"]


def no_template(live: dict[str, Any]) -> None:
    live["spec"]["template"] = None


@pytest.mark.parametrize("change", [other_arguments, other_image, taken_field, no_notes, no_template])
def test_pods_that_somebody_changed_are_rendered_anew(change: Callable[[dict[str, Any]], None]) -> None:
    wanted = a_rendering()
    live, later = stored(wanted.deployment), newer(wanted)
    digest = template_digest(wanted.deployment["spec"]["template"])
    change(live)
    assert as_it_runs(later, live, digest) is later


def test_without_a_digest_nothing_is_believed() -> None:
    wanted = a_rendering()
    assert as_it_runs(wanted, stored(wanted.deployment), None) is wanted


def with_amounts(cpu: object, memory: object) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}}, "text": "2"}


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        (("500m", "1Gi"), ("0.5", "1024Mi"), True), ((1, "1Gi"), ("1", "1Gi"), True), (("1m", "1Gi"), ("0.0001", "1Gi"), True),
        (("1", "1Gi"), ("2", "1Gi"), False), (("1m", "1Gi"), ("2m", "1Gi"), False), (("1", "1Gi"), ("1", "1025Mi"), False),
    ],
)  # fmt: skip
def test_a_digest_is_of_amounts_and_not_of_their_words(
    one: tuple[object, object], other: tuple[object, object], *, are_same: bool
) -> None:
    assert (template_digest(with_amounts(*one)) == template_digest(with_amounts(*other))) is are_same
    assert template_digest({"a": "", "b": None, "c": [1]}) == template_digest({"c": [1]}) != template_digest({"c": [2]})


def test_notes_stand_beside_the_annotations_that_were_rendered() -> None:
    wanted = a_rendering()
    metadata = {**wanted.deployment["metadata"], "annotations": {"team": "chat"}}
    noted = annotated(
        Rendered(deployment={**wanted.deployment, "metadata": metadata}, service=wanted.service),
        admission_of(a_document()),
    )
    annotations = noted.deployment["metadata"]["annotations"]
    assert annotations["team"] == "chat"
    assert annotations["kvgate.io/admission-record"].startswith("qwen-")


def test_a_deployment_names_the_record_that_it_was_rendered_from() -> None:
    kept, owner = admission_of(a_document()), an_owner()
    live = annotated(rendered(owner, kept.figures), kept).deployment
    assert record_of(live) == (kept.name, kept.digest)
    assert rendered_template(live, kept) == template_digest(live["spec"]["template"])
    assert lost_record(live) == Lost(digest=kept.digest, calibration_revision=0)
    other = admission_of(a_document(vllm={"maxNumSeqs": 3}))
    assert rendered_template(live, other) is None, "its pods are those of another admission"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("admission-digest", "no digest"),
        ("admission-digest", ""),
        ("calibration-revision", "-1"),
        ("calibration-revision", "9" * 16),
        ("calibration-revision", "newest"),
    ],
)
def test_notes_that_kvgate_did_not_write_are_none(name: str, text: str) -> None:
    kept = admission_of(a_document())
    live = annotated(rendered(an_owner(), kept.figures), kept).deployment
    live["metadata"]["annotations"][f"kvgate.io/{name}"] = text
    assert lost_record(live) is None
    assert lost_record(None) is None
    assert record_of(None) == ("", "")

"""How an InferenceDeployment ends, is made anew under another name, and is edited while the webhook is down."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError, free_port, wait_until
from fleet.local_webhook import webhook_configuration
from support.doors import running
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster

OPTIONS = ("--resync-seconds=1", "--observe-seconds=60", "--pass-label=team", "--pass-annotation=example.com/*")
NAMES = ("foreground", "theirs", "before", "scaled", "noted")


@pytest.fixture(scope="module")
def objects(plane: ControlPlane) -> Iterator[Objects]:
    """The objects of this file, ready; they load beside each other."""
    found = Objects(plane=plane)
    plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leaves"}}, inference_deployment("fresh")
    )
    assert found.get("infd", "fresh")["status"] == {"observedGeneration": -1}, (
        "nobody takes it for ready before it was looked at"
    )
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig):
        plane.apply(*map(inference_deployment, NAMES), inference_deployment("last", namespace="leaves"))
        for name in ("fresh", *NAMES):
            found.wait_for(name, "Ready", "True")
        found.wait_for("last", "Ready", "True", namespace="leaves")
        yield found


def finalizer(plane: ControlPlane, kind: str, name: str, *finalizers: str) -> None:
    patch = json.dumps({"metadata": {"finalizers": list(finalizers)}})
    plane.kubectl("patch", kind, name, "--type=merge", "-p", patch)


def test_in_the_foreground_the_object_goes_after_its_pods(plane: ControlPlane, objects: Objects) -> None:
    """Its Deployment is held by a finalizer, so that the object can be seen to wait."""
    finalizer(plane, "deployment", "foreground", "example.com/hold")
    plane.kubectl("delete", "infd", "foreground", "--cascade=foreground", "--wait=false")
    wait_until(
        lambda: "deletionTimestamp" in objects.get("deployment", "foreground")["metadata"], "its Deployment goes first"
    )
    wait_until(lambda: objects.find("service", "foreground") is None, "and its Service")
    objects.settle(1.5)
    assert objects.find("infd", "foreground") is not None
    assert objects.find("service", "foreground") is None, "nothing is made for an object that goes"
    finalizer(plane, "deployment", "foreground")
    wait_until(lambda: objects.find("infd", "foreground") is None, "then it goes")


def test_finalizers_of_others_are_waited_for(plane: ControlPlane, objects: Objects) -> None:
    finalizer(plane, "infd", "theirs", "example.com/audit")
    plane.kubectl("delete", "infd", "theirs", "--wait=false")
    wait_until(lambda: "deletionTimestamp" in objects.get("infd", "theirs")["metadata"], "it is being deleted")
    written = objects.settle(1.5)
    plane.kubectl("delete", "service", "theirs")
    objects.resync(2)
    assert len(objects.writes()) == written, "nothing is written for an object that goes"
    assert objects.find("deployment", "theirs") is not None, "its pods serve until the others are done"
    finalizer(plane, "infd", "theirs")
    wait_until(lambda: objects.find("deployment", "theirs") is None, "it takes its Deployment along")


def test_a_deployment_that_others_hold_is_made_again_when_it_is_gone(plane: ControlPlane, objects: Objects) -> None:
    finalizer(plane, "deployment", "fresh", "example.com/hold")
    before = objects.get("deployment", "fresh")["metadata"]["uid"]
    plane.kubectl("delete", "deployment", "fresh", "--wait=false")
    objects.settle(1.5)
    assert objects.get("deployment", "fresh")["metadata"]["uid"] == before
    finalizer(plane, "deployment", "fresh")
    wait_until(
        lambda: (objects.find("deployment", "fresh") or {"metadata": {"uid": before}})["metadata"]["uid"] != before,
        "made again",
    )


def test_another_name_is_another_object(plane: ControlPlane, objects: Objects) -> None:
    """Kubernetes renames nothing: the same spec is made under the new name, and both serve until the old one is deleted."""
    plane.apply(inference_deployment("after"))
    objects.wait_for("after", "Ready", "True")
    plane.kubectl("delete", "infd", "before", "--cascade=orphan")
    objects.settle(1.5)
    assert "ownerReferences" not in objects.get("deployment", "before")["metadata"], (
        "orphans of another name stay nobody's"
    )
    owner = objects.get("deployment", "after")["metadata"]["ownerReferences"][0]
    assert owner["uid"] == objects.get("infd", "after")["metadata"]["uid"]


def test_a_namespace_goes_at_once(plane: ControlPlane, objects: Objects) -> None:
    plane.kubectl("delete", "namespace", "leaves", "--timeout=60s")
    assert objects.find("infd", "last", "leaves") is None


def test_replicas_may_be_edited_while_the_webhook_is_down(plane: ControlPlane, objects: Objects) -> None:
    configuration = webhook_configuration(ca_pem=plane.ca_pem, port=free_port())
    plane.apply(configuration)

    def edit(spec: dict[str, Any]) -> None:
        plane.kubectl("patch", "infd", "scaled", "--type=merge", "-p", json.dumps({"spec": spec}))

    def is_refused(spec: dict[str, Any]) -> bool:
        with pytest.MonkeyPatch.context():
            try:
                edit(spec)
            except ControlPlaneError as error:
                return "failed calling webhook" in str(error)
        return False

    try:
        wait_until(lambda: is_refused({"vllm": {"maxNumSeqs": 3}}), "the webhook is down, and another spec is refused")
        edit({"replicas": 2})
        wait_until(lambda: objects.get("infd", "scaled")["status"].get("readyReplicas") == 2, "it is scaled")
        assert is_refused({"replicas": 3, "admission": {"policy": "Warn"}}), "a field that was not there before"
        assert is_refused({"replicas": 3, "vllm": {"maxNumSeqs": None}}), "a field that is there no more"
        assert objects.get("infd", "scaled")["spec"]["replicas"] == 2
    finally:
        plane.kubectl("delete", "validatingwebhookconfiguration", configuration["metadata"]["name"])


def test_labels_and_annotations_that_the_administrator_lists_pass_to_the_children(
    plane: ControlPlane, objects: Objects
) -> None:
    template = objects.get("deployment", "noted")["spec"]["template"]
    plane.kubectl("label", "infd", "noted", "team=chat", "tier=gold")
    plane.kubectl("annotate", "infd", "noted", "example.com/cost=7", "kvgate.io/replaced-by=me", "other.com/x=y")
    for kind in ("deployment", "service"):
        wait_until(lambda kind=kind: noted(objects, kind) == ("chat", "7"), f"the {kind} has them")  # type: ignore[misc]
    metadata = objects.get("deployment", "noted")["metadata"]
    assert "tier" not in metadata["labels"]
    assert not {"kvgate.io/replaced-by", "other.com/x"} & metadata["annotations"].keys()
    assert objects.get("deployment", "noted")["spec"]["template"] == template, "no pod is replaced for it"
    plane.kubectl("label", "infd", "noted", "team-")
    wait_until(lambda: noted(objects, "deployment") == (None, "7"), "what goes there goes here")


def noted(objects: Objects, kind: str) -> tuple[str | None, str | None]:
    metadata = objects.get(kind, "noted")["metadata"]
    return metadata["labels"].get("team"), metadata["annotations"].get("example.com/cost")

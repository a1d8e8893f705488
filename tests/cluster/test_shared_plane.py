"""Files of tests share a control plane, and none sees what another left behind."""

import pytest

from support.inference import Objects, crds, inference_deployment, place
from support.shared_plane import SharedPlane

pytestmark = pytest.mark.cluster


def test_nothing_of_a_file_is_left_for_the_next(shared_plane: SharedPlane) -> None:
    plane = shared_plane.as_at_the_start()
    (changed,) = (each for each in crds() if each["spec"]["names"]["kind"] == "InferenceDeployment")
    changed["spec"]["versions"][0]["additionalPrinterColumns"] = []
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    plane.apply(
        changed,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "theirs"}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "theirs"}, "rules": []},
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
        },
        inference_deployment("here"), inference_deployment("there", namespace="theirs"),
    )  # fmt: skip
    plane.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=240s")
    plane.write_container_log("a secret of theirs")

    again = shared_plane.as_at_the_start()
    assert again is plane
    assert list(plane.audit()) == []
    objects = Objects(plane=plane)
    assert objects.find("infd", "here") is None
    assert plane.request("GET", place("pod"))["items"] == []
    for path in ("/api/v1/namespaces/theirs", "/apis/rbac.authorization.k8s.io/v1/clusterroles/theirs"):
        assert plane.find(path) is None, path
    served = plane.request("GET", plane.path_of(changed))
    assert served["spec"]["versions"][0]["additionalPrinterColumns"] != []
    assert plane.find("/api/v1/nodes/gpu-0"), "what was there at the start stays"

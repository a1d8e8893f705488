"""The chart's policy about authors, on a real API server: nobody gets by an InferenceDeployment what RBAC refuses."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from support.assets import require_assets
from support.chart import documents, render
from support.inference import inference_deployment

pytestmark = pytest.mark.cluster

NAMED = [f"s{number}" for number in range(9)]
WRITES = {
    "apiGroups": ["kvgate.io"],
    "resources": ["inferencedeployments", "inferencedeployments/scale"],
    "verbs": ["*"],
}
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
RIGHTS: dict[str, list[dict[str, Any]]] = {
    "author": [WRITES],
    "builder": [WRITES, PODS],
    "reader": [WRITES, PODS, {**SECRETS, "resourceNames": NAMED}],
    "operator": [WRITES, PODS, SECRETS],
}
"""People, each with the rules of a role in the namespace `default`."""
EDITOR = "editor"
"""Has Kubernetes' own role `edit` in that namespace, to which the chart adds InferenceDeployments."""


@pytest.fixture(scope="module")
def plane(plane: ControlPlane, pytestconfig: pytest.Config) -> ControlPlane:
    assets = require_assets(pytestconfig)
    rendered = documents(render(assets / "helm", "--set=authors.mustReadSecrets=true"))
    policies = [each for each in rendered if each["kind"].startswith("ValidatingAdmissionPolicy")]
    shipped = [each for each in policies if "controller-writes" not in each["metadata"]["name"]]
    assert len(shipped) == 2
    plane.apply(*shipped)
    for person, rules in RIGHTS.items():
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": person, "namespace": "default"},
        }
        plane.apply({**role, "rules": rules})
        plane.kubectl("create", "rolebinding", person, f"--role={person}", f"--user={person}", "-n", "default")
    for kind, role in (("clusterrole", "system:aggregate-to-edit"), ("role", "author")):
        name = f"{EDITOR}-{role.removeprefix('system:')}"
        plane.kubectl("create", "rolebinding", name, f"--{kind}={role}", f"--user={EDITOR}", "-n", "default")
    wait_until(lambda: "may not create pods" in answer(plane, "author"), "the policy is in force")
    return plane


def answer(plane: ControlPlane, person: str, document: dict[str, Any] | None = None, *command: str) -> str:
    """What the API server says to a person; nothing is stored unless a command says so."""
    text = json.dumps(document or inference_deployment("new"))
    done = plane.kubectl(
        *(command or ("create", "--dry-run=server")), "-f", "-", f"--as={person}", input=text, check=False
    )
    return done.stdout + done.stderr


def naming(*, env: Sequence[str] = (), token: str = "", pull: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """An InferenceDeployment whose spec names Secrets; each twice in its variables."""
    model = {"name": "Qwen/Qwen3-8B", **({"tokenSecretRef": {"name": token, "key": "k"}} if token else {})}
    variables = [
        {"name": f"V{index}_{copy}", "secretKeyRef": {"name": name, "key": f"k{copy}"}}
        for index, name in enumerate(env)
        for copy in (1, 2)
    ]
    template = {"env": [{"name": "TZ", "value": "UTC"}, *variables], "imagePullSecrets": list(pull), **more}
    return inference_deployment("new", model=model, template=template)


@pytest.mark.parametrize(
    ("person", "said"),
    [
        ("author", "authors.mustCreatePods"),
        ("builder", ""),
        ("reader", ""),
        ("operator", ""),
        (EDITOR, ""),
        ("kubernetes-admin", ""),
    ],
)
def test_who_writes_one_needs_the_right_to_create_pods(plane: ControlPlane, person: str, said: str) -> None:
    if person == "kubernetes-admin":  # as a GitOps controller with rights over everything
        plane.kubectl("create", "clusterrolebinding", person, "--clusterrole=cluster-admin", f"--user={person}")
    told = answer(plane, person)
    assert (said in told and "Forbidden" in told) if said else "created (server dry run)" in told


@pytest.mark.parametrize(
    ("document", "refused"),
    [
        (naming(), set()),
        (naming(token="s0"), {"builder"}),
        (naming(pull=["s0", "s1"]), {"builder"}),
        (naming(env=NAMED[:6], token="s0", pull=["s1", "s6", "s7"]), {"builder"}),
        (naming(env=NAMED[:8], token="other"), {"builder", "reader"}),
        (naming(env=["s0", "s1", "s2", "other"]), {"builder", "reader"}),
        (naming(env=NAMED), {"builder", "reader"}),
        (
            naming(volumes=[{"name": "ca", "secret": {"secretName": "s0"}}], envFrom=[{"secretRef": {"name": "s1"}}]),
            {"builder"},
        ),
        (naming(env=["s0"], envFrom=[{"secretRef": {"name": "other"}}]), {"builder", "reader"}),
        (
            naming(volumes=[{"name": "ca", "projected": {"sources": [{"secret": {"name": "s0"}}]}}]),
            {"builder", "reader"},
        ),
        (naming(containers=[{"name": "a", "envFrom": [{"secretRef": {"name": "s0"}}]}]), {"builder", "reader"}),
        (naming(volumes=[{"name": "ca", "configMap": {"name": "ca"}}], containers=[{"name": "a"}]), set()),
    ],
    ids=[
        "none",
        "token",
        "pull",
        "eight",
        "a ninth, not readable",
        "one of four",
        "nine",
        "volume and source",
        "source, not readable",
        "projected",
        "of a container",
        "no Secret",
    ],
)
def test_who_names_a_secret_needs_the_right_to_get_it(
    plane: ControlPlane, document: dict[str, Any], refused: set[str]
) -> None:
    for person in ("builder", "reader", "operator", EDITOR):
        told = answer(plane, person, document)
        assert ("Forbidden" in told) == (person in refused), f"{person}: {told}"
        assert ("created (server dry run)" in told) == (person not in refused)
        if person in refused:
            assert "Secret" in told


def test_what_changes_no_spec_needs_no_further_right(plane: ControlPlane) -> None:
    document = inference_deployment("old", template={"labels": {"app": "a"}})
    plane.apply(document)
    changed = {**document, "spec": {**document["spec"], "template": {"labels": {"app": "payments"}}}}
    told = answer(plane, "author", changed, "replace")
    assert "may not create pods in default" in told
    assert "replaced" in answer(plane, "builder", changed, "replace")
    for command in (("label", "x=y"), ("annotate", "x=y"), ("scale", "--replicas=2"), ("delete", "--wait=false")):
        verb, *options = command
        done = plane.kubectl(verb, "infd/old", *options, "--as=author", check=False)
        assert done.returncode == 0, done.stderr

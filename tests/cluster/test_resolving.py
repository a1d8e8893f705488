"""Models that the catalogue lacks, a hub on loopback and a real API server: held back, fetched once, judged by their real numbers."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import free_port, wait_until
from fleet.doors import KVGATE
from fleet.local_webhook import webhook_configuration
from support.assets import require_assets
from support.builders import new_llama_config
from support.chart import NAMESPACE, documents, render
from support.doors import Door, running
from support.hub_server import COMMIT, TOKEN, Handler, LoopbackHub, loopback_hub
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster
pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")

CONFIG_MAP = "kvgate-models"
OPTIONS = ("--resync-seconds=1", "--observe-seconds=1", f"--models=default/{CONFIG_MAP}")
SMALL = new_llama_config()
LARGE = new_llama_config(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)
"""In bfloat16 it does not fit an H100."""


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with loopback_hub() as hub:
        yield hub


@pytest.fixture
def objects(plane: ControlPlane) -> Objects:
    return Objects(plane=plane)


@contextmanager
def resolving(objects: Objects, hub: LoopbackHub, *options: str, token: str = "") -> Iterator[Door]:
    """A controller that asks this hub, with this token."""
    kubeconfig = objects.plane.kubeconfig
    with running("controller", *OPTIONS, *options, kubeconfig=kubeconfig, variables=variables(hub, token)) as door:
        yield door


def variables(hub: LoopbackHub, token: str = "") -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": "/nonexistent", "HF_TOKEN": token}


def apply(objects: Objects, name: str, model: str, namespace: str = "default", **spec: Any) -> None:
    revision = spec.pop("revision", None)
    named = {"name": model, **({"revision": revision} if revision else {})}
    objects.plane.apply(inference_deployment(name, namespace=namespace, model=named, **spec))


def stored(objects: Objects) -> dict[str, Any]:
    """The origins in the ConfigMap, by the name of the model."""
    found = objects.find("configmap", CONFIG_MAP) or {}
    origins = [json.loads(text) for text in (found.get("data") or {}).values()]
    return {origin["name"]: origin for origin in origins}


def listed(hub: LoopbackHub, model: str) -> int:
    """How often the hub was asked for a model."""
    return sum(path.startswith(f"/api/models/{model}/") for path in hub.requested())


def test_a_model_is_held_back_fetched_once_and_judged_by_its_numbers(objects: Objects, hub: LoopbackHub) -> None:
    hub.add("mine/small", {"config.json": SMALL})
    with resolving(objects, hub) as door:
        apply(objects, "first", "mine/small")
        objects.wait_for("first", "Accepted", "True", "Fits")
        message = objects.wait_for("first", "ModelResolved", "True", "Found")
        assert message == f"mine/small at commit {COMMIT} from {hub.endpoint.removeprefix('http://')}"
        objects.wait_for("first", "Ready", "True")
        record = objects.record("first")
        assert (record["modelSource"], record["reason"]) == (message, "Fits")
        assert stored(objects)["mine/small"]["commit"] == COMMIT
        apply(objects, "second", "mine/small")
        objects.wait_for("second", "Accepted", "True", "Fits")
        assert listed(hub, "mine/small") == 1
        assert door.count_of('kvgate_model_resolutions_total{reason="Found"}') == 1
        objects.wait_for_event("first", ("Normal", "Resolving"))
    with resolving(objects, hub):  # from the ConfigMap
        apply(objects, "third", "mine/small")
        objects.wait_for("third", "Accepted", "True", "Fits")
    assert listed(hub, "mine/small") == 1


def test_what_does_not_fit_is_refused_and_at_the_next_creation_by_the_webhook(
    objects: Objects, hub: LoopbackHub, tmp_path: Path
) -> None:
    hub.add("mine/large", {"config.json": LARGE})
    plane, port, folder = objects.plane, free_port(), tmp_path / "models"
    folder.mkdir()
    certificates = plane.kubeconfig.parent
    files = (f"--tls-cert={certificates / 'tls.crt'}", f"--tls-key={certificates / 'tls.key'}", f"--models={folder}")
    address = ("--host=127.0.0.1", f"--port={port}", "--linger-seconds=0")
    with running("webhook", *files, *address), resolving(objects, hub):
        plane.apply(webhook_configuration(ca_pem=plane.ca_pem, port=port))
        told = plane.kubectl("apply", "-f", "-", input=json.dumps(a_large_one("large"))).stderr
        assert "Warning: model mine/large is not in the catalogue" in told
        assert "Warning: rendered after the hub was asked (see the condition ModelResolved): mine/large" in told
        refused = objects.wait_for("large", "Accepted", "False", "BudgetExceeded")
        assert "GiB" in refused
        assert objects.find("deployment", "large") is None
        plane.kubectl("delete", "infd", "large")
        wait_until(lambda: "mine/large" in stored(objects), "the model is stored")
        mount(objects, folder)
        wait_until(lambda: is_refused(plane), "the webhook has read the folder")
    plane.kubectl("delete", "validatingwebhookconfiguration", "--all")


def a_large_one(name: str) -> dict[str, Any]:
    return inference_deployment(name, model={"name": "mine/large"})


def is_refused(plane: ControlPlane) -> bool:
    applied = plane.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(a_large_one("again")), check=False)
    assert applied.returncode == 0 or "denied the request" in applied.stderr
    return applied.returncode != 0


def mount(objects: Objects, folder: Path) -> None:
    """As the kubelet does."""
    for name, text in objects.get("configmap", CONFIG_MAP)["binaryData"].items():
        (folder / name).write_bytes(base64.b64decode(text))


def unavailable(handler: Handler, _: bytes) -> None:
    handler.refuse(503, "", "Service unavailable")


def busy(handler: Handler, _: bytes) -> None:
    handler.refuse(429, "", "Too many requests", **{"Retry-After": "600"})


def endless(handler: Handler, _: bytes) -> None:
    handler.hub.stopped.wait(60)


def garbage(handler: Handler, _: bytes) -> None:
    handler.send(b"\x00\xff not JSON")


def huge(handler: Handler, _: bytes) -> None:
    handler.send(b'{"architectures": ["' + b"x" * (80 << 20) + b'"]}')


def lying(handler: Handler, data: bytes) -> None:
    """More is announced than is sent."""
    handler.send(data, headers={"Content-Length": str(len(data) + 1000)})
    handler.close_connection = True


@pytest.mark.parametrize(
    ("name", "fault", "seconds", "reasons"),
    [
        ("unavailable", unavailable, 4, {"HubUnreachable", "TimeOver"}),
        ("busy", busy, 4, {"RateLimited", "TimeOver"}),
        ("endless", endless, 4, {"TimeOver"}),
        ("garbage", garbage, 60, {"Broken"}),
        ("huge", huge, 60, {"TooLarge"}),
        ("lying", lying, 60, {"Broken"}),
    ],
)
def test_whatever_the_hub_does_the_wait_ends_and_the_reason_is_told(
    objects: Objects, hub: LoopbackHub, name: str, fault: Any, seconds: int, reasons: set[str]
) -> None:
    """TimeOver is the end of a wait in which a busy machine has not come to a first answer."""
    model = f"mine/{name}"
    hub.add(model, {"config.json": SMALL})
    hub.faults["config.json"] = fault
    with resolving(objects, hub, f"--resolve-seconds={seconds}") as door:
        apply(objects, name, model)
        wait_until(lambda: objects.condition(name, "ModelResolved")[0] == "False", "the wait ended")
        _, reason, message = objects.condition(name, "ModelResolved")
        assert reason in reasons, message
        assert model in message
        objects.wait_for(name, "Accepted", "Unknown", "UnknownModel")
        objects.wait_for(name, "Ready", "True")
        assert door.count("kvgate_background_errors_total") == 0


@pytest.mark.parametrize(
    ("name", "options", "reason", "remedy"),
    [
        ("gated", {"is_gated": True}, "Gated", "models.tokenSecret"),
        ("private", {"is_private": True}, "NotFound", "spec.model.configFrom"),
        ("missing", None, "NotFound", "spec.model.configFrom"),
        ("revised", {}, "RevisionNotFound", "spec.model.revision"),
    ],
)
def test_what_the_hub_does_not_give_is_rendered_at_once_without_a_verdict(
    objects: Objects, hub: LoopbackHub, name: str, options: dict[str, Any] | None, reason: str, remedy: str
) -> None:
    model = f"theirs/{name}"
    if options is not None:
        hub.add(model, {"config.json": SMALL}, **options)
    with resolving(objects, hub):
        apply(objects, name, model, revision="v2" if name == "revised" else None)
        message = objects.wait_for(name, "ModelResolved", "False", reason)
        assert remedy in message
        objects.wait_for(name, "Accepted", "Unknown", "UnknownModel")
        objects.wait_for(name, "Ready", "True")
        objects.resync(1)
        assert listed(hub, model) == 1


def test_with_the_controllers_own_token_a_gated_model_is_found(objects: Objects, hub: LoopbackHub) -> None:
    hub.add("theirs/with-token", {"config.json": SMALL}, is_gated=True, accepted=(TOKEN,))
    with resolving(objects, hub, token=TOKEN):
        apply(objects, "with-token", "theirs/with-token")
        objects.wait_for("with-token", "Accepted", "True", "Fits")


@pytest.mark.timeout(600)
def test_a_namespace_that_names_200_models_delays_no_other(objects: Objects, hub: LoopbackHub) -> None:
    hub.add("mine/victim", {"config.json": SMALL})
    objects.plane.kubectl("create", "namespace", "greedy")
    hub.faults["/revision/main"] = slow_unless("victim")
    with resolving(objects, hub, "--resolve-seconds=600") as door:
        objects.plane.apply(*(
            inference_deployment(
                f"greedy-{number}", namespace="greedy", model={"name": f"greedy/model-{number}"}, replicas=0
            )
            for number in range(200)
        ))  # fmt: skip
        wait_until(lambda: door.count("kvgate_models_waiting") >= 90, "many wait")
        objects.settle(quiet_seconds=1.0)
        waiting, asked = door.count("kvgate_models_waiting"), len(hub.requested())
        apply(objects, "victim", "mine/victim")
        objects.wait_for("victim", "Accepted", "True", "Fits")
        since = [path.split("/revision/")[0] for path in hub.requested()[asked:]]
        before_it = set(since[: since.index("/api/models/mine/victim")])
        assert len(before_it) < waiting / 4, "its turn, not its time: a busy machine makes everybody wait"
        assert door.count("kvgate_models_waiting") >= waiting / 2, "the others still wait"
        told = objects.plane.kubectl("get", "infd", "-n", "greedy", "-o", "json").stdout
        assert '"TooManyModels"' in told or '"Resolving"' in told
    objects.plane.kubectl("delete", "infd", "--all", "-n", "greedy", "--wait=false")


def slow_unless(word: str) -> Any:
    def fault(handler: Handler, _: bytes) -> None:
        if word not in handler.path:
            handler.hub.stopped.wait(8)
            handler.refuse(404, "RepoNotFound", "Repository not found")
            return
        handler._answer(handler.path)

    return fault


def test_a_controller_that_is_killed_while_it_fetches_is_followed_by_one_that_ends_the_wait(
    objects: Objects, hub: LoopbackHub, tmp_path: Path
) -> None:
    hub.add("mine/interrupted", {"config.json": SMALL})
    hub.faults["config.json"] = endless
    command = [KVGATE, "controller", *OPTIONS, "--metrics-host=127.0.0.1", "--metrics-port=0"]
    with (tmp_path / "log").open("wb") as log:
        environment = {**os.environ, **variables(hub), "KUBECONFIG": str(objects.plane.kubeconfig)}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        apply(objects, "interrupted", "mine/interrupted")
        objects.wait_for("interrupted", "Accepted", "Unknown", "Resolving")
        objects.wait_for("interrupted", "Stalled", "False", "Resolving")
        wait_until(lambda: listed(hub, "mine/interrupted"), "the fetch has begun")
        assert objects.find("deployment", "interrupted") is None
    finally:
        process.kill()
        process.wait()
    hub.faults.clear()
    with resolving(objects, hub):
        objects.wait_for("interrupted", "Accepted", "True", "Fits")


def test_a_running_deployment_is_not_touched_by_what_is_fetched_later(objects: Objects, hub: LoopbackHub) -> None:
    """The verdict of an admitted spec stands; the next edit is judged by the real numbers, while the admitted one runs."""
    hub.add("mine/late", {"config.json": LARGE})
    with running("controller", *OPTIONS[:2], kubeconfig=objects.plane.kubeconfig):  # without a hub
        apply(objects, "late", "mine/late")
        objects.wait_for("late", "Accepted", "Unknown", "UnknownModel")
        objects.wait_for("late", "Ready", "True")
    before = objects.get("deployment", "late")
    with resolving(objects, hub):
        apply(objects, "early", "mine/late")
        objects.wait_for("early", "Accepted", "False", "BudgetExceeded")
        objects.resync(1)
        assert objects.condition("late", "Accepted")[:2] == ("Unknown", "UnknownModel")
        objects.patch("late", {"spec": {"vllm": {"maxNumSeqs": 8}}})
        objects.wait_for("late", "Accepted", "False", "BudgetExceeded")
        after = objects.get("deployment", "late")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_weights_from_a_volume_ask_the_hub_for_nothing(objects: Objects, hub: LoopbackHub) -> None:
    hub.add("mine/elsewhere", {"config.json": LARGE})
    with resolving(objects, hub):
        model = {"name": "mine/elsewhere", "source": {"persistentVolumeClaim": {"claimName": "weights"}}}
        objects.plane.apply(inference_deployment("elsewhere", model=model))
        objects.wait_for("elsewhere", "Accepted", "Unknown", "UnknownModel")
    assert listed(hub, "mine/elsewhere") == 0


def test_the_rights_of_the_chart_are_enough_and_reach_no_other_config_map(
    objects: Objects, hub: LoopbackHub, pytestconfig: pytest.Config
) -> None:
    plane, controller = objects.plane, f"system:serviceaccount:{NAMESPACE}:kvgate-controller"
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    found = documents(render(require_assets(pytestconfig, "helm") / "helm", "--set", "models.resolve=hub"))
    plane.apply(*(each for each in found if each["kind"] == "ServiceAccount" or "Role" in each["kind"]))
    hub.add("mine/rights", {"config.json": SMALL})
    options = (f"--models={NAMESPACE}/{CONFIG_MAP}", f"--calibration={NAMESPACE}/kvgate-calibration")
    kubeconfig = plane.kubeconfig_for("kvgate-controller", NAMESPACE)
    with running("controller", *options, kubeconfig=kubeconfig, variables=variables(hub)):
        apply(objects, "rights", "mine/rights")
        objects.wait_for("rights", "ModelResolved", "True", "Found")
        wait_until(lambda: objects.find("configmap", CONFIG_MAP, NAMESPACE), "the model is stored")
    assert [event for event in plane.audit() if event.user == controller and event.code == 403] == []
    starts = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kvgate-calibration", "namespace": NAMESPACE},
    }
    for name, is_allowed in (("kvgate-calibration", True), ("another", False)):
        body = json.dumps(starts | {"metadata": {"name": name, "namespace": NAMESPACE}})
        applied = plane.kubectl(
            "apply", "--server-side", "-f", "-", f"--as={controller}", "--validate=false", input=body, check=False
        )
        assert (applied.returncode == 0) == is_allowed, applied.stderr


def test_an_assumed_model_is_asked_for_until_the_hub_is_back_and_then_judged_anew(
    objects: Objects, hub: LoopbackHub
) -> None:
    """Also by a controller that starts anew while the hub is away."""
    model = "mine/Qwen3-8B-AWQ"
    quantised = {**SMALL, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    hub.add(model, {"config.json": quantised})
    hub.faults["config.json"] = unavailable
    with resolving(objects, hub, "--resolve-seconds=4"):
        apply(objects, "assumed", model)
        objects.wait_for("assumed", "Accepted", "True", "Fits")
        assert objects.record("assumed")["modelAssumed"] is True
        before = objects.get("deployment", "assumed")["spec"]["template"]
    with resolving(objects, hub, "--resolve-seconds=4"):
        asked = len(hub.requested())
        wait_until(lambda: len(hub.requested()) > asked, "the hub is asked again")
        hub.faults.clear()
        objects.wait_for("assumed", "ModelResolved", "True", "Found")
        assert "modelAssumed" not in objects.record("assumed")
        objects.wait_for("assumed", "Accepted", "True", "Fits")
    assert objects.get("deployment", "assumed")["spec"]["template"] == before

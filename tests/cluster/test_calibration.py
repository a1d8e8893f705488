"""Observed starts on a real control plane: the next verdict follows two objects that agree, nobody's moves by one, and no namespace's by
another's; a verdict's own never does, and people's edits are kept."""

import json
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from fleet.fake_gpus import fake_gpu_node
from fleet.fake_vllm import Engine, serving
from kvgate.budget.observed.starts import ObservedStart
from kvgate.calibration.keeping import shard_name, shard_of
from kvgate.calibration.records import read_records
from kvgate.rendering.workload import PORT
from support.doors import running
from support.inference import H100, Objects, inference_deployment

pytestmark = pytest.mark.cluster

PLACE = "kvgate-calibration"
CONFIG_MAP = shard_name(PLACE, shard_of("default"))
OPTIONS = ("--observe-seconds=1", f"--calibration=default/{PLACE}")
BLOCK_SIZE = 16
SMALL = {"maxNumSeqs": 4, "gpuMemoryUtilization": "0.3", "maxModelLen": 4096}
"""Little memory is left beside the weights, so that a sixth of the KV cache more is still possible."""
HERE, THERE = ({"template": {"nodeSelector": {"kubernetes.io/hostname": name}}} for name in ("gpu-0", "gpu-1"))


@pytest.fixture(scope="module", autouse=True)
def _two_nodes(plane: ControlPlane) -> None:
    plane.apply(fake_gpu_node("gpu-1", product=H100, memory_mib=81559, gpus=64))


def pods(objects: Objects, name: str, namespace: str = "default") -> dict[str, str]:
    """Names and addresses."""
    which = ["-n", namespace, "-l", f"kvgate.io/inferencedeployment={name}"]
    found = objects.plane.kubectl("get", "pods", *which, "-o", "json")
    return {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in json.loads(found.stdout)["items"]}


def expected_blocks(objects: Objects, name: str, namespace: str = "default", **spec: Any) -> int:
    return int(budget_of(objects, name, namespace, **spec)["capacityTokens"]) // BLOCK_SIZE


def budget_of(objects: Objects, name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """As status says it once the pods are ready."""
    sized = spec | {"vllm": SMALL | spec.get("vllm", {})}
    objects.plane.apply(inference_deployment(name, namespace=namespace, **sized))
    objects.wait_for(name, "Ready", "True", namespace=namespace)
    budget: dict[str, Any] = objects.get("infd", name, namespace)["status"]["budget"]
    return budget


def reporting(objects: Objects, name: str, num_gpu_blocks: int, namespace: str = "default"):  # type: ignore[no-untyped-def]  # noqa: ANN201 - as `serving`
    engine = Engine(num_gpu_blocks=num_gpu_blocks, block_size=BLOCK_SIZE, vllm_version="0.33.0")
    return serving(engine, *((ip, PORT) for ip in pods(objects, name, namespace).values()))


def kept(objects: Objects, namespace: str = "default") -> str:
    name = shard_name(PLACE, shard_of(namespace))
    found = objects.plane.kubectl("get", "configmap", name, "-o", "json", check=False)
    return str(json.loads(found.stdout)["data"]["starts.jsonl"]) if found.returncode == 0 else ""


def test_two_objects_that_agree_make_the_next_prediction_exact_and_leave_their_own_alone(plane: ControlPlane) -> None:
    objects = Objects(plane=plane)
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig) as door:
        blocks = expected_blocks(objects, "first", replicas=2, **HERE)
        observed, first_pods = blocks * 108 // 100, pods(objects, "first")
        with reporting(objects, "first", observed):
            assert "+8.0 %" in objects.wait_for("first", "PredictionDrift", "True")
            wait_until(lambda: len(read_records(kept(objects)).starts) == 2, "both starts are in the ConfigMap")
            starts = read_records(kept(objects)).starts
            assert {(start.namespace, start.owner, start.pod, start.node) for start in starts} == {
                ("default", "first", pod, "gpu-0") for pod in first_pods
            }
            assert {start.image.partition("@")[0] for start in starts} == {"docker.io/vllm/vllm-openai"}
            assert expected_blocks(objects, "peer", **THERE) == blocks, "the pods of one object are one witness"
        with reporting(objects, "peer", observed):
            objects.wait_for("peer", "PredictionDrift", "True")
            wait_until(lambda: len(read_records(kept(objects)).starts) == 3, "the second witness is in the ConfigMap")
        assert expected_blocks(objects, "second") == observed
        budget = objects.get("infd", "second")["status"]["budget"]
        assert budget["observedStarts"] == 3
        width = budget["availableKvCacheBytes"]
        with reporting(objects, "second", observed):
            objects.wait_for("second", "PredictionDrift", "False", "WithinTolerance")
            assert door.count_of('kvgate_calibration_starts{state="used"}') == 3
        before = objects.get("infd", "first")["status"]["budget"]
        narrow, wide = (each["high"] - each["low"] for each in (width, before["availableKvCacheBytes"]))
        assert narrow < wide
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig), reporting(objects, "first", observed):
        assert "+8.0 %" in objects.wait_for("first", "PredictionDrift", "True")
        assert objects.get("infd", "first")["status"]["budget"] == before, "a verdict stands for its generation"
        assert pods(objects, "first") == first_pods, "and no engine is restarted"
        assert expected_blocks(objects, "third") == observed, "the ConfigMap survives a restart"


@pytest.mark.parametrize("percent", [84, 116], ids=["too little", "too much"])
def test_no_tenant_moves_the_verdicts_of_others(plane: ControlPlane, percent: int) -> None:
    """A namespace teaches itself alone, a foreign image nobody, and one pod of vLLM's own image makes its neighbours less certain."""
    objects = Objects(plane=plane)
    sizes = {
        "vllm": {"maxNumSeqs": 6, "maxNumBatchedTokens": 4096 + percent}
    }  # a setting of which no other test teaches
    tenant, names = (
        f"tenant-{percent}",
        {role: f"{role}-{percent}" for role in ("before", "hostile", "foreign", "single", "after")},
    )
    plane.kubectl("create", "namespace", tenant)
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig) as door:
        before = budget_of(objects, names["before"], **sizes)
        wrong = int(before["capacityTokens"]) // BLOCK_SIZE * percent // 100
        budget_of(objects, names["hostile"], tenant, replicas=2, **sizes)
        with reporting(objects, names["hostile"], wrong, tenant):
            objects.wait_for(names["hostile"], "PredictionDrift", "True", namespace=tenant)
            wait_until(lambda: len(of_namespace(objects, tenant)) == 2, "the tenant's own starts are kept")
        budget_of(objects, names["foreign"], replicas=2, vllm={**sizes["vllm"], "image": "ghcr.io/some/vllm:v0.33.0"})
        with reporting(objects, names["foreign"], wrong):
            told = objects.wait_for(names["foreign"], "PredictionDrift", "True")
            assert "image ghcr.io/some/vllm is not among calibration.images" in told
        known = len(of_namespace(objects, "default"))
        assert budget_of(objects, names["after"], **sizes) == before
        budget_of(objects, names["single"], **sizes)
        with reporting(objects, names["single"], wrong):
            objects.wait_for(names["single"], "PredictionDrift", "True")
            wait_until(lambda: len(of_namespace(objects, "default")) == known + 1, "the single start is kept")
        less_certain = budget_of(objects, f"{names['after']}-again", **sizes)
        assert less_certain["capacityTokens"] == before["capacityTokens"]
        was, now = before["availableKvCacheBytes"], less_certain["availableKvCacheBytes"]
        assert (now["low"] < was["low"]) == (percent < 100)
        assert (now["high"] > was["high"]) == (percent > 100)
        assert now["expected"] == was["expected"]
        assert less_certain["verdict"] in (before["verdict"], "MayNotFit")
        untaught = expected_blocks(objects, "learns", tenant, **sizes)
        assert untaught == int(before["capacityTokens"]) // BLOCK_SIZE, (
            "one object moves nobody in its own namespace either"
        )
        patch = json.dumps({"spec": {"vllm": {"maxModelLen": 2048}}})
        plane.kubectl("patch", "infd", names["hostile"], "-n", tenant, "--type=merge", "-p", patch)

        def own_blocks() -> int:
            status = objects.get("infd", names["hostile"], tenant)["status"]
            return int(status["budget"]["capacityTokens"]) // BLOCK_SIZE if status.get("observedGeneration") == 2 else 0

        wait_until(lambda: own_blocks() == wrong, "the next prediction of the object follows its own starts")
        assert door.count_of('kvgate_calibration_starts{state="contradictory"}') == 0


def of_namespace(objects: Objects, namespace: str) -> list[ObservedStart]:
    return [start for start in read_records(kept(objects, namespace)).starts if start.namespace == namespace]


def test_after_the_config_map_is_deleted_no_revision_comes_again(plane: ControlPlane) -> None:
    objects, sizes = Objects(plane=plane), {"vllm": {"maxNumSeqs": 9}}
    with running("controller", *OPTIONS, "--resync-seconds=1", kubeconfig=plane.kubeconfig):
        blocks = expected_blocks(objects, "deleted-a", replicas=2, **sizes)
        with reporting(objects, "deleted-a", blocks * 90 // 100):
            objects.wait_for("deleted-a", "PredictionDrift", "True")
            wait_until(lambda: len(of_setting(objects, 9)) == 2, "the starts are kept")
            newest = max(start.revision for start in read_records(kept(objects)).starts)
            plane.kubectl("delete", "configmap", CONFIG_MAP)
            expected_blocks(objects, "deleted-b", vllm={"maxNumSeqs": 10}, replicas=2)
            with reporting(objects, "deleted-b", blocks * 90 // 100):
                wait_until(lambda: len(of_setting(objects, 10)) == 2, "new starts are kept")
        assert min(start.revision for start in of_setting(objects, 10)) > newest
        assert of_setting(objects, 9) == [], "what was deleted stays deleted"


def of_setting(objects: Objects, max_num_seqs: int) -> list[ObservedStart]:
    return [start for start in read_records(kept(objects)).starts if start.max_num_seqs == max_num_seqs]


def test_a_config_map_that_somebody_broke_is_told_where_it_matters_and_stays_as_it_is(plane: ControlPlane) -> None:
    objects = Objects(plane=plane)
    broken = kept(objects) + "oops\n"
    patch = json.dumps({"data": {"starts.jsonl": broken}})
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig) as door:
        used = door.count_of('kvgate_calibration_starts{state="used"}')
        assert used >= 2
        plane.kubectl("patch", "configmap", CONFIG_MAP, "--type=merge", "-p", patch)
        blocks = expected_blocks(objects, "fourth", vllm={"maxNumSeqs": 3})
        with reporting(objects, "fourth", blocks * 92 // 100):
            message = objects.wait_for("fourth", "PredictionDrift", "True")
        assert (
            f"not stored: ConfigMap default/{CONFIG_MAP}, key starts.jsonl, line 4: it is not a JSON object" in message
        )
        assert door.count_of('kvgate_calibration_starts{state="unreadable"}') == 1
        assert door.count_of('kvgate_calibration_starts{state="used"}') == used, "the other lines are used"
    assert kept(objects) == broken


def test_a_deleted_config_map_rolls_no_pod_that_it_had_corrected(plane: ControlPlane) -> None:
    """The figures of a verdict stay in its status, and the pods are rendered from these: also when they are scaled, and after a restart."""
    objects, sizes = Objects(plane=plane), {"vllm": {"maxNumSeqs": 12, "gpuMemoryUtilization": "0.3"}}
    adjust = {"policy": "Adjust", "adjust": {"knobs": ["MaxModelLen"]}}
    plane.kubectl("delete", "configmap", CONFIG_MAP, "--ignore-not-found")  # another test may have left it broken
    with running("controller", *OPTIONS, "--resync-seconds=1", kubeconfig=plane.kubeconfig):
        plane.apply(inference_deployment("untaught", admission=adjust, **sizes))
        objects.wait_for("untaught", "Ready", "True")
        for number, node in enumerate((HERE, THERE), start=1):
            name = f"teacher-{number}"
            blocks = expected_blocks(objects, name, admission={"guarantee": "Startup"}, **sizes, **node)
            with reporting(objects, name, blocks * 112 // 100):
                objects.wait_for(name, "PredictionDrift", "True")
                wait_until(lambda count=number: len(of_setting(objects, 12)) == count, "the start is kept")  # type: ignore[misc]
        plane.apply(inference_deployment("taught", admission=adjust, **sizes))
        objects.wait_for("taught", "Ready", "True")
        status = objects.get("infd", "taught")["status"]
        untaught = objects.get("infd", "untaught")["status"]
        assert status["effective"]["maxModelLen"] > untaught["effective"]["maxModelLen"]
        template = objects.get("deployment", "taught")["spec"]["template"]
        plane.kubectl("delete", "configmap", CONFIG_MAP)
        objects.settle(3.0)  # some resyncs
    with running("controller", *OPTIONS, "--resync-seconds=1", kubeconfig=plane.kubeconfig) as door:
        plane.kubectl("scale", "infd", "taught", "--replicas=2")
        wait_until(lambda: objects.get("infd", "taught")["status"].get("readyReplicas") == 2, "two pods are ready")
        after = objects.get("infd", "taught")["status"]
        assert {key: after[key] for key in ("effective", "budget")} == {
            key: status[key] for key in ("effective", "budget")
        }
        assert objects.get("deployment", "taught")["spec"]["template"] == template
        expected = 'kvgate_kv_cache_capacity_tokens{namespace="default",inferencedeployment="taught",bound="expected"}'
        promised = status["budget"]["capacityTokens"]
        wait_until(lambda: door.count_of(expected) == promised, "the metrics show what was promised")

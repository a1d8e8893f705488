"""The controller asks real pod addresses on a real control plane: kwok's pods are on the loopback, where a fake vLLM answers."""

import json
from dataclasses import replace
from typing import Any

import pytest

from controlplane.programs import wait_until
from fleet.fake_vllm import Engine, serving
from kvgate.rendering.workload import PORT
from support.crash_log import crashed
from support.doors import Door
from support.inference import Objects, crash, inference_deployment

pytestmark = pytest.mark.cluster

OPTIONS = ("--metrics-host=127.0.0.1", "--observe-seconds=1")
BLOCK_SIZE = 16
LABEL = "kvgate.io/inferencedeployment"
TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (3.50 GiB). Try increasing `gpu_memory_utilization`.\n"
)


def ready(objects: Objects, name: str, **spec: Any) -> int:
    """The InferenceDeployment with its pods ready; its expected capacity in blocks."""
    objects.plane.apply(inference_deployment(name, **spec))
    objects.wait_for(name, "Ready", "True")
    return int(objects.get("infd", name)["status"]["budget"]["capacityTokens"]) // BLOCK_SIZE


def addresses(objects: Objects, name: str) -> list[tuple[str, int]]:
    found = [(pod["status"]["podIP"], PORT) for pod in objects.pods(name)]
    assert all(ip.startswith("127.") for ip, _ in found)
    return found


def engine(num_gpu_blocks: int, *, vllm_version: str = "0.33.0") -> Engine:
    return Engine(num_gpu_blocks=num_gpu_blocks, block_size=BLOCK_SIZE, vllm_version=vllm_version)


def scraped(door: Door, *results: str) -> None:
    """Three rounds more."""
    for result in results:
        name = f'kvgate_pod_scrapes_total{{result="{result}"}}'
        before = door.count_of(name)
        wait_until(lambda name=name, before=before: door.count_of(name) >= before + 3, f"{name} grows")


def test_what_vllm_reports_is_a_status_a_metric_and_nothing_that_is_written_again(objects: Objects, door: Door) -> None:
    blocks = ready(objects, "told", replicas=2)
    with serving(engine(blocks), *addresses(objects, "told")) as replay:
        message = objects.wait_for("told", "Observed", "True", "CapacityReported")
        wait_until(lambda: objects.get("infd", "told")["status"]["observed"]["pods"] == 2, "both pods have told")
        assert f"{blocks:,} blocks of {BLOCK_SIZE} tokens" in message
        assert objects.condition("told", "PredictionDrift")[:2] == ("False", "WithinTolerance")
        observed = objects.get("infd", "told")["status"]["observed"]
        assert observed.pop("observedTime")
        assert observed == {
            "kvCacheCapacityTokens": blocks * BLOCK_SIZE, "numGpuBlocks": blocks, "blockSize": BLOCK_SIZE, "pods": 2,
            "predictionErrorPercent": "0.0",
        }  # fmt: skip
        owner = '{namespace="default",inferencedeployment="told"}'
        wait_until(lambda: door.count_of(f"kvgate_observed_pods{owner}") == 2, "the metrics follow")
        assert door.count_of(f"kvgate_observed_kv_cache_capacity_tokens{owner}") == blocks * BLOCK_SIZE
        written = objects.settle()
        replay.begin(speed=5, loops=True)  # 77 recorded seconds, over and over: a slow machine misses one peak
        usage = f"kvgate_observed_kv_cache_usage_ratio{owner}"
        wait_until(lambda: door.count_of(usage) > 0.5, "the usage moves")
        scraped(door, "read")
        assert len(objects.writes()) == written, "and nothing is written for it"
    objects.plane.kubectl("delete", "infd", "told", "--timeout=240s")
    wait_until(lambda: not door.has('inferencedeployment="told"'), "its series are gone")


def test_an_engine_with_an_api_key_becomes_ready_and_is_observed_like_any_other(objects: Objects, door: Door) -> None:
    """The controller has no key and asks for none; the kubelet's probes are those of test_fake_vllm.py."""
    objects.plane.kubectl("create", "secret", "generic", "keyed-api", "--from-literal=api-key=not-a-secret")
    key = {"name": "VLLM_API_KEY", "secretKeyRef": {"name": "keyed-api", "key": "api-key"}}
    blocks = ready(objects, "keyed", template={"env": [key]})
    keyed = replace(engine(blocks), api_key="not-a-secret")
    with serving(keyed, *addresses(objects, "keyed")):
        assert f"{blocks:,} blocks" in objects.wait_for("keyed", "Observed", "True", "CapacityReported")
        scraped(door, "read")
    told = json.dumps([objects.get("infd", "keyed"), objects.events("keyed")])
    assert "not-a-secret" not in told


AUTO = {
    "vllm": {"maxModelLen": "auto", "maxNumSeqs": 1, "version": "0.33.0", "gpuMemoryUtilization": "0.27"},
    "admission": {"adjust": {"minMaxModelLen": 16384}},
}


def test_a_replica_that_starts_shorter_than_the_floor_is_a_condition_and_a_metric(objects: Objects, door: Door) -> None:
    blocks = ready(objects, "auto", replicas=2, **AUTO)
    held, short = (replace(engine(blocks), max_model_len=tokens) for tokens in (25_456, 12_000))
    (first, second), owner = addresses(objects, "auto"), '{namespace="default",inferencedeployment="auto"'
    with serving(held, first), serving(short, second):
        message = objects.wait_for("auto", "LengthBelowFloor", "True", "LengthTooShort")
        assert "serves requests of at most 12,000 tokens, 4,384 fewer than the floor of 16,384" in message
        lengths = objects.get("infd", "auto")["status"]["observed"]["lengths"]
        assert [each["maxModelLen"] for each in lengths] == [12_000, 25_456]
        shown = f"kvgate_observed_max_model_len_tokens{owner}}}"
        wait_until(lambda: door.count_of(shown) == 12_000, "the metric follows")
        assert door.count_of(f"kvgate_min_max_model_len_tokens{owner}}}") == 16_384
        assert door.count_of(f'kvgate_auto_max_model_len_tokens{owner},bound="low"}}') > 16_384
    objects.plane.kubectl("delete", "infd", "auto", "--timeout=240s")


def test_an_api_key_before_the_list_of_models_leaves_the_length_open(objects: Objects) -> None:
    blocks = ready(objects, "auto-keyed", **AUTO)
    with serving(replace(engine(blocks), api_key="not-a-secret"), *addresses(objects, "auto-keyed")):
        message = objects.wait_for("auto-keyed", "LengthBelowFloor", "Unknown", "ApiKeyRequired")
    assert "kvgate never reads one" in message
    objects.plane.kubectl("delete", "infd", "auto-keyed", "--timeout=240s")


@pytest.mark.parametrize("version", ["0.10.2", "0.22.1", "0.32.0"])
def test_a_smaller_cache_than_was_promised_is_a_drift_with_an_event_whatever_the_release(
    objects: Objects, version: str
) -> None:
    name = f"less-{version.replace('.', '-')}"
    blocks = ready(objects, name, vllm={"maxNumSeqs": 2, "version": version})
    with serving(engine(blocks * 9 // 10, vllm_version=version), *addresses(objects, name)):
        message = objects.wait_for(name, "PredictionDrift", "True", "CapacityDiffers")
    assert "-10.0 %" in message
    assert objects.get("infd", name)["status"]["observed"]["predictionErrorPercent"] == "-10.0"
    objects.wait_for_event(name, ("Warning", "CapacityDiffers"))


@pytest.mark.parametrize(
    ("fault", "result", "reason"),
    [
        ("hang", "timeout", "ScrapeTimedOut"),
        ("not-found", "http_error", "ScrapeRefused"),
        ("error", "http_error", "ScrapeRefused"),
        ("huge", "too_large", "AnswerTooLarge"),
        ("gzip-bomb", "unreadable", "MetricsUnreadable"),
        ("html", "not_vllm", "NotVLLM"),
        ("another-program", "not_vllm", "NotVLLM"),
        ("nan", "unreadable", "MetricsUnreadable"),
        ("no-capacity", "unreadable", "MetricsUnreadable"),
        ("zero-capacity", "unreadable", "MetricsUnreadable"),
    ],
)
def test_a_pod_that_answers_badly_is_counted_and_told_and_the_others_go_on(
    objects: Objects, door: Door, fault: str, result: str, reason: str
) -> None:
    name = f"bad-{fault}"
    ready(objects, name)
    with serving(engine(64), *addresses(objects, name), fault=fault):
        message = objects.wait_for(name, "Observed", "False", reason)
        assert message.startswith(f"pod {objects.pods(name)[0]['metadata']['name']} ")
        assert door.count_of(f'kvgate_pod_scrapes_total{{result="{result}"}}') >= 2
        assert objects.condition(name, "Ready")[0] == "True"
    objects.plane.kubectl("delete", "infd", name, "--timeout=240s")


def test_a_pod_nobody_answers_for_is_unreachable_until_it_answers(objects: Objects) -> None:
    blocks = ready(objects, "silent")
    assert "NetworkPolicy" in objects.wait_for("silent", "Observed", "False", "PodUnreachable")
    with serving(engine(blocks), *addresses(objects, "silent")):
        objects.wait_for("silent", "Observed", "True")


def test_a_pod_that_copies_the_label_is_neither_asked_nor_counted(objects: Objects, door: Door) -> None:
    blocks = ready(objects, "honest")
    spoofed = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "spoofed", "namespace": "default", "labels": {LABEL: "honest"}},
        "spec": {"nodeName": "gpu-0", "containers": [{"name": "vllm", "image": "any"}]},
    }  # fmt: skip
    objects.plane.apply(spoofed)
    wait_until(lambda: len(objects.pods("honest")) == 2, "both pods are there")
    wait_until(lambda: all("podIP" in pod["status"] for pod in objects.pods("honest")), "both pods have addresses")
    ours = [(pod["status"]["podIP"], PORT) for pod in objects.pods("honest") if "ownerReferences" in pod["metadata"]]
    theirs = [address for address in addresses(objects, "honest") if address not in ours]
    assert (len(ours), len(theirs)) == (1, 1)
    with serving(engine(1), *theirs), serving(engine(blocks), *ours):
        objects.wait_for("honest", "Observed", "True")
        scraped(door, "read")
        observed = objects.get("infd", "honest")["status"]["observed"]
    assert (observed["numGpuBlocks"], observed["pods"]) == (blocks, 1)


def test_a_crash_loop_is_told_in_vllms_words_with_the_prediction_beside_them(objects: Objects) -> None:
    ready(objects, "crashes")
    pod = crash(objects.plane, objects.pods("crashes")[0], crashed(TOO_LONG))
    message = objects.wait_for("crashes", "Stalled", "True", "KVCacheTooSmall")
    assert message.startswith(f"pod {pod}: vLLM reports: ")
    assert "5.62 GiB KV cache is needed" in message
    assert "kvgate expects " in message
    assert objects.condition("crashes", "Ready")[:2] == ("False", "KVCacheTooSmall")
    objects.wait_for_event("crashes", ("Warning", "KVCacheTooSmall"))


def test_the_container_keeps_the_end_of_its_log_as_its_last_words(objects: Objects) -> None:
    ready(objects, "words")
    (container,) = objects.pods("words")[0]["spec"]["containers"]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"

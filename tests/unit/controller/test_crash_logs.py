"""Which logs of crashed engines are read, how often, and that nothing of them gets out but vLLM's own refusal."""

import logging
from typing import Any

import pytest
from msgspec.structs import asdict

from kvgate.cluster.errors import ApiError, Forbidden, NotFound, Rejected, Unavailable
from kvgate.controller.crashes import MAX_READS, CrashLogs, crash_of
from kvgate.controller.pods import Pod, pod_of
from kvgate.rendering.observation import Crash
from support.crash_log import LAST_WORDS, LOG, PROMPT, SENTENCE, WRAPPER, crashed
from support.manifests import a_pod

TOO_SMALL = f"ValueError: {SENTENCE}"


class FakeCluster:
    """Answers every pod with one log, or refuses."""

    def __init__(self, log: str = LOG, refusal: type[ApiError] | None = None) -> None:
        self.log_text, self.refusal = log, refusal
        self.asked: list[tuple[str, str, str, bool]] = []

    async def log(self, namespace: str, pod: str, container: str, *, of_previous: bool) -> str:
        self.asked.append((namespace, pod, container, of_previous))
        if self.refusal:
            raise self.refusal("get", "pods/log", f"the node said: {self.log_text}")
        return self.log_text


def a_crashed_pod(words: str = LAST_WORDS, *, run: str = "containerd://1", reason: str = "Error", **pod: Any) -> Pod:
    ended = crashed(words, run=run) | {"reason": reason}
    return pod_of(a_pod(ended=ended, **{"ready": False, "restarts": 1, **pod}))


async def read(cluster: FakeCluster, *pods: Pod, rounds: int = 1) -> CrashLogs:
    logs = CrashLogs(cluster)  # type: ignore[arg-type]
    for _ in range(rounds):
        await logs.read(pods)
    return logs


def told(logs: CrashLogs, pod: Pod) -> Crash | None:
    return crash_of(pod, logs.cause(pod))


def test_the_last_words_of_such_an_engine_do_not_hold_the_cause() -> None:
    assert WRAPPER in LAST_WORDS
    assert "KV cache is needed" not in LAST_WORDS
    crash = crash_of(a_crashed_pod())
    assert crash is not None
    assert crash.reason == "EngineCrashed"


async def test_the_cause_is_found_in_the_log_before_and_told_in_vllms_words_alone() -> None:
    pod, cluster = a_crashed_pod(), FakeCluster()
    crash = told(await read(cluster, pod), pod)
    assert crash is not None
    assert (crash.reason, crash.message) == ("KVCacheTooSmall", f"vLLM reports: {SENTENCE[:-1]}")
    assert crash.available_kv_cache_bytes == 7 << 29
    assert cluster.asked == [("serving", "qwen-1-a", "vllm", True)]


async def test_a_run_is_read_once_and_the_next_one_once_more() -> None:
    cluster = FakeCluster()
    logs = await read(cluster, a_crashed_pod(), rounds=3)
    await logs.read([a_crashed_pod(restarts=2)])
    assert len(cluster.asked) == 1, "another restart, the same run that ended"
    await logs.read([a_crashed_pod(restarts=2, run="containerd://2")])
    assert len(cluster.asked) == 2


@pytest.mark.parametrize("refusal", [NotFound, Rejected, Forbidden, Unavailable])
async def test_a_log_that_cannot_be_read_is_told_once_in_our_words_and_the_old_wording_stays(
    refusal: type[ApiError], caplog: pytest.LogCaptureFixture
) -> None:
    pods = [a_crashed_pod(name=name, restarts=2) for name in "ab"]
    cluster = FakeCluster(refusal=refusal)
    with caplog.at_level(logging.DEBUG):
        logs = await read(cluster, *pods, rounds=3)
    assert len(cluster.asked) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"the log of the crashed pod serving/a cannot be read: {refusal.__name__}"
    ]
    fields = {"namespace": "serving", "pod": "a", "verb": "get", "resource": "pods/log"}
    assert caplog.records[0].__dict__["fields"] == fields
    assert [told(logs, pod) for pod in pods] == [crash_of(pod) for pod in pods]


@pytest.mark.parametrize(
    "log",
    [
        "",
        f"{PROMPT}\n{WRAPPER}",
        f"{PROMPT}\nSegmentation fault",
        f"Received request 7: prompt: '{PROMPT} CUDA out of memory'",
        f"{{'messages': [{{'content': 'CUDA out of memory {PROMPT}'}}]}}",
        f"Generated response 7: output: 'No available memory for the cache blocks, {PROMPT}'",
    ],
)
async def test_of_a_log_without_a_refusal_nothing_is_quoted(log: str) -> None:
    pod = a_crashed_pod(restarts=2)
    logs = await read(FakeCluster(log), pod)
    assert logs.cause(pod) is None
    assert told(logs, pod) == crash_of(pod)


async def test_nothing_else_of_a_log_is_kept_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    pod = a_crashed_pod()
    with caplog.at_level(logging.DEBUG):
        logs = await read(FakeCluster(), pod)
    crash = told(logs, pod)
    assert crash is not None
    assert caplog.text == ""
    assert PROMPT not in str(logs._causes)
    assert PROMPT not in str(asdict(crash))


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(a_crashed_pod(TOO_SMALL), id="its last words tell"),
        pytest.param(a_crashed_pod(reason="OOMKilled"), id="the memory limit of the container"),
        pytest.param(a_crashed_pod(ready=True), id="it serves again"),
        pytest.param(a_crashed_pod(going=True), id="it is on its way out"),
        pytest.param(pod_of(a_pod(ready=False)), id="it has not ended"),
    ],
)
async def test_no_log_is_read_without_need(pod: Pod) -> None:
    cluster = FakeCluster()
    await read(cluster, pod)
    assert cluster.asked == []


async def test_what_has_ended_just_now_is_not_yet_the_previous_run() -> None:
    body = a_pod(ready=False)
    body["status"]["containerStatuses"][0]["state"] = {"terminated": crashed()}
    cluster = FakeCluster()
    await read(cluster, pod_of(body))
    assert [previous for *_, previous in cluster.asked] == [False]


async def test_of_many_crashes_some_wait_for_the_next_round_and_none_is_left_out() -> None:
    pods = [a_crashed_pod(name=f"pod-{i:02}") for i in range(MAX_READS + 3)]
    cluster = FakeCluster()
    logs = await read(cluster, *pods)
    assert len(cluster.asked) == MAX_READS
    await logs.read(pods)
    assert [pod for _, pod, *_ in cluster.asked] == [pod.name for pod in pods]
    assert all(logs.cause(pod) for pod in pods)


async def test_a_pod_that_is_gone_is_forgotten() -> None:
    logs = await read(FakeCluster(), a_crashed_pod())
    await logs.read([])
    assert logs._causes == {}


NO_TOKEN = "httpx.LocalProtocolError: Illegal header value b'Bearer hf_secretsecret '"


@pytest.mark.parametrize("restarts", [1, 2])
async def test_what_is_around_the_engine_has_the_name_and_the_words_of_its_row_and_may_pass_once(restarts: int) -> None:
    pod = a_crashed_pod(restarts=restarts)
    crash = told(await read(FakeCluster(NO_TOKEN), pod), pod)
    assert crash is not None
    assert crash.may_pass == (restarts == 1)
    assert (crash.reason, crash.message.partition(".")[0]) == ("InvalidToken", "The hub does not accept the token")
    assert "HF_TOKEN" in crash.message
    assert "secretsecret" not in crash.message

"""Which ends of an engine are told, and in whose words."""

from typing import Any

import pytest

from kvgate.controller.crashes import cause_in, crash_of, wants_log
from kvgate.controller.pods import Pod, pod_of
from support.manifests import a_pod

TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len (200000), (23.43 GiB KV cache is needed, which "
    "is larger than the available KV cache memory (1.00 GiB). Based on the available memory, the estimated maximum model "
    "length is 8528. Try increasing `gpu_memory_utilization`.\n"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.19 GiB\n"
)
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above.\n"


def ended_pod(message: str, *, exit_code: int = 1, reason: str = "Error", **pod: Any) -> Pod:
    ended = {"exitCode": exit_code, "reason": reason, "message": message}
    return pod_of(a_pod(ended=ended, **{"ready": False, "restarts": 1, **pod}))


def told(message: str, log: str = "", **pod: Any) -> tuple[str, str] | None:
    crash = crash_of(ended_pod(message, **pod), cause_in(log))
    return (crash.reason, crash.message) if crash else None


@pytest.mark.parametrize(
    ("log", "reason", "words"),
    [
        (TOO_LONG, "KVCacheTooSmall", "23.43 GiB KV cache is needed"),
        (OOM, "OutOfMemory", "CUDA out of memory"),
        (WRAPPER + TOO_LONG, "KVCacheTooSmall", "1.00 GiB"),
        ("vllm serve: error: unrecognized arguments: --no-such\n", "EngineRefusedToStart", "--no-such"),
    ],
)
def test_a_cause_that_is_known_is_told_at_once_in_vllms_words(log: str, reason: str, words: str) -> None:
    found = told(log)
    assert found is not None
    assert found[0] == reason
    assert found[1].startswith("vLLM reports: ")
    assert words in found[1]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (WRAPPER, "Engine core initialization failed"),
        ("first\nlast words\n\n", "'last words'"),
        ("", "without a message (Error)"),
    ],
)
def test_a_cause_that_is_not_known_is_quoted_and_may_pass_once(log: str, words: str) -> None:
    found, once, again = told(log), crash_of(ended_pod(log)), crash_of(ended_pod(log, restarts=2))
    assert found is not None
    assert once is not None
    assert again is not None
    assert (found[0], once.may_pass, again.may_pass) == ("EngineCrashed", True, False)
    assert words in found[1]
    assert "`kubectl logs -n serving qwen-1-a --previous`" in found[1]


def test_a_long_line_is_cut() -> None:
    found = told("x" * 2000, restarts=2)
    assert found is not None
    assert "x" * 300 in found[1]
    assert "x" * 301 not in found[1]


def test_an_end_at_the_memory_limit_of_the_container_is_no_crash_but_a_hindrance() -> None:
    body = a_pod(ended={"exitCode": 137, "reason": "OOMKilled"}, ready=False, restarts=2)
    assert crash_of(pod_of(body)) is None
    hindrance = pod_of(body).hindrance
    assert hindrance is not None
    assert "spec.template.resources.limits.memory" in hindrance.message


@pytest.mark.parametrize("pod", [{"ready": True}, {"going": True}, {"exit_code": 0}])
def test_a_pod_that_serves_goes_or_ended_by_order_has_not_crashed(pod: dict[str, Any]) -> None:
    assert told(TOO_LONG, **{"restarts": 2, **pod}) is None


def test_the_cause_that_the_last_words_lack_is_taken_from_the_log() -> None:
    found = told(WRAPPER, log=TOO_LONG + "Traceback of the API server\n" * 100 + WRAPPER)
    assert found is not None
    assert found[0] == "KVCacheTooSmall"
    unknown = told(WRAPPER, log="nothing that is known")
    assert unknown is not None
    assert unknown[0] == "EngineCrashed"
    assert "Engine core initialization failed" in unknown[1]


def test_the_last_line_is_quoted_without_what_looks_like_a_secret() -> None:
    found = told("cannot open https://me:swordfish@hub/model with hf_abcdefghij\n")
    assert found is not None
    assert "swordfish" not in found[1]
    assert "hf_abc" not in found[1]


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("OSError: [Errno 98] Address already in use\n", "PortInUse"),
        ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n", "Nccl"),
    ],
)
def test_what_is_around_the_engine_has_the_name_of_its_row(log: str, reason: str) -> None:
    found = told(log)
    assert found is not None
    assert (found[0], found[1].startswith("vLLM reports")) == (reason, False)


@pytest.mark.parametrize(
    ("message", "pod", "wanted"),
    [
        (WRAPPER, {}, True),
        ("", {}, True),
        (TOO_LONG, {}, False),
        ("", {"reason": "OOMKilled", "exit_code": 137}, False),
        (WRAPPER, {"ready": True}, False),
        (WRAPPER, {"exit_code": 0}, False),
        (WRAPPER, {"going": True}, False),
    ],
)
def test_a_log_is_wanted_only_where_the_cause_is_not_known(message: str, pod: dict[str, Any], wanted: object) -> None:
    assert wants_log(ended_pod(message, **pod)) is wanted


def test_a_pod_that_was_evicted_says_nothing_of_those_in_its_place() -> None:
    body = a_pod(ended={"exitCode": 137, "reason": "Error", "message": OOM}, ready=False, restarts=3)
    assert crash_of(pod_of(body)) is not None
    body["status"]["phase"] = "Failed"
    assert crash_of(pod_of(body)) is None
    assert not wants_log(pod_of(body))

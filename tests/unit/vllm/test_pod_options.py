"""Options with which the pod of an InferenceDeployment could not serve: each by its row, and none of the others."""

from kvgate.api.v1alpha1 import Vllm
from kvgate.statement.passed_through import read_extra_args
from kvgate.vllm.options import Option, options, releases_read
from kvgate.vllm.pod_options import POD_OPTIONS, owned_flag, secret_flag
from support.tables import table


def told(*arguments: str, copies: int = 1, version: str = "0.33.0") -> list[tuple[str, str]]:
    """(Severity, message) of what the pod cannot hold; the arguments are otherwise vLLM's."""
    found = read_extra_args(Vllm(version=version, dataParallelSize=copies, extraArgs=arguments)).findings
    assert {each.rule.id for each in found} <= {"PodCannotServe"}, found
    return [(each.severity.value, each.message) for each in found]


@table(
    ("arguments", "copies", "effect"),
    [
        (("--ssl-certfile=/tls/tls.crt",), 1, "HTTPS"),
        (("--ssl-keyfile", "/tls/tls.key"), 1, "HTTPS"),
        (("--uds=/tmp/vllm.sock",), 1, "Unix socket"),
        (("--grpc",), 1, "gRPC"),
        (("--headless",), 1, "no API server"),
        (("--api-server-count=0",), 1, "no API server"),
        (("-asc", "0"), 1, "no API server"),
        (("--nnodes=2",), 1, "other hosts"),
        (("-n", "2"), 1, "other hosts"),
        (("--node-rank=1",), 1, "first host"),
        (("-r1",), 1, "first host"),
        (("--distributed-executor-backend=external_launcher",), 1, "torchrun"),
        (("--data-parallel-size-local=1",), 2, "another number"),
        (("-dpl", "0"), 1, "another number"),
        (("--data-parallel-rank=0",), 2, "other pods"),
        (("--data-parallel-rank=1",), 1, "other pods"),
        (("--data-parallel-start-rank=2", "--data-parallel-size-local=4"), 4, "other pods"),
        (("--data-parallel-external-lb",), 2, "other pods"),
        (("--data-parallel-multi-port-external-lb", "-dpl=2"), 2, "a port for each"),
    ],
)
def test_what_the_pod_cannot_hold_is_refused_with_the_effect(
    arguments: tuple[str, ...], copies: int, effect: str
) -> None:
    ((severity, message),) = told(*arguments, copies=copies)
    assert severity == "error"
    assert effect in message


@table(
    ("arguments", "copies"),
    [
        (("--nnodes=1", "--node-rank=0"), 1),
        (("--api-server-count=4",), 4),
        (("--data-parallel-size-local=4",), 4),
        (("--data-parallel-rank=0",), 1),
        (("--data-parallel-hybrid-lb", "--data-parallel-size-local=2"), 2),
        (("--distributed-executor-backend=mp",), 2),
        (("--distributed-executor-backend=ray",), 2),
        (("--root-path=/models/a", "--disable-uvicorn-access-log", "--middleware=a.b"), 1),
        (("--master-addr=127.0.0.1", "--master-port=29501"), 1),
        (("--ssl-ciphers=DEFAULT", "--enable-ssl-refresh"), 1),
    ],
)
def test_what_works_in_one_pod_is_not_refused(arguments: tuple[str, ...], copies: int) -> None:
    assert told(*arguments, copies=copies) == []


def test_an_engine_without_metrics_is_only_warned_of() -> None:
    ((severity, message),) = told("--disable-log-stats")
    assert severity == "warning"
    assert "no metrics" in message


ABOUT_THE_POD = (
    "port", "host", "addr", "rank", "node", "ssl", "uds", "grpc", "socket", "headless", "server", "listen", "root-path", "launcher",
    "executor", "parallel-size", "device", "api-key", "hf-token", "ray", "-lb", "worker", "middleware", "log-stats",
)  # fmt: skip
"""Parts of names by which an option may be about listening, hosts, ranks or devices."""
HARMLESS = {
    "--allowed-local-media-path": "what the server may read",
    "--data-parallel-address": "of no use on one host",
    "--data-parallel-backend": "Ray works on the GPUs of the pod",
    "--data-parallel-hybrid-lb": "of no effect where all ranks are local; without a local size vLLM itself refuses it",
    "--data-parallel-rpc-port": "between the processes of the pod",
    "--data-parallel-supervisor-port": "of --data-parallel-multi-port-external-lb only",
    "--device-ids": "the indices of the pod's GPUs, all of which it may name in any order",
    "--disable-nccl-for-dp-synchronization": "how ranks talk",
    "--distributed-timeout-seconds": "how long ranks wait",
    "--enable-server-load-tracking": "a further metric",
    "--enable-ssl-refresh": "of --ssl-certfile only",
    "--enable-tokenizer-info-endpoint": "a further route",
    "--engram-config": "no address: sizes and folders of a cache",
    "--fully-sharded-loras": "how adapters are cut",
    "--grpc-port": "a second port beside HTTP's",
    "--master-addr": "of no use on one host",
    "--master-port": "of no use on one host",
    "--max-lora-rank": "the rank of a matrix",
    "--max-parallel-loading-workers": "how weights are loaded",
    "--middleware": "runs in the server, and may answer what it likes",
    "--mm-device-do-normalize": "where media are prepared",
    "--mm-processor-device": "where media are prepared",
    "--numa-bind-nodes": "memory of the host that the pod is on",
    "--ray-workers-use-nsight": "a profiler",
    "--renderer-num-workers": "threads",
    "--root-path": "routes are found with and without it",
    "--ssl-ca-certs": "of --ssl-certfile only",
    "--ssl-cert-reqs": "of --ssl-certfile only",
    "--ssl-ciphers": "of --ssl-certfile only",
    "--speculative-draft-tensor-parallel-size": "the draft model uses the ranks that there are",
    "--tool-server": "another program's address",
    "--worker-cls": "a class of the image",
    "--worker-extension-cls": "a class of the image",
    "--worker-use-ray": "Ray works on the GPUs of the pod; vLLM 0.6 only",
}
"""Option → why the rendered pod holds it all the same."""


def is_about_the_pod(option: Option) -> bool:
    return any(part in option.flag for part in ABOUT_THE_POD)


def test_every_option_about_listening_hosts_ranks_or_devices_is_classified_once() -> None:
    """A release that brings a new one has it read before it is taken."""
    refused = {f"--{option.name.replace('_', '-')}" for option in POD_OPTIONS}
    assert len(options()) == 384
    unclassified = []
    for flag, option in options().items():
        classes = [owned_flag(flag), secret_flag(flag), flag in refused, flag in HARMLESS]
        if sum(classes) > 1 or (is_about_the_pod(option) and not any(classes)):
            unclassified.append(flag)
    assert unclassified == []
    assert refused | set(HARMLESS) <= set(options())


def test_every_spelling_of_an_owned_or_secret_option_is_found() -> None:
    """Short ones too: `-ep` once passed where --enable-expert-parallel did not."""
    for option in options().values():
        spelled = {option.flag, *(alias for _, aliases in option.aliases for alias in aliases or ())}
        assert len({owned_flag(name) or secret_flag(name) for name in spelled}) == 1, spelled


@table("version", releases_read())
def test_the_rows_hold_in_every_release_that_has_the_option(version: str) -> None:
    for flag, argument in {
        "--headless": "--headless",
        "--uds": "--uds=/x",
        "--ssl-certfile": "--ssl-certfile=/x",
    }.items():
        found = read_extra_args(Vllm(version=version, extraArgs=(argument,))).findings
        assert {each.rule.id for each in found} & {"PodCannotServe", "OptionNotYet", "OptionUnknown"}, (flag, version)

"""The fake vLLM: the recorded figures, the names of every release, formats that parse, and engines that are out of order."""

import gzip
import http.client
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from controlplane.programs import free_port
from fleet import fake_vllm
from fleet.fake_vllm import FAULTS, HUGE_BYTES, PARTS, Engine, NotLoopback, Replay, names_in, recorded_run, serving
from kvgate.controller.decision import assess_owner
from kvgate.rendering.workload import Rendered, render
from kvgate.sources.engine_metrics import read_engine
from kvgate.vllm.metric_names import (
    ENGINE_METRICS,
    KV_CACHE_USAGE,
    OPTIONAL_METRICS,
    PREFIX_CACHE_HITS,
    PREFIX_CACHE_QUERIES,
)
from kvgate.vllm.options import releases_read
from support.manifests import an_owner
from support.tables import table

pytestmark = pytest.mark.slow

PLAIN = "text/plain;version=0.0.4"
PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


def get(
    port: int, path: str = "/metrics", *, host: str = "127.0.0.1", accept: str = PLAIN, key: str = ""
) -> Answer:  # fmt: skip
    """Past any proxy of the environment."""
    headers = {"Accept": accept} | ({"Authorization": f"Bearer {key}"} if key else {})
    with closing(http.client.HTTPConnection(host, port, timeout=20)) as connection:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers.get("Content-Type", ""), response.read())


def samples(families: Iterable[Metric]) -> dict[str, float]:
    """By name; of several with one name the sum."""
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_the_recorded_run_passes_its_kv_cache_and_drains() -> None:
    rows = recorded_run()
    assert (len(rows), rows[-1]["t_seconds"]) == (75, 74.02)
    assert max(row["kv_cache_usage"] for row in rows) == 1.0
    assert max(row["requests_running"] + row["requests_waiting"] for row in rows) == 14
    assert (rows[-1]["preemptions"], rows[-1]["kv_cache_usage"]) == (32, 0)


def test_every_second_gives_back_the_recorded_figures() -> None:
    clock = [100.0]
    replay = Replay(now=lambda: clock[0])
    assert replay.row() == recorded_run()[0]
    replay.begin(speed=2)
    for row in recorded_run():
        clock[0] = 100 + row["t_seconds"] / 2 + 0.001
        assert replay.row() == row
    assert replay.is_over


def test_in_a_loop_counters_go_on_and_gauges_start_again() -> None:
    clock = [0.0]
    replay = Replay(now=lambda: clock[0])
    replay.begin(loops=True)
    clock[0] = replay.length_seconds + 1 + 26
    first = next(row for row in reversed(recorded_run()) if row["t_seconds"] <= 26)
    assert replay.row()["kv_cache_usage"] == first["kv_cache_usage"]
    assert replay.row()["preemptions"] == first["preemptions"] + 32
    assert (
        replay.row()["time_to_first_token_le_+Inf"]
        == first["time_to_first_token_le_+Inf"] + recorded_run()[-1]["time_to_first_token_le_+Inf"]
    )
    assert not replay.is_over


@table("release", releases_read())
def test_each_release_has_every_metric_but_v0_counted_no_tokens_of_the_prefix_cache(release: str) -> None:
    missing = [metric for metric in ENGINE_METRICS if not names_in(metric, release)]
    assert missing == ([PREFIX_CACHE_QUERIES, PREFIX_CACHE_HITS] if release.startswith("0.6.") else [])


@pytest.mark.parametrize("part", sorted(PARTS))
def test_an_optional_part_has_metrics_that_only_an_engine_with_it_has(part: str) -> None:
    port, other = free_port(), free_port()
    with (
        serving(Engine(vllm_version="0.33.0", parts=frozenset({part})), ("127.0.0.1", port)),
        serving(Engine(vllm_version="0.33.0"), ("127.0.0.1", other)),
    ):
        with_it, without = (samples(parse_text(get(each).body.decode())) for each in (port, other))
    optional = {name.name for metric in OPTIONAL_METRICS for name in metric.names}
    bases = {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in {*with_it} - {*without}
    }
    assert bases
    assert bases <= optional


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("0.6.6", ["vllm:gpu_cache_usage_perc"]),
        ("0.8.5", ["vllm:gpu_cache_usage_perc"]),
        ("0.10.2", ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]),
        ("0.12.0", ["vllm:kv_cache_usage_perc"]),
    ],
)
def test_an_old_name_is_there_as_long_as_vllm_had_it(release: str, names: list[str]) -> None:
    assert names_in(KV_CACHE_USAGE, release) == names
    port = free_port()
    with serving(Engine(vllm_version=release), ("127.0.0.1", port)):
        scraped = samples(parse_text(get(port).body.decode()))
    assert [name for name in scraped if "cache_usage" in name] == names


@pytest.mark.parametrize(
    ("engine", "size_tokens"),
    [
        (Engine(), 8192),
        (Engine(vllm_version="0.22.1"), None),
        (Engine(vllm_version="0.6.6"), None),
        (Engine(num_gpu_blocks=1000, block_size=16, kv_cache_size_tokens=15_900), 15_900),
        (Engine(data_parallel_size=2), 8192),
    ],
    ids=["0.32", "0.22 does not tell tokens", "V0", "hybrid: tokens of their own", "two engines behind one front end"],
)
def test_kvgate_reads_the_capacity_that_was_asked_for(engine: Engine, size_tokens: int | None) -> None:
    port = free_port()
    with serving(engine, ("127.0.0.1", port)):
        reading = read_engine(get(port).body)
    assert (reading.num_gpu_blocks, reading.block_size) == (engine.num_gpu_blocks, engine.block_size)
    assert (reading.kv_cache_size_tokens, reading.usage_ratio) == (size_tokens, 0.0)


def test_both_formats_parse_and_tell_the_same() -> None:
    port = free_port()
    with serving(Engine(), ("127.0.0.1", port)) as replay:
        replay.begin(speed=1e9)
        text = samples(parse_text(get(port).body.decode()))
        open_metrics = samples(parse_open_metrics(get(port, accept=PROMETHEUS_3).body.decode()))
    assert text["vllm:num_preemptions_total"] == 32
    assert text["vllm:time_to_first_token_seconds_count"] == 89
    ours = {name: value for name, value in text.items() if name.startswith("vllm:")}
    assert ours == {name: open_metrics[name] for name in ours}


def test_without_utf_8_names_open_metrics_loses_the_colon_as_from_a_real_vllm() -> None:
    port = free_port()
    with serving(Engine(), ("127.0.0.1", port)):
        response = get(port, accept=PROMETHEUS_2).body
    assert b"vllm_kv_cache_usage_perc{" in response
    assert b"\nvllm:" not in response


def test_one_process_is_many_pods_at_one_port() -> None:
    port = free_port()
    hosts = [f"127.77.{index}.1" for index in range(5)]
    with serving(Engine(), *((host, port) for host in hosts)):
        assert [get(port, "/health", host=host).status for host in hosts] == [200] * 5
        assert b'"id": "tiny-llama"' in get(port, "/v1/models", host=hosts[3]).body
        assert get(port, "/nothing", host=hosts[0]).status == 404


def test_an_address_that_others_could_reach_is_refused() -> None:
    with pytest.raises(NotLoopback, match=r"0\.0\.0\.0.*loopback only"), serving(Engine(), ("0.0.0.0", 8000)):
        pass


def test_every_fault_answers_as_it_is_called() -> None:
    answers = {}
    for name in sorted(set(FAULTS) - {"hang"}):
        port = free_port()
        with serving(Engine(), ("127.0.0.1", port), fault=name):
            assert get(port, "/health").status == 200
            answers[name] = get(port)
    texts = {name: answer.body for name, answer in answers.items()}
    assert {name: answer.status for name, answer in answers.items() if answer.status != 200} == {
        "not-found": 404,
        "error": 500,
    }
    assert len(texts["huge"]) > HUGE_BYTES - 27
    assert len(gzip.decompress(texts["gzip-bomb"])) > 500 * len(texts["gzip-bomb"])
    assert answers["html"].content_type == "text/html"
    assert b'vllm:kv_cache_usage_perc{engine="0",model_name="tiny-llama"} NaN' in texts["nan"]
    assert b'num_gpu_blocks="None"' in texts["no-capacity"]
    assert b'num_gpu_blocks="0"' in texts["zero-capacity"]
    assert b"vllm" not in texts["another-program"]
    assert b"http_requests_total" in texts["another-program"]


def test_an_engine_that_hangs_is_let_go_when_it_stops() -> None:
    port = free_port()
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=0.2)
    with serving(Engine(), ("127.0.0.1", port), fault="hang"), closing(client):
        client.request("GET", "/metrics")
        with pytest.raises(TimeoutError):
            client.getresponse()


def test_with_an_api_key_the_rendered_probes_and_the_scrape_go_on_as_without() -> None:
    """As vLLM 0.6 to 0.33: its routes under /v1 answer 401 without the key, /health and /metrics always answer."""
    owner = an_owner(
        template={"env": [{"name": "VLLM_API_KEY", "secretKeyRef": {"name": "qwen-api", "key": "api-key"}}]}
    )
    judged = assess_owner(owner, "")
    rendered = render(owner, judged.assessment, judged.accelerator)
    assert isinstance(rendered, Rendered)
    (container,) = rendered.deployment["spec"]["template"]["spec"]["containers"]
    probes = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    port, key = free_port(), "not-a-secret"
    with serving(Engine(api_key=key), ("127.0.0.1", port)):
        assert {get(port, path).status for path in probes} == {200}
        assert read_engine(get(port).body).kv_cache_size_tokens == 8192
        assert [get(port, path).status for path in ("/v1/models", "/v1/chat/completions", "/v2/embed")] == [401] * 3
        assert get(port, "/v1/models", key=key).status == 200
        assert get(port, "/v1/models", key="another").status == 401


def test_from_a_shell_it_serves_until_it_is_stopped() -> None:
    port = free_port()
    command = [sys.executable, fake_vllm.__file__, f"127.0.0.1:{port}", "--speed", "1e9", "--capacity-tokens", "8000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving; Ctrl-C stops it\n"
        reading = read_engine(get(port).body)
        process.terminate()
        assert process.wait(timeout=10) == 0
    assert reading.kv_cache_size_tokens == 8000


def test_an_address_that_is_taken_is_named() -> None:
    port = free_port()
    with serving(Engine(), ("127.0.0.1", port)):
        done = subprocess.run(
            [sys.executable, Path(fake_vllm.__file__), f"127.0.0.1:{port}"], capture_output=True, text=True, check=False
        )
    assert (done.returncode, "already in use" in done.stderr) == (1, True)

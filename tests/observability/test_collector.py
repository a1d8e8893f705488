"""A real OpenTelemetry Collector with docs/stacks/collector.yaml: what it scrapes, and what is pushed to it, has the names of a scrape."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("opentelemetry.sdk", reason="the extra `otlp` is not installed")

from controlplane.build import find_assets
from controlplane.guard import guarded
from controlplane.programs import free_port, wait_until
from controlplane.prometheus import Prometheus, serving
from fleet.discovered_pods import engine_pod, in_a_file, kvgate_pod, pods_json
from fleet.fake_vllm import Engine
from fleet.fake_vllm import serving as serving_vllm
from fleet.monitored import judged_samples, kvgate_processes
from generate.deployment_files import COLLECTOR_FILE
from kvgate.metrics.exporter import new_registry
from kvgate.metrics.otlp import Pusher, PushFailed
from kvgate.runtime.background import Troubles
from kvgate.runtime.service import OtlpOptions
from mixin.scraping import collector
from support.assets import say_loudly
from support.chart import ROOT
from support.prometheus import require_prometheus

ENGINE = "llama-3-1-8b"
MISSING = "the OpenTelemetry Collector is missing: `python tools/controlplane/build.py otelcol` builds it, once"


@pytest.fixture(scope="module")
def binary(pytestconfig: pytest.Config) -> Path:
    folder = find_assets(["otelcol"])
    if folder:
        return folder / "otelcol"
    if os.environ.get("KVGATE_REQUIRE_COLLECTOR") == "1":
        pytest.fail(f"KVGATE_REQUIRE_COLLECTOR=1, but {MISSING}", pytrace=False)
    say_loudly(pytestconfig, f"NOT TESTED: {MISSING}")
    pytest.skip(MISSING)


@pytest.fixture
def prometheus(pytestconfig: pytest.Config) -> Iterator[Prometheus]:
    with serving(require_prometheus(pytestconfig, "3"), "{}", flags=["--web.enable-otlp-receiver"]) as server:
        yield server


def to(prometheus: Prometheus) -> Mapping[str, Any]:
    ca = str(prometheus.program.folder / "ca.crt")
    return {"otlphttp": {"metrics_endpoint": f"{prometheus.url}/api/v1/otlp/v1/metrics", "tls": {"ca_file": ca}}}


@contextmanager
def running(binary: Path, folder: Path, configuration: Mapping[str, Any]) -> Iterator[None]:
    quiet = {**configuration, "service": {**configuration["service"], "telemetry": {"metrics": {"level": "none"}}}}
    (folder / "collector.yaml").write_text(yaml.safe_dump(quiet), encoding="utf-8")
    with (folder / "collector.log").open("wb") as log:
        command = guarded([str(binary), "--config", str(folder / "collector.yaml")], folder)
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        except BaseException as error:
            error.add_note((folder / "collector.log").read_text(encoding="utf-8")[-2000:])
            raise
        finally:
            process.terminate()
            process.wait()


def test_the_shipped_configuration_is_valid(binary: Path) -> None:
    checked = subprocess.run(
        [binary, "validate", "--config", ROOT / COLLECTOR_FILE], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr


def test_what_it_scrapes_has_the_names_and_labels_of_prometheus(
    binary: Path, prometheus: Prometheus, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        samples = {(each.namespace, each.name): each for each in judged_samples()}
        ports = stack.enter_context(kvgate_processes(lambda: samples))
        engine = free_port()
        stack.enter_context(serving_vllm(Engine(vllm_version="0.33.0"), ("127.0.0.1", engine)))
        pods = [kvgate_pod(name, f"127.0.0.1:{port}") for name, port in ports.items()]
        pods.append(engine_pod(ENGINE, "serving", f"127.0.0.1:{engine}"))
        (tmp_path / "pods.json").write_text(pods_json(pods), encoding="utf-8")
        found_in = {"files": [str(tmp_path / "pods.json")], "refresh_interval": "1s"}
        shipped = collector(lambda job: {"file_sd_configs": [{**in_a_file(job)["file_sd_configs"][0], **found_in}]})
        shipped["receivers"]["prometheus"]["config"]["global"] = {"scrape_interval": "1s"}
        text = yaml.safe_dump({**shipped, "exporters": {}}).replace("$", "$$")
        stack.enter_context(running(binary, tmp_path, {**yaml.safe_load(text), "exporters": to(prometheus)}))
        prometheus.until("count(up == 1) == 3")
        owner = f'namespace="serving", inferencedeployment="{ENGINE}"'
        (headroom,) = prometheus.until(f'kvgate_kv_cache_headroom_ratio{{bound="expected", {owner}}}')
        assert headroom.value == samples["serving", ENGINE].headroom_ratio[1]
        assert headroom.labels["job"] == "kvgate-controller"
        (usage,) = prometheus.until(f'vllm:kv_cache_usage_perc{{job="vllm", {owner}}}')
        assert usage.labels["pod"] == f"{ENGINE}-0"
        assert prometheus.until(f"vllm:num_preemptions_total{{{owner}}}")


def test_what_is_pushed_to_it_goes_through(
    binary: Path, prometheus: Prometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    port = free_port()
    configuration = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": to(prometheus),
        "service": {"pipelines": {"metrics": {"receivers": ["otlp"], "exporters": ["otlphttp"]}}},
    }
    options = OtlpOptions(endpoint=f"http://127.0.0.1:{port}", interval_seconds=60)
    pusher = Pusher(options, "kvgate-controller", new_registry(), Troubles(lambda _: None))

    def pushed() -> bool:
        try:
            pusher.push(until=1e12)
        except PushFailed:
            return False
        return True

    with running(binary, tmp_path, configuration):
        wait_until(pushed, "the collector takes the metrics", within_seconds=30)
        assert prometheus.until('kvgate_build_info{job="kvgate-controller"}')
    pusher.stop()

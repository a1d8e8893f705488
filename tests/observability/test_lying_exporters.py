"""Engines that lie, with both lines of Prometheus: rules stay finite, nobody is paged for another's lies, and a sound engine is seen."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from controlplane.prometheus import Prometheus, serving
from fleet.discovered_pods import PODS_FILE, engine_pod, in_a_file, pods_json
from fleet.pace import faster
from mixin.alerts import rule_groups
from mixin.queries import RECORDING_RULES
from mixin.scraping import LIMITS, scrape_configuration
from support.prometheus import require_prometheus

PACE = 60
NAMESPACE = "serving"
INFO = 'vllm:cache_config_info{engine="0",num_gpu_blocks="64",block_size="128",kv_cache_size_tokens="8192"} 1\n'
SHOWN_SECONDS = 12
"""Twelve minutes of the shipped rules."""


def sound(second: float, *, usage: str = "0.5", stamp: str = "") -> str:
    """What a busy engine serves; `stamp` stands behind every value."""
    labels = '{engine="0",model_name="a"}'
    tokens, requests = second * 900, second * 3
    values = {
        "kv_cache_usage_perc": usage,
        "num_requests_running": "4",
        "num_requests_waiting": "0",
        "num_preemptions_total": "0",
        "generation_tokens_total": f"{tokens}",
        "prompt_tokens_total": f"{tokens * 3}",
        "prefix_cache_queries_total": f"{tokens * 3}",
        "prefix_cache_hits_total": f"{tokens}",
    }
    latency = "vllm:time_to_first_token_seconds"
    buckets = "".join(f'{latency}_bucket{{engine="0",le="{le}"}} {requests}{stamp}\n' for le in ("0.1", "1", "+Inf"))
    sums = f'{latency}_count{{engine="0"}} {requests}{stamp}\n{latency}_sum{{engine="0"}} {requests * 0.05}{stamp}\n'
    lines = "".join(f"vllm:{name}{labels} {value}{stamp}\n" for name, value in values.items())
    return INFO.replace(" 1\n", f" 1{stamp}\n") + lines + buckets + sums


def resetting(second: float) -> str:
    """Counters that begin anew every second."""
    return sound(second % 1)


def not_numbers(_: float) -> str:
    lines = (line.rsplit(" ", 1)[0] + value for line, value in zip(sound(1).splitlines(), _VALUES * 9, strict=False))
    return "\n".join(lines) + "\n"


_VALUES = (" NaN", " +Inf", " -Inf")


def twice(second: float) -> str:
    """Every series again, with another value."""
    return sound(second) + sound(second * 7, usage="0.99")


def dated(second: float) -> str:
    """A clock that is nine minutes ahead: Prometheus takes up to ten."""
    return sound(second, stamp=f" {int((time.time() + 540) * 1000)}")


LIARS: dict[str, Callable[[float], str]] = {
    "sound": sound,
    "resetting": resetting,
    "not-numbers": not_numbers,
    "twice": twice,
    "dated": dated,
    "full-and-more": lambda second: sound(second, usage="97"),
    "below": lambda second: sound(second, usage="-3"),
    "cut": lambda second: sound(second)[:-40],
    "long": lambda second: sound(second).replace('model_name="a"', f'model_name="{"x" * 1_000_000}"'),
    "countless": lambda second: sound(second) + "".join(f'vllm:x{{a="{index}"}} 1\n' for index in range(1000)),
    "spoofing": lambda second: sound(second).replace(
        "{", '{namespace="serving",inferencedeployment="sound",pod="sound-0",', 1
    ),
}
SAMPLES = 500
"""As `sample_limit` here, so that `countless` is short."""


@contextmanager
def exporters() -> Iterator[dict[str, int]]:
    """The ports of all of them, by name."""
    began = time.monotonic()

    def page_of(serve: Callable[[float], str]) -> type[BaseHTTPRequestHandler]:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(serve(time.monotonic() - began).encode())

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        return Page

    with ExitStack() as stack:
        ports = {}
        for name, serve in LIARS.items():
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), page_of(serve)))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            ports[name] = server.server_port
        yield ports


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A Prometheus after SHOWN_SECONDS, and the alerts that fired until then."""

    prometheus: Prometheus
    fired: frozenset[tuple[str, str]]
    """Names of alerts and InferenceDeployments."""


@pytest.fixture(scope="module", params=["2", "3"])
def watched(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Watched]:
    assets = require_prometheus(pytestconfig, request.param)
    configuration = faster(scrape_configuration(in_a_file, rule_files=("rules.yaml",)), PACE)
    for job in configuration["scrape_configs"]:
        if "sample_limit" in job:
            job["sample_limit"] = SAMPLES
    with exporters() as ports:
        pods = pods_json(engine_pod(name, NAMESPACE, f"127.0.0.1:{port}") for name, port in ports.items())
        files = {PODS_FILE: pods, "rules.yaml": yaml.safe_dump(faster(rule_groups(), PACE))}
        with serving(assets, yaml.safe_dump(configuration), files=files) as server:
            server.until('up{inferencedeployment="sound"} == 1')
            fired, until = set(), time.monotonic() + SHOWN_SECONDS
            while time.monotonic() < until:
                for alert in server.alerts():
                    if alert["state"] == "firing":
                        fired.add((alert["labels"]["alertname"], alert["labels"].get("inferencedeployment", "")))
                time.sleep(0.5)
            yield Watched(prometheus=server, fired=frozenset(fired))


def test_what_cannot_be_taken_is_no_scrape_and_the_others_are_taken(watched: Watched) -> None:
    up = {
        each.labels["inferencedeployment"]: each.value
        for each in watched.prometheus.query('max_over_time(up{job="vllm"}[5s])')
    }
    assert {name for name, value in up.items() if value == 0} == {"cut", "long", "countless"}
    assert set(up) == set(LIARS)


def test_every_rule_is_evaluated_and_finite_but_for_the_engine_whose_values_are_not(watched: Watched) -> None:
    assert {rule["lastError"] for rule in watched.prometheus.rules() if rule["health"] == "err"} == set()
    for rule in RECORDING_RULES:
        for sample in watched.prometheus.query(rule.name):
            if sample.labels.get("inferencedeployment") != "not-numbers":
                assert math.isfinite(sample.value), (rule.name, sample)


def test_a_sound_engine_has_its_own_figures_whatever_others_say_of_it(watched: Watched) -> None:
    (usage,) = watched.prometheus.query('vllm:kv_cache_usage_perc{inferencedeployment="sound"}')
    assert (usage.value, usage.labels["pod"]) == (0.5, "sound-0")
    spoofed = watched.prometheus.query('vllm:cache_config_info{inferencedeployment="spoofing"}')
    assert [each.labels["exported_inferencedeployment"] for each in spoofed] == ["sound"]


def test_a_clock_that_is_ahead_counts_for_nothing(watched: Watched) -> None:
    (age,) = watched.prometheus.query('time() - timestamp(vllm:num_requests_running{inferencedeployment="dated"})')
    assert abs(age.value) < 5


def test_of_a_series_that_is_there_twice_one_is_stored(watched: Watched) -> None:
    assert len(watched.prometheus.query('vllm:kv_cache_usage_perc{inferencedeployment="twice"}')) == 1


def test_a_full_cache_that_is_a_lie_is_no_page(watched: Watched) -> None:
    assert {alert for alert in watched.fired if alert[1] in {"full-and-more", "below", "twice"}} == set()


def test_nobody_is_paged_for_an_engine_that_is_sound(watched: Watched) -> None:
    honest = {"sound", "resetting", "dated", "spoofing"}
    assert {alert for alert in watched.fired if alert[1] in honest} == set()


def test_the_bounds_are_those_that_ship() -> None:
    assert LIMITS["sample_limit"] == 200_000
    assert not LIMITS["honor_timestamps"]

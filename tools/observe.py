"""Run `make observe`: predicted against observed, on a real Kubernetes API server and a real Prometheus on this machine.

kvgate predicts the KV cache of an InferenceDeployment; its pods are fake vLLMs which report less, and replay a recorded run
that passes the KV cache. The shipped scrape configuration finds them, the shipped rules fire, the dashboard is drawn.

A second here stands for a minute there: intervals, `for:` and the windows of rates are those that ship, divided by PACE.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from controlplane import prometheus
from controlplane.build import ensure_assets
from controlplane.plane import PROGRAMS, ControlPlane
from controlplane.programs import wait_until
from controlplane.prometheus import Prometheus, ensure_prometheus
from demo import ROOT, controller, expect, install, say, succeeds, title, webhook
from fleet.fake_vllm import Engine, Replay, serving
from fleet.pace import faster
from pictures.dashboard import draw
from pictures.grafana import Window

PACE = 60
SPEED = 2
"""Speed of the recorded run; it keeps its shape in the shorter windows."""
WATCHED = Path("tools/fleet/data/observed.yaml")
NAME, AGAIN = "chat", "chat-again"
REPLICAS = 2
ERROR = -0.12
"""Relative error of the prediction that the fake engines report; the alert KvgatePredictionWrong allows less."""
BLOCK_SIZE = 16
SHIPPED = Path("deploy/prometheus")
BOARD = Path("charts/kvgate/dashboards/kvgate-deployment.json")
PICTURE = Path("observed.png")
METRICS_PORT = 8080
EXPECTED_ALERTS = frozenset({"KvgatePredictionWrong", "KvgateUnexpectedPreemptions"})
OURS = f'{{namespace="default",inferencedeployment="{NAME}"}}'


def main() -> int:
    """Run it; the message of a failure is the last line."""
    parser = argparse.ArgumentParser(description="Predicted against observed, on a control plane of its own.")
    parser.add_argument("--picture", type=Path, default=ROOT / PICTURE, help="PNG to write (default: %(default)s)")
    picture = parser.parse_args().picture.absolute()
    os.chdir(ROOT)
    if not succeeds("observe", lambda: run(picture)):
        return 1
    print("\nobserve: the prediction was held against vLLM's own figures; nothing is left running")
    return 0


def run(picture: Path) -> None:
    """The steps, in order."""
    title("The control plane, and kvgate's two processes as pods of it")
    assets, prometheus_3 = ensure_assets([*PROGRAMS, "helm"]), ensure_prometheus("3")
    with ControlPlane(assets) as plane, tempfile.TemporaryDirectory(prefix="kvgate-observe-") as folder:
        install(plane)
        hosts = {name: process_pod(plane, name) for name in ("webhook", "controller")}
        with (
            webhook(plane, assets, Path(folder), metrics=(hosts["webhook"], METRICS_PORT)),
            controller(plane, Path(folder), "--observe-seconds", "1", metrics=(hosts["controller"], METRICS_PORT)),
        ):
            predicted_tokens = apply(plane)
            with (
                engines(plane, round(predicted_tokens * (1 + ERROR))) as replay,
                prometheus.serving(prometheus_3, **configuration(plane.kubeconfig)) as server,
            ):
                wait_for_figures(server)
                report(server, replay, watch(server, replay))
                show_status(plane)
                show_next_verdict(plane)
                paint(server, replay, picture)


def process_pod(plane: ControlPlane, component: str) -> str:
    """The address of a pod that stands for one of kvgate's processes, as the chart labels it."""
    labels = {"app.kubernetes.io/name": "kvgate", "app.kubernetes.io/component": component}
    ports = [{"name": "metrics", "containerPort": METRICS_PORT}]
    spec = {
        "automountServiceAccountToken": False,
        "containers": [{"name": component, "image": "kvgate", "ports": ports}],
    }
    name = f"kvgate-{component}"
    plane.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})
    wait_until(lambda: addresses(plane, "pod", name), f"{name} has an address")
    return addresses(plane, "pod", name)[0]


def addresses(plane: ControlPlane, *which: str) -> list[str]:
    """Return the addresses of pods; a pod that is not running has none."""
    found = json.loads(plane.kubectl("get", *which, "-o", "json").stdout)
    return [pod["status"]["podIP"] for pod in found.get("items", [found]) if pod["status"].get("podIP")]


def apply(plane: ControlPlane) -> int:
    """The predicted capacity of one engine, in tokens."""
    title(f"kubectl apply -f {WATCHED}")
    say(plane.kubectl("apply", "-f", str(WATCHED)).stdout)
    wait_until(lambda: len(pods(plane)) == REPLICAS, "its pods have addresses")
    say(plane.kubectl("get", "infd,pods", "-o", "wide").stdout)
    return int(status_of(plane, NAME)["budget"]["capacityTokens"])


def pods(plane: ControlPlane) -> list[str]:
    return addresses(plane, "pods", "-l", f"kvgate.io/inferencedeployment={NAME}")


@contextmanager
def engines(plane: ControlPlane, capacity_tokens: int) -> Iterator[Replay]:
    title(
        f"Fake vLLMs at the addresses of the pods: each reports {capacity_tokens:,} tokens, {ERROR:+.0%} of the prediction"
    )
    blocks = capacity_tokens // BLOCK_SIZE
    engine = Engine(vllm_version="0.33.0", model_name=NAME, num_gpu_blocks=blocks, block_size=BLOCK_SIZE)
    with serving(engine, *((host, 8000) for host in pods(plane))) as replay:
        yield replay


def configuration(kubeconfig: Path) -> dict[str, Any]:
    """Return the shipped configuration, faster, with a kubeconfig instead of a ServiceAccount."""
    scrape = yaml.safe_load((SHIPPED / "scrape.yaml").read_text(encoding="utf-8"))
    for job in scrape["scrape_configs"]:
        for discovery in job["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(kubeconfig)
    rules = yaml.safe_load((SHIPPED / "rules.yaml").read_text(encoding="utf-8"))
    return {
        "configuration": yaml.safe_dump(faster(scrape, PACE)),
        "files": {"rules.yaml": yaml.safe_dump(faster(rules, PACE))},
    }


def wait_for_figures(server: Prometheus) -> None:
    title(f"Prometheus: the shipped scrape configuration and rules, {PACE} times as fast")
    server.until(f'count(up{{job="vllm"}} == 1) == {REPLICAS} and on () count(up{{job=~"kvgate-.+"}} == 1) == 2')
    nobody_missing = 'absent(ALERTS{alertname=~"KvgateNo(Leader|Webhook)"})'
    server.until(f"kvgate_observed_pods{OURS} == {REPLICAS} and on () {nobody_missing}")
    say(
        "\n".join(
            f"{target['health']}  {target['labels']['job']}  {target['scrapeUrl']}" for target in server.targets()
        )
    )


def watch(server: Prometheus, replay: Replay) -> set[str]:
    """The alerts that fired meanwhile."""
    title(f"The recorded run: {replay.length_seconds:.0f} s, {SPEED} times as fast")
    replay.begin(speed=SPEED)
    seen: set[tuple[str, str]] = set()
    while not replay.is_over:
        for alert in server.alerts():
            state, name = alert["state"], alert["labels"]["alertname"]
            if (state, name) not in seen:
                say(f"{replay.seconds:3.0f} s  {state:8} {name}: {alert['annotations']['summary']}")
                seen.add((state, name))
        time.sleep(0.5)
    return {name for state, name in seen if state == "firing"}


FIGURES = (
    (
        "predicted KV cache, tokens per engine",
        f'kvgate_kv_cache_capacity_tokens{OURS[:-1]},bound="expected"}}',
        "{:,.0f}",
    ),
    ("observed KV cache, tokens per engine", f"kvgate_observed_kv_cache_capacity_tokens{OURS}", "{:,.0f}"),
    ("prediction error", f"kvgate_prediction_error_ratio{OURS}", "{:+.1%}"),
    ("predicted headroom", f'kvgate_kv_cache_headroom_ratio{OURS[:-1]},bound="expected"}}', "{:.0%}"),
    ("peak usage of the KV cache", f"max(max_over_time(vllm:kv_cache_usage_perc{OURS}[RUN]))", "{:.0%}"),
    ("peak of running requests, per engine", f"max(max_over_time(vllm:num_requests_running{OURS}[RUN]))", "{:.0f}"),
    ("peak of waiting requests, per engine", f"max(max_over_time(vllm:num_requests_waiting{OURS}[RUN]))", "{:.0f}"),
    ("preemptions, per engine", f"max(max_over_time(vllm:num_preemptions_total{OURS}[RUN]))", "{:.0f}"),
)


def run_seconds(replay: Replay) -> float:
    """Return the time from the first row of the run until now."""
    return replay.length_seconds / SPEED + 1


def report(server: Prometheus, replay: Replay, fired: set[str]) -> None:
    title("Predicted against observed, as Prometheus has it")
    window = f"{run_seconds(replay):.0f}s"
    for name, expression, form in FIGURES:
        found = server.query(expression.replace("RUN", window))
        expect(len(found) == 1, f"{name}: {expression} finds {len(found)} series; one was due")
        say(f"{name:40} {form.format(found[0].value)}")
    say(f"{'alerts that fired':40} {', '.join(sorted(fired))}")
    missing = EXPECTED_ALERTS - fired
    expect(not missing, f"{', '.join(sorted(missing))} did not fire")


def show_status(plane: ControlPlane) -> None:
    """Print the conditions in kvgate's own words."""
    title(f"kubectl get infd {NAME}: what the controller says")
    status = status_of(plane, NAME)
    say(f"status.observed: {json.dumps(status['observed'])}")
    conditions = {condition["type"]: condition for condition in status["conditions"]}
    for kind in ("Observed", "PredictionDrift"):
        say(f"{kind} {conditions[kind]['status']}, {conditions[kind]['reason']}: {conditions[kind]['message']}")


def show_next_verdict(plane: ControlPlane) -> None:
    """Print the verdict about another InferenceDeployment with the same setting."""
    title("The same setting once more: what was observed corrects the next verdict")
    again = yaml.safe_load(WATCHED.read_text(encoding="utf-8")) | {"metadata": {"name": AGAIN, "namespace": "default"}}
    plane.apply(again)
    wait_until(lambda: status_of(plane, AGAIN).get("budget"), f"{AGAIN} has its verdict")
    observed, budget = status_of(plane, NAME)["observed"], status_of(plane, AGAIN)["budget"]
    say(
        f"{AGAIN}: {budget['capacityTokens']:,} tokens expected, from {budget.get('observedStarts', 0)} observed starts"
    )
    off = abs(budget["capacityTokens"] - observed["kvCacheCapacityTokens"])
    expect(off <= BLOCK_SIZE, f"{off} tokens beside what {NAME} reports")


def status_of(plane: ControlPlane, name: str) -> dict[str, Any]:
    return dict(json.loads(plane.kubectl("get", "infd", name, "-o", "json").stdout).get("status", {}))


def paint(server: Prometheus, replay: Replay, picture: Path) -> None:
    title("The dashboard Deployment, drawn from the same Prometheus")
    end = datetime.now(UTC).timestamp()
    window = Window(
        start_seconds=end - run_seconds(replay),
        end_seconds=end,
        scrape_seconds=30 / PACE,
        chosen={"namespace": "default", "inferencedeployment": NAME},
    )
    draw(json.loads(BOARD.read_text(encoding="utf-8")), server, window, picture)
    say(str(picture))


if __name__ == "__main__":
    sys.exit(main())

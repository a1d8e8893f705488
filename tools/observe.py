"""Run `make observe`: predicted against observed, on a real Kubernetes API server and a real Prometheus on this machine.

kvgate predicts the KV cache of four InferenceDeployments; their pods are fake vLLMs that report what a real vLLM had in a recorded
start (tools/fleet/data/recorded_starts.csv): one runs what the spec states, one an older image, one is started again beside a
process that takes its GPU's memory, and one is rendered under the policy Adjust. The second one replays a recorded load that passes
its KV cache. The shipped scrape configuration finds the pods, the shipped rules fire, and a dashboard is drawn.

A second here stands for a minute there: intervals, `for:` and the windows of rates are those that ship, divided by PACE.
The run ends with 0 only if every line of CLAIMS holds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
from fleet.fake_gpus import fake_gpu_node
from fleet.fake_vllm import Replay, serving
from fleet.pace import faster
from fleet.recorded_starts import RecordedStart, recorded_starts
from pictures.dashboard import draw
from pictures.grafana import Window

PACE = 60
SPEED = 2
"""Speed of the recorded run; it keeps its shape in the shorter windows."""
WATCHED = Path("tools/fleet/data/observed.yaml")
LOADED = "other-image"
"""The InferenceDeployment whose pod replays the load, and whose dashboard is drawn."""
SHARED = "shared-gpu"
OTHER_LENGTH = 8176
"""Another max_model_len, for which an object gets its next verdict."""
SHIPPED = Path("deploy/prometheus")
BOARD = Path("charts/kvgate/dashboards/kvgate-deployment.json")
PICTURE = Path("observed.png")
METRICS_PORT, ENGINE_PORT = 8080, 8000
SLACK_TOKENS = 16
"""A log rounds its gibibytes, and vLLM its tokens to blocks."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Figures and alerts that the cluster must show at the end."""

    is_inside: bool
    """True where the observed capacity lies inside the predicted band."""
    percent: tuple[float, float]
    """Smallest and largest error of the prediction."""
    alerts: frozenset[str] = frozenset()
    """Alerts that fire, and no other one does."""
    replicas: int = 1
    """Pods, as the manifest has them."""


CLAIMS = {
    "as-logged": Claim(is_inside=True, percent=(-1, 1), replicas=2),
    LOADED: Claim(
        is_inside=False, percent=(-12.5, -11),
        alerts=frozenset({"KvgatePredictionWrong", "KvgateUnexpectedPreemptions", "KvgatePreemptionStorm"}),
    ),
    SHARED: Claim(
        is_inside=False, percent=(-52, -49), alerts=frozenset({"KvgatePredictionWrong", "KvgateCapacityDropped"})
    ),
    "adjusted": Claim(is_inside=True, percent=(-2, 2), alerts=frozenset({"KvgateHeadroomLow"}), replicas=2),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One InferenceDeployment as Prometheus has it, in tokens of one engine."""

    low: float
    expected: float
    high: float
    observed: float

    @property
    def is_inside(self) -> bool:
        return self.low - SLACK_TOKENS <= self.observed <= self.high + SLACK_TOKENS

    @property
    def percent(self) -> float:
        return 100 * (self.observed / self.expected - 1)

    @classmethod
    def of(cls, server: Prometheus, name: str) -> Figures:
        """Return what the newest scrape has."""
        owner = f'namespace="default",inferencedeployment="{name}"'
        bounds = server.query(f"max by (bound) (kvgate_kv_cache_capacity_tokens{{{owner}}})")
        (observed,) = server.query(f"max(kvgate_observed_kv_cache_capacity_tokens{{{owner}}})")
        return cls(**{bound.labels["bound"]: bound.value for bound in bounds}, observed=observed.value)


def main() -> int:
    """Run it; the message of a failure is the last line."""
    parser = argparse.ArgumentParser(description="Predicted against observed, on a control plane of its own.")
    parser.add_argument("--picture", type=Path, default=ROOT / PICTURE, help="PNG to write (default: %(default)s)")
    picture = parser.parse_args().picture.absolute()
    os.chdir(ROOT)
    if not succeeds("observe", lambda: run(picture)):
        return 1
    print("\nobserve: the predictions were held against starts of real vLLM servers; nothing is left running")
    return 0


def run(picture: Path) -> None:
    """The steps, in order."""
    title("The control plane, and kvgate's two processes as pods of it")
    assets, prometheus_3 = ensure_assets(PROGRAMS), ensure_prometheus("3")
    with ControlPlane(assets) as plane, tempfile.TemporaryDirectory(prefix="kvgate-observe-") as folder:
        install(plane)
        plane.apply(fake_gpu_node("gpu-rtx-5090", product="NVIDIA-GeForce-RTX-5090", memory_mib=32607, gpus=2))
        hosts = {name: process_pod(plane, name) for name in ("webhook", "controller")}
        with (
            webhook(plane, Path(folder), metrics=(hosts["webhook"], METRICS_PORT)),
            controller(plane, Path(folder), "--observe-seconds", "1", metrics=(hosts["controller"], METRICS_PORT)),
        ):
            apply(plane)
            with (
                engines(plane) as running,
                prometheus.serving(prometheus_3, **configuration(plane.kubeconfig)) as server,
            ):
                wait_for_figures(server)
                expect(Figures.of(server, SHARED).is_inside, f"{SHARED} is outside its band before it is started again")
                start_again(plane, running)
                fired = watch(server, running.replays[LOADED])
                problems = [*report(server, fired), *next_verdicts(plane, server)]
                paint(server, running.replays[LOADED], picture)
    expect(not problems, "; ".join(problems))


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
    wait_until(lambda: found(plane, "pod", name), f"{name} has an address")
    (pod,) = found(plane, "pod", name)
    return str(pod["status"]["podIP"])


def found(plane: ControlPlane, *which: str) -> list[dict[str, Any]]:
    """Return pods that have an address; a pod that is not running has none."""
    answer = json.loads(plane.kubectl("get", *which, "-o", "json").stdout)
    return [pod for pod in answer.get("items", [answer]) if pod["status"].get("podIP")]


def pods(plane: ControlPlane, name: str) -> list[dict[str, Any]]:
    return found(plane, "pods", "-l", f"kvgate.io/inferencedeployment={name}")


def apply(plane: ControlPlane) -> None:
    title(f"kubectl apply -f {WATCHED}")
    done = plane.kubectl("apply", "-f", str(WATCHED))
    say(done.stderr + done.stdout)
    wait_until(
        lambda: all(len(pods(plane, name)) == claim.replicas for name, claim in CLAIMS.items()),
        "every pod has an address",
    )
    say(plane.kubectl("get", "infd,pods", "-o", "wide").stdout)


@dataclass(kw_only=True)
class Running:
    """The fake vLLMs, by InferenceDeployment."""

    replays: dict[str, Replay] = field(default_factory=dict)
    _stacks: dict[str, ExitStack] = field(default_factory=dict)

    def serve(self, start: RecordedStart, *hosts: str) -> None:
        """Let the pods report this start in place of what they reported."""
        self.stop(start.deployment)
        stack = self._stacks[start.deployment] = ExitStack()
        self.replays[start.deployment] = stack.enter_context(
            serving(start.engine(), *((host, ENGINE_PORT) for host in hosts))
        )
        say(f"{start.deployment:12} {start.available_kv_gib:6.2f} GiB logged, {start.ran}: {start.source}")

    def stop(self, name: str) -> None:
        if name in self._stacks:
            self._stacks.pop(name).close()

    def close(self) -> None:
        for name in list(self._stacks):
            self.stop(name)


@contextmanager
def engines(plane: ControlPlane) -> Iterator[Running]:
    """The first start of each, at the address of its pod."""
    title("Fake vLLMs at the addresses of the pods: each reports the KV cache of a recorded start")
    running = Running()
    try:
        for name, starts in recorded_starts().items():
            running.serve(starts[0], *(pod["status"]["podIP"] for pod in pods(plane, name)))
        yield running
    finally:
        running.close()


def start_again(plane: ControlPlane, running: Running) -> None:
    """Start the container again, as the kubelet reports it."""
    title(f"The container of {SHARED} is started again, and another process takes memory while vLLM measures")
    (pod,) = pods(plane, SHARED)
    statuses = pod["status"]["containerStatuses"]
    state = {"running": {"startedAt": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}}
    changed = [{**each, "restartCount": 1, "state": state} for each in statuses]
    running.stop(SHARED)
    patch = json.dumps({"status": {"containerStatuses": changed}})
    plane.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge", "-p", patch)
    running.serve(recorded_starts()[SHARED][1], pod["status"]["podIP"])


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
    engines = sum(claim.replicas for claim in CLAIMS.values())
    server.until(f'count(up{{job="vllm"}} == 1) == {engines} and on () count(up{{job=~"kvgate-.+"}} == 1) == 2')
    nobody_missing = 'absent(ALERTS{alertname=~"KvgateNo(Leader|Webhook)"})'
    server.until(f"sum(kvgate_observed_pods) == {engines} and on () {nobody_missing}")
    targets = sorted(server.targets(), key=lambda target: (target["labels"]["job"], target["scrapeUrl"]))
    say("\n".join(f"{target['health']}  {target['labels']['job']}  {target['scrapeUrl']}" for target in targets))


def watch(server: Prometheus, replay: Replay) -> dict[str, set[str]]:
    """The alerts that fired meanwhile, by InferenceDeployment; those of kvgate itself are under an empty name."""
    title(f"The recorded load on {LOADED}: {replay.length_seconds:.0f} s, {SPEED} times as fast")
    replay.begin(speed=SPEED)
    seen: set[tuple[str, str, str]] = set()
    while not replay.is_over:
        for alert in server.alerts():
            state, labels = alert["state"], alert["labels"]
            key = (state, labels["alertname"], labels.get("inferencedeployment", ""))
            if key not in seen:
                say(f"{replay.seconds:3.0f} s  {state:8} {labels['alertname']}: {alert['annotations']['summary']}")
                seen.add(key)
        time.sleep(0.5)
    fired: dict[str, set[str]] = {}
    for state, name, owner in seen:
        if state == "firing":
            fired.setdefault(owner, set()).add(name)
    return fired


def report(server: Prometheus, fired: dict[str, set[str]]) -> Iterator[str]:
    """Print the table, and yield the claims that do not hold."""
    title("Predicted against observed, tokens of one engine, as Prometheus has them")
    say(f"{'':12} {'predicted band':>29} {'observed':>11} {'error':>8}  inside?  alerts that fired")
    for name, claim in CLAIMS.items():
        figures, alerts = Figures.of(server, name), fired.get(name, set())
        band, is_inside = f"{figures.low:,.0f} to {figures.high:,.0f}", "yes" if figures.is_inside else "no"
        say(f"{name:12} {band:>29} {figures.observed:11,.0f} {figures.percent:+7.1f}%  {is_inside:7}  {listed(alerts)}")
        if figures.is_inside is not claim.is_inside:
            yield f"{name} is {'inside' if figures.is_inside else 'outside'} its band"
        if not claim.percent[0] <= figures.percent <= claim.percent[1]:
            yield f"the prediction for {name} is off by {figures.percent:+.1f} %"
        if alerts != claim.alerts:
            yield f"of {name} fired {listed(alerts)}, and {listed(claim.alerts)} were due"
    say(f"{'of kvgate':12} {'':29} {'':11} {'':8}  {'':7}  {listed(fired.get('', set()))}")


def listed(names: set[str] | frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def next_verdicts(plane: ControlPlane, server: Prometheus) -> Iterator[str]:
    """Print what was learnt and the next verdict of each object, and yield the claims that do not hold."""
    title(f"The next verdict of each, with maxModelLen {OTHER_LENGTH}: what kvgate learnt, and what it predicts now")
    patch = json.dumps({"spec": {"vllm": {"maxModelLen": OTHER_LENGTH}}})
    for name, claim in CLAIMS.items():
        before, figures, drift = budget_of(plane, name), Figures.of(server, name), drift_of(plane, name)
        plane.kubectl("patch", "infd", name, "--type=merge", "-p", patch)
        wait_until(lambda name=name: is_judged(plane, name), f"{name} has its next verdict")
        after = budget_of(plane, name)
        low, high = (tokens_of(after, bound) for bound in ("low", "high"))
        starts = after.get("observedStarts", 0)
        say(
            f"{name:12} {low:,.0f} to {high:,.0f} tokens, {after['capacityTokens']:,} expected, from {starts} observed starts"
        )
        say(f"{'':12} {drift}")
        if (
            not claim.is_inside
            and abs(after["capacityTokens"] - before["capacityTokens"]) > 0.005 * before["capacityTokens"]
        ):
            yield f"a start outside its band moved the next prediction for {name}"
        if claim.is_inside and not (
            starts and abs(after["capacityTokens"] - figures.observed) <= 0.005 * figures.observed
        ):
            yield f"the next prediction for {name} does not follow what was observed"


def tokens_of(budget: dict[str, Any], bound: str) -> float:
    """The end of the band in tokens; of one layout, bytes and tokens are in proportion."""
    sizes = budget["availableKvCacheBytes"]
    return float(budget["capacityTokens"] * sizes[bound] / sizes["expected"])


def status_of(plane: ControlPlane, name: str) -> dict[str, Any]:
    return dict(json.loads(plane.kubectl("get", "infd", name, "-o", "json").stdout).get("status", {}))


def is_judged(plane: ControlPlane, name: str) -> bool:
    found = json.loads(plane.kubectl("get", "infd", name, "-o", "json").stdout)
    return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])


def budget_of(plane: ControlPlane, name: str) -> dict[str, Any]:
    return dict(status_of(plane, name).get("budget", {}))


def drift_of(plane: ControlPlane, name: str) -> str:
    """The condition PredictionDrift in kvgate's own words."""
    conditions = {condition["type"]: condition for condition in status_of(plane, name)["conditions"]}
    return str(conditions["PredictionDrift"]["message"])


def paint(server: Prometheus, replay: Replay, picture: Path) -> None:
    title(f"The dashboard Deployment of {LOADED}, drawn from the same Prometheus")
    end = datetime.now(UTC).timestamp()
    window = Window(
        start_seconds=end - replay.length_seconds / SPEED - 1,
        end_seconds=end,
        scrape_seconds=30 / PACE,
        chosen={"namespace": "default", "inferencedeployment": LOADED},
    )
    draw(json.loads(BOARD.read_text(encoding="utf-8")), server, window, picture)
    say(str(picture))


if __name__ == "__main__":
    sys.exit(main())

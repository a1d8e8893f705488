"""All series of a scene, in promtool's notation: engines, what kvgate reports about them, its own processes, and other exporters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from incidents.engine import GIB, GPU_GIB, REQUESTED_GIB, Engine, Labels, Minute, Point, Points, life
from incidents.scene import Deployment, Edit, Scene, by_minute

BYTES_PER_TOKEN = 131_072
"""KV cache of Llama 3.1 8B in bfloat16."""
SECONDS_PER_MINUTE = 60
SECONDS_PER_DAY = 86_400
GONE, NOTHING = "stale", "_"
FROZEN = ("freeze", "timeouts", "errors", "refused")
"""What happens although the core of an engine makes no step."""


class Recorder:
    """Points of every series over the minutes of a scene, for the metrics that the rules mention."""

    def __init__(self, minutes: int, wanted: frozenset[str]) -> None:
        self._length = minutes + 1
        self._wanted = wanted
        self._series: dict[tuple[str, Labels], list[Point]] = {}
        self._given: dict[str, list[Point]] = {}

    def write(self, minute: int, points: Points) -> None:
        """Store one minute. A series that had a value before and has none now becomes stale."""
        for key, value in points.items():
            if key[0] in self._wanted:
                self._series.setdefault(key, [NOTHING] * self._length)[minute] = value
        for key, values in self._series.items():
            if key not in points and minute and values[minute - 1] not in (NOTHING, GONE):
                values[minute] = GONE

    def notation(self, given: Mapping[str, list[Point]], edits: Sequence[Edit]) -> dict[str, str]:
        """Return series → promtool's values, with those that a scene gives itself, after its edits."""
        series = {series_text(*key): values for key, values in self._series.items()}
        series |= {text: values for text, values in given.items() if text.partition("{")[0] in self._wanted}
        for edit in edits:
            for text, values in series.items():
                if re.search(edit.match, text):
                    self._edit(values, edit)
        return {text: compressed(values) for text, values in series.items()}

    def _edit(self, values: list[Point], edit: Edit) -> None:
        begins, over = edit.during
        for minute in range(begins, min(over, self._length)):
            if edit.turns == "missing":
                values[minute] = NOTHING
            elif edit.turns == "gone":
                values[minute] = GONE if minute == begins else NOTHING
            else:
                values[minute] = float(edit.turns)


def series_text(name: str, labels: Labels) -> str:
    inner = ",".join(f'{label}="{value}"' for label, value in sorted(labels) if value)
    return f"{name}{{{inner}}}"


def compressed(values: list[Point]) -> str:
    """Return values in promtool's notation, with runs of one value as `5x9`."""
    parts = []
    for value, run in groupby(values):
        more = len(list(run)) - 1
        text = value if isinstance(value, str) else f"{value:.10g}"
        if isinstance(value, str) and more:
            parts.append(f"{NOTHING}x{more + 1}" if value == NOTHING else " ".join([text] * (more + 1)))
        else:
            parts.append(f"{text}x{more}" if more else text)
    return " ".join(parts)


def notation(scene: Scene, mentioned: str) -> dict[str, str]:
    """Return all series of the scene that the rules mention. Raises SceneError."""
    minutes, wanted = scene.minutes[2], frozenset(re.findall(r"[\w:]+", mentioned))
    recorder = Recorder(minutes, wanted)
    fleets = [Fleet(name, deployment, minutes, wanted) for name, deployment in scene.deployments.items()]
    processes = Processes(scene, minutes)
    for minute in range(minutes + 1):
        points: Points = {}
        for fleet in fleets:
            points |= fleet.engines(minute)
            for leader in processes.leaders(minute, fleet.cluster):
                points |= fleet.reported(minute, leader)
        points |= processes.points(minute)
        recorder.write(minute, points)
    given = {text: values_of(timeline, minutes) for text, timeline in scene.series.items()}
    return recorder.notation(given, scene.edits)


def values_of(timeline: Mapping[int, Any], minutes: int) -> list[Point]:
    """Return the values of a series that a scene gives: 5, `+6` a minute, `+1/15`, `gone`, `missing`."""
    values: list[Point] = []
    total = 0.0
    previous: Any = None
    for minute, given in enumerate(by_minute(dict(timeline), minutes)):
        if isinstance(given, str) and given.startswith("+"):
            amount, _, every = given[1:].partition("/")
            if not every or minute % int(every) == 0:
                total += float(amount)
            values.append(total)
        elif given == "gone":
            total = 0.0
            values.append(GONE if previous not in ("gone", None) else NOTHING)
        elif given == "missing":
            values.append(NOTHING)
        else:
            total = float(given)
            values.append(total)
        previous = given
    return values


class Fleet:
    """The pods of one deployment, and what is reported about them."""

    def __init__(self, name: str, deployment: Deployment, minutes: int, wanted: frozenset[str]) -> None:
        self._namespace, _, self._name = name.partition("@")[0].partition("/")
        self._deployment, self.cluster, self._metrics = deployment, deployment.cluster, wanted
        owner = "workload" if deployment.workload else "inferencedeployment"
        self._owner: Labels = (*_cluster(self.cluster), ("namespace", self._namespace), (owner, self._name))
        lives = {
            name: life(states, minutes, seed) for seed, (name, states) in enumerate(deployment.pods.items(), start=1)
        }
        self._pods = {name: lived for name, lived in lives.items() if "/" not in name}
        self._ranks = {name: lived for name, lived in lives.items() if "/" in name}
        self._running: dict[str, tuple[int, Engine]] = {}
        self._wanted = by_minute(deployment.replicas, minutes)
        self._observing = by_minute(deployment.is_observed, minutes)
        self._new = by_minute(deployment.generation_is_new or False, minutes)
        self._conditions = {type_: by_minute(said, minutes) for type_, said in deployment.conditions.items()}

    # ── the pods ──────────────────────────────────────────────────────────────────────────────────────────────────

    def engines(self, minute: int) -> Points:
        """Return the series of the pods themselves, and of the exporters that watch them."""
        points: Points = {}
        for number, (pod, lived) in enumerate(self._pods.items()):
            now = lived[minute]
            if now.exists:
                points |= self._pod(pod, number, now)
        for name, lived in self._ranks.items():
            if lived[minute].is_ready:
                for key, value in self._engine(name, lived[minute]).items():
                    points[key] = value + points[key] if key[0].startswith("http_") and key in points else value
        if self._deployment.kube_state_metrics:
            owner: Labels = (*_cluster(self.cluster), ("namespace", self._namespace), ("deployment", self._name))
            ready = min(self._ready(minute), self._replicas(minute))
            points["kube_deployment_spec_replicas", owner] = self._replicas(minute)
            points["kube_deployment_status_replicas_ready", owner] = ready
            points["kube_deployment_status_replicas_available", owner] = ready
        return points

    def _target(self, pod: str) -> Labels:
        number = list(self._pods).index(pod)
        return (
            *self._owner,
            ("pod", pod),
            ("instance", f"10.0.{len(self._name)}.{number + 7}:8000"),
            ("job", "vllm-others" if self._deployment.workload else "vllm"),
        )

    def _pod(self, pod: str, number: int, now: Minute) -> Points:
        target = self._target(pod)
        points: Points = {("up", target): float(now.phase == "serving")}
        if now.is_ready:
            points |= self._engine(pod, now)
            if now.phase == "serving":
                points["process_start_time_seconds", target] = now.started_minute * SECONDS_PER_MINUTE
        else:
            self._running.pop(pod, None)
        return points | self._watched(pod, number, now)

    def _engine(self, name: str, now: Minute) -> Points:
        """Return the series of one engine after another minute: of a pod, or of a data-parallel rank (`chat-0/1`)."""
        pod, _, rank = name.partition("/")
        begun, engine = self._running.get(name, (None, None))
        if engine is None or begun != now.started_minute:
            engine = Engine(self._deployment, self._metrics, rank or "0")
            self._running[name] = (now.started_minute, engine)
        engine.step({key: now.load[key] for key in FROZEN if key in now.load} if now.load.get("freeze") else now.load)
        target, shown = self._target(pod), engine.series(now.load, self._capacity(now))
        return (
            {(metric, (*target, *labels)): value for metric, labels, value in shown} if now.phase == "serving" else {}
        )

    def _watched(self, pod: str, number: int, now: Minute) -> Points:
        """Return the series of kube-state-metrics and of DCGM."""
        points: Points = {}
        where: Labels = (*_cluster(self.cluster), ("namespace", self._namespace), ("pod", pod))
        if self._deployment.kube_state_metrics:
            container: Labels = (*where, ("container", "vllm"))
            points["kube_pod_container_status_restarts_total", container] = now.restarts
            points["kube_pod_container_status_ready", container] = float(now.is_ready)
            if now.phase == "crashing":
                points["kube_pod_container_status_waiting_reason", (*container, ("reason", "CrashLoopBackOff"))] = 1
        if self._deployment.dcgm:
            cache = self._deployment.capacity_tokens * BYTES_PER_TOKEN / GIB
            ours = REQUESTED_GIB - cache * (1 - now.load["capacity"]) if now.is_ready else 0.5 * REQUESTED_GIB
            used = min(ours + now.load.get("foreign_gib", 0), GPU_GIB - 0.5)
            gpu: Labels = (*where, ("container", "vllm"), ("gpu", str(number)), ("Hostname", "node-a"))
            points["DCGM_FI_DEV_FB_USED", gpu] = round(used * 1024)
            points["DCGM_FI_DEV_FB_FREE", gpu] = round((GPU_GIB - used) * 1024)
        return points

    def _capacity(self, now: Minute) -> int:
        return int(self._deployment.capacity_tokens * now.load["capacity"]) // 16 * 16

    def _replicas(self, minute: int) -> int:
        wanted = self._wanted[minute]
        return sum(lived[minute].exists for lived in self._pods.values()) if wanted is None else int(wanted)

    def _ready(self, minute: int) -> int:
        return sum(lived[minute].is_ready for lived in self._pods.values())

    # ── what the controller says ──────────────────────────────────────────────────────────────────────────────────

    def reported(self, minute: int, leader: Labels) -> Points:
        """Return the series that the leading controller exports about the InferenceDeployment."""
        if self._deployment.workload:
            return {}
        replaced = {"pod", *dict(self._owner)}
        owner: Labels = (*(label for label in leader if label[0] not in replaced), *self._owner)
        of_process: Labels = tuple(label for label in leader if label[0] == "pod")
        points: Points = {}

        def put(name: str, value: float, *labels: tuple[str, str]) -> None:
            """Add a series; the pod of the process gives way to a pod among the metric's own labels."""
            if (metric := f"kvgate_{name}") in self._metrics:
                own = () if labels and labels[0][0] == "pod" else of_process
                points[metric, (*owner, *own, *labels)] = value

        replicas, ready = self._replicas(minute), self._ready(minute)
        put(
            "deployment_info",
            1,
            ("model", self._deployment.model),
            ("accelerator", "H100-SXM-80GB"),
            ("policy", "Reject"),
        )
        put("replicas", replicas)
        put("ready_replicas", min(ready, replicas))
        put("updated_replicas", 0 if self._new[minute] and ready < replicas else replicas)
        put("gpus", replicas)
        put("max_num_seqs", self._deployment.max_num_seqs)
        put("load_budget_seconds", self._deployment.load_budget_minutes * SECONDS_PER_MINUTE)
        self._predicted(put)
        self._states(minute, put)
        for pod, lived in self._pods.items():
            now = lived[minute]
            if now.exists:
                put("pod_info", 1, ("pod", pod), ("node", "node-a"))
                put("pod_ready", float(now.is_ready), ("pod", pod))
                put("pod_start_time_seconds", now.started_minute * SECONDS_PER_MINUTE, ("pod", pod))
                put("pod_restarts_total", now.restarts, ("pod", pod))
        self._observed(minute, put)
        return points

    def _predicted(self, put: Any) -> None:
        tokens, headroom = self._deployment.capacity_tokens, self._deployment.headroom
        low, expected, high = (headroom - 0.04, headroom, headroom + 0.04) if isinstance(headroom, float) else headroom
        put("kv_cache_demand_bytes", tokens * (1 - expected) * BYTES_PER_TOKEN)
        put("kv_cache_demand_tokens", int(tokens * (1 - expected)))
        for bound, share in (("low", low), ("expected", expected), ("high", high)):
            capacity = int(tokens * (1 + share - expected))
            put("kv_cache_capacity_tokens", capacity, ("bound", bound))
            put("kv_cache_capacity_bytes", capacity * BYTES_PER_TOKEN, ("bound", bound))
            put("kv_cache_headroom_ratio", share, ("bound", bound))
            put("kv_cache_headroom_bytes", share * tokens * BYTES_PER_TOKEN, ("bound", bound))
        put("gpu_memory_total_bytes", GPU_GIB * GIB)
        put("gpu_memory_requested_bytes", REQUESTED_GIB * GIB)
        cache = tokens * BYTES_PER_TOKEN
        for term, size in (("kv_cache", cache), ("weights", REQUESTED_GIB * GIB - cache), ("not_requested", 8 * GIB)):
            put("gpu_memory_bytes", size, ("term", term))

    def _states(self, minute: int, put: Any) -> None:
        complete = self._ready(minute) >= self._replicas(minute)
        headroom = self._deployment.headroom
        low = headroom - 0.04 if isinstance(headroom, float) else headroom[0]
        said = {
            "Accepted": "True Fits" if low >= 0 else "True MayNotFit",
            "Predicted": "True Found",
            "Ready": "True AllReplicasReady" if complete else "False ReplicasNotReady",
            "Reconciling": "False Settled" if complete else "True RollingOut",
            "Stalled": "False Settled",
        }
        said |= {type_: each[minute] for type_, each in self._conditions.items()}
        for type_, words in said.items():
            status, _, reason = words.partition(" ")
            put("condition", 1, ("type", type_), ("status", status), ("reason", reason))

    def _observed(self, minute: int, put: Any) -> None:
        seen = {pod: lived[minute] for pod, lived in self._pods.items() if lived[minute].is_ready}
        if not self._observing[minute]:
            seen = {}
        put("observed_pods", len(seen))
        put(
            "condition",
            1,
            ("type", "Observed"),
            ("status", "True" if seen else "Unknown"),
            ("reason", "PodsRead" if seen else "NoPods"),
        )
        if not seen:
            return
        predicted = self._deployment.capacity_tokens
        free = {}
        for pod, now in seen.items():
            free[pod] = self._capacity(now) * (1 - now.load.get("usage", 0))
            put("pod_kv_cache_capacity_tokens", self._capacity(now), ("pod", pod))
            put("pod_kv_cache_headroom_tokens", round(free[pod]), ("pod", pod))
            put("pod_release_known", 1, ("pod", pod))
        smallest = min(map(self._capacity, seen.values()))
        put("observed_kv_cache_capacity_tokens", smallest)
        put("observed_kv_cache_usage_ratio", max(now.load.get("usage", 0) for now in seen.values()))
        put("observed_kv_cache_headroom_tokens", round(min(free.values())))
        put("observed_kv_cache_headroom_ratio", min(free.values()) / predicted)
        error = smallest / predicted - 1
        put("prediction_error_ratio", error)
        drifts = abs(error) > 0.05
        put(
            "condition",
            1,
            ("type", "PredictionDrift"),
            ("status", str(drifts)),
            ("reason", "Drifts" if drifts else "Close"),
        )


def _cluster(name: str) -> Labels:
    return (("cluster", name),) if name else ()


class Processes:
    """kvgate's controllers and webhooks, of each cluster alike."""

    def __init__(self, scene: Scene, minutes: int) -> None:
        self._leading = by_minute(scene.controller, minutes)
        self._webhooks = by_minute(scene.webhooks, minutes)
        self._certificate = by_minute(scene.certificate_days, minutes)
        self._clusters = sorted({deployment.cluster for deployment in scene.deployments.values()}) or [""]
        self._since = [0] * (minutes + 1)
        for minute in range(1, minutes + 1):
            same = self._leading[minute] == self._leading[minute - 1]
            self._since[minute] = self._since[minute - 1] if same else minute

    def _labels(self, kind: str, letter: str, cluster: str) -> Labels:
        return (
            *_cluster(cluster),
            ("namespace", "kvgate-system"),
            ("pod", f"kvgate-{kind}-{letter}"),
            ("instance", f"10.1.{kind == 'webhook':d}.{ord(letter) - 96}:8080"),
            ("job", f"kvgate-{kind}"),
        )

    def leaders(self, minute: int, cluster: str) -> list[Labels]:
        """Return the target labels of each controller that exports InferenceDeployments."""
        leading = {"a": "a", "b": "b", "both": "ab", "none": ""}[self._leading[minute]]
        return [self._labels("controller", letter, cluster) for letter in leading]

    def points(self, minute: int) -> Points:
        """Return the series of all processes."""
        points: Points = {}
        for cluster in self._clusters:
            if self._leading[minute] != "none":
                for letter in "ab":
                    points |= self._controller(minute, letter, self._labels("controller", letter, cluster))
            for number in range(self._webhooks[minute]):
                points |= self._webhook(minute, self._labels("webhook", "ab"[number], cluster))
        return points

    def _controller(self, minute: int, letter: str, target: Labels) -> Points:
        leads = letter == self._leading[minute] or self._leading[minute] == "both"
        worked = (minute - self._since[minute]) if leads else 0
        one_lease: Labels = (*target, ("lease", "kvgate-controller"))
        return {
            ("up", target): 1,
            ("kvgate_build_info", (*target, ("version", "0.9.0"))): 1,
            ("kvgate_leader", one_lease): float(leads),
            ("kvgate_queue_depth", target): 0,
            ("kvgate_event_loop_lag_seconds", target): 0.002,
            ("kvgate_reconcile_total", (*target, ("result", "unchanged"))): worked * 4,
            ("kvgate_reconcile_total", (*target, ("result", "written"))): worked // 3,
            ("kvgate_pod_scrapes_total", (*target, ("result", "read"))): worked * 8,
            ("kvgate_calibration_starts", (*target, ("state", "used"))): 3,
            ("kvgate_calibration_starts", (*target, ("state", "contradictory"))): 0,
        }

    def _webhook(self, minute: int, target: Labels) -> Points:
        answered = minute * 3
        bucket = "kvgate_admission_review_duration_seconds_bucket"
        times = {"0.005": 0.9, "0.025": 0.98, "0.5": 1, "1.0": 1, "+Inf": 1}
        decided: Labels = (("decision", "Admit"), ("policy", "Reject"), ("operation", "UPDATE"))
        return {
            ("up", target): 1,
            ("kvgate_build_info", (*target, ("version", "0.9.0"))): 1,
            ("kvgate_webhook_certificate_expiry_timestamp_seconds", target): self._certificate[minute]
            * SECONDS_PER_DAY,
            ("kvgate_admission_errors_total", target): 0,
            ("kvgate_admission_reviews_total", (*target, *decided)): answered,
            **{(bucket, (*target, ("le", le))): round(answered * share) for le, share in times.items()},
        }

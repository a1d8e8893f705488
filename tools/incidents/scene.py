"""A scene: what happens to engines and to kvgate's own processes, minute by minute, and which alerts must and must not fire.

    name: The KV cache is full and requests queue
    what: Conversations become longer. …
    minutes: [15, 50, 90]             # begins, ends, and the scene itself ends
    deployments:
      serving/chat: {pods: {chat-0: {0: busy, 15: full, 50: busy}}}
    fires: {KvgateEngineFull: {within: 15}}

The files lie in tests/observability/incidents; its README names all keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "observability" / "incidents"
_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
State = str | dict[str, Any]
"""The name of a load or phase, or attributes of a load with `like`."""


class Deployment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An InferenceDeployment, or (with `workload`) engines that nobody declared."""

    pods: dict[str, Any]
    """Name → state, or states by the minute in which they begin."""
    release: str = "0.33.0"
    cluster: str = ""
    """External label of its Prometheus."""
    workload: bool = False
    """True: pods without an InferenceDeployment."""
    capacity_tokens: int = 400_000
    """Expected KV cache of one engine."""
    headroom: float | tuple[float, float, float] = 0.35
    """Predicted headroom as a share of the expected capacity, or low, expected, high."""
    max_num_seqs: int = 64
    replicas: int | dict[int, int] | None = None
    """Wanted replicas; by default the pods that exist."""
    generation_is_new: dict[int, bool] = {}
    """Minutes at which the controller begins or ends to roll out a new spec."""
    conditions: dict[str, dict[int, str]] = {}
    """Type → minute → status and reason, instead of what follows from the pods."""
    is_observed: bool | dict[int, bool] = True
    """True while the controller can read the pods' metrics."""
    offload: bool = False
    """True where a second tier of the KV cache lies in the host's memory."""
    dcgm: bool = False
    """True where DCGM's exporter reports the GPUs."""
    kube_state_metrics: bool = False
    model: str = "meta-llama/Llama-3.1-8B-Instruct"
    objective: dict[str, Any] = {}
    """`spec.objective`; its class decides what is not given."""
    load_budget_minutes: int = 30
    """Time that a start may take."""


class Edit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of all series that match."""

    match: str
    """Regular expression, searched in the series' text: name{label="value",…}."""
    during: tuple[int, int]
    """First minute, and the first one after."""
    turns: str | float
    """`gone` (with a staleness marker), `missing` (nothing is written, as while Prometheus itself is down), or a value."""


class Expected(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An alert that must fire."""

    within: int
    """Minutes from the beginning of the incident."""
    labels: dict[str, str] = {}
    """Labels that the alert must have; it may have more."""
    times: int = 1
    """Alerts of this name with different labels."""


class Report(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stretch of time that somebody reported in public: a row of a file in `reported/`, which becomes a scene."""

    source: str
    """Address of the report."""
    what: str
    pods: dict[str, Any] = {}
    """Pods of serving/chat, as in `Deployment`."""
    of: dict[str, Any] = {}
    """Other fields of that deployment."""
    beside: dict[str, Any] = {}
    """Other deployments by name."""
    at: tuple[int, int, int] = (20, 60, 95)
    """Same as `Scene.minutes`."""
    page: int | None = None
    """Minutes within which somebody is paged, where users are not served as promised."""
    warn: int | None = None
    """Minutes within which somebody is told by a warning, where nobody suffers yet; nobody is paged."""
    about: dict[str, str] = msgspec.field(
        default_factory=lambda: {"namespace": "serving", "inferencedeployment": "chat"}
    )
    """Labels that the alert has."""
    scene: dict[str, Any] = {}
    """Other keys of a scene."""

    def told(self, key: str) -> dict[str, Any]:
        """Return the fields of the scene. A row with neither `page` nor `warn` is quiet."""
        deployments = ({"serving/chat": {"pods": self.pods, **self.of}} if self.pods else {}) | self.beside
        found = {"page": self.page, "warn": self.warn, "about": self.about, "source": self.source}
        return {
            "name": key.replace("-", " ").capitalize(), "what": self.what, "minutes": self.at, "key": key, "is_reported": True,
            **({"deployments": deployments} if deployments else {}), **found, **self.scene,
        }  # fmt: skip


class Scene(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One incident, or a quiet stretch of time."""

    name: str
    what: str
    minutes: tuple[int, int, int]
    """The incident begins, it ends, and the scene ends."""
    deployments: dict[str, Deployment] = {}
    controller: str | dict[int, str] = "a"
    """The controller that leads: a, b, both (each holds a Lease of its own) or none."""
    webhooks: int | dict[int, int] = 2
    """Webhooks that run."""
    certificate_days: float | dict[int, float] = 60
    """Days from the beginning of the scene to the expiry of the certificate that is served."""
    series: dict[str, dict[int, Any]] = {}
    """Series with values of their own, instead of or beside those that follow from the rest."""
    edits: list[Edit] = []
    fires: dict[str, Expected] = {}
    may_fire: dict[str, str] = {}
    """Alerts that may fire beside them, each with the reason. All others must not."""
    runbook: str = ""
    """The alert whose runbook helps; by default the first that fires."""
    source: str = ""
    """Origin of the shape."""
    page: int | None = None
    warn: int | None = None
    about: dict[str, str] = {}
    is_reported: bool = False
    """True for a row of `reported/`, judged by whether somebody is told and not by the names of alerts."""
    key: str = ""
    """Name of the file; not written in it."""

    @property
    def is_quiet(self) -> bool:
        return not self.fires and self.page is None and self.warn is None


class SceneError(Exception):
    """A scene cannot be read; the message names the file and what is wrong."""


def read_scene(path: Path) -> Scene:
    """Read one file. Raises SceneError."""
    return _scene(path.name, {**_read(path), "key": path.stem})


def _read(path: Path) -> dict[str, Any]:
    try:
        return {**yaml.load(path.read_text(encoding="utf-8"), _YAML)}  # noqa: S506 - it is a safe loader
    except (yaml.YAMLError, TypeError) as error:
        raise SceneError(f"{path.name}: {error}") from error


def _scene(file: str, told: Mapping[str, Any]) -> Scene:
    try:
        scene = msgspec.convert(told, Scene, strict=False)
    except msgspec.ValidationError as error:
        raise SceneError(f"{file}: {error}") from error
    begins, ends, over = scene.minutes
    if not 0 <= begins <= ends <= over:
        raise SceneError(f"{file}: minutes: {begins}, {ends}, {over} are not in order")
    return scene


def _reports(path: Path) -> Iterator[Scene]:
    """Yield the scenes of a file of reports."""
    for key, row in _read(path).items():
        try:
            report = msgspec.convert(row, Report, strict=False)
        except msgspec.ValidationError as error:
            raise SceneError(f"{path.name}: {key}: {error}") from error
        yield _scene(f"{path.name}: {key}", report.told(key))


def scenes(folder: Path = FOLDER) -> tuple[Scene, ...]:
    """Read all scenes: the incidents, the quiet ones, and those that were reported in public, each group in the order of its files."""
    found = (*sorted((folder / "scenes").glob("*.yaml")), *sorted((folder / "quiet").glob("*.yaml")))
    reported = chain.from_iterable(map(_reports, sorted((folder / "reported").glob("*.yaml"))))
    read = (*map(read_scene, found), *reported)
    if twice := {scene.key for scene in read if [each.key for each in read].count(scene.key) > 1}:
        raise SceneError(f"scenes have the same name: {', '.join(sorted(twice))}")
    return read


def by_minute(timeline: Any, minutes: int) -> list[Any]:
    """Return what holds at each minute, from 0 to `minutes`; a plain value holds always."""
    if not isinstance(timeline, Mapping) or not all(isinstance(key, int) for key in timeline):
        return [timeline] * (minutes + 1)
    values: list[Any] = []
    for minute in range(minutes + 1):
        values.append(timeline[minute] if minute in timeline else values[-1])
    return values


def attributes(state: State, loads: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attributes of a load after `like` is followed. Raises SceneError for a name that nobody defines."""
    if isinstance(state, str):
        state = {"like": state}
    like = state.get("like")
    if like is None:
        return dict(state)
    if like not in loads:
        raise SceneError(f"no load is called {like!r}")
    return {**attributes(dict(loads[like]), loads), **{key: value for key, value in state.items() if key != "like"}}

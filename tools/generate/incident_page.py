"""docs/incidents.md: incidents, the alerts that they fire, and after how long; from the scenes and from the delays that were measured."""

import csv
from collections.abc import Iterator

from generate.reference import HEAD
from incidents.scene import FOLDER, Scene, scenes
from mixin.alerts import ALERTS

_SCENES = "../tests/observability/incidents"
_PAGE = """\
# Incidents and their alerts

After this page you know which alert an incident fires, how long that takes, and what does not wake anybody.

Each row is a [scene](SCENES/README.md): a file that says minute by minute what happens to engines and to kvgate. Tests play all
of them against the shipped rules on Prometheus 3 and Prometheus 2.42. They fail if an alert is late, resolves and fires again, lasts too
long, or fires where it must not. The delay runs from the beginning of the incident to the moment at which the alert fires, with one
scrape a minute and the default thresholds of the [alerts](reference/alerts.md). Severities: `critical` pages, `warning` can wait for the
morning, `info` is for whoever plans next.
"""
_QUIET = """\
## What fires nothing

A day of normal load, at steps of one minute, fires nothing at all. Of the other QUIET scenes none pages or warns; where an info
fires, the table names it.

| scene | what happens |
|---|---|"""


def incident_page() -> str:
    """Write a row for each incident, then the quiet scenes."""
    told = [scene for scene in scenes() if not scene.is_reported]
    incidents = [scene for scene in told if not scene.is_quiet]
    quiet = [scene for scene in told if scene.is_quiet]
    delays = _delays()
    noticed = sum(any((scene.key, alert) in delays for alert in scene.fires) for scene in incidents)
    pages = [delay for scene, alert, delay in _critical(incidents, delays)]
    numbers = (
        f"**{noticed} of {len(incidents)} incidents fire an alert, and the day of normal load fires 0.**"
        f" {len(pages)} of them page somebody, after {min(pages)} to {max(pages)} minutes.\n"
    )
    head = ["| incident | alert, and its delay | runbook |", "|---|---|---|"]
    rows = [_row(scene, delays) for scene in incidents]
    silent = [
        f"| [{scene.name}]({_SCENES}/quiet/{scene.key}.yaml) | {_cell(scene.what)}{_infos(scene)} |" for scene in quiet
    ]
    page = _PAGE.replace("SCENES", _SCENES)
    return "\n".join([
        HEAD, page, numbers, *head, *rows, "", _QUIET.replace("QUIET", str(len(quiet) - 1)), *silent, "",
    ])  # fmt: skip


def _delays() -> dict[tuple[str, str], int]:
    lines = (FOLDER / "measured.csv").read_text(encoding="utf-8").splitlines()
    return {(row["scene"], row["alert"]): int(row["delay_minutes"]) for row in csv.DictReader(lines)}


def _critical(incidents: list[Scene], delays: dict[tuple[str, str], int]) -> Iterator[tuple[str, str, int]]:
    """Yield (scene, alert, delay) of the first page of each incident that pages."""
    critical = {alert.name for alert in ALERTS if alert.severity == "critical"}
    for scene in incidents:
        found = sorted((delays[scene.key, alert], alert) for alert in scene.fires if alert in critical)
        if found:
            yield scene.key, found[0][1], found[0][0]


def _row(scene: Scene, delays: dict[tuple[str, str], int]) -> str:
    severities = {alert.name: alert.severity for alert in ALERTS}
    fired = sorted((delays.get((scene.key, alert), 0), alert) for alert in scene.fires)
    alerts = "<br>".join(f"{alert} ({severities[alert]}): {delay} min" for delay, alert in fired)
    runbook = scene.runbook or next(iter(scene.fires))
    link = f"[{scene.name}]({_SCENES}/scenes/{scene.key}.yaml)"
    return f"| {link}: {_cell(scene.what)} | {alerts} | [{runbook.removeprefix('Kvgate')}](runbooks/{runbook}.md) |"


def _infos(scene: Scene) -> str:
    return f" ({', '.join(scene.may_fire)} may fire.)" if scene.may_fire else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

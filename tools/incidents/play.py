"""Play scenes with promtool, measure when alerts fire, and judge that against what each scene expects.

promtool only compares. So every test expects nothing, and the measurements are read from what it reports as the difference.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from controlplane.prometheus import PrometheusError, run_rule_tests
from incidents.scene import Scene
from incidents.world import notation

SECONDS_PER_MINUTE = 60
LIMIT_SECONDS = 800
LENGTHS_MINUTES = (90, 115, 150, 240, 450, 1440)
"""Scenes that are played at once: each lasts as long as the longest of them."""
MOST_AT_ONCE = 32
"""Scenes of one file; files are played side by side."""
LINGERS_MINUTES = 45
"""Time after the end of an incident in which its alerts must be over; what counts events of half an hour needs it."""
Labels = tuple[tuple[str, str], ...]
_FIRING = 'ALERTS{alertstate="firing",cluster=~"|(KEYS)(/.*)?"}'
"""Alerts of the scenes that end now, and those that lose the label: promtool takes only 10,000 samples in one query."""
_MEASURES = {
    "first": f"min_over_time(timestamp({_FIRING})",
    "last": f"max_over_time(timestamp({_FIRING})",
    "count": f"count_over_time({_FIRING}",
}
_DIFFERENCE = re.compile(
    r'expr: "(.*?)(?<!\\)", time: [^,]*,\s*exp:\s*(?:\[\]|nil)\s*got:(.*?)(?=expr: "|\Z)', re.DOTALL
)
_SAMPLE = re.compile(r"\{([^}]*)\} ([-+0-9.eE]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Firing(Struct, frozen=True, kw_only=True):
    """One alert of one set of labels, over a whole scene."""

    alert: str
    labels: dict[str, str]
    first_minute: int
    last_minute: int
    minutes: int
    """Minutes in which it fired; fewer than from the first to the last where it resolved in between."""

    @property
    def is_continuous(self) -> bool:
        return self.minutes == self.last_minute - self.first_minute + 1


Played = Mapping[str, Sequence[Firing]]
"""Key of the scene → alerts that fired in it."""


class Prepared(Struct, frozen=True, kw_only=True):
    """Files of promtool for some scenes and rules; both lines of Prometheus read the same."""

    ends: dict[str, int]
    """Key of each scene, and its last minute."""
    rules: str
    parts: tuple[str, ...]
    """Files of tests."""


def prepare(scenes: Iterable[Scene], groups: Mapping[str, Any]) -> Prepared:
    """Write all scenes in promtool's notation. Raises SceneError.

    Scenes of similar length are played at once, each as a cluster of its own: rules keep the label, and an evaluation of many series
    costs little more than one of few.
    """
    rules, told = yaml.safe_dump(dict(groups)), tuple(scenes)
    batches: dict[int, list[Scene]] = {}
    for scene in told:
        length = next(limit for limit in LENGTHS_MINUTES if scene.minutes[2] <= limit)
        batches.setdefault(length, []).append(scene)
    chunks = [
        batches[length][at : at + MOST_AT_ONCE]
        for length in batches
        for at in range(0, len(batches[length]), MOST_AT_ONCE)
    ]
    whole = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "group_eval_order": [group["name"] for group in groups["groups"]],
    }
    fast = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    parts = tuple(
        yaml.dump({**whole, "tests": [_test(chunk, rules)]}, Dumper=fast, width=10_000_000) for chunk in chunks
    )
    return Prepared(ends={scene.key: scene.minutes[2] for scene in told}, rules=rules, parts=parts)


def _test(batch: Sequence[Scene], rules: str) -> dict[str, Any]:
    """Return promtool's test group of scenes that are played at once."""
    series: dict[str, str] = {}
    for scene in batch:
        series |= {_within(scene.key, text): values for text, values in notation(scene, rules).items()}
    ends = sorted({scene.minutes[2] for scene in batch})
    keys = {end: "|".join(scene.key for scene in batch if scene.minutes[2] == end) for end in ends}
    asked = [
        (f"{begin.replace('KEYS', keys[end])}[{end + 1}m:1m])", end) for end in ends for begin in _MEASURES.values()
    ]
    return {
        "interval": "1m",
        "input_series": [{"series": text, "values": values} for text, values in series.items()],
        "promql_expr_test": [{"expr": each, "eval_time": f"{at}m", "exp_samples": []} for each, at in asked],
    }


def _within(key: str, text: str) -> str:
    """Return a series as one of the scene's cluster; a cluster that it names itself comes after a slash."""
    named = re.sub(r'(?<=[{,])cluster="', f'cluster="{key}/', text)
    return named if named != text else text.replace("{", f'{{cluster="{key}",', 1)


def play(assets: Path, prepared: Prepared) -> Played:
    """Play all scenes, in several runs of promtool side by side.

    Raises PrometheusError where promtool refuses the files, and where an alert loses the label that tells several scenes apart.
    """
    with tempfile.TemporaryDirectory(prefix="kvgate-incidents-") as name, ThreadPoolExecutor() as runs:
        folder = Path(name)
        (folder / "rules.yaml").write_text(prepared.rules, encoding="utf-8")
        for number, text in enumerate(prepared.parts):
            (folder / f"{number}.yaml").write_text(text, encoding="utf-8")
        said = list(
            runs.map(partial(_said, assets), [folder / f"{number}.yaml" for number in range(len(prepared.parts))])
        )
    found: dict[tuple[int, Labels], dict[str, float]] = {}
    for end, measure, labels, value in chain.from_iterable(map(_measured, said)):
        found.setdefault((end, labels), {})[measure] = value
    only = next(iter(prepared.ends)) if len(prepared.ends) == 1 else ""
    firings = [(end, *_firing(labels, values, only)) for (end, labels), values in sorted(found.items())]
    if stray := sorted({firing.alert for _, key, firing in firings if key not in prepared.ends}):
        raise PrometheusError(f"these alerts lose the label cluster: {', '.join(stray)}")
    return {
        key: [firing for at, scene, firing in firings if (at, scene) == (end, key)]
        for key, end in prepared.ends.items()
    }


def _said(assets: Path, tests: Path) -> str:
    """Return promtool's report about the differences."""
    try:
        run_rule_tests(assets, tests, limit_seconds=LIMIT_SECONDS)
    except PrometheusError as error:
        if not _DIFFERENCE.search(str(error)) or ", err: " in str(error):
            raise  # a question without an answer would read as silence
        return str(error)
    return ""


def _measured(said: str) -> Iterator[tuple[int, str, Labels, float]]:
    """Yield (minute of the question, measure, labels, value) from promtool's report."""
    for expression, got in _DIFFERENCE.findall(said):
        measure = next(name for name, begin in _MEASURES.items() if expression.startswith(begin.partition("{")[0]))
        end = int(expression.rpartition("[")[2].partition("m")[0]) - 1
        for labels, value in _SAMPLE.findall(got):
            named = tuple(each for each in sorted(_LABEL.findall(labels)) if each[0] != "__name__")
            yield end, measure, named, float(value)


def _firing(labels: Labels, values: Mapping[str, float], only: str) -> tuple[str, Firing]:
    """Return the key of the scene, and the alert with the labels that it would have without the other scenes."""
    own = dict(labels)
    key, _, cluster = own.pop("cluster", "").partition("/")
    return key or only, Firing(
        alert=own["alertname"],
        labels=own | ({"cluster": cluster} if cluster else {}),
        first_minute=round(values["first"] / SECONDS_PER_MINUTE),
        last_minute=round(values["last"] / SECONDS_PER_MINUTE),
        minutes=round(values["count"]),
    )


def complaints(scene: Scene, firings: Sequence[Firing]) -> list[str]:
    """Return what is wrong with the alerts of a scene, one sentence each; nothing where they are as expected."""
    if scene.is_reported:
        return _complaints_of_report(scene, firings)
    begins, ends, over = scene.minutes
    wrong = []
    for alert, expected in scene.fires.items():
        fired = [each for each in firings if each.alert == alert]
        fitting = [each for each in fired if expected.labels.items() <= each.labels.items()]
        if not fitting:
            with_labels = f" with {expected.labels}, but with {[each.labels for each in fired]}" if fired else ""
            wrong.append(f"{alert} does not fire{with_labels}")
            continue
        if len(fired) != expected.times:
            wrong.append(f"{alert} fires {len(fired)} times at once and not {expected.times}")
        delay = min(each.first_minute for each in fitting) - begins
        if delay < 0:
            wrong.append(f"{alert} fires {-delay} min before the incident begins")
        if delay > expected.within:
            wrong.append(f"{alert} fires {delay} min after the beginning, later than {expected.within} min")
        wrong += [
            f"{alert} resolves and fires again: {each.minutes} min between {each.first_minute} and {each.last_minute}"
            for each in fired
            if not each.is_continuous
        ]
        lingers = max(each.last_minute for each in fired) - ends
        if ends + LINGERS_MINUTES <= over and lingers > LINGERS_MINUTES:
            wrong.append(f"{alert} still fires {lingers} min after the end")
    allowed = scene.fires.keys() | scene.may_fire.keys()
    wrong += [
        f"{each.alert} must not fire, but does from {each.first_minute} to {each.last_minute} min with {each.labels}"
        for each in firings
        if each.alert not in allowed
    ]
    return wrong


def _complaints_of_report(scene: Scene, firings: Sequence[Firing]) -> list[str]:
    """Return what is wrong where the scene says who suffers and not which alert fires; an info says nothing to anybody on call."""
    begins, ends, over = scene.minutes
    heard = [each for each in firings if each.labels["severity"] != "info"]
    wrong = [
        f"{each.alert} fires from {each.first_minute} to {each.last_minute} min with {each.labels}"
        for each in heard
        if scene.is_quiet or each.first_minute < begins or not scene.about.items() <= each.labels.items()
    ]
    if scene.is_quiet:
        return wrong
    pages = sorted({each.alert for each in heard if each.labels["severity"] == "critical"})
    within = scene.warn if scene.page is None else scene.page
    if (delay := told_minutes(scene, firings)) is None:
        wrong.append(
            "nobody is told"
            if scene.page is None
            else f"nobody is paged{'; ' + heard[0].alert + ' warns' if heard else ''}"
        )
    elif within is not None and delay > within:
        wrong.append(f"somebody is told {delay} min after the beginning, later than {within} min")
    if scene.page is None and pages:
        wrong.append(f"{', '.join(pages)} pages although nobody suffers")
    if len(pages) > 1:
        wrong.append(f"{', '.join(pages)} page for one incident")
    for each in heard:
        if not each.is_continuous:
            wrong.append(
                f"{each.alert} resolves and fires again: {each.minutes} min between {each.first_minute} and {each.last_minute}"
            )
        if ends + LINGERS_MINUTES <= over and each.last_minute - ends > LINGERS_MINUTES:
            wrong.append(f"{each.alert} still fires {each.last_minute - ends} min after the end")
    return wrong


def told_minutes(scene: Scene, firings: Sequence[Firing]) -> int | None:
    """Return the minutes after which a report's page or warning begins; None where it does not."""
    loud = ("critical",) if scene.page is not None else ("critical", "warning")
    first = [
        each.first_minute
        for each in firings
        if each.labels["severity"] in loud and scene.about.items() <= each.labels.items()
    ]
    return min(first) - scene.minutes[0] if first else None


def delay_minutes(scene: Scene, firings: Sequence[Firing], alert: str) -> int | None:
    """Return the minutes from the beginning of the incident until the alert fires; None where it does not."""
    first = [each.first_minute for each in firings if each.alert == alert]
    return min(first) - scene.minutes[0] if first else None

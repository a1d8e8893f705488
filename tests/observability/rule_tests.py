"""Rule tests in promtool's own format, run against the rules that are shipped."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from controlplane.prometheus import run_rule_tests
from mixin.alerts import rule_groups

Json = dict[str, Any]
written = partial(yaml.dump, Dumper=yaml.CSafeDumper, width=10_000_000)
"""YAML, five times as fast as by `yaml.safe_dump`."""


def situation(series: Mapping[str, str]) -> Json:
    return {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series.items()]}


def spelled(values: Sequence[float | None]) -> str:
    """One value a minute in promtool's words: a scrape that fails ends a series, as Prometheus does it."""
    words = ["_" if value is None else f"{value:.10g}" for value in values]
    ends = [now for now in range(1, len(words)) if words[now] == "_" != words[now - 1]]
    for now in ends:
        words[now] = "stale"
    return " ".join([*words, "stale"])


def only(alert: str) -> Json:
    """The rules of one alert, with the recorded series that it reads: promtool evaluates all rules of a file in every minute."""
    rules = [rule for group in rule_groups()["groups"] for rule in group["rules"]]
    (asked,) = (rule for rule in rules if rule.get("alert") == alert)
    recorded = [rule for rule in rules if "record" in rule and rule["record"] in asked["expr"]]
    return {"groups": [{"name": "kvgate", "rules": [*recorded, asked]}]}


def run_each(assets: Path, folder: Path, tests: Iterable[tuple[str, Json]]) -> None:
    """Tests of alerts by name, each against the rules of its alert."""
    files = []
    for alert, of_alert in groupby(sorted(tests, key=itemgetter(0)), key=itemgetter(0)):
        (folder / f"{alert}.rules.yaml").write_text(written(only(alert)), encoding="utf-8")
        whole = {
            "rule_files": [f"{alert}.rules.yaml"],
            "evaluation_interval": "1m",
            "tests": [test for _, test in of_alert],
        }
        files.append(folder / f"{alert}.tests.yaml")
        files[-1].write_text(written(whole), encoding="utf-8")
    run_rule_tests(assets, *files)


def run(assets: Path, folder: Path, tests: Sequence[Json], groups: Json | None = None) -> None:
    """The tests against the rules that are shipped, or others."""
    shipped = groups or rule_groups()
    (folder / "rules.yaml").write_text(written(shipped), encoding="utf-8")
    order = [group["name"] for group in shipped["groups"]]
    whole = {
        "rule_files": ["rules.yaml"], "evaluation_interval": "1m", "group_eval_order": order, "tests": list(tests),
    }  # fmt: skip
    (folder / "tests.yaml").write_text(written(whole), encoding="utf-8")
    run_rule_tests(assets, folder / "tests.yaml")

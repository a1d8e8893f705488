"""Rule tests in promtool's own format, run against the rules that are shipped."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from controlplane.prometheus import run_rule_tests
from kvgate.monitoring.alerts import rule_groups

Json = dict[str, Any]


def situation(series: Mapping[str, str]) -> Json:
    return {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series.items()]}


def run(assets: Path, folder: Path, tests: Sequence[Json], groups: Json | None = None) -> None:
    """The tests against the rules that are shipped, or others."""
    shipped = groups or rule_groups()
    (folder / "rules.yaml").write_text(yaml.safe_dump(shipped), encoding="utf-8")
    order = [group["name"] for group in shipped["groups"]]
    whole = {
        "rule_files": ["rules.yaml"], "evaluation_interval": "1m", "group_eval_order": order, "tests": list(tests),
    }  # fmt: skip
    (folder / "tests.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    run_rule_tests(assets, folder / "tests.yaml")

"""`make observe` runs what ships, only faster."""

import re
from pathlib import Path

import pytest
import yaml

from fleet.pace import faster

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


def test_every_duration_is_divided_and_nothing_else_is_changed() -> None:
    rules = {
        "groups": [
            {
                "name": "5m",
                "interval": "1m",
                "rules": [
                    {"alert": "A", "expr": "rate(a_5m[5m] offset 1h) > 60", "for": "10m", "labels": {"for_10m": "10m"}},
                    {"record": "a:rate5m", "expr": "sum(rate(a[90s])) / 30", "keep_firing_for": "1h30m"},
                ],
            }
        ]
    }
    assert faster(rules, 60) == {
        "groups": [
            {
                "name": "5m",
                "interval": "1000ms",
                "rules": [
                    {"alert": "A", "expr": "rate(a_5m[5000ms] offset 60000ms) > 60", "for": "10000ms", "labels": {"for_10m": "10m"}},
                    {"record": "a:rate5m", "expr": "sum(rate(a[1500ms])) / 30", "keep_firing_for": "90000ms"},
                ],
            }
        ]
    }  # fmt: skip


@pytest.mark.parametrize("name", ["scrape.yaml", "rules.yaml"])
def test_no_window_of_what_ships_is_left_at_its_own_pace(name: str) -> None:
    shipped = (SHIPPED / name).read_text(encoding="utf-8")
    written = yaml.safe_dump(faster(yaml.safe_load(shipped), 60))
    duration = r"(?:(?:for|interval|_interval): |\[)\d+(?:s|m|h|d)\b"
    assert re.search(duration, shipped)
    assert not re.search(duration, written)

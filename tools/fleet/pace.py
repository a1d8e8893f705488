"""The shipped rules and configuration of Prometheus with shorter times: a demonstration need not wait until an alert fires."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SECONDS: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+)(ms|[smhd])")
_DURATION = r"(?:\d+(?:ms|[smhd]))+"
_KEYS = frozenset({"for", "interval", "keep_firing_for", "scrape_interval", "evaluation_interval"})
_IN_EXPRESSION = re.compile(rf"(?<=\[){_DURATION}(?=\])|(?<=offset ){_DURATION}")


def faster(document: Any, pace: float, key: str = "") -> Any:
    """Every duration of a configuration or of rules, those inside expressions included, divided by `pace`."""

    def shorter(found: re.Match[str]) -> str:
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(found[0]))
        return f"{round(seconds * 1000 / pace)}ms"

    if isinstance(document, dict):
        return {name: faster(value, pace, name) for name, value in document.items()}
    if isinstance(document, list):
        return [faster(value, pace) for value in document]
    if key in _KEYS:
        return re.sub(_DURATION, shorter, document)
    return _IN_EXPRESSION.sub(shorter, document) if key == "expr" else document

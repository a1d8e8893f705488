"""Fixtures of every folder."""

from pathlib import Path

import pytest

from controlplane.prometheus import LINES
from support.prometheus import require_prometheus
from support.waiting import Clock


@pytest.fixture(scope="session", params=LINES, ids="Prometheus {}".format)
def prometheus_assets(request: pytest.FixtureRequest) -> Path:
    """prometheus and promtool, first of line 3, then of line 2: each test runs on both."""
    return require_prometheus(request.config, request.param)


@pytest.fixture
def clock() -> Clock:
    return Clock()

"""Fixtures of every folder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.prometheus import LINES
from kvgate.cli.explain import report as explain_report
from kvgate.cli.reports import json_report
from kvgate.cli.size import report as size_report
from kvgate.cli.sweep import report as sweep_report
from support.collecting import pytest_collection, pytest_collection_modifyitems  # noqa: F401 - hooks
from support.json_schemas import checked_report
from support.no_skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks
from support.prometheus import require_prometheus
from support.waiting import Clock


@pytest.fixture(scope="session", params=LINES, ids="Prometheus {}".format)
def prometheus_assets(request: pytest.FixtureRequest) -> Path:
    """prometheus and promtool, first of line 3, then of line 2: each test runs on both."""
    return require_prometheus(request.config, request.param)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session", autouse=True)
def _every_json_report_follows_its_schema() -> Iterator[None]:
    """Check each report that any test writes as JSON; what other processes write, their tests give to `checked_report`."""

    def checked(render: Callable[..., str]) -> Callable[..., str]:
        def rendered(*report: Any, **more: Any) -> str:
            text = render(*report, **more)
            if report[1:2] != ("text",):  # `explain` writes both
                checked_report(text)
            return text

        return rendered

    with pytest.MonkeyPatch.context() as patch:
        writers = (
            (json_report, "render"),
            (json_report, "render_difference"),
            (explain_report, "answer"),
            (size_report, "json_report"),
            (sweep_report, "json_report"),
        )
        for module, name in writers:
            patch.setattr(module, name, checked(getattr(module, name)))
        yield

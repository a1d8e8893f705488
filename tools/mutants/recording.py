"""A pytest plugin for runs with mutants, and for the run before them that learns which test runs which line.

$MUTANTS_SECONDS names a file for the seconds of each test that passed; each line that runs counts for its test. $MUTANTS_TESTS names a
file with the tests to run, one per line and in this order: thousands of arguments would take pytest longer than the tests.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from coverage import Coverage

SECONDS: dict[str, float] = {}
FAILED: set[str] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the chosen tests, in their order."""
    if chosen := os.environ.get("MUTANTS_TESTS"):
        by_id = {item.nodeid: item for item in items}
        items[:] = [by_id[test] for test in Path(chosen).read_text(encoding="utf-8").splitlines() if test in by_id]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the lines that run from here on count for this test, also those whose results an earlier test has left in a cache."""
    if running := Coverage.current():
        rooms = tuple(f"kvgate.{room}" for room in os.environ["MUTANTS_ROOMS"].split(","))
        modules = [module for name, module in sys.modules.items() if name.startswith(rooms)]
        for cached in (value for module in modules for value in vars(module).values()):
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        running.switch_context(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up set-up, call and tear-down."""
    SECONDS[report.nodeid] = SECONDS.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        FAILED.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write what was added up, without the tests that failed."""
    if "MUTANTS_SECONDS" not in os.environ:
        return
    passed = {test: seconds for test, seconds in SECONDS.items() if test not in FAILED}
    Path(os.environ["MUTANTS_SECONDS"]).write_text(json.dumps(passed), encoding="utf-8")

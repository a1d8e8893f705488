"""Collection of 15,000 tests, and the memory that it leaves, without work that nobody needs."""

import gc
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from run_tests import CLUSTER_FOLDERS

LONGEST = (
    "cluster/test_resolving", "cluster/test_controller_faults", "cluster/test_standing_verdicts", "cluster/test_two_controllers",
    "cluster/test_every_door", "cluster/test_calibration", "cluster/test_last_admitted", "cluster/test_observe", "cluster/test_demo",
    "cluster/test_controller_observes", "cluster/test_chart", "cluster/test_pinned", "cluster/test_controlplane",
    "integration/test_dashboards", "observability/test_lying_exporters", "integration/test_hostile_renderings",
    "property/test_monotone_capacity", "incidents/test_incidents", "observability/test_prometheus", "integration/test_prometheus",
    "integration/test_action", "observability/test_alerts", "fuzz/test_fuzz", "cli/test_hostile_text", "recipes/test_recipes",
)  # fmt: skip
"""Files that take more than half a minute, or so long when others run: those that wait most come first, while others have work."""

sys.dont_write_bytecode = False
"""Where an image of a container sets the variable, each worker would rewrite the asserts of 500 files anew: 9 s of CPU."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing is garbage before the first test, and what was collected lives until the last: leave both to no search for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: a worker that takes one of them last works alone.

    `make test` looks for tests with a control plane in their folders only, so there are none elsewhere.
    """
    items.sort(key=lambda item: LONGEST.index(_short(item.path)) if _short(item.path) in LONGEST else len(LONGEST))
    folders = tuple(config.rootpath / folder for folder in CLUSTER_FOLDERS)
    for item in items:
        if item.get_closest_marker("cluster") and not any(item.path.is_relative_to(each) for each in folders):
            raise pytest.UsageError(
                f"{item.nodeid} needs a control plane, but lies outside of {', '.join(CLUSTER_FOLDERS)}"
            )


def _short(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"

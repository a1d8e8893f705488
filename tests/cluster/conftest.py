"""The beginning of most tests of a control plane: the plane, a controller, and the objects that it serves."""

import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from controlplane.plane import ControlPlane
from support.assets import require_assets
from support.doors import Door, running
from support.inference import Objects
from support.shared_plane import SharedPlane

TEST_SECONDS = 1200
"""For a test alone: the start of a control plane that its file shares is limited by progress, and each wait has its own limit."""
CONTROLLER_OPTIONS = ("--metrics-host=127.0.0.1", "--resync-seconds=1", "--observe-seconds=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit their time."""
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the logs of the control plane of a test that fails, and say where they are."""
    report = yield
    plane = getattr(item, "funcargs", {}).get("plane")
    if report.failed and isinstance(plane, ControlPlane):
        plane.keeps_logs = True
        report.sections.append(("logs of the control plane and the controller", str(plane.logs)))
    return report


@pytest.fixture(scope="session")
def shared_plane(pytestconfig: pytest.Config) -> Iterator[SharedPlane]:
    shared = SharedPlane(assets=require_assets(pytestconfig))
    yield shared
    shared.end()


@pytest.fixture(scope="module")
def plane(shared_plane: SharedPlane) -> ControlPlane:
    """The control plane of a worker, as good as new for the tests of a file, with the CRD and nodes that have GPUs on paper."""
    return shared_plane.as_at_the_start()


@pytest.fixture(scope="module")
def door(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Door]:
    """One controller for the tests of a file, with the file's OPTIONS if it has any."""
    options = getattr(request.module, "OPTIONS", CONTROLLER_OPTIONS)
    with running("controller", *options, kubeconfig=plane.kubeconfig) as door:
        yield door


@pytest.fixture
def objects(plane: ControlPlane, door: Door) -> Objects:
    """The objects that the controller serves."""
    return Objects(plane=plane)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A TMPDIR for a program that must leave it empty. It is short, because the path of a socket in it may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="k-") as folder:
        yield Path(folder)

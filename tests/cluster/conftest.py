"""What most tests of a control plane begin with."""

from collections.abc import Iterator

import pytest

from controlplane.plane import ControlPlane
from support.assets import require_assets
from support.inference import install


@pytest.fixture(scope="module")
def plane(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """One for the tests of a file, with the CRD and nodes with GPUs on paper."""
    with ControlPlane(require_assets(pytestconfig)) as plane:
        install(plane)
        yield plane

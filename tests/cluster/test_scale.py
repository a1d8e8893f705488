"""The short form of `make scale`: what 60 objects cost the API server, when they are new, when they are settled, and after a restart."""

import pytest

from controlplane.plane import ControlPlane
from scale import stages
from scale.fleet import controller, create, ours
from support.inference import Objects

pytestmark = pytest.mark.cluster
OBJECTS = 60


@pytest.mark.slow
def test_new_settled_and_restarted_objects_cost_few_requests(plane: ControlPlane) -> None:
    create(plane, OBJECTS)
    plane.begin_audit()
    with controller(plane, "--resync-seconds=3", "--observe-seconds=1") as process:
        cold = stages.cold(plane, process, OBJECTS)
        assert cold["requests per object"] - cold["lists"] / OBJECTS <= 6
        plane.begin_audit()
        Objects(plane=plane).resync(2)
        assert not [each for each in ours(plane) if each.is_write or each.verb == "get"], "nothing to read or to write"
    restarted = stages.restarted(plane, OBJECTS)
    assert restarted["writes"] == 0
    assert restarted["requests beside LIST and watch"] <= 20

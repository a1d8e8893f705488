"""The short form of `make chaos`: storms of some seconds around two controllers, after which all is as it should be."""

from collections.abc import Iterator

import pytest

from chaos.replicas import World, world
from chaos.scenes import SCENES, SHORT, SHORT_SECONDS, Scene, play
from controlplane.plane import ControlPlane

pytestmark = pytest.mark.cluster
OBJECTS = 4


@pytest.fixture(scope="module")
def served(plane: ControlPlane) -> Iterator[World]:
    with world(plane, OBJECTS) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene.name in SHORT], ids=lambda scene: scene.name)
def test_after_a_storm_all_is_as_it_should_be(served: World, scene: Scene) -> None:
    outcome = play(scene, served, seconds=SHORT_SECONDS)
    assert outcome.is_well, outcome

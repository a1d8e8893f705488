"""What a server builds of a model's towers: arguments and releases."""

import pytest

from kvgate.budget.engine.request import EngineSettings
from kvgate.budget.engine.run import built_shape
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.matrix import Cut
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.releases.versions import accounting_of
from support.builders import catalogue_shape

SEES = "Qwen/Qwen2.5-VL-7B-Instruct"
SEES_AND_HEARS = "google/gemma-4-12B-it"


def built(name: str, release: str = "0.32.0", tensor: int = 1, **asked: object) -> ModelShape:
    settings = EngineSettings(parallelism=Parallelism(tensor=tensor), **asked)  # type: ignore[arg-type]
    return built_shape(catalogue_shape(name), accounting_of(release), settings)


def modalities(shape: ModelShape) -> list[set[str]]:
    return [{item.modality for item in encoder.items} for encoder in shape.encoders]


def test_a_text_server_builds_no_towers() -> None:
    assert modalities(built(SEES)) == [{"image", "video"}]
    assert built(SEES, language_model_only=True).encoders == ()
    assert built(SEES, limit_mm_per_prompt=(("image", 0), ("video", 0))).encoders == ()


def test_a_tower_stays_for_what_may_still_come() -> None:
    assert built(SEES, limit_mm_per_prompt=(("image", 2), ("video", 0))).encoders == built(SEES).encoders
    assert modalities(built(SEES_AND_HEARS, limit_mm_per_prompt=(("audio", 0),))) == [{"image", "video"}]


def test_older_releases_build_what_nothing_reaches() -> None:
    assert len(built(SEES, "0.14.1", limit_mm_per_prompt=(("image", 0), ("video", 0))).encoders) == 1


def cuts(shape: ModelShape) -> set[Cut]:
    return {matrix.cut for encoder in shape.encoders for matrix, _ in encoder.matrices}


@pytest.mark.parametrize(("asked", "expected"), [({}, set(Cut)), ({"mm_encoder_tp_mode": "data"}, {Cut.WHOLE})])
def test_in_data_mode_every_rank_holds_the_whole_tower(asked: dict[str, str], expected: set[Cut]) -> None:
    assert cuts(built(SEES, tensor=4, **asked)) == expected


@pytest.mark.parametrize(("tensor", "expected"), [(4, set(Cut)), (8, {Cut.WHOLE})])
def test_heads_that_do_not_divide_leave_a_tower_whole(tensor: int, expected: set[Cut]) -> None:
    """Kimi K3: 12 heads."""
    assert cuts(built("moonshotai/Kimi-K3", tensor=tensor)) == expected


@pytest.mark.parametrize("name", [SEES, "Qwen/Qwen3-8B"])
def test_the_same_question_has_the_same_shape(name: str) -> None:
    shape, accounting = catalogue_shape(name), accounting_of("0.32.0")
    answers = [built_shape(shape, accounting, EngineSettings(mm_encoder_tp_mode="data")) for _ in range(2)]
    assert answers[0] is answers[1]
    assert (answers[0] is shape) == (not shape.encoders)


def test_interleaved_positions_had_as_much_room_as_others() -> None:
    """Qwen3.5-9B: 17.66 GiB at 0.19.0, where the tables were 0.09 GiB larger than at 0.32.0."""
    before, since = (built("Qwen/Qwen3.5-9B", release) for release in ("0.19.0", "0.32.0"))
    assert [table.max_position for table in before.rotary] == [4 * 262144]
    assert [table.max_position for table in since.rotary] == [262144]

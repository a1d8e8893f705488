"""Keys of a model's config that vLLM replaces: which of them change the shape, and the config that results."""

from typing import Any

from kvgate.budget import accounting_of
from kvgate.vllm.given_settings import changes_length, overridden, shape_overrides
from support.tables import table

NEW, OLD = "0.32.0", "0.11.0"
DEEP: dict[str, Any] = {"text_config": {"text_config": {"text_config": {"text_config": {"num_experts": 1}}}}}


@table(
    ("overrides", "release", "found"),
    [
        ({"num_hidden_layers": 4}, OLD, {"num_hidden_layers": 4}),
        ({"num_hidden_layers": 4, "rope_theta": 1e6, "eos_token_id": 2}, NEW, {"num_hidden_layers": 4}),
        (
            {
                "architectures": ["Qwen3ForSequenceClassification"],
                "classifier_from_token": ["no", "yes"],
                "is_original_qwen3_reranker": True,
            },
            NEW,
            {"architectures": ["Qwen3ForSequenceClassification"]},
        ),
        ({"hidden_size": 64}, NEW, None),
        ({"hidden_size": 64, "head_dim": 16}, NEW, {"hidden_size": 64, "head_dim": 16}),
        ({"sliding_window": None}, NEW, None),
        ({"of_a_fork": 1}, NEW, None),
        ({"text_config": {"num_hidden_layers": 4}}, NEW, {"text_config": {"num_hidden_layers": 4}}),
        ({"text_config": {"num_hidden_layers": 4}}, OLD, None),
        ({"text_config": {"rope_scaling": {"factor": 4}}}, OLD, {}),
        ({"text_config": 3}, NEW, None),
        (DEEP, NEW, None),
        ("corp.overrides.change", NEW, None),
        ({str(number): 1 for number in range(1000)}, NEW, None),
    ],
)
def test_the_keys_that_change_the_shape(overrides: object, release: str, found: object) -> None:
    assert shape_overrides(overrides, reaches_inside=accounting_of(release).overrides_inner_configs) == found


def test_a_sub_config_keeps_its_other_keys() -> None:
    config = {"text_config": {"num_hidden_layers": 32, "hidden_size": 64}, "vocab_size": 10}
    changed = overridden(config, {"text_config": {"num_hidden_layers": 4}, "vocab_size": 20})
    assert changed == {"text_config": {"num_hidden_layers": 4, "hidden_size": 64}, "vocab_size": 20}
    assert config["vocab_size"] == 10
    assert overridden({}, {"text_config": {"a": 1}}) == {"text_config": {"a": 1}}


@table(
    ("overrides", "changes"),
    [({"num_hidden_layers": 4}, False), ({"rope_scaling": {}}, True), ({"text_config": {"rope_theta": 1}}, True),
     ({"text_config": {"vocab_size": 1}}, False), (None, False), ({}, False), ("corp.change", True), (DEEP, True)],
)  # fmt: skip
def test_the_keys_that_change_the_length(overrides: object, *, changes: bool) -> None:
    assert changes_length(overrides) is changes

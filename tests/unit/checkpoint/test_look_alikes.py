"""Classes that nobody read are judged by their tensors, or not at all."""

from typing import Any

import pytest

from kvgate.checkpoint.published import Published, PublishedModels, by_name, shape_of
from kvgate.checkpoint.tensors import TensorGroup, summarize
from kvgate.findings.finding import Severity
from kvgate.judgement.models import look_up_model
from support.builders import new_llama_config
from support.checkpoints import llama, new_tensors, plain

UNREAD = {"architectures": ["NobodyReadThisForCausalLM"], "model_type": "unread"}


def published(groups: tuple[TensorGroup, ...], **config: Any) -> Published:
    return Published(name="a/new", source="a test", config={**new_llama_config(), **UNREAD, **config}, tensors=groups)


def test_a_class_with_the_tensors_of_a_known_one_is_judged_as_that_class() -> None:
    shape = shape_of(published(llama(plain)))
    known = shape_of(Published(name="a/llama", config=new_llama_config(), tensors=llama(plain)))
    assert shape.unmodelled_kinds == ()
    assert shape.layers == known.layers
    assert shape.architecture == "NobodyReadThisForCausalLM"
    assert shape.assumed is not None
    assert shape.assumed.words == "its tensors, which are those of LlamaForCausalLM"


def test_the_assumption_is_a_warning_with_the_class() -> None:
    models = PublishedModels(fetched=by_name([published(llama(plain))]))
    shape, (finding,) = look_up_model("a/new", models=models)
    assert shape is not None
    assert (finding.rule.id, finding.severity) == ("ModelAssumed", Severity.WARNING)
    assert "kvgate does not know the model class NobodyReadThisForCausalLM" in finding.message


@pytest.mark.parametrize(
    "config",
    [
        {"num_key_value_heads": 4},  # the tensors have eight
        {"intermediate_size": 11_008},
        {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
        {"mamba_d_state": 128},
        {"vision_config": {"hidden_size": 1024}},
    ],
)
def test_a_config_that_its_tensors_do_not_bear_out_stays_unknown(config: dict[str, Any]) -> None:
    assert shape_of(published(llama(plain), **config)).unmodelled_kinds != ()


def test_more_tensors_than_a_known_class_has_stay_unknown() -> None:
    more = new_tensors([("model.memory.weight", "BF16", (4096, 16_384))])
    assert shape_of(published((*llama(plain), *summarize(more)))).unmodelled_kinds != ()


def test_without_tensors_a_class_stays_unknown() -> None:
    assert shape_of(published(())).unmodelled_kinds == ("architecture NobodyReadThisForCausalLM",)

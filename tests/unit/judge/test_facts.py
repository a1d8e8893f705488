"""Facts: what is found, and what is said about what is not."""

import json

import pytest

from kvgate import catalogue
from kvgate.api.base import KeyRef
from kvgate.api.validation import parse_document
from kvgate.budget.model_shape import FullAttention
from kvgate.judge import facts
from kvgate.judge.facts import (
    ConfigMissing,
    gather,
    look_up_accelerator,
    look_up_model,
    look_up_model_class,
    shape_of_text,
)
from kvgate.rules import Severity
from kvgate.text.json_values import MAX_DEPTH
from support.builders import new_document, new_layer, new_llama_config, new_model_shape

FROM_MAP = {"name": "my/model", "configFrom": {"configMapKeyRef": {"name": "configs", "key": "config.json"}}}


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "qwen/qwen3-8b", " Qwen/Qwen3-8B "])
def test_a_model_is_found_by_its_name(name: str) -> None:
    shape, findings = look_up_model(name)
    assert shape is not None
    assert findings == ()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Qwen/Qwen3-8", "Qwen/Qwen3-8B"), ("Qwen3-8B", "Qwen/Qwen3-8B"), ("xyzzy/plugh", "give its config.json")],
)
def test_an_unknown_model_comes_with_the_nearest_names(name: str, hint: str) -> None:
    shape, (finding,) = look_up_model(name)
    assert shape is None
    assert (finding.rule.id, finding.severity) == ("UnknownModel", Severity.WARNING)
    assert hint in finding.remediation


@pytest.mark.parametrize("name", ["L4-24GB", "l4-24gb", "NVIDIA L4", "NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"])
def test_an_accelerator_is_found_by_short_name_product_or_label(name: str) -> None:
    accelerator, findings = look_up_accelerator(name)
    assert accelerator is not None
    assert findings == ()


@pytest.mark.parametrize(("name", "hint"), [("H100-80G", "H100"), ("quantum", "`kvgate gpus`")])
def test_an_unknown_accelerator_comes_with_a_hint(name: str, hint: str) -> None:
    accelerator, (finding,) = look_up_accelerator(name)
    assert accelerator is None
    assert (finding.rule.id, finding.severity) == ("UnknownAccelerator", Severity.WARNING)
    assert hint in finding.remediation


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100", "A100-SXM-40GB, A100-PCIe-40GB, A100-SXM-80GB and A100-PCIe-80GB"),
        ("NVIDIA A100", "A100-SXM-40GB, A100-PCIe-40GB, A100-SXM-80GB and A100-PCIe-80GB"),
        ("a100 pcie", "A100-PCIe-40GB and A100-PCIe-80GB"),
        ("H100", "H100-SXM-80GB, H100-PCIe-80GB and H100-NVL-94GB"),
        ("Tesla V100", "V100-SXM-16GB, V100-SXM-32GB, V100-PCIe-16GB and V100-PCIe-32GB"),
        ("4090", "RTX-4090-24GB and RTX-4090-48GB"),
        ("GH200", "GH200-120GB and GH200-480GB"),
        ("Gaudi", "Gaudi2-96GB and Gaudi3-128GB"),
        ("RTX PRO 6000", "RTX-PRO-6000-Server-96GB and RTX-PRO-6000-Workstation-96GB"),
        (
            "RTX",
            "RTX-2060-12GB, RTX-3090-24GB, RTX-A5000-24GB, RTX-A6000-48GB, RTX-4060-8GB, RTX-4070-12GB and 13 more",
        ),
        ("H200 MIG", "H200-MIG-1g.18gb, H200-MIG-2g.35gb, H200-MIG-3g.71gb and H200-MIG-4g.71gb"),
    ],
)
def test_a_short_name_of_several_accelerators_is_told_so(name: str, meant: str) -> None:
    _, (finding,) = look_up_accelerator(name)
    assert finding.message == f"accelerator {name} is one of {meant}"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("MI300", "MI300X-192GB"),
        ("MI350", "MI350X-288GB"),
        ("3090", "RTX-3090-24GB"),
        ("A6000", "RTX-A6000-48GB"),
        ("Gaudi2", "Gaudi2-96GB"),
        ("nvidia-tesla-t4-gpu", "T4-16GB"),
        ("RTX6000", "RTX-6000-Ada-48GB or RTX-6000D-84GB"),
        ("1g.5gb", "A100-40GB-MIG-1g.5gb"),
    ],
)
def test_what_begins_alike_is_suggested_alone(name: str, nearest: str) -> None:
    _, (finding,) = look_up_accelerator(name)
    assert finding.remediation == f"did you mean {nearest}?"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("T4", "T4-16GB"), ("L4", "L4-24GB"), ("L40S", "L40S-48GB"), ("A10", "A10-24GB"), ("H200", "H200-SXM-141GB"),
        ("B200", "B200-SXM-180GB"), ("GB200", "GB200-192GB"), ("MI300X", "MI300X-192GB"), ("a100-80gb", "A100-SXM-80GB"),
        ("RTX4090", "RTX-4090-24GB"), ("rtx_4090", "RTX-4090-24GB"), ("H100 80GB", "H100-SXM-80GB"), ("H100SXM5", "H100-SXM-80GB"),
    ],
)  # fmt: skip
def test_a_short_name_of_one_accelerator_is_enough(name: str, found: str) -> None:
    accelerator, findings = look_up_accelerator(name)
    assert (accelerator.name if accelerator else None, findings) == (found, ())


def test_every_short_name_of_a_family_lists_its_own_and_no_other() -> None:
    """The first word of a name, such as A100: all that are suggested have it."""
    for accelerator in catalogue.accelerators():
        word = accelerator.name.partition("-")[0]
        found, findings = look_up_accelerator(word)
        named = (found.name,) if found else (*catalogue.accelerators_meant(word), *catalogue.nearest_accelerators(word))
        assert named
        assert [name for name in named if not name.startswith(word)] == [], findings


def test_a_config_of_the_user_wins_over_the_catalogue() -> None:
    spec = parse_document(new_document(model={**FROM_MAP, "name": "Qwen/Qwen3-8B"})).spec
    asked: list[KeyRef] = []

    def lookup(reference: KeyRef) -> str:
        asked.append(reference)
        return json.dumps(new_llama_config(num_hidden_layers=7))

    facts = gather(spec, lookup)
    assert facts.shape is not None
    assert len(facts.shape.layers) == 7
    assert [(reference.name, reference.key) for reference in asked] == [("configs", "config.json")]


def test_the_catalogue_is_asked_where_there_is_no_config() -> None:
    def lookup(reference: KeyRef) -> str:
        raise AssertionError(reference)

    assert gather(parse_document(new_document()).spec, lookup).findings == ()


def test_a_missing_config_is_a_finding() -> None:
    spec = parse_document(new_document(model=FROM_MAP)).spec
    facts = gather(spec, lambda _: ConfigMissing(message="ConfigMap configs is not there", remediation="create it"))
    (finding,) = facts.findings
    assert (finding.rule.id, finding.message, finding.remediation) == (
        "InvalidModelConfig",
        "ConfigMap configs is not there",
        "create it",
    )
    assert facts.shape is None
    assert facts.accelerator is not None


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "{}", json.dumps(new_llama_config(hidden_size="x", vocab_size=-1))]
)
def test_a_bad_config_says_where_and_what(text: str) -> None:
    shape, findings = shape_of_text(text, name="m", where="ConfigMap configs, key config.json")
    assert shape is None
    assert findings
    assert all(
        f.message.startswith("ConfigMap configs, key config.json: ") and f.rule.id == "InvalidModelConfig"
        for f in findings
    )


def test_each_problem_of_a_config_is_a_finding() -> None:
    _, findings = shape_of_text(json.dumps(new_llama_config(hidden_size=0, vocab_size=-1)), name="m", where="x")
    assert len(findings) == 2


def test_both_unknown_facts_are_told_at_once() -> None:
    spec = parse_document(new_document(model="nobody/knows", accelerator="nothing")).spec
    assert [f.rule.id for f in gather(spec, lambda _: "").findings] == ["UnknownModel", "UnknownAccelerator"]


def test_quantization_and_dtype_of_the_spec_change_the_shape() -> None:
    spec = parse_document(new_document(vllm={"quantization": "fp8", "dtype": "half"})).spec
    shape = gather(spec, lambda _: "").shape
    assert shape is not None
    assert shape.quantization is not None
    assert shape.dtype == "float16"


def test_equal_lookups_give_the_same_object() -> None:
    """Results are cached by the identity of a shape."""
    assert look_up_model("Qwen/Qwen3-8B")[0] is look_up_model("Qwen/Qwen3-8B")[0]


WINDOWED = new_layer(FullAttention(num_heads=32, num_kv_heads=8, head_dim=128, sliding_window=4096))


@pytest.mark.parametrize(
    ("architecture", "version", "severity"),
    [
        ("LlamaForCausalLM", "0.6.6", None),
        ("GptOssForCausalLM", "0.9.2", Severity.ERROR),
        ("GptOssForCausalLM", "0.10.2", None),
        ("KimiLinearForCausalLM", "0.11.0", Severity.ERROR),
        ("KimiLinearForCausalLM", "0.11.1", None),  # not read: a public start shows that it was there
        ("KimiLinearForCausalLM", "0.12.0", None),
        ("MllamaForConditionalGeneration", "0.10.2", None),
        ("MllamaForConditionalGeneration", "0.11.0", Severity.ERROR),
        ("MadeUpForCausalLM", "0.33.0", None),
    ],
)
def test_a_release_may_lack_a_model_class(architecture: str, version: str, severity: Severity | None) -> None:
    findings = look_up_model_class(new_model_shape(layer=WINDOWED, architecture=architecture), version)
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    assert all(architecture in finding.message for finding in findings)


def test_a_class_of_plain_attention_may_come_through_the_transformers_backend() -> None:
    (finding,) = look_up_model_class(new_model_shape(architecture="SeedOssForCausalLM"), "0.9.2")
    assert finding.severity is Severity.WARNING
    assert finding.remediation == "use vLLM 0.10.2 or newer"


NEMOTRON = "nvidia/Nemotron-H-56B-Base-8K"


@pytest.mark.parametrize("limit", ["[0.0, Infinity]", '[0.0, {"__float__": "Infinity"}]', "[-Infinity, NaN]"])
def test_numbers_that_json_does_not_have_are_read_through_every_door(limit: str) -> None:
    """Published Nemotron-H configs have `time_step_limit: [0.0, Infinity]`; transformers writes the second form."""
    config = {**catalogue.load_model(NEMOTRON).config, "time_step_limit": "LIMIT"}
    text = json.dumps(config).replace('"LIMIT"', limit)
    plain, _ = shape_of_text(json.dumps(catalogue.load_model(NEMOTRON).config), name=NEMOTRON, where="config.json")
    shape, findings = shape_of_text(text, name=NEMOTRON, where="config.json")
    assert (repr(shape), findings) == (repr(plain), ())
    gathered = gather(parse_document(new_document(model=FROM_MAP)).spec, lambda _: text)
    assert gathered.findings == ()
    assert repr(gathered.shape).endswith(repr(plain).partition(", ")[2])


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e400", '{"__float__": "Infinity"}'])
@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "mamba_num_heads", "vocab_size", "max_position_embeddings"]
)
def test_where_such_a_number_counts_it_is_a_problem_that_names_the_key(key: str, value: str) -> None:
    text = json.dumps({**catalogue.load_model(NEMOTRON).config, key: "VALUE"}).replace('"VALUE"', value)
    shape, findings = shape_of_text(text, name=NEMOTRON, where="config.json")
    assert shape is None
    assert any(finding.rule.id == "InvalidModelConfig" and key in finding.message for finding in findings)


def test_one_text_is_read_once_however_many_refer_to_it_and_is_not_kept() -> None:
    text = json.dumps(new_llama_config(padding="x" * 1000))
    (first, _), (second, _) = (shape_of_text(text, name="m", where=f"ConfigMap {number}") for number in range(2))
    assert first is second
    wrong = json.dumps(new_llama_config(hidden_size=0))
    found = [shape_of_text(wrong, name="m", where=where)[1][0].message for where in ("ConfigMap a", "ConfigMap b")]
    assert [message.partition(":")[0] for message in found] == ["ConfigMap a", "ConfigMap b"]
    assert not any(isinstance(part, str) and part in (text, wrong) for key in facts._SHAPES._found for part in key)  # type: ignore[attr-defined]


def test_what_is_remembered_of_texts_is_bounded_by_their_characters() -> None:
    shapes = facts._ShapesByContent(100)
    shape = shape_of_text(json.dumps(new_llama_config()), name="m", where="x")[0]
    assert shape is not None
    for number in range(4):
        shapes.put(number, shape, size=40)
    assert [shapes.get(number) is not None for number in range(4)] == [False, False, True, True]
    shapes.put("large", shape, size=1000)
    assert shapes.get("large") is shape
    assert shapes.get(3) is None


@pytest.mark.parametrize("key", ["hidden_size", "model_type", "sliding_window", "quantization_config", "layer_types"])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_a_config_that_is_nested_deeply_is_a_finding_at_every_depth(key: str, opened: str, closed: str) -> None:
    plain = json.dumps({**catalogue.load_model("Qwen/Qwen3-8B").config, key: 0})
    for depth in (MAX_DEPTH + 1, *range(940, 1001), 5000):
        text = plain.replace(f'"{key}": 0', f'"{key}": {opened * depth}1{closed * depth}')
        shape, findings = shape_of_text(text, name="x", where="ConfigMap c")
        assert shape is None, depth
        assert {finding.rule.id for finding in findings} == {"InvalidModelConfig"}, depth

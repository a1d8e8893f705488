"""Facts: what is found, and what is said about what is not."""

import json

import pytest

from kvgate import catalogue
from kvgate.api.base import KeyRef
from kvgate.api.validation import parse_document
from kvgate.checkpoint.published import ModelName
from kvgate.findings.finding import Severity
from kvgate.judgement.facts import (
    ConfigMissing,
    gather,
    look_up_accelerator,
    names_to_fetch,
    unknown_accelerators,
)
from kvgate.statement.deployment import statement_of
from support.builders import new_document, new_llama_config
from support.tables import table

FROM_MAP = {"name": "my/model", "configFrom": {"configMapKeyRef": {"name": "configs", "key": "config.json"}}}


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


@table(
    ("name", "meant"),
    [
        ("A100", "A100-SXM-40GB, A100-PCIe-40GB, A100-SXM-80GB and A100-PCIe-80GB"),
        ("NVIDIA A100", "A100-SXM-40GB, A100-PCIe-40GB, A100-SXM-80GB and A100-PCIe-80GB"),
        ("a100 pcie", "A100-PCIe-40GB and A100-PCIe-80GB"),
        ("H100", "H100-SXM-80GB, H100-PCIe-80GB and H100-NVL-94GB"),
        ("Tesla V100", "V100-SXM-16GB, V100-SXM-32GB, V100-PCIe-16GB and V100-PCIe-32GB"),
        ("4090", "RTX-4090-24GB, RTX-4090-D-24GB and RTX-4090-48GB"),
        ("3090", "RTX-3090-24GB and RTX-3090-Ti-24GB"),
        ("GH200", "GH200-120GB and GH200-480GB"),
        ("Gaudi", "Gaudi2-96GB and Gaudi3-128GB"),
        ("RTX PRO 6000", "RTX-PRO-6000-Server-96GB, RTX-PRO-6000-Workstation-96GB and RTX-PRO-6000-Max-Q-96GB"),
        ("4080", "RTX-4080-16GB and RTX-4080-SUPER-16GB"),
        (
            "RTX",
            "RTX-2060-12GB, RTX-2080-Ti-11GB, TITAN-RTX-24GB, Quadro-RTX-6000-24GB, Quadro-RTX-8000-48GB, RTX-3090-24GB and 40 more",
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
        ("A6000", "RTX-A6000-48GB"),
        ("Gaudi2", "Gaudi2-96GB"),
        ("nvidia-tesla-t4-gpu", "T4-16GB"),
        ("1g.5gb", "A100-40GB-MIG-1g.5gb"),
    ],
)
def test_what_begins_alike_is_suggested_alone(name: str, nearest: str) -> None:
    _, (finding,) = look_up_accelerator(name)
    assert finding.remediation == f"did you mean {nearest}?"


@table(
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
        assert [name for name in named if word not in name.split("-")] == [], findings


def test_a_config_of_the_user_wins_over_the_catalogue() -> None:
    spec = parse_document(new_document(model={**FROM_MAP, "name": "Qwen/Qwen3-8B"})).spec
    asked: list[KeyRef] = []

    def lookup(reference: KeyRef) -> str:
        asked.append(reference)
        return json.dumps(new_llama_config(num_hidden_layers=7))

    facts = gather(statement_of(spec), lookup)
    assert facts.shape is not None
    assert len(facts.shape.layers) == 7
    assert [(reference.name, reference.key) for reference in asked] == [("configs", "config.json")]


def test_the_catalogue_is_asked_where_there_is_no_config() -> None:
    def lookup(reference: KeyRef) -> str:
        raise AssertionError(reference)

    assert gather(statement_of(parse_document(new_document()).spec), lookup).findings == ()


def test_a_missing_config_is_a_finding() -> None:
    spec = parse_document(new_document(model=FROM_MAP)).spec
    facts = gather(
        statement_of(spec), lambda _: ConfigMissing(message="ConfigMap configs is not there", remediation="create it")
    )
    (finding,) = facts.findings
    assert (finding.rule.id, finding.message, finding.remediation) == (
        "InvalidModelConfig",
        "ConfigMap configs is not there",
        "create it",
    )
    assert facts.shape is None
    assert facts.accelerator is not None


def test_both_unknown_facts_are_told_at_once() -> None:
    spec = parse_document(new_document(model="nobody/knows", accelerator="nothing")).spec
    assert [f.rule.id for f in gather(statement_of(spec), lambda _: "").findings] == [
        "UnknownModel",
        "UnknownAccelerator",
    ]


def test_quantization_and_dtype_of_the_spec_change_the_shape() -> None:
    spec = parse_document(new_document(vllm={"quantization": "fp8", "dtype": "half"})).spec
    shape = gather(statement_of(spec), lambda _: "").shape
    assert shape is not None
    assert shape.quantization is not None
    assert shape.dtype == "float16"


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ({"name": "Qwen/Qwen3-8B"}, ()),
        ({"name": "mine/small"}, (ModelName("mine/small"),)),
        ({"name": "mine/small", "revision": "v1"}, (ModelName("mine/small", "v1"),)),
        ({"name": "small"}, (ModelName("small"),)),
        (FROM_MAP, ()),
        ({"name": "mine/small", "source": {"image": {"reference": "registry.example/models/small:1"}}}, ()),
        ({"name": "mine/sm..all"}, ()),
    ],
)
def test_the_hub_may_know_what_is_loaded_from_there_and_is_not_in_the_catalogue(
    model: dict[str, object], names: tuple[ModelName, ...]
) -> None:
    assert names_to_fetch(parse_document(new_document(model=model)).spec) == names


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"method": "eagle3", "model": "mine/draft", "num_speculative_tokens": 3}, ("mine/draft",)),
        ({"method": "eagle3", "model": "/models/draft", "num_speculative_tokens": 3}, ()),
        ({"method": "eagle3", "model": "../draft", "num_speculative_tokens": 3}, ()),
        ({"method": "ngram", "num_speculative_tokens": 3}, ()),
        ({"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}, ()),
    ],
)
def test_so_it_may_know_a_draft(config: dict[str, object], names: tuple[str, ...]) -> None:
    vllm = {"extraArgs": [f"--speculative-config={json.dumps(config)}"]}
    found = names_to_fetch(parse_document(new_document(vllm=vllm)).spec)
    assert tuple(each.name for each in found) == names


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("L4-24GB", []), ("pool", []), ("L4-24GB, H100-SXM-80GB", []), ("nothing", ["nothing"]), ("L4-24GB,some , none", ["some", "none"]),
        ("pool,L4-24GB", ["pool"]),
    ],
)  # fmt: skip
def test_each_unknown_name_of_a_list_is_told(text: str, fields: list[str]) -> None:
    found = [*unknown_accelerators(text, {"pool"})]
    assert [(each.rule.id, each.field) for each in found] == [("UnknownAccelerator", "accelerator")] * len(fields)
    assert [name in each.message for name, each in zip(fields, found, strict=True)] == [True] * len(fields)


@pytest.mark.parametrize(
    ("arguments", "num_layers"),
    [
        ([], 36), (["--seed=1"], 36), (['--hf-overrides={"num_hidden_layers": 4}'], 4),
        (["--seed=1", '--hf-overrides={"num_hidden_layers": 4}'], 4),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("is_given", [False, True])
def test_overrides_stand_beside_other_arguments(arguments: list[str], num_layers: int, *, is_given: bool) -> None:
    model = {**FROM_MAP, "name": "Qwen/Qwen3-8B"} if is_given else "Qwen/Qwen3-8B"
    spec = parse_document(new_document(model=model, vllm={"extraArgs": arguments})).spec
    shape = gather(statement_of(spec), lambda _: json.dumps(catalogue.load_model("Qwen/Qwen3-8B").config)).shape
    assert shape is not None
    assert len(shape.layers) == num_layers


@pytest.mark.parametrize("text", ["[]", "nonsense"])
def test_overrides_of_a_text_that_is_no_config_leave_its_problem_as_it_is(text: str) -> None:
    spec = parse_document(new_document(model=FROM_MAP, vllm={"extraArgs": ['--hf-overrides={"vocab_size": 4}']})).spec
    found = gather(statement_of(spec), lambda _: text)
    assert (found.shape, {each.rule.id for each in found.findings}) == (None, {"InvalidModelConfig"})


def test_a_draft_stands_beside_other_arguments_and_a_release_must_be_known() -> None:
    arguments = ["--seed=1", '--speculative-config={"method":"eagle3","model":"no/draft","num_speculative_tokens":3}']
    for version, rules in (("0.33.0", ["UnknownDraft"]), ("0.5.0", ["UnknownVersion"])):
        spec = parse_document(new_document(vllm={"version": version, "extraArgs": arguments})).spec
        found = gather(statement_of(spec), lambda _: "")
        assert [each.rule.id for each in found.findings] == rules
        assert found.knows_version is (version == "0.33.0")
        assert found.draft is None

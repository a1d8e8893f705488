"""The model of a question: by name, by text, from a lock file or a fetch."""

import json

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.api.validation import parse_document
from kvgate.budget.model.shape import FullAttention
from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published, PublishedModels, by_name, from_json, name_key
from kvgate.findings.finding import Severity
from kvgate.judgement import models as found_models
from kvgate.judgement.facts import gather
from kvgate.judgement.models import look_up_gguf, look_up_model, look_up_model_class, look_up_overridden, shape_of_text
from kvgate.statement.deployment import statement_of
from kvgate.text.json_values import MAX_DEPTH
from support.builders import new_document, new_layer, new_llama_config, new_model_shape
from support.tables import table

WINDOWED = new_layer(FullAttention(num_heads=32, num_kv_heads=8, head_dim=128, sliding_window=4096))
NEMOTRON = "nvidia/Nemotron-H-56B-Base-8K"
FROM_MAP = {"name": "my/model", "configFrom": {"configMapKeyRef": {"name": "configs", "key": "config.json"}}}


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "qwen/qwen3-8b", " Qwen/Qwen3-8B "])
def test_a_model_is_found_by_its_name(name: str) -> None:
    shape, findings = look_up_model(name)
    assert shape is not None
    assert findings == ()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Qwen/Qwen3-8", "Qwen/Qwen3-8B"), ("Qwen3-8", "Qwen/Qwen3-8B"), ("xyzzy/plugh", "give its config.json")],
)
def test_an_unknown_model_comes_with_the_nearest_names(name: str, hint: str) -> None:
    shape, (finding,) = look_up_model(name)
    assert shape is None
    assert (finding.rule.id, finding.severity) == ("UnknownModel", Severity.WARNING)
    assert hint in finding.remediation


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


def test_equal_lookups_give_the_same_object() -> None:
    """Results are cached by the identity of a shape."""
    assert look_up_model("Qwen/Qwen3-8B")[0] is look_up_model("Qwen/Qwen3-8B")[0]


@table(
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
        ("Qwen3ForSequenceClassification", "0.33.0", None),  # made from Qwen3ForCausalLM
        ("ErnieForSequenceClassification", "0.33.0", Severity.ERROR),  # there is no ErnieForCausalLM
        ("GptOssForSequenceClassification", "0.9.2", None),
    ],
)
def test_a_release_may_lack_a_model_class(architecture: str, version: str, severity: Severity | None) -> None:
    findings = look_up_model_class(new_model_shape(layer=WINDOWED, architecture=architecture), version)
    assert [(each.field, each.severity) for each in findings] == ([("vllm_version", severity)] if severity else [])
    assert all(architecture in finding.message for finding in findings)


def test_a_class_of_plain_attention_may_come_through_the_transformers_backend() -> None:
    (finding,) = look_up_model_class(new_model_shape(architecture="SeedOssForCausalLM"), "0.9.2")
    assert finding.severity is Severity.WARNING
    assert finding.remediation == "use vLLM 0.10.2 or newer"


@pytest.mark.parametrize("limit", ["[0.0, Infinity]", '[0.0, {"__float__": "Infinity"}]', "[-Infinity, NaN]"])
def test_numbers_that_json_does_not_have_are_read_through_every_door(limit: str) -> None:
    """Published Nemotron-H configs have `time_step_limit: [0.0, Infinity]`; transformers writes the second form."""
    config = {**catalogue.load_model(NEMOTRON).config, "time_step_limit": "LIMIT"}
    text = json.dumps(config).replace('"LIMIT"', limit)
    plain, _ = shape_of_text(json.dumps(catalogue.load_model(NEMOTRON).config), name=NEMOTRON, where="config.json")
    shape, findings = shape_of_text(text, name=NEMOTRON, where="config.json")
    gathered = gather(statement_of(parse_document(new_document(model=FROM_MAP)).spec), lambda _: text)
    assert plain is not None
    assert shape is not None
    assert gathered.shape is not None
    alike = [repr(replace(each, name="m", origin=None)) for each in (plain, shape, gathered.shape)]
    assert (len(set(alike)), findings, gathered.findings) == (1, (), ())


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
    assert not any(
        isinstance(part, str) and part in (text, wrong) for key in found_models._SHAPES._found for part in key
    )  # type: ignore[attr-defined]


def test_what_is_remembered_of_texts_is_bounded_by_their_characters() -> None:
    shapes = found_models._ShapesByContent(100)
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


def _published(name: str, **changes: object) -> Published:
    return from_json({"name": name, "config": new_llama_config(**changes), "checkpointBytes": 5, "source": "a test"})


def test_a_fetched_checkpoint_is_used_where_the_catalogue_does_not_have_the_model() -> None:
    models = PublishedModels(fetched=by_name([_published("My/Own"), _published("Qwen/Qwen3-8B", num_hidden_layers=3)]))
    own, findings = look_up_model("my/own", models=models)
    assert own is not None
    assert (own.checkpoint_bytes, findings) == (5, ())
    known, _ = look_up_model("Qwen/Qwen3-8B", models=models)
    assert known is not None
    assert len(known.layers) == 36


def test_a_locked_checkpoint_wins_over_the_catalogue() -> None:
    models = PublishedModels(locked=by_name([_published("Qwen/Qwen3-8B", num_hidden_layers=3)]))
    shape, _ = look_up_model("Qwen/Qwen3-8B", models=models)
    assert shape is not None
    assert len(shape.layers) == 3


def test_a_revision_is_another_checkpoint() -> None:
    models = PublishedModels(fetched=by_name([_published("my/own")]))
    assert look_up_model("my/own", revision="main", models=models)[0] is not None
    assert look_up_model("my/own", revision="v2", models=models)[0] is None


def test_equal_content_gives_one_shape() -> None:
    shapes = {
        id(look_up_model("my/own", models=PublishedModels(fetched=by_name([_published("my/own")])))[0])
        for _ in range(2)
    }
    assert len(shapes) == 1


def test_a_broken_checkpoint_is_reported_with_its_source() -> None:
    models = PublishedModels(fetched=by_name([_published("my/own", hidden_size=-1)]))
    shape, (finding,) = look_up_model("my/own", models=models)
    assert shape is None
    assert finding.message.startswith("my/own of a test: hidden_size is -1")


@table(
    ("name", "version", "words"),
    [
        ("unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "0.32.0", "only with the package vllm-gguf-plugin"),
        ("./model.gguf", "0.24.0", "only with the package vllm-gguf-plugin"),
        ("unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "0.11.0", "takes from 0.12 on"),
        ("unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "0.23.0", None),
        ("./model.gguf", "0.9.2", None),
        ("a/b/m-00001-of-00003.gguf", "0.19.0", "loads from 0.20 on"),
        ("a/b/m-00001-of-00003.gguf", "0.20.0", None),
        ("Qwen/Qwen3-8B", "0.32.0", None),
        ("./model.gguf", "nightly", None),
    ],
)
def test_gguf_left_vllm_with_0_24(name: str, version: str, words: str | None) -> None:
    findings = look_up_gguf(name, version)
    assert [(each.rule.id, each.field) for each in findings] == ([("GgufNotInRelease", "model")] if words else [])
    assert words is None or words in str(findings[0].message)


def _qwen(name: str = "Qwen/Qwen3-8B", revision: str = "", **changes: object) -> PublishedModels:
    entry = {
        "name": name, "revision": revision, "config": {**catalogue.load_model("Qwen/Qwen3-8B").config, **changes}, "checkpointBytes": 5,
        "source": "hub", "commit": "0123456789abcdef",
    }  # fmt: skip
    return PublishedModels(locked=by_name([from_json(entry)]))


@pytest.mark.parametrize(
    ("name", "revision", "changes", "facts"),
    [
        ("Qwen/Qwen3-8B", "", {"num_hidden_layers": 3}, ["layers", "weights"]),
        ("Qwen/Qwen3-8B", "", {"max_position_embeddings": 1000}, ["weights", "max_model_len"]),
        ("Qwen/Qwen3-8B", "", {}, ["weights"]),
        ("Qwen/Qwen3-8B", "v2", {}, []),  # another revision may be stored otherwise
        ("Qwen/Qwen3-8B", "v2", {"num_hidden_layers": 3}, ["layers"]),
        ("my/own", "", {"num_hidden_layers": 3}, []),
    ],
    ids=str,
)
def test_a_lock_file_is_held_against_the_catalogue(
    name: str, revision: str, changes: dict[str, object], facts: list[str]
) -> None:
    shape, findings = look_up_model(name, revision=revision, models=_qwen(name, revision, **changes))
    assert shape is not None
    assert shape.origin is not None
    assert (findings, shape.checkpoint_bytes, shape.origin.kind, shape.origin.place) == (
        (), 5, "lock file", "the lock file",
    )  # fmt: skip
    assert [each.fact for each in shape.contradictions] == facts
    assert shape.origin.differences == shape.contradictions
    assert {(each.source, each.other_source) for each in shape.contradictions} <= {("the lock file", "the catalogue")}


@pytest.mark.parametrize(
    ("changes", "longer", "facts"),
    [
        ({}, 0, []),
        ({"max_position_embeddings": 1000}, 40960, []),  # a config that is given may be shorter
        ({"max_position_embeddings": 100_000}, 0, []),
        ({"hidden_size": 2048}, 0, ["hidden_size", "weights"]),
    ],
    ids=str,
)
def test_a_config_that_is_given_is_held_against_the_catalogue(
    changes: dict[str, object], longer: int, facts: list[str]
) -> None:
    text = json.dumps({**catalogue.load_model("Qwen/Qwen3-8B").config, **changes})
    shape, _ = shape_of_text(text, name="Qwen/Qwen3-8B", where="ConfigMap a")
    assert shape is not None
    assert shape.origin is not None
    assert (shape.origin.kind, shape.origin.place) == ("given", "the config that is given")
    assert (shape.published_max_model_len, [each.fact for each in shape.contradictions]) == (longer, facts)


@pytest.mark.parametrize(
    ("source", "commit", "place"),
    [("hub", "0123456789abcdef", "hub, commit 0123456789ab"), ("hub", "", "hub"), ("", "0123", "0123"), ("", "", "")],
)
def test_a_fetched_model_says_where_it_comes_from(source: str, commit: str, place: str) -> None:
    entry = from_json({"name": "my/own", "config": new_llama_config(), "source": source, "commit": commit})
    shape, _ = look_up_model("my/own", models=PublishedModels(fetched=by_name([entry])))
    assert shape is not None
    assert shape.origin is not None
    assert (shape.origin.kind, shape.origin.place) == ("fetched", place)


@pytest.mark.parametrize("catalogue_first", [False, True])
@pytest.mark.parametrize(("name", "is_listed"), [("Qwen/Qwen3-8B", True), ("my/own", False)])
def test_the_catalogue_goes_before_a_lock_file_only_where_the_user_says_so(
    name: str, *, is_listed: bool, catalogue_first: bool
) -> None:
    models = replace(_qwen(name, num_hidden_layers=3), catalogue_first=catalogue_first)
    layers = 36 if is_listed and catalogue_first else 3
    plain, _ = look_up_model(name, models=models)
    overridden, _ = look_up_overridden(name, {"hidden_act": "silu"}, models=models)
    assert plain is not None
    assert overridden is not None
    assert (len(plain.layers), len(overridden.layers)) == (layers, layers)
    assert overridden.contradictions == ()


def test_overrides_of_a_fetched_model_are_those_of_its_own_config() -> None:
    models = PublishedModels(fetched=_qwen("my/own", num_hidden_layers=3).locked)
    shape, findings = look_up_overridden("my/own", {"vocab_size": 1000}, models=models)
    assert shape is not None
    assert (len(shape.layers), shape.vocab_size, shape.unmodelled, findings) == (3, 1000, (), ())
    assert look_up_overridden("nobody/knows", {"vocab_size": 1000})[0] is None


NOT_FETCHED = NotFetched(name="x", reason=Reason.UNREACHABLE, message="the hub says no", remedies=("log in",))


@pytest.mark.parametrize(
    ("name", "is_missing", "rules"),
    [
        ("my-org/Qwen3-8B", False, ["ModelAssumed"]),
        ("my-org/Qwen3-8B", True, ["ModelAssumed", "UnknownModel"]),
        ("nobody/x", False, ["UnknownModel"]),
        ("nobody/x", True, ["UnknownModel"]),
    ],
)
def test_a_fetch_that_found_nothing_is_told_with_its_reason(name: str, rules: list[str], *, is_missing: bool) -> None:
    models = PublishedModels(missing={name_key(name): NOT_FETCHED} if is_missing else {})
    shape, findings = look_up_model(name, models=models)
    assert (shape is not None) is (rules[0] == "ModelAssumed")
    assert [(each.rule.id, each.field) for each in findings] == [(rule, "model") for rule in rules]
    assert ("and it could not be fetched: the hub says no" in str(findings[-1].message)) is is_missing
    assert ("log in" in findings[-1].remediation) is is_missing


@pytest.mark.parametrize(
    ("name", "option", "is_told"),
    [
        ("org/model", "--fetch", True), ("org/model", "", False), ("model", "--fetch", False), ("/org/model", "--fetch", False),
        ("./org/model", "--fetch", False), ("~/model", "--fetch", False), ("s3://org/model", "--fetch", False),
    ],
)  # fmt: skip
def test_a_fetch_is_advised_for_what_a_hub_may_have(name: str, option: str, *, is_told: bool) -> None:
    (finding,) = look_up_model(name, models=PublishedModels(fetch_option=option))[1]
    assert ("fetch what its publisher published" in finding.remediation) is is_told


@pytest.mark.parametrize(
    ("name", "quantization", "revision", "lacks"),
    [
        ("Qwen/Qwen3-8B", "awq", "", True), ("Qwen/Qwen3-8B", "gptq_marlin", "", True), ("Qwen/Qwen3-8B-AWQ", "awq", "", False),
        ("qwen/qwen3-8b", "awq", "", False),  # a copy under another name may have the config
        ("Qwen/Qwen3-8B", "awq", "v2", False), ("Qwen/Qwen3-8B", "fp8", "", False), ("Qwen/Qwen3-8B", None, "", False),
    ],
)  # fmt: skip
def test_a_format_that_vllm_looks_for_in_the_checkpoint(
    name: str, quantization: str | None, revision: str, *, lacks: bool
) -> None:
    shape, _ = look_up_model(name, quantization=quantization, revision=revision)
    assert shape is not None
    assert shape.lacks_requested_format is lacks


@pytest.mark.parametrize(
    ("asked", "is_stored"),
    [({}, True), ({"dtype": "auto"}, True), ({"dtype": "half"}, False), ({"quantization": "fp8"}, False)],
    ids=str,
)
def test_the_bytes_of_the_catalogue_are_those_of_the_checkpoint_as_it_is_stored(
    asked: dict[str, str], *, is_stored: bool
) -> None:
    for name, source in (("Qwen/Qwen3-8B", "catalogue"), ("my-org/Qwen3-8B", "assumed")):
        shape, _ = look_up_model(name, **asked)
        assert shape is not None
        assert shape.checkpoint_bytes == (16_381_470_720 if is_stored else 0)
        assert shape.origin is not None
        assert shape.origin.kind == source

"""A model that the catalogue does not have is judged by its sibling by name, and nothing is refused on that."""

from fractions import Fraction

import pytest

from kvgate import catalogue
from kvgate.api.validation import parse_document
from kvgate.budget import SINGLE_GPU, ModelShape, Verdict
from kvgate.budget.model.weights import rank_weights
from kvgate.checkpoint.published import PublishedModels, by_name, from_json
from kvgate.findings.finding import Severity
from kvgate.hf_config import read_config
from kvgate.hf_config.names import MAX_NAME, PLAIN, stated_format
from kvgate.judgement import siblings
from kvgate.judgement.assess import assess
from kvgate.judgement.assessment import Confidence, Decision
from kvgate.judgement.facts import gather
from kvgate.judgement.models import look_up_model
from kvgate.judgement.siblings import sibling_of
from kvgate.judgement.what_if import assess_request
from kvgate.statement.deployment import statement_of
from support.builders import new_document, new_llama_config
from support.tables import table

SIBLINGS = {
    "my-org/Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct by its name",
    "NousResearch/Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct by its name",
    "/models/Qwen3-32B": "Qwen/Qwen3-32B by its name",
    "pvc://claim/models/Qwen3-32B/": "Qwen/Qwen3-32B by its name",
    "Qwen3-8B": "Qwen/Qwen3-8B by its name",
    "nvidia/Llama-3_1-405B-Instruct": "meta-llama/Llama-3.1-405B-Instruct by its name",
    "NousResearch/Llama-2-13b-chat-hf": "meta-llama/Llama-2-13b-hf by its name",
    "TheBloke/Llama-2-13B-chat-AWQ": "meta-llama/Llama-2-13b-hf, quantised as AWQ by its name",
    "RedHatAI/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B, quantised as NVFP4 by its name",
    "cyankiwi/Qwen3.6-27B-AWQ-INT4": "Qwen/Qwen3.6-27B, quantised as AWQ-INT4 by its name",
    "QuantTrio/GLM-4.7-GPTQ-Int4-Int8Mix": "zai-org/GLM-4.7, quantised as GPTQ-Int4-Int8Mix by its name",
    "RedHatAI/Kimi-K2-Instruct-quantized.w4a16": "moonshotai/Kimi-K2-Instruct, quantised as quantized.w4a16 by its name",
    "casperhansen/llama-3-70b-instruct-awq": "meta-llama/Meta-Llama-3-70B-Instruct, quantised as awq by its name",
    "stelterlab/NVIDIA-Nemotron-3-Nano-30B-A3B-AWQ": (
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16, quantised as AWQ by its name"
    ),
    "poolside/Laguna-XS.2-NVFP4": "poolside/Laguna-XS.2-FP8, quantised as NVFP4 by its name",
    "unsloth/DeepSeek-V3.1-BF16": "deepseek-ai/DeepSeek-V3.1 by its name, not quantised",
    "Qwen/Qwen3-32B-Base": "Qwen/Qwen3-32B by its name",
    "models/gemma-3-27b-instruct": "google/gemma-3-27b-it by its name",
    "ministral-3-14b-instruct": "mistralai/Ministral-3-14B-Instruct-2512 by its name",
    "s3-data/llama-31-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct by its name",
    "Qwen-2.5-0.5B": "Qwen/Qwen2.5-0.5B by its name",
    "qwen25-7b-instruct": "Qwen/Qwen2.5-7B-Instruct by its name",
    "meta-llama/Llama-4-Scout-17B-16E": "meta-llama/Llama-4-Scout-17B-16E-Instruct by its name",
    "someone/gemma-3-12b-pt-awq": "google/gemma-3-12b-it, quantised as awq by its name",
    "gaunernst/gemma-3-27b-it-int4-awq": "google/gemma-3-27b-it, quantised as int4-awq by its name",
    "ISTA-DASLab/gemma-3-27b-it-GPTQ-4b-128g": "google/gemma-3-27b-it, quantised as GPTQ-4b-128g by its name",
    "dazipe/Qwen3-Next-80B-A3B-Instruct-GPTQ-Int4A16": (
        "Qwen/Qwen3-Next-80B-A3B-Instruct, quantised as GPTQ-Int4A16 by its name"
    ),
    "NousResearch/Hermes-3-Llama-3.1-8B": "meta-llama/Llama-3.1-8B-Instruct by its name",
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": "Qwen/Qwen3-8B by its name",
    "cyankiwi/Hermes-4.3-36B-AWQ-8bit": "ByteDance-Seed/Seed-OSS-36B-Instruct, quantised as AWQ-8bit by its name",
}


@table("name", SIBLINGS)
def test_a_name_leads_to_the_model_that_has_it_without_owner_and_format(name: str) -> None:
    sibling = sibling_of(name)
    assert sibling is not None
    assert sibling.words == SIBLINGS[name]


@table("name", [
    "someone/Qwen3-8B-abliterated", "cerebras/Qwen3-Coder-REAP-25B-A3B", "cerebras/GLM-4.5-Air-REAP-82B-A12B",
    "someone/Qwen3-8B-merged", "someone/Llama-3.1-8B-Instruct-pruned-2of4", "nvidia/Llama-3.1-Nemotron-8B-Instruct",
    "nvidia/Llama-3.1-Minitron-4B-Width-Base", "someone/Llama-4-Scout-17B-4E-Instruct", "mistral-large-2411",
    "RedHatAI/Qwen3-32B-speculator.eagle3", "Tengyunw/qwen3_8b_eagle3", "mlx-community/Qwen3-8B-4bit-mlx", "mlx-community/Qwen3-8B-4bit",
    "mlx-community/Qwen3-8B-mlx-4bit", "unsloth/Qwen3-8B-GGUF", "unsloth/Qwen3.8-27B-GGUF:UD-Q4_K_M", "turboderp/Qwen3-8B-exl3",
    "yuhuili/EAGLE3-Qwen3-8B", "fixie-ai/ultravox-v0_5-llama-3_1-8b", "someone/Sheared-Llama-3.1-8B", "someone/OpenThinker-Qwen-7B",
    "google/gemma-3x-E4B-it", "mistral-7b-instruct", "mixtral-8x7b",
    "someone/Qwen2-57B", "QuantTrio/Qwen3.6-27B-AWQ-6Bit", "Qwen/Qwen3-8B-1M",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", "poolside/Laguna-XS.2",
    "x/Qwen3-8B-2bit", "x/Qwen3-8B-GPTQ-Int3", "x/Qwen3-8B-bnb-8bit", "x/Qwen3-8B-HQQ", "x/Qwen3-8B-W2A16",
    "xyzzy/plugh", "AWQ", "org/FP8", "", "/", "org/", "x" * (MAX_NAME + 1), "Qwen3-8B-AWQ" * 100, "org/Qwen3-8B\n-AWQ",
])  # fmt: skip
def test_a_name_with_any_other_word_has_no_sibling(name: str) -> None:
    assert sibling_of(name) is None


@table(("name", "not_this"), [
    ("someone/Qwen2.5-VL-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct"),
    ("someone/Qwen2.5-7B-Instruct-AWQ-INT4", "Qwen/Qwen2.5-VL-7B-Instruct"),
    ("someone/DeepSeek-R1-Distill-Qwen-7B-FP8", "deepseek-ai/DeepSeek-R1"),
    ("someone/DeepSeek-R1-AWQ", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
    ("someone/gemma-3-4b-it-AWQ", "google/gemma-3x-E4B-it"),
    ("someone/Mistral-Small-24B-Instruct-2501-AWQ", "mistralai/Mistral-Small-3.1-24B-Instruct-2503"),
    ("someone/Mistral-Small-3.1-24B-Instruct-2503-AWQ", "mistralai/Mistral-Small-24B-Instruct-2501"),
    ("someone/Llama-3.3-70B-Instruct-AWQ", "meta-llama/Llama-3.1-70B-Instruct"),
])  # fmt: skip
def test_names_that_look_alike_do_not_lead_to_each_other(name: str, not_this: str) -> None:
    sibling = sibling_of(name)
    assert sibling is not None
    assert sibling.model != not_this


FORMATS = (
    "AWQ", "GPTQ", "GPTQ-Int4", "GPTQ-Int8", "FP8", "FP8-dynamic", "FP8-block", "NVFP4", "NVFP4A16", "MXFP4", "MXFP8", "FP4", "W4A16",
    "W4A8", "W4A4", "W8A8", "W8A16", "INT8", "INT4", "8bit", "4bit", "bnb-4bit", "AutoRound", "AWQ-8bit", "quantized.w4a16", "NVFP4-FP8",
    "nf4", "BF16", "AWQ-BF16-INT8", "unsloth-bnb-4bit",
)  # fmt: skip


@pytest.mark.slow
@table("form", FORMATS)
@table("base", ["Qwen3-32B", "Qwen3.5-35B-A3B", "DeepSeek-V4-Flash", "DeepSeek-V3.1", "gpt-oss-20b", "gemma-3-27b-it"])
def test_an_assumed_model_is_stored_as_its_name_says(base: str, form: str) -> None:
    answer = assess_request({"model": f"x/{base}-{form}", "gpu": "B200-SXM-180GB", "max_model_len": 2048})
    found = {finding.rule.id for finding in answer.findings}
    assert "ModelAssumed" in found
    assert "NameStatesAnotherFormat" not in found
    assert answer.verdict is not Verdict.UNKNOWN
    assert (answer.confidence, answer.is_refusal) == (Confidence.ASSUMED, False)


def test_the_format_in_which_a_model_is_published_is_its_own() -> None:
    named, own = (look_up_model(name)[0] for name in ("my-org/gpt-oss-20b-MXFP4", "openai/gpt-oss-20b"))
    assert named is not None
    assert own is not None
    assert parameter_bytes(named) == parameter_bytes(own)


def parameter_bytes(shape: ModelShape) -> int:
    return rank_weights(shape, SINGLE_GPU, (0, len(shape.layers)), unsplit_large_blocks=False).parameter_bytes


def quantised_with_a_base() -> list[str]:
    """Models of the catalogue whose name states a format, beside the model that was quantised."""
    names = []
    for name in catalogue.model_names():
        stated = stated_format(name.rpartition("/")[2])
        base = stated and catalogue.find_model(siblings._by_name().get(siblings._key(stated.base), ""))
        if stated and stated.formats - {PLAIN} and base and base.name != name:
            names.append(name)
    return names


@pytest.mark.slow
@table("name", quantised_with_a_base())
def test_the_range_that_a_name_allows_holds_what_the_publisher_published(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each quantised entry is looked up as if it were not there: the published weights lie between the assumed ends."""
    published = read_config(catalogue.load_model(name).config, name=name)
    stated = stated_format(name.rpartition("/")[2])
    assert stated is not None
    base = siblings._by_name()[siblings._key(stated.base)]
    monkeypatch.setattr(siblings, "sibling_of", lambda _: siblings.Sibling(model=base, stated=stated))
    shape = siblings.sibling_shape.__wrapped__(name, None, None)
    assert shape is not None
    assert shape.assumed is not None
    ratio = Fraction(parameter_bytes(published), parameter_bytes(shape))
    assert shape.assumed.weights_low <= ratio <= shape.assumed.weights_high


def test_there_are_enough_quantised_models_to_hold_the_ranges_against() -> None:
    assert len(quantised_with_a_base()) >= 50


def test_a_fine_tune_has_the_exact_weights_of_its_namesake() -> None:
    assumed, own = look_up_model("my-org/Qwen3-32B")[0], look_up_model("Qwen/Qwen3-32B")[0]
    assert assumed is not None
    assert own is not None
    assert (parameter_bytes(assumed), assumed.checkpoint_bytes) == (parameter_bytes(own), own.checkpoint_bytes)
    assert assumed.assumed is not None
    assert (assumed.assumed.weights_low, assumed.assumed.weights_high) == (1, 1)


def test_a_native_quantisation_is_replaced_by_the_stated_one() -> None:
    native, plain = look_up_model("deepseek-ai/DeepSeek-V3.1")[0], look_up_model("unsloth/DeepSeek-V3.1-BF16")[0]
    assert native is not None
    assert plain is not None
    assert 1.9 < parameter_bytes(plain) / parameter_bytes(native) < 2.05
    assert plain.quantization is None


@pytest.mark.parametrize("gpu", ["L4-24GB", "T4-16GB"])
def test_what_cannot_fit_by_far_is_said_and_is_no_refusal(gpu: str) -> None:
    answer = assess_request({"model": "my-org/Qwen3-235B-A22B-AWQ", "gpu": gpu, "max_model_len": 8192})
    assert (answer.verdict, answer.confidence) == (Verdict.DOES_NOT_FIT, Confidence.ASSUMED)
    assert not answer.is_refusal
    assert [f.rule.id for f in answer.findings if f.severity is Severity.ERROR] == []
    assert answer.findings[0].message.startswith("assumed from Qwen/Qwen3-235B-A22B, quantised as AWQ by its name")
    real = assess_request({"model": "Qwen/Qwen3-235B-A22B", "gpu": gpu, "max_model_len": 8192})
    assert real.verdict is Verdict.DOES_NOT_FIT


def test_a_release_without_the_class_is_a_warning_for_an_assumed_model() -> None:
    question = {"gpu": "H100-SXM-80GB", "vllm_version": "0.9.2"}
    assumed, own = (assess_request({**question, "model": f"{org}/gpt-oss-20b"}) for org in ("my-org", "openai"))
    assert (own.verdict, assumed.verdict is Verdict.DOES_NOT_FIT) == (Verdict.DOES_NOT_FIT, False)
    assert [f.severity for f in assumed.findings if f.rule.id == "ModelClassNotInRelease"] == [Severity.WARNING]


def test_a_setting_that_vllm_would_refuse_does_not_fit_and_is_no_refusal() -> None:
    question = {"gpu": "L4-24GB", "tensor_parallel_size": 4, "max_model_len": 4096}
    answer = assess_request({**question, "model": "my-org/phi-4-AWQ"})
    assert (answer.verdict, answer.is_refusal) == (Verdict.DOES_NOT_FIT, False)
    assert ("ParallelSizeRefused", Severity.WARNING) in {(f.rule.id, f.severity) for f in answer.findings}
    assert assess_request({**question, "model": "my-org/phi-4-AWQ", "tensor_parallel_size": 2}).verdict is Verdict.FITS


def test_what_does_not_depend_on_the_model_is_refused_still() -> None:
    spec = parse_document(new_document(
        model={"name": "my-org/Qwen3-8B-AWQ"}, vllm={"maxNumSeqs": 4, "extraArgs": ["--no-such-option=1"]}
    )).spec  # fmt: skip
    judged = assess(spec, gather(statement_of(spec), lambda _: ""))
    own = parse_document(new_document(
        model={"name": "Qwen/Qwen3-8B-AWQ"}, vllm={"maxNumSeqs": 4, "extraArgs": ["--no-such-option=1"]}
    )).spec  # fmt: skip
    assert judged.verdict is assess(own, gather(statement_of(own), lambda _: "")).verdict


def test_the_policy_adjust_changes_nothing_for_an_assumed_model() -> None:
    spec = parse_document(new_document(
        model={"name": "my-org/Qwen3-32B"}, accelerator="L4-24GB", vllm={"maxModelLen": 40960, "maxNumSeqs": 64},
        admission={"policy": "Adjust", "adjust": {"knobs": ["MaxModelLen", "MaxNumSeqs"]}},
    )).spec  # fmt: skip
    judged = assess(spec, gather(statement_of(spec), lambda _: ""))
    assert (judged.verdict, judged.decision) == (Verdict.DOES_NOT_FIT, Decision.ADMIT_WITH_WARNING)
    assert (judged.adjustment, judged.alternatives, judged.sought) == (None, (), ())


def test_what_somebody_published_goes_before_a_sibling() -> None:
    published = from_json({"name": "my-org/Qwen3-32B-AWQ", "config": new_llama_config()})
    for models in (
        PublishedModels(fetched=by_name([published])),
        PublishedModels(locked=by_name([published])),
    ):
        shape, findings = look_up_model("my-org/Qwen3-32B-AWQ", models=models)
        assert shape is not None
        assert (shape.architecture, shape.assumed, findings) == ("LlamaForCausalLM", None, ())


@pytest.mark.parametrize("quantization", ["awq", "fp8", "nonsense"])
def test_an_argument_that_contradicts_the_name_breaks_nothing(quantization: str) -> None:
    shape, findings = look_up_model("my-org/Qwen3-8B-AWQ", quantization=quantization)
    assert shape is None or shape.assumed is not None
    assert findings


@table(
    ("name", "low", "high"),
    [
        ("my-org/Qwen3-32B", 1, 1),
        ("x/Qwen3-32B-NVFP4", 0.873, 1.439),
        ("RedHatAI/Qwen3-32B-NVFP4", 0.873, 1.024),  # the tool of this publisher converts all of a dense text model
        ("x/Qwen3-235B-A22B-AWQ", 0.992, 1.196),
        ("x/Qwen2.5-VL-7B-Instruct-AWQ", 0.883, 1.229),
        ("RedHatAI/Qwen2.5-VL-7B-Instruct-FP8-dynamic", 0.945, 1.117),
        ("nvidia/Qwen2.5-VL-7B-Instruct-NVFP4", 0.845, 1.176),
        ("unsloth/DeepSeek-V3.1-BF16", 1, 1),
        ("my-org/gpt-oss-20b-MXFP4", 0.795, 1),
    ],
)
def test_the_range_of_weights_that_a_name_allows(name: str, low: float, high: float) -> None:
    shape, _ = look_up_model(name)
    assert shape is not None
    assert shape.assumed is not None
    assert (round(float(shape.assumed.weights_low), 3), round(float(shape.assumed.weights_high), 3)) == (low, high)
    assert shape.origin is not None
    assert (shape.origin.kind, shape.origin.place) == ("assumed", shape.assumed.words)


@table(
    ("name", "quantization", "dtype", "rules"),
    [
        ("casperhansen/llama-3-70b-instruct-awq", "awq", "float16", []),
        ("someone/Qwen3-8B-GPTQ-Int4", "gptq", "float16", []),
        ("someone/Qwen3.6-27B-GPTQ-4bit", "gptq", "bfloat16", ["DtypeRefused"]),
        ("gaunernst/gemma-3-12b-it-int4-awq", "awq", "bfloat16", ["DtypeRefused"]),
        ("cpatonn/Qwen3-Coder-30B-A3B-Instruct-AWQ-4bit", "awq", "bfloat16", ["QuantizationContradictsCheckpoint"]),
        ("cpatonn/Qwen3-Coder-30B-A3B-Instruct-AWQ-4bit", "compressed-tensors", "bfloat16", []),
        ("QuantTrio/Qwen3-Coder-30B-A3B-Instruct-AWQ", "awq", "float16", []),
    ],
)
def test_the_tool_that_a_name_states_tells_type_and_method_of_a_checkpoint(
    name: str, quantization: str, dtype: str, rules: list[str]
) -> None:
    """AutoAWQ and AutoGPTQ write float16; GPTQModel and llm-compressor keep the config's type. What follows is a warning."""
    asked = {"model": name, "gpu": "H100-SXM-80GB", "vllm_version": "0.19.1", "max_model_len": 4096}
    answer = assess_request({**asked, "quantization": quantization})
    assert answer.budget is not None
    assert answer.budget.request.shape.dtype == dtype
    found = [each for each in answer.findings if each.rule.id in ("DtypeRefused", "QuantizationContradictsCheckpoint")]
    assert [each.rule.id for each in found] == rules
    assert all(each.severity is Severity.WARNING for each in found)
    assert (answer.verdict is Verdict.DOES_NOT_FIT) is bool(rules)
    assert not answer.is_refusal

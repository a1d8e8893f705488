"""assess: verdict × policy → decision, and what is proposed instead."""

from typing import Any

import pytest

from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.api.validation import parse_document
from kvgate.budget.engine.circumstances import Circumstances
from kvgate.budget.engine.request import Guarantee
from kvgate.budget.ground.interval import Verdict
from kvgate.catalogue import load_model
from kvgate.findings.finding import Severity
from kvgate.judgement.assess import assess, assessments, effective_values, field_name, judge, undecided
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.facts import ConfigMissing, Facts, gather, question
from kvgate.judgement.skipping import Skip
from kvgate.judgement.what_if import assess_request
from kvgate.statement.deployment import statement_of
from support.builders import new_document, new_request
from support.tables import table

FITS: dict[str, Any] = {"maxModelLen": 4096, "maxNumSeqs": 2}
MAYBE: dict[str, Any] = {"maxModelLen": 26_880, "maxNumSeqs": 1}
TOO_LARGE: dict[str, Any] = {"maxModelLen": 40_960, "maxNumSeqs": 8}
REFUSED: dict[str, Any] = {"maxModelLen": 4096, "maxNumSeqs": 8, "tensorParallelSize": 3}
UNKNOWN: dict[str, Any] = {"maxModelLen": 4096, "maxNumSeqs": 8, "extraArgs": ["--worker-cls=corp.Worker"]}


def spec_of(**spec: Any) -> InferenceDeploymentSpec:
    return parse_document(new_document(**spec)).spec


def no_config(_: object) -> ConfigMissing:
    return ConfigMissing(message="no such ConfigMap", remediation="create it")


def assessed(
    vllm: dict[str, Any], *, gpu: str = "L4-24GB", policy: str = "Reject", skip: str | None = None, **spec: Any
) -> Assessment:
    admission = {"policy": policy, **spec.pop("admission", {})}
    parsed = spec_of(accelerator=gpu, vllm=vllm, admission=admission, **spec)
    return assess(parsed, gather(statement_of(parsed), no_config), skip=Skip(reason=skip) if skip else None)


@table(
    ("vllm", "policy", "skip", "verdict", "decision"),
    [
        (FITS, "Reject", None, Verdict.FITS, Decision.ADMIT),
        (FITS, "Adjust", None, Verdict.FITS, Decision.ADMIT),
        (FITS, "Warn", "why", Verdict.FITS, Decision.ADMIT),
        (MAYBE, "Reject", None, Verdict.MAY_NOT_FIT, Decision.ADMIT_WITH_WARNING),
        (MAYBE, "Adjust", None, Verdict.MAY_NOT_FIT, Decision.ADMIT_ADJUSTED),
        (MAYBE, "Warn", None, Verdict.MAY_NOT_FIT, Decision.ADMIT_WITH_WARNING),
        (TOO_LARGE, "Reject", None, Verdict.DOES_NOT_FIT, Decision.REFUSE),
        (TOO_LARGE, "Adjust", None, Verdict.DOES_NOT_FIT, Decision.ADMIT_ADJUSTED),
        (TOO_LARGE, "Warn", None, Verdict.DOES_NOT_FIT, Decision.ADMIT_WITH_WARNING),
        (TOO_LARGE, "Reject", "why", Verdict.DOES_NOT_FIT, Decision.SKIPPED),
        (TOO_LARGE, "Adjust", "why", Verdict.DOES_NOT_FIT, Decision.SKIPPED),
        (TOO_LARGE, "Warn", "why", Verdict.DOES_NOT_FIT, Decision.ADMIT_WITH_WARNING),
        (MAYBE, "Reject", "why", Verdict.MAY_NOT_FIT, Decision.ADMIT_WITH_WARNING),
        (MAYBE, "Adjust", "why", Verdict.MAY_NOT_FIT, Decision.ADMIT_WITH_WARNING),
        (REFUSED, "Reject", "why", Verdict.DOES_NOT_FIT, Decision.REFUSE),
        (
            {"extraArgs": ["--no-such-option"], "version": "0.5.0"},
            "Reject",
            "why",
            Verdict.UNKNOWN,
            Decision.ADMIT_WITH_WARNING,
        ),
        (REFUSED, "Reject", None, Verdict.DOES_NOT_FIT, Decision.REFUSE),
        (REFUSED, "Adjust", None, Verdict.DOES_NOT_FIT, Decision.REFUSE),
        (REFUSED, "Warn", None, Verdict.DOES_NOT_FIT, Decision.ADMIT_WITH_WARNING),
        (UNKNOWN, "Reject", None, Verdict.UNKNOWN, Decision.ADMIT_WITH_WARNING),
        (UNKNOWN, "Adjust", None, Verdict.UNKNOWN, Decision.ADMIT_WITH_WARNING),
        ({"version": "0.5.0"}, "Reject", None, Verdict.UNKNOWN, Decision.ADMIT_WITH_WARNING),
        ({**FITS, "maxModelLen": 40_961}, "Reject", None, Verdict.DOES_NOT_FIT, Decision.REFUSE),
    ],
)
def test_a_policy_makes_a_decision(
    vllm: dict[str, Any], policy: str, skip: str | None, verdict: Verdict, decision: Decision
) -> None:
    result = assessed(vllm, policy=policy, skip=skip)
    assert (result.verdict, result.decision) == (verdict, decision)


@pytest.mark.parametrize("part", ["model", "accelerator"])
def test_a_missing_fact_is_never_a_no(part: str) -> None:
    document = new_document(**{part: "nobody/knows-this-one"})
    spec = parse_document(document).spec
    result = assess(spec, gather(statement_of(spec), no_config))
    assert (result.verdict, result.decision) == (Verdict.UNKNOWN, Decision.ADMIT_WITH_WARNING)
    assert len(result.findings) == 1
    assert result.budget is None


@pytest.mark.parametrize(
    ("vllm", "gpu"),
    [
        (TOO_LARGE, "L4-24GB"), (MAYBE, "L4-24GB"), ({"maxModelLen": 40_960, "maxNumSeqs": 64}, "L40S-48GB"), ({}, "L4-24GB"),
        ({"kvCacheDtype": "fp8", **TOO_LARGE}, "L4-24GB"),
    ],
)  # fmt: skip
def test_every_alternative_that_is_proposed_fits(vllm: dict[str, Any], gpu: str) -> None:
    result = assessed(vllm, gpu=gpu)
    chosen = result.budget.request.settings.max_num_seqs if result.budget else None
    assert result.alternatives
    for alternative in result.alternatives:
        values = {each.field: each.after for each in alternative.changes}
        other = str(values.pop("accelerator", gpu))
        changed = {field_name(name).removeprefix("spec.vllm."): value for name, value in values.items()}
        tried = assessed({"maxNumSeqs": chosen, **vllm, **changed}, gpu=other)
        assert tried.verdict is Verdict.FITS, alternative


@pytest.mark.parametrize(
    "vllm", [FITS, REFUSED, UNKNOWN, {**TOO_LARGE, "tensorParallelSize": 3}, {**TOO_LARGE, "maxModelLen": 50_000}]
)
def test_nothing_is_proposed_where_bytes_are_not_the_question(vllm: dict[str, Any]) -> None:
    assert assessed(vllm).alternatives == ()


def test_a_workload_is_not_cut_short_to_make_it_fit() -> None:
    """Length below a declared request would be refused, so it is neither proposed nor rendered."""
    workload = {"peakConcurrency": 8, "promptTokens": 15_000, "outputTokens": 1000}
    result = assessed({"maxModelLen": 16_384, "maxNumSeqs": 8}, workload=workload)
    assert result.verdict is Verdict.DOES_NOT_FIT
    assert "max_model_len" not in {alternative.field for alternative in result.alternatives}
    knobs = {"adjust": {"knobs": ["MaxModelLen", "KvCacheDtype"]}}
    fp8 = assessed(
        {"maxModelLen": 16_384, "maxNumSeqs": 8}, policy="Adjust", admission=knobs, gpu="L4-24GB",
        workload={**workload, "peakConcurrency": 2},
    )  # fmt: skip
    assert fp8.decision is Decision.ADMIT_ADJUSTED
    assert fp8.adjustment is not None
    assert [change.field for change in fp8.adjustment.changes] == ["kv_cache_dtype"]


@pytest.mark.parametrize(
    ("admission", "changed"),
    [
        ({"adjust": {"knobs": ["MaxNumSeqs", "MaxModelLen"]}}, ["max_model_len"]),
        ({"adjust": {"knobs": ["MaxModelLen"]}}, ["max_model_len"]),
        ({"adjust": {"knobs": ["MaxNumSeqs"]}}, None),
        ({"adjust": {"knobs": ["MaxModelLen"], "minMaxModelLen": 8192}}, None),
        ({"adjust": {"knobs": ["MaxNumSeqs", "MaxModelLen"], "minMaxModelLen": 8192}}, ["max_num_seqs", "max_model_len"]),
        ({"adjust": {"knobs": ["MaxNumSeqs", "MaxModelLen"], "minMaxModelLen": 8192, "minMaxNumSeqs": 8}}, None),
    ],
)  # fmt: skip
def test_adjusting_keeps_to_the_knobs_and_floors(admission: dict[str, Any], changed: list[str] | None) -> None:
    result = assessed(TOO_LARGE, policy="Adjust", admission=admission)
    assert (result.decision is Decision.ADMIT_ADJUSTED) is (changed is not None)
    assert [change.field for change in result.adjustment.changes] == changed if result.adjustment else changed is None
    if result.adjustment:
        assert result.effective is result.adjustment.budget
        assert result.effective.verdict is Verdict.FITS
        assert result.budget is not result.effective


def test_break_glass_renders_what_is_written() -> None:
    result = assessed(TOO_LARGE, policy="Adjust", skip="customer demo")
    assert result.effective is result.budget


@pytest.mark.parametrize(
    ("admission", "workload", "guarantee"),
    [
        ({}, None, Guarantee.FULL_CONTEXT),
        ({}, {"peakConcurrency": 1, "promptTokens": 1, "outputTokens": 1}, Guarantee.WORKLOAD),
        ({"guarantee": "Startup"}, {"peakConcurrency": 1, "promptTokens": 1, "outputTokens": 1}, Guarantee.STARTUP),
        ({"guarantee": "FullContext"}, None, Guarantee.FULL_CONTEXT),
    ],
)
def test_the_guarantee_is(admission: dict[str, Any], workload: dict[str, int] | None, guarantee: Guarantee) -> None:
    spec = spec_of(admission=admission, workload=workload) if workload else spec_of(admission=admission)
    assert question(statement_of(spec), gather(statement_of(spec), no_config)).guarantee is guarantee


@pytest.mark.parametrize(("gpu", "seqs"), [("L4-24GB", 1), ("H100-SXM-80GB", 9)])
def test_sequences_that_nobody_chose_are_the_most_that_fit(gpu: str, seqs: int) -> None:
    result = assessed({}, gpu=gpu)
    assert result.budget is not None
    assert result.budget.resolved.max_num_seqs == seqs
    if result.verdict is Verdict.FITS:
        assert assessed({"maxNumSeqs": seqs + 1}, gpu=gpu).verdict is not Verdict.FITS


def test_a_budget_without_facts_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="needs a model and an accelerator"):
        question(statement_of(spec_of()), Facts(shape=None, accelerator=None))


def test_judging_without_a_policy_admits_nothing_and_refuses_nothing() -> None:
    judged = judge(new_request(max_model_len=131_073))
    assert judged.verdict is Verdict.DOES_NOT_FIT
    assert judged.alternatives == ()


@table(
    "vllm",
    [
        {"tensorParallelSize": 1024}, {"pipelineParallelSize": 1024}, {"decodeContextParallelSize": 1024},
        {"dataParallelSize": 1024, "enableExpertParallel": True}, {"blockSize": 1}, {"blockSize": 16_384},
        {"kvCacheMemoryBytes": 1}, {"kvCacheMemoryBytes": 1 << 50}, {"gpuMemoryUtilization": "0.001"},
        {"maxNumSeqs": 1_000_000, "maxModelLen": 100_000_000}, {"maxNumBatchedTokens": 100_000_000}, {"kvCacheDtype": "x"},
        {"maxModelLen": 1, "maxNumSeqs": 1, "maxNumBatchedTokens": 1}, {"version": "0.6.0"}, {"version": "99.0"},
        {"quantization": "fp8"}, {"quantization": "awq"}, {"dtype": "float32"}, {"version": "0.33."},
    ],
    ids=repr,
)  # fmt: skip
@table("model", ["Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.6-27B", "facebook/opt-125m"])
@table("policy", ["Reject", "Adjust"])
def test_whatever_the_schema_admits_is_assessed(vllm: dict[str, Any], model: str, policy: str) -> None:
    result = assessed(vllm, model=model, policy=policy, gpu="H100-SXM-80GB")
    assert result.decision in Decision
    assert result.decision is not Decision.REFUSE or any(f.severity == "error" for f in result.findings)


def test_what_vllm_refuses_of_extra_args_refuses_the_deployment_with_or_without_a_budget() -> None:
    known = assessed({"maxModelLen": 8192, "maxNumSeqs": 4, "extraArgs": ["--no-such"]}, gpu="H100-SXM-80GB")
    unknown = assessed({"maxModelLen": 8192, "extraArgs": ["--no-such"]}, model="org/unknown")
    pardoned = assessed({"maxModelLen": 8192, "extraArgs": ["--no-such"]}, model="org/unknown", policy="Warn")
    assert [each.verdict for each in (known, unknown, pardoned)] == [Verdict.DOES_NOT_FIT] * 3
    assert [each.decision for each in (known, unknown)] == [Decision.REFUSE] * 2
    assert pardoned.decision is Decision.ADMIT_WITH_WARNING


@pytest.mark.parametrize(("value", "fits"), [("1", True), ("0", False)])
def test_a_variable_may_allow_any_length(value: str, *, fits: bool) -> None:
    template = {"env": [{"name": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "value": value}]}
    admission = {"guarantee": "Startup"}
    judged = assessed(
        {"maxModelLen": 50000, "maxNumSeqs": 1}, gpu="H100-SXM-80GB", template=template, admission=admission
    )
    assert (judged.verdict is Verdict.FITS) is fits


@pytest.mark.parametrize("vllm", [{}, {"kvCacheMemoryBytes": 1 << 30}])
def test_ranks_that_share_a_prompt_leave_the_verdict_open_where_nobody_has_read_the_release(
    vllm: dict[str, Any],
) -> None:
    result = assessed(
        {"prefillContextParallelSize": 2, "tensorParallelSize": 2, "maxNumSeqs": 4, "version": "0.26.0", **vllm}
    )
    assert result.verdict is Verdict.UNKNOWN
    assert result.decision is Decision.ADMIT_WITH_WARNING
    assert result.budget is not None
    assert result.budget.request.settings.parallelism.num_gpus == 4
    (finding,) = [each for each in result.findings if each.rule.id == "UnmodelledKind"]
    assert finding.field == "prefill_context_parallel_size"
    assert "spec.vllm.prefillContextParallelSize 2 is not modelled" in finding.message


def test_prompts_of_a_model_without_mla_are_not_shared() -> None:
    result = assessed({"prefillContextParallelSize": 2, "tensorParallelSize": 2, "maxNumSeqs": 4})
    assert result.verdict is Verdict.DOES_NOT_FIT
    messages = [each.message for each in result.findings if each.rule.id == "ParallelSizeRefused"]
    assert messages == [
        "spec.vllm.prefillContextParallelSize: vLLM shares the prompts of MLA models only; vLLM refuses it"
    ]


def test_copies_of_experts_are_named_by_their_option() -> None:
    result = assessed({"maxNumSeqs": 4, "extraArgs": ['--eplb-config={"num_redundant_experts": 8}']})
    messages = [each.message for each in result.findings if each.rule.id == "ParallelSizeRefused"]
    assert messages == ["--num-redundant-experts: 8 copies of experts need enable_eplb; vLLM refuses it"]


@pytest.mark.parametrize(
    ("name", "value", "is_known"),
    [
        ("VLLM_MLA_DISABLE", "1", False), ("VLLM_MLA_DISABLE", "0", True), ("VLLM_PP_LAYER_PARTITION", "10,26", False),
        ("VLLM_USE_V1", "0", True), ("VLLM_USE_V1", "1", True), ("VLLM_USE_V1", None, False), ("NCCL_DEBUG", "INFO", True),
    ],
)  # fmt: skip
def test_a_variable_with_another_layout_leaves_the_verdict_open(
    name: str, value: str | None, *, is_known: bool
) -> None:
    given = {"value": value} if value is not None else {"secretKeyRef": {"name": "s", "key": "k"}}
    result = assessed({"maxNumSeqs": 4}, template={"env": [{"name": name, **given}]})
    assert (result.verdict is not Verdict.UNKNOWN) is is_known
    unmodelled = [each for each in result.findings if each.rule.id == "UnmodelledKind"]
    assert [(each.field, name in each.message) for each in unmodelled] == ([] if is_known else [("environment", True)])


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        ("--hf-config-path=/model/other", "overrides of the model's config"), ("--worker-cls=corp.Worker", "a worker of its own"),
        ("--worker-cls=auto", ""), ("--offload-group-size=4", ""), ("--offload-group-size=0", ""),
        ('--model-class-overrides={"A": "corp.A"}', "a model class of its own"), ("--cpu-offload-gb=0", ""),
    ],
)  # fmt: skip
def test_an_option_that_moves_memory_without_a_formula_is_named(argument: str, kind: str) -> None:
    result = assessed({"maxNumSeqs": 4, "extraArgs": [argument]})
    assert (result.verdict is Verdict.UNKNOWN) is bool(kind)
    assert [kind in each.message for each in result.findings if each.rule.id == "UnmodelledKind"] == [True] * bool(kind)


def test_bytes_refuse_nothing_while_the_name_and_the_config_state_different_formats() -> None:
    """Somebody gave the config of the model before it was quantised: 131 GiB in bfloat16, for 37 GiB of a checkpoint."""
    config = load_model("meta-llama/Llama-3.1-70B-Instruct").config
    asked = {"model_config": config, "gpu": "H100-SXM-80GB", "max_model_len": 4096}
    plain, named = (assess_request({**asked, "model": name}) for name in ("ours/llama-70b", "ours/llama-70b-AWQ"))
    assert (plain.verdict, named.verdict) == (Verdict.DOES_NOT_FIT, Verdict.DOES_NOT_FIT)
    assert (plain.is_refusal, named.is_refusal) == (True, False)
    rules = {finding.rule.id: finding.severity for finding in named.findings}
    assert rules["NameStatesAnotherFormat"] is Severity.WARNING
    assert rules["WeightsTooLarge"] is Severity.WARNING


def test_a_quantization_that_the_name_states_is_not_refused_for_the_sake_of_the_config() -> None:
    config = load_model("Qwen/Qwen3-8B-FP8").config
    asked = {"model_config": config, "gpu": "H100-SXM-80GB", "max_model_len": 4096, "quantization": "awq"}
    plain, named = (assess_request({**asked, "model": name}) for name in ("ours/qwen", "ours/qwen-AWQ"))
    assert (plain.verdict, named.verdict) == (Verdict.DOES_NOT_FIT, Verdict.DOES_NOT_FIT)
    assert (plain.is_refusal, named.is_refusal) == (True, False)
    assert "QuantizationContradictsCheckpoint" in {finding.rule.id for finding in named.findings}


def test_an_assumed_format_contradicts_no_quantization() -> None:
    """NVIDIA publishes for ModelOpt; that the format is compressed-tensors is a guess."""
    asked = {"model": "nvidia/Llama-3.1-8B-Instruct-FP4", "gpu": "B200-SXM-180GB", "quantization": "modelopt_fp4"}
    found = {finding.rule.id for finding in assess_request(asked).findings}
    assert "ModelAssumed" in found
    assert "QuantizationContradictsCheckpoint" not in found


def test_what_vllm_refuses_anyway_is_refused_under_any_name() -> None:
    config = load_model("meta-llama/Llama-3.1-70B-Instruct").config
    asked = {"model": "ours/llama-70b-AWQ", "model_config": config, "gpu": "H100-SXM-80GB", "tensor_parallel_size": 3}
    assert assess_request(asked).verdict is Verdict.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("overrides", "verdict"),
    [
        ('{"num_hidden_layers": 4}', Verdict.FITS), ('{"num_hidden_layers": 400}', Verdict.DOES_NOT_FIT),
        ('{"hidden_size": 64}', Verdict.UNKNOWN), ('{"num_hidden_layers": 4, "rope_theta": 1}', Verdict.FITS),
    ],
)  # fmt: skip
def test_overrides_of_the_config_change_the_model(overrides: str, verdict: Verdict) -> None:
    result = assessed({"maxNumSeqs": 1, "maxModelLen": 4096, "extraArgs": [f"--hf-overrides={overrides}"]})
    assert result.verdict is verdict


def test_overrides_of_a_config_that_is_assumed_leave_the_verdict_open() -> None:
    vllm = {"maxNumSeqs": 1, "extraArgs": ['--hf-overrides={"num_hidden_layers": 4}']}
    result = assessed(vllm, gpu="H100-SXM-80GB", model={"name": "corp/Qwen3-8B-AWQ"})
    assert result.verdict is Verdict.UNKNOWN


@table(
    ("accelerator", "selected", "vllm", "rules"),
    [
        ({"sharedBy": 2}, {}, {"gpuMemoryUtilization": "0.4"}, []),
        ({}, {}, {}, []),
        ({}, {"nvidia.com/gpu.sharing-strategy": "mps"}, {}, ["SharedOnOneSide"]),
        ({}, {"nvidia.com/gpu.replicas": "4"}, {}, ["SharedOnOneSide"]),
        ({}, {"nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none"}, {}, []),
        (
            {"sharedBy": 2},
            {"nvidia.com/gpu.sharing-strategy": "none"},
            {"gpuMemoryUtilization": "0.4"},
            ["SharedOnOneSide"],
        ),
        ({"sharedBy": 2}, {"nvidia.com/gpu.sharing-strategy": "mps"}, {"gpuMemoryUtilization": "0.4"}, []),
        ({"sharedBy": 2, "type": "MI300X-192GB"}, {}, {"gpuMemoryUtilization": "0.4"}, ["SharedOnOneSide"]),
        ({"sharedBy": 2, "type": "MI300X-192GB", "claim": "GpuMemory"}, {}, {}, ["SharedOnOneSide"]),
        ({"sharedBy": 2, "claim": "GpuMemory"}, {"nvidia.com/gpu.sharing-strategy": "none"}, {}, []),
        ({"sharedBy": 2}, {}, {"gpuMemoryUtilization": "0.4", "tensorParallelSize": 2}, ["RanksMayShareAGpu"]),
        ({"sharedBy": 2, "claim": "GpuMemory"}, {}, {"tensorParallelSize": 2}, []),
        ({"sharedBy": 2}, {}, {"gpuMemoryUtilization": "0.7"}, ["SharedGpuOverbooked"]),
    ],
)
def test_sharing_that_only_one_side_states_is_told(
    accelerator: dict[str, Any], selected: dict[str, str], vllm: dict[str, Any], rules: list[str]
) -> None:
    document = new_document(vllm={"maxModelLen": 4096, "maxNumSeqs": 2, **vllm}, template={"nodeSelector": selected})
    document["spec"]["accelerator"] |= accelerator
    spec = parse_document(document).spec
    found = assess(spec, gather(statement_of(spec), no_config))
    told = [each for each in found.findings if each.severity is not Severity.INFO]
    assert [each.rule.id for each in told] == rules
    assert all(each.severity is Severity.WARNING for each in told)
    assert found.decision is not Decision.REFUSE


@pytest.mark.parametrize("policy", ["Reject", "Adjust"])
def test_an_equal_part_is_the_only_alternative_where_the_share_leaves_no_room(policy: str) -> None:
    document = new_document(vllm={"maxModelLen": 4096, "maxNumSeqs": 2}, admission={"policy": policy})
    document["spec"]["accelerator"] |= {"sharedBy": 3}
    spec = parse_document(document).spec
    found = assess(spec, gather(statement_of(spec), no_config))
    assert found.decision is Decision.REFUSE
    assert [(each.field, each.value) for each in found.alternatives] == [("gpu_memory_utilization", "0.31")]


@pytest.mark.parametrize(
    ("accelerator", "admission", "vllm", "replicas", "severity"),
    [
        ({"sharedBy": 2}, {}, {}, 1, Severity.INFO),
        ({"sharedBy": 2}, {}, {}, 2, Severity.WARNING),
        ({"sharedBy": 2}, {"capacity": "Pinned"}, {}, 2, None),
        ({"sharedBy": 2}, {}, {"kvCacheMemoryBytes": 1 << 30}, 2, None),
        ({"sharedBy": 2, "claim": "GpuMemory"}, {}, {}, 2, None),
        ({}, {}, {}, 2, None),
    ],
)
def test_engines_that_measure_beside_starting_ones_are_told(
    accelerator: dict[str, Any],
    admission: dict[str, Any],
    vllm: dict[str, Any],
    replicas: int,
    severity: Severity | None,
) -> None:
    settings = {"maxModelLen": 2048, "maxNumSeqs": 1, "gpuMemoryUtilization": "0.4", **vllm}
    document = new_document(vllm=settings, admission=admission, replicas=replicas)
    document["spec"]["accelerator"] |= accelerator
    spec = parse_document(document).spec
    found = [
        each
        for each in assess(spec, gather(statement_of(spec), no_config)).findings
        if each.rule.id == "SharedGpuStartOrder"
    ]
    assert [each.severity for each in found] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("vllm", "template", "told"),
    [
        ({}, {}, {"installed_by": "image", "compile_cache": "cold"}),
        ({}, {"cacheClaimName": "c"}, {"installed_by": "image"}),
        ({"image": "mirror.local/vllm/vllm-openai:v0.33.0"}, {}, {"installed_by": "image", "compile_cache": "cold"}),
        ({"image": "me/serving:1"}, {}, {"compile_cache": "cold"}),
        (
            {},
            {"cacheClaimName": "c", "env": [{"name": "VLLM_DISABLE_COMPILE_CACHE", "value": "1"}]},
            {"installed_by": "image", "compile_cache": "cold"},
        ),
        (
            {},
            {"env": [{"name": "VLLM_USE_FLASHINFER_SAMPLER", "value": "0"}]},
            {"installed_by": "image", "compile_cache": "cold", "use_flashinfer_sampler": False},
        ),
        (
            {},
            {"env": [{"name": "VLLM_USE_FLASHINFER_SAMPLER", "secretKeyRef": {"name": "s", "key": "k"}}]},
            {"installed_by": "image", "compile_cache": "cold"},
        ),
    ],
)
def test_what_kvgate_renders_is_known_of_the_start(
    vllm: dict[str, Any], template: dict[str, Any], told: dict[str, Any]
) -> None:
    spec = spec_of(vllm={"version": "0.33.0", **vllm}, template=template)
    request = question(statement_of(spec), gather(statement_of(spec), no_config))
    assert request.circumstances == Circumstances(usage_context="server", **told)


def of_workload(peak_concurrency: int) -> dict[str, Any]:
    return {"workload": {"peakConcurrency": peak_concurrency, "promptTokens": 1000, "outputTokens": 24}}


@table(
    ("gpu", "policy", "floor", "spec", "seqs"),
    [
        ("L4-24GB", "Reject", 12, {}, 1),  # the floor is one of Adjust
        ("L4-24GB", "Warn", 12, {}, 1),
        ("L4-24GB", "Adjust", 1, {}, 1),
        ("L4-24GB", "Adjust", 4, {}, 4),
        ("L4-24GB", "Adjust", 12, {}, 12),
        ("H100-SXM-80GB", "Adjust", 4, {}, 9),
        ("H100-SXM-80GB", "Adjust", 12, {}, 12),
        ("L4-24GB", "Reject", 12, of_workload(8), 8),
        ("L4-24GB", "Reject", 12, of_workload(300), 256),  # vLLM's default on this GPU
        ("L4-24GB", "Adjust", 4, of_workload(8), 8),
        ("L4-24GB", "Adjust", 12, of_workload(8), 12),
        ("L4-24GB", "Adjust", 1, of_workload(300), 256),
        ("H100-SXM-80GB", "Adjust", 12, of_workload(8), 1024),
        ("L4-24GB", "Reject", 1, {**of_workload(8), "admission": {"guarantee": "Startup"}}, 1),
        ("L4-24GB", "Adjust", 12, {"vllm": {"maxNumSeqs": 6}}, 6),  # somebody chose them
        ("L4-24GB", "Adjust", 12, {**of_workload(8), "vllm": {"maxNumSeqs": 6}}, 6),
    ],
)
def test_sequences_that_nobody_chose_keep_to_the_floors(
    gpu: str, policy: str, floor: int, spec: dict[str, Any], seqs: int
) -> None:
    rest = {key: value for key, value in spec.items() if key not in ("vllm", "admission")}
    admission = {"adjust": {"minMaxNumSeqs": floor}, **spec.get("admission", {})}
    result = assessed(spec.get("vllm", {}), gpu=gpu, policy=policy, admission=admission, **rest)
    assert result.budget is not None
    assert result.budget.resolved.max_num_seqs == seqs


@table(
    ("vllm", "policy", "more", "values"),
    [
        (FITS, "Reject", {}, (4096, 2, "auto")),
        ({**FITS, "kvCacheDtype": "fp8"}, "Reject", {}, (4096, 2, "fp8")),
        ({}, "Warn", {}, (40_960, 1, "auto")),
        ({}, "Reject", {"gpu": "H100-SXM-80GB"}, (40_960, 9, "auto")),
        (TOO_LARGE, "Warn", {}, (40_960, 8, "auto")),
        (TOO_LARGE, "Adjust", {"skip": "why"}, (40_960, 8, "auto")),
        (TOO_LARGE, "Adjust", {}, (3152, 8, "auto")),
        (UNKNOWN, "Reject", {}, (4096, 8, "auto")),
        ({"maxNumSeqs": 3, "kvCacheDtype": "fp8"}, "Reject", {"model": "nobody/knows"}, (None, 3, "fp8")),
    ],
)
def test_pods_are_rendered_from_the_judged_values(
    vllm: dict[str, Any], policy: str, more: dict[str, Any], values: tuple[int | None, int | None, str | None]
) -> None:
    model = {"model": more["model"]} if "model" in more else {}
    spec = spec_of(accelerator=more.get("gpu", "L4-24GB"), vllm=vllm, admission={"policy": policy}, **model)
    found = effective_values(
        spec,
        assess(spec, gather(statement_of(spec), no_config), skip=Skip(reason=more["skip"]) if "skip" in more else None),
    )
    expected = dict(zip(("max_model_len", "max_num_seqs", "kv_cache_dtype"), values, strict=True))
    assert found.model_dump(exclude_none=True) == {key: value for key, value in expected.items() if value is not None}


@table(
    ("vllm", "policy", "skip", "steps"),
    [
        (FITS, "Adjust", None, [("Admit", [], False)]),
        (MAYBE, "Reject", None, [("AdmitWithWarning", ["SearchStopped"], False), ("AdmitWithWarning", [], False)]),
        (TOO_LARGE, "Reject", None, [("Refuse", ["SearchStopped"], False), ("Refuse", [], False)]),
        (TOO_LARGE, "Adjust", None, [("Refuse", ["SearchStopped"], False), ("AdmitAdjusted", [], True)]),
        (TOO_LARGE, "Reject", "why", [("Skipped", ["SearchStopped"], False), ("Skipped", [], False)]),
        (REFUSED, "Adjust", None, [("Refuse", [], False)]),
        (UNKNOWN, "Adjust", None, [("AdmitWithWarning", [], False)]),
        ({"version": "0.5.0"}, "Adjust", None, [("AdmitWithWarning", [], False)]),
    ],
)
def test_each_answer_stands_by_itself(
    vllm: dict[str, Any], policy: str, skip: str | None, steps: list[tuple[str, list[str], bool]]
) -> None:
    spec = spec_of(accelerator="L4-24GB", vllm=vllm, admission={"policy": policy})
    answers = [*assessments(spec, gather(statement_of(spec), no_config), skip=Skip(reason=skip) if skip else None)]
    stopped = [[f.rule.id for f in each.findings if f.rule.id == "SearchStopped"] for each in answers]
    told = [
        (each.decision.value, rules, each.adjustment is not None) for each, rules in zip(answers, stopped, strict=True)
    ]
    assert told == steps
    assert {each.skip.reason if each.skip else None for each in answers} == {skip}
    assert [bool(each.alternatives) for each in answers] == [False, True][: len(steps)]
    searched = answers[-1].adjustment is not None
    assert [knob.value for knob in answers[-1].sought] == (["MaxNumSeqs", "MaxModelLen"] if searched else [])


def test_a_judgement_without_time_decides_nothing() -> None:
    spec = spec_of(vllm=TOO_LARGE, admission={"guarantee": "Startup"})
    found = undecided(spec, gather(statement_of(spec), no_config))
    assert (found.verdict, found.decision, found.guarantee) == (
        Verdict.UNKNOWN, Decision.ADMIT_WITH_WARNING, Guarantee.STARTUP,
    )  # fmt: skip
    assert [(each.rule.id, each.field) for each in found.findings] == [("AssessmentStopped", "model")]


def offloading(limit: str) -> dict[str, Any]:
    """A pod that keeps 40 GiB in the memory of its host, with that limit."""
    template = {"resources": {"limits": {"memory": limit}}}
    return {"model": "nobody/x", "vllm": {"extraArgs": ["--kv-offloading-size=40"]}, "template": template}


def with_variable(name: str, value: str) -> dict[str, Any]:
    return {"template": {"env": [{"name": "OTHER", "value": "b"}, {"name": "EMPTY"}, {"name": name, "value": value}]}}


@pytest.mark.parametrize(
    ("spec", "verdict", "findings"),
    [
        ({"vllm": {**FITS, "extraArgs": ["--no-such"]}}, "DoesNotFit", [("OptionUnknown", "error", "spec.vllm.extraArgs[0]")]),
        ({"vllm": {**FITS, "extraArgs": ["--seed=1", "--worker-cls=corp.W"]}}, "Unknown", [("UnmodelledKind", "warning", "extra_args")]),
        (with_variable("HF_HOME", "/tmp/x"), "Fits", [("OutsideCacheVolume", "warning", "spec.template.env[2].value")]),
        (with_variable("HF_TOKEN", "hf_abcdefghijklmnop"), "Fits", [("SecretInPlainText", "warning", "spec.template.env[2].value")]),
        (with_variable("A", "$(B)"), "Fits", [("VariableNotExpanded", "warning", "spec.template.env[2].value")]),
        (with_variable("HF_ENDPOINT", "http://x"), "Fits", [("LoadsUnjudged", "warning", "spec.template.env[2].name")]),
        (with_variable("A", "b"), "Fits", []),
        (offloading("8Gi"), "DoesNotFit",
         [("UnknownModel", "warning", "model"), ("HostMemoryTooSmall", "error", "host_memory_limit_bytes")]),
        (offloading("80Gi"), "Unknown", [("UnknownModel", "warning", "model")]),
        ({"vllm": {**FITS, "extraArgs": ["--enable-sleep-mode"]}, "admission": {"capacity": "Pinned"}}, "DoesNotFit",
         [("CapacityConflict", "error", "capacity")]),
    ],
    ids=str,
)  # fmt: skip
def test_a_spec_has_exactly_these_findings(
    spec: dict[str, Any], verdict: str, findings: list[tuple[str, str, str]]
) -> None:
    result = assessed(spec.get("vllm", FITS), **{key: value for key, value in spec.items() if key != "vllm"})
    told = [(each.rule.id, each.severity.value, each.field) for each in result.findings if each.severity != "info"]
    assert (result.verdict.value, told) == (verdict, findings)

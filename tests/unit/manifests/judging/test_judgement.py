"""What is said of an engine: releases that are not known, contradictions, GPUs that do not add up, what breaks a start around it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.releases.versions import parse_patch
from kvgate.findings.finding import Severity
from kvgate.judgement.assessment import NOT_JUDGED
from kvgate.judgement.possible_worlds import joined_ends
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.judging.engine_budget import Defaults
from kvgate.manifests.judging.judgement import JudgedEngine, judge_engine
from kvgate.statement.engine import newest_understood
from kvgate.vllm.options import newest_read, releases_read

IMAGE = "vllm/vllm-openai:v0.32.0"
NEWEST = releases_read()[-1]
"""Of those that were read."""
ASSUMED = newest_understood()
"""The newest whose accounting is known too."""
MAJOR, MINOR, PATCH = newest_read()
NEXT, NEXT_PATCH = f"{MAJOR}.{MINOR + 1}.0", f"{MAJOR}.{MINOR}.{PATCH + 1}"
NO_GPUS = {"limits": {"nvidia.com/gpu": 0}}


def judged(
    folder: Path, *arguments: str, image: str = IMAGE, gpus: int | None = 1, gpu: str = "NVIDIA-H100-80GB-HBM3",
    defaults: Defaults | None = None, container: dict[str, Any] | None = None, **pod: Any,
) -> JudgedEngine:  # fmt: skip
    """A pod with `vllm serve ARGUMENTS`."""
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    vllm = {
        "name": "vllm",
        "image": image,
        "command": ["vllm", "serve"],
        "args": list(arguments),
        "resources": resources,
    }
    spec = {"nodeSelector": {"nvidia.com/gpu.product": gpu}, "containers": [vllm | (container or {})], **pod}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    (folder / "x.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (engine,) = find_engines(read_manifests([str(folder)])).engines
    return judge_engine(engine, defaults or Defaults())


def rules(engine: JudgedEngine, *severities: Severity) -> list[str]:
    return [each.finding.rule.id for each in engine.findings if not severities or each.finding.severity in severities]


@pytest.mark.parametrize(
    ("image", "version", "assumed"),
    [
        ("vllm/vllm-openai:v0.29.0", "0.29.0", ""),
        ("vllm/vllm-openai:v0.29.0-cu129", "0.29.0", ""),
        ("registry.local:5000/mirror/vllm/vllm-openai:v0.10.2.post1", "0.10.2.post1", ""),
        ("vllm/vllm-openai:v0.29.0@sha256:00", "0.29.0", ""),
        ("ghcr.io/llm-d/llm-d-cuda:v0.9.0-vllm0.30.0", "0.30.0", ""),
        ("public.ecr.aws/deep-learning-containers/vllm:0.11.0-gpu-py312-cu128-ubuntu22.04-ec2", "0.11.0", ""),
        ("rayproject/ray:2.43.0-vllm_0.8.5.post1", "0.8.5.post1", ""),
        ("team/dynamo:1.5.0-vllm-runtime-0.2.1", ASSUMED, "not vLLM's own image"),
        ("vllm/vllm-openai", ASSUMED, "moves"),
        ("vllm/vllm-openai:nightly", ASSUMED, "moves"),
        ("vllm/vllm-openai@sha256:00", ASSUMED, f"0.8.5 to {ASSUMED}: a digest"),
        ("vllm/vllm-openai:nightly-0123456", ASSUMED, "names no release"),
        (f"vllm/vllm-openai:v0.27{'9' * 40}.1", ASSUMED, "names no release"),
        (f"vllm/vllm-openai:v0.27.{'9' * 40}", ASSUMED, "names no release"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.1", "0.23.0", "vLLM 0.23.0: vllm-runtime:1.3.1 (ai-dynamo/dynamo"),
        ("lmcache/vllm-openai:v0.3.5", "0.10.2", "vLLM 0.10.1 to 0.10.2: vllm-openai:v0.3.5 (lmcache 0.3.5"),
        ("quay.io/team/vllm:1.2.3", ASSUMED, "not vLLM's own image"),
    ],
)
def test_the_release_is_the_images_or_assumed(tmp_path: Path, image: str, version: str, assumed: str) -> None:
    engine = judged(tmp_path, "Qwen/Qwen3-0.6B", image=image)
    assert engine.vllm_version == version
    assert assumed in " ".join(each.text for each in engine.assumed)
    assert [each.fact for each in engine.assumed] == (["vllm_version"] if assumed else [])
    assert [each.value for each in engine.assumed if " to " not in each.text] in ([], [version])


@pytest.mark.parametrize(
    ("container", "arguments", "rule"),
    [
        ({"image": "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.10.1"}, (), "RunsOnCpu"),
        ({"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "40"}]}, (), "RunsOnCpu"),
        ({}, ("--device=cpu",), "RunsOnCpu"),
        ({}, ("--device", "cpu"), "RunsOnCpu"),
        ({"image": "opea/vllm-gaudi:1.22.0"}, (), "OtherHardware"),
        ({"image": "quay.io/ascend/vllm-ascend:v0.13.0rc3-a3"}, (), "OtherHardware"),
        ({"image": "intel/llm-scaler-vllm:0.14.0-b8"}, (), "OtherHardware"),
        ({"image": "vllm/vllm-openai-xpu:latest"}, (), "OtherHardware"),
        ({"image": "vllm/vllm-tpu:latest"}, (), "OtherHardware"),
        ({"image": "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.9.1"}, (), "OtherHardware"),
    ],
)
def test_hardware_that_is_not_judged_gets_one_info(
    tmp_path: Path, container: dict[str, Any], arguments: tuple[str, ...], rule: str
) -> None:
    stated = {"image": "vllm/vllm-openai:v0.9.2", **container}
    pod = {"nodeSelector": {}, "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]}
    found = judged(
        tmp_path, "Qwen/Qwen3-8B", "--max-model-len=$(LENGTH)", *arguments, gpus=None, container=stated, **pod
    )
    assert (found.verdict, found.assessment) == (NOT_JUDGED, None)
    assert rules(found) == [rule]


@pytest.mark.parametrize(
    ("image", "option", "expected", "verdict"),
    [
        ("vllm/vllm-openai:v0.11.0", "--device=cpu", [Severity.ERROR], Verdict.DOES_NOT_FIT),
        ("vllm/vllm-openai:latest", "--device=cpu", [Severity.WARNING], NOT_JUDGED),
        ("corp/vllm-cpu:v0.11.0-abc", "--device=cpu", [Severity.WARNING], NOT_JUDGED),
        ("vllm/vllm-openai-xpu:latest", "--device=xpu", [Severity.WARNING], NOT_JUDGED),
        ("vllm/vllm-openai-xpu:latest", "--task=embed", [Severity.WARNING], NOT_JUDGED),
        ("vllm/vllm-openai:v0.9.2", "--device=cpu", [], NOT_JUDGED),
        ("opea/vllm-gaudi:1.22.0", "--use-padding-aware-scheduling", [], NOT_JUDGED),
    ],
)
def test_an_option_that_is_gone_is_told_on_any_hardware(
    tmp_path: Path, image: str, option: str, expected: list[Severity], verdict: Verdict
) -> None:
    found = judged(tmp_path, "facebook/opt-125m", option, gpus=None, image=image, nodeSelector={})
    about = [each.finding for each in found.findings if each.finding.severity is not Severity.INFO]
    assert [each.severity for each in about if each.rule.id == "OptionRemoved"] == expected
    assert (len(about), found.verdict) == (len(expected), verdict)


@pytest.mark.parametrize(
    "container",
    [
        {"image": "corp/vllm-input-adapter:v0.9.2"},
        {
            "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "40"}],
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "image": "vllm/vllm-openai:v0.9.2",
        },
    ],
)
def test_gpus_are_judged_whatever_a_name_or_a_variable_looks_like(tmp_path: Path, container: dict[str, Any]) -> None:
    found = judged(tmp_path, "--model=Qwen/Qwen3-0.6B", "--max-model-len=2048", container=container)
    assert found.verdict is Verdict.FITS


def test_a_configured_release_stands_where_the_image_says_none(tmp_path: Path) -> None:
    engine = judged(tmp_path, "Qwen/Qwen3-0.6B", image="team/vllm", defaults=Defaults(vllm_version="0.12.0"))
    assert (engine.vllm_version, [each.text for each in engine.assumed]) == ("0.12.0", ["vLLM 0.12.0, as configured"])
    stated = judged(tmp_path, "Qwen/Qwen3-0.6B", defaults=Defaults(vllm_version="0.12.0"))
    assert (stated.vllm_version, stated.assumed) == ("0.32.0", ())


@pytest.mark.parametrize(
    ("arguments", "low", "high"),
    [
        (["--swap-space=4"], "0.8.5", "0.17.1"),
        (["--nnodes=1"], "0.12.0", ASSUMED),
        (["--max-model-len=auto"], "0.14.1", ASSUMED),
        (["--enable-auto-tool-choice", "--tool-call-parser=glm47"], "0.14.1", ASSUMED),
        (["--speculative-model=x"], "0.6.6", "0.6.6"),
        (["--enable-multimodal"], "0.8.5", ASSUMED),
    ],
)
def test_options_narrow_the_release_down(tmp_path: Path, arguments: list[str], low: str, high: str) -> None:
    engine = judged(tmp_path, "Qwen/Qwen2.5-7B-Instruct", *arguments, image="team/vllm")
    span = f"vLLM {low}:" if low == high else f"vLLM {low} to {high}:"
    assert engine.assumed[0].text.startswith(span)
    assert not {"OptionRemoved", "OptionNotYet", "OptionValue", "ParserUnknown"} & set(rules(engine))


@pytest.mark.parametrize(
    ("other", "option", "verdict"),
    [
        (("nvidia.com/gpu.product", "NVIDIA-A10"), "--seed=1", Verdict.DOES_NOT_FIT),
        (("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"), "--seed=1", Verdict.MAY_NOT_FIT),
        (("pool", "large"), "--seed=1", Verdict.MAY_NOT_FIT),
        (("pool", "large"), "--no-such-option", Verdict.DOES_NOT_FIT),
    ],
)
def test_only_what_no_alternative_of_an_affinity_holds_is_refused(
    tmp_path: Path, other: tuple[str, str], option: str, verdict: Verdict
) -> None:
    labels = (("nvidia.com/gpu.product", "NVIDIA-L4"), other)
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in labels]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = {"nodeSelector": {}, "affinity": {"nodeAffinity": required}}
    found = judged(tmp_path, "Qwen/Qwen3-8B", option, **pod)
    assert found.verdict is verdict
    assert "SeveralAccelerators" in rules(found, Severity.INFO)


@pytest.mark.parametrize(
    ("labels", "resource", "is_shared"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-L4"}, "nvidia.com/gpu", False),
        ({"nvidia.com/gpu.product": "NVIDIA-L4-SHARED"}, "nvidia.com/gpu", True),
        ({"nvidia.com/gpu.product": "NVIDIA-L4"}, "nvidia.com/gpu.shared", True),
        ({"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.sharing-strategy": "none"}, "nvidia.com/gpu", False),
        ({"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.sharing-strategy": "mps"}, "nvidia.com/gpu", True),
        (
            {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"},
            "nvidia.com/gpu",
            True,
        ),
    ],
)  # fmt: skip
def test_other_containers_on_the_gpu_are_told(
    tmp_path: Path, labels: dict[str, str], resource: str, *, is_shared: bool
) -> None:
    container = {"resources": {"limits": {resource: 1}}}
    found = judged(tmp_path, "Qwen/Qwen3-0.6B", container=container, nodeSelector=labels)
    assert found.accelerator == "L4-24GB"
    assert ("SharedGpu" in rules(found, Severity.INFO)) is is_shared


@pytest.mark.parametrize("tag", ["latest", "nightly"])
def test_a_tag_that_moves_is_the_newest_release_whatever_options_it_gets(tmp_path: Path, tag: str) -> None:
    arguments = ("Qwen/Qwen3-32B", "--max-model-len=34000")
    without, found = (
        judged(tmp_path, *arguments, *more, image=f"vllm/vllm-openai:{tag}") for more in ((), ("--swap-space=4",))
    )
    assert (found.vllm_version, found.verdict) == (ASSUMED, without.verdict)
    assert rules(found, Severity.WARNING) == ["OptionRemoved", *rules(without, Severity.WARNING)]
    assert rules(found, Severity.ERROR) == []


SURE = "vllm/vllm-openai:v0.15.1-cu129"
UNSURE = [
    "vllm/vllm-openai:v0.15.1-kimi-k3",
    "vllm/vllm-openai:v0.15.1-${FLAVOUR}",
    "vllm/vllm-openai:v0.15.1rc2",
    "vllm/vllm-openai:v0.15.1-dev.3",
    "corp/vllm:0.15.1",
    "corp/vllm-serving:v0.15.1-patched",
    f"vllm/vllm-openai:latest@sha256:{'0' * 64}",
    "vllm/vllm-openai:${TAG:?such as v0.15.1}",
    "rhaiis/vllm-cuda-rhel9:3.3-preview",
]


@pytest.mark.parametrize("image", UNSURE)
@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (
            ["Qwen/Qwen3-32B", "--max-model-len=30000"],
            "KVCacheTooSmall",
        ),  # more is left before and after it
        (["Qwen/Qwen3-4B", "--max-model-len=8192", "--max-num-seqs=8", "--monokernel"], "OptionNotYet"),
        (["Qwen/Qwen3-4B", "--max-model-len=8192", "--max-num-seqs=8", "--num-scheduler-steps=8"], "OptionRemoved"),
        (["Qwen/Qwen3.5-27B", "--max-model-len=4096", "--max-num-seqs=8"], "ModelClassNotInRelease"),
    ],
)
def test_only_what_surely_is_a_release_refuses(tmp_path: Path, image: str, arguments: list[str], rule: str) -> None:
    found = judged(tmp_path, *arguments, image=image)
    assert rules(found, Severity.ERROR) == []
    assert found.verdict is not Verdict.DOES_NOT_FIT
    assert found.stated_release is None
    assert rules(judged(tmp_path, *arguments, image=SURE), Severity.ERROR) == [rule]


@pytest.mark.parametrize("image", UNSURE)
@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["Qwen/Qwen2.5-72B-Instruct", "--max-model-len=4096"], "WeightsTooLarge"),
        (["Qwen/Qwen3-4B", "--max-model-len=8192", "--max-modle-len=1"], "OptionUnknown"),
        (["Qwen/Qwen3-4B", "--max-model-len=8192", "--dtype=fp8"], "OptionValue"),
    ],
)
def test_what_every_release_refuses_is_an_error_of_any_image(
    tmp_path: Path, image: str, arguments: list[str], rule: str
) -> None:
    assert rules(judged(tmp_path, *arguments, image=image), Severity.ERROR) == [rule]


def test_an_option_chooses_no_release_that_refuses_something_else(tmp_path: Path) -> None:
    arguments = ("Qwen/Qwen3-32B", "--max-model-len=34000")
    without, found = (judged(tmp_path, *arguments, *more, image="corp/llm:7") for more in ((), ("--swap-space=4",)))
    assert found.assumed[0].text.startswith("vLLM 0.8.5 to 0.17.1")
    assert found.verdict is without.verdict is Verdict.MAY_NOT_FIT
    assert rules(found, Severity.ERROR) == []


@pytest.mark.parametrize(
    ("image", "arguments", "assumed"),
    [
        ("team/vllm", [], "vLLM 0.8.5 to 0.32.0: "),
        ("vllm/vllm-openai", [], "vLLM 0.32.0: "),
        ("team/vllm", ["--monokernel"], "vLLM 0.33.0: "),
    ],
)
def test_a_release_that_was_only_read_is_assumed_where_no_older_one_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, arguments: list[str], assumed: str
) -> None:
    """`make vllm-release` brings tables; the accounting comes when a person has read what changed."""
    is_newer = lambda version: parse_patch(version) > (0, 32, 99)  # noqa: E731
    for module in ("manifests.judging.releases", "statement.engine"):
        monkeypatch.setattr(f"kvgate.{module}.is_newer_than_known", is_newer, raising=False)
    assert judged(tmp_path, "Qwen/Qwen2.5-7B-Instruct", *arguments, image=image).assumed[0].text.startswith(assumed)


@pytest.mark.parametrize("tag", [f"v{NEXT}", f"v{NEXT_PATCH}", "nightly"])
def test_a_release_that_nobody_has_read_may_know_more_options(tmp_path: Path, tag: str) -> None:
    known = ("Qwen/Qwen3-8B", "--max-model-len=8192", "--max-num-seqs=4")
    found = judged(tmp_path, *known, "--brand-new=1", "--moe-backend=newer", image=f"vllm/vllm-openai:{tag}")
    assert rules(found, Severity.WARNING) == ["OptionUnknown", "OptionValue"]
    assert found.findings[0].finding.message.startswith(
        f"as of vLLM {NEWEST}, the newest that kvgate knows, --brand-new"
    )
    assert found.verdict is Verdict.FITS


@pytest.mark.parametrize("image", ["vllm/vllm-openai:latest", f"vllm/vllm-openai@sha256:{'0' * 64}", "corp/llm:7"])
@pytest.mark.parametrize(
    ("option", "severity"), [("--corp-quota=1", Severity.WARNING), ("--max-modle-len=1", Severity.ERROR)]
)
def test_where_no_release_is_stated_a_slip_of_the_pen_is_an_error_and_an_option_like_no_other_is_not(
    tmp_path: Path, image: str, option: str, severity: Severity
) -> None:
    found = judged(tmp_path, "Qwen/Qwen3-8B", "--max-model-len=8192", "--max-num-seqs=4", option, image=image)
    assert rules(found, severity) == ["OptionUnknown"]


@pytest.mark.parametrize(
    ("image", "name", "severity"),
    [
        (IMAGE, "hermess", Severity.ERROR),
        (IMAGE, "corp", Severity.ERROR),
        (f"vllm/vllm-openai:v{NEXT}", "corp", Severity.WARNING),
        ("vllm/vllm-openai:nightly", "hermess", Severity.WARNING),
        ("corp/llm:7", "corp", Severity.WARNING),
        ("corp/llm:7", "minimax", Severity.WARNING),  # neither the oldest nor the newest has it
        ("corp/llm:7", "hermess", Severity.ERROR),
    ],
)
def test_a_parser_is_refused_as_surely_as_the_release_is_known(
    tmp_path: Path, image: str, name: str, severity: Severity
) -> None:
    tools = ("--enable-auto-tool-choice", f"--tool-call-parser={name}")
    found = judged(tmp_path, "Qwen/Qwen3-8B", "--max-model-len=8192", "--max-num-seqs=4", *tools, image=image)
    told = [each for each in found.findings if each.finding.rule.id == "ParserUnknown"]
    assert [(each.finding.severity, each.path) for each in told] == [(severity, "spec.containers[0].args[4]")]


def test_another_program_may_bring_a_parser_along_or_need_none(tmp_path: Path) -> None:
    container = {"command": ["python3", "-m", "dynamo.vllm"]}
    arguments = ("--reasoning-parser=corp", "--enable-auto-tool-choice")
    found = judged(tmp_path, "--model=Qwen/Qwen3-8B", *arguments, container=container)
    assert rules(found, Severity.ERROR) == []
    assert {"ParserUnknown", "ToolCallParserMissing"} <= set(rules(found, Severity.WARNING))


def test_what_is_missing_may_stand_in_options_that_nobody_sees(tmp_path: Path) -> None:
    found = judged(tmp_path, "Qwen/Qwen3-8B", "--enable-auto-tool-choice", "--lora-modules", "a=b", "--config=/x.yaml")
    assert rules(found, Severity.ERROR) == []
    assert "LoraNotEnabled" in rules(found, Severity.WARNING)
    assert "ToolCallParserMissing" not in rules(found)


def test_the_values_of_a_new_option_are_uncertain_with_it(tmp_path: Path) -> None:
    found = judged(tmp_path, "Qwen/Qwen3-8B", "--max-model-len=8192", "--corp-list", "a", "b", image="corp/llm:7")
    assert rules(found, Severity.ERROR) == []


def test_a_value_that_vllm_refuses_after_parsing_is_told_where_it_stands(tmp_path: Path) -> None:
    found = judged(tmp_path, "Qwen/Qwen3-8B", "--gpu-memory-utilization=92", "--max-num-seqs=0")
    told = [(each.finding.rule.id, each.finding.field, each.path) for each in found.findings]
    assert told == [
        ("InvalidSetting", "gpu_memory_utilization", "spec.containers[0].args[1]"),
        ("InvalidSetting", "max_num_seqs", "spec.containers[0].args[2]"),
    ]


def test_what_only_one_release_says_is_no_error(tmp_path: Path) -> None:
    engine = judged(tmp_path, "Qwen/Qwen3-32B", "--max-model-len=32000", image="team/vllm")
    assert engine.verdict in (Verdict.MAY_NOT_FIT, Verdict.FITS)
    assert rules(engine, Severity.ERROR) == []
    assert "ReleaseDecides" in rules(engine)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--no-enable-chunked-prefill", "--max-num-batched-tokens=2048", "--max-model-len=4096"],
            ["BatchBelowMaxModelLen"],
        ),
        (["--enforce-eager", "--cudagraph-capture-sizes", "1", "2"], ["NoEffect"]),
        (["--enforce-eager", '--compilation-config={"cudagraph_mode": "NONE"}'], []),
        (["--kv-cache-memory-bytes=20G", "--gpu-memory-utilization=0.9"], ["KnownDefect", "NoEffect"]),
        (["--lora-modules", "a=b"], ["LoraNotEnabled"]),
        (["--enable-auto-tool-choice"], ["ToolCallParserMissing"]),
        (["--enable-auto-tool-choice", "--tool-call-parser="], ["ToolCallParserMissing"]),
        (["--enable-auto-tool-choice", "--tool-call-parser=hermes"], []),
        (["--no-enable-auto-tool-choice"], []),
        (["--max-num-seqs=4", "--max-num-seqs=4"], ["OptionRepeated"]),
        (["--max-num-seqs=4", "--max-num-seqs=8"], ["OptionRepeated"]),
        (["--no-enable-prefix-caching", "--enable-prefix-caching"], ["OptionRepeated"]),
        (["--enforce-eager", "true"], ["UnexpectedWord"]),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    told = rules(judged(tmp_path, "Qwen/Qwen3-4B", *arguments))
    assert [
        rule for rule in told if rule not in ("Oversubscribed", "UnmodelledKind", "SamplerWarmUpIsTight")
    ] == expected


@pytest.mark.parametrize(
    ("arguments", "gpus", "expected"),
    [
        (["-tp", "2"], 1, ["TooFewGpus"]),
        (["-tp", "2", "-pp", "2"], 4, []),
        (["-dp", "2"], 1, ["TooFewGpus"]),
        ([], 4, ["IdleGpus"]),
        (["--prefill-context-parallel-size=2", "-tp=2"], 4, []),
        (["-pcp", "4"], 2, ["TooFewGpus"]),
        (["-dp=2", "-ep", "--enable-eplb", "--enable-elastic-ep"], 4, []),
        (["-dp=2", "-ep", "--enable-eplb"], 4, ["IdleGpus"]),
        (["-tp=8", "--nnodes=2"], 4, []),
        (["-tp=8", "--nnodes=2"], 8, ["IdleGpus"]),
        (["--decode-context-parallel-size=4"], 4, ["IdleGpus"]),
        (["-dp", "16", "-dpl", "8"], 8, []),
        (["-tp", "16", "--nnodes", "2"], 8, []),
        (["-tp", "16", "--distributed-executor-backend=ray"], 8, []),
        (["-dp", "4", "--data-parallel-backend=ray"], 2, []),
        (["-dp", "16", "--data-parallel-rank=3"], 1, []),
        (["-dp", "16", "--data-parallel-hybrid-lb"], 1, []),
        (["-dp", "16", "--data-parallel-external-lb"], 1, []),
        (["-dp", "16", "--data-parallel-start-rank=8"], 1, []),
        (["-dp", "16", "-dpl", "2", "--data-parallel-start-rank=8"], 1, ["TooFewGpus"]),
        (["-dp", "16", "-dpl", "2", "--data-parallel-hybrid-lb"], 4, ["IdleGpus"]),
        (["-tp", "2", "$(MORE)"], 1, ["TooFewGpus"]),
        (["-tp", "2", "$(MORE)"], 4, []),
        (["-tp", "4", "--omni"], 1, []),
        (["-pcp", "$(SIZE)", "-tp=2"], 1, []),
        (["-dp", "$(SIZE)", "-tp=2"], 1, []),
        (["-dpl", "$(SIZE)", "-tp=2"], 1, []),
        (["-pp", "$(SIZE)", "-tp=2"], 1, []),
        (["-dcp", "$(SIZE)", "-tp=2"], 1, ["TooFewGpus"]),
        (["-tp", "$(SIZE)"], 1, []),
        (["-tp", "2"], None, []),
    ],
)
def test_gpus_must_add_up(tmp_path: Path, arguments: list[str], gpus: int | None, expected: list[str]) -> None:
    told = rules(judged(tmp_path, "Qwen/Qwen3-32B", *arguments, gpus=gpus))
    assert [rule for rule in told if rule.endswith("Gpus")] == expected


@pytest.mark.parametrize(
    ("devices", "gpus", "expected"),
    [
        ("0", 2, ["TooFewGpus"]),
        ("0,1", 2, []),
        ("0, 1", None, []),
        ("0", None, ["TooFewGpus"]),
        ("0,1,2", None, ["IdleGpus"]),
        ("GPU-a1,MIG-b2/0/1", 2, []),
        ("all", 2, []),
        ("$(DEVICES)", 2, []),
        ("0,1", 4, ["IdleGpus"]),
        ("0,1,2,3", 1, ["TooFewGpus"]),
    ],
)
def test_gpus_that_cuda_does_not_show_are_none(
    tmp_path: Path, devices: str, gpus: int | None, expected: list[str]
) -> None:
    environment = [{"name": "CUDA_VISIBLE_DEVICES", "value": devices}]
    told = rules(judged(tmp_path, "Qwen/Qwen3-32B", "-tp=2", gpus=gpus, container={"env": environment}))
    assert [rule for rule in told if rule.endswith("Gpus")] == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen3-32B -tp 2", ["TooFewGpus"]),
        ("env CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-32B -tp 2", []),
        ("export CUDA_VISIBLE_DEVICES=0,1\nvllm serve Qwen/Qwen3-32B -tp 2", []),
    ],
)
def test_a_script_may_show_other_gpus(tmp_path: Path, script: str, expected: list[str]) -> None:
    container = {"command": ["sh", "-c", script], "args": [], "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "3"}]}
    told = rules(judged(tmp_path, gpus=2, container=container))
    assert [rule for rule in told if rule.endswith("Gpus")] == expected


@pytest.mark.parametrize(
    "first",
    ["ray start --head --port=6379 &&", "bash /vllm-workspace/examples/online_serving/multi-node-serving.sh leader;"],
)
def test_a_container_that_starts_ray_has_its_clusters_gpus(tmp_path: Path, first: str) -> None:
    script = f"{first} vllm serve Qwen/Qwen3-32B -tp 8 -pp 2"
    engine = judged(tmp_path, gpus=8, container={"command": ["sh", "-c", script]})
    assert "TooFewGpus" not in rules(engine)


@pytest.mark.parametrize("resource", ["google.com/tpu", "aws.amazon.com/neuron"])
def test_a_chip_may_be_several_ranks(tmp_path: Path, resource: str) -> None:
    engine = judged(tmp_path, "Qwen/Qwen3-32B", "-tp", "8", container={"resources": {"limits": {resource: 4}}})
    assert not [rule for rule in rules(engine) if rule.endswith("Gpus")]


def _probe(kind: str, **numbers: int) -> dict[str, Any]:
    return {kind: {"httpGet": {"path": "/health", "port": 8000}, **numbers}}


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (_probe("livenessProbe"), True),
        (_probe("livenessProbe", initialDelaySeconds=10), True),
        (_probe("livenessProbe", initialDelaySeconds=30), False),
        (_probe("livenessProbe", initialDelaySeconds=120), False),
        (_probe("livenessProbe") | _probe("startupProbe", failureThreshold=60), False),
        (_probe("startupProbe", failureThreshold=2), True),
        (_probe("readinessProbe"), False),
        ({"livenessProbe": {"exec": {"command": ["true"]}}}, False),
        ({}, False),
    ],
)
def test_a_probe_that_kills_every_start_is_told(tmp_path: Path, container: dict[str, Any], expected: bool) -> None:  # noqa: FBT001
    engine = judged(tmp_path, "Qwen/Qwen3-32B", container=container)
    assert ("ProbeTooImpatient" in rules(engine)) is expected


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ({"name": "VLLM_USE_MODELSCOPE", "value": "true"}, True),
        ({"name": "HF_ENDPOINT", "value": "https://hub.example.org"}, True),
        ({"name": "NCCL_NET_PLUGIN", "value": "/data/net.so"}, True),
        ({"name": "HF_ENDPOINT", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, False),
        ({"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"}, False),
        ({"name": "LD_PRELOAD", "value": "/usr/lib/libtcmalloc.so.4"}, False),
        ({"name": "NCCL_DEBUG", "value": "INFO"}, False),
        ({"name": "CUDA_HOME", "value": "/usr/local/cuda"}, False),
    ],
    ids=str,
)
def test_what_a_pod_loads_beside_its_image_and_its_model_is_an_info(
    tmp_path: Path, variable: dict[str, Any], *, expected: bool
) -> None:
    engine = judged(tmp_path, "Qwen/Qwen3-32B", container={"env": [variable]})
    assert ("LoadsUnjudged" in rules(engine, Severity.INFO)) is expected
    assert "LoadsUnjudged" not in rules(engine, Severity.WARNING, Severity.ERROR)


@pytest.mark.parametrize(
    ("metadata", "script", "severity"),
    [
        ({}, "vllm serve Qwen/Qwen3-32B -tp 2", "error"),
        ({}, "mount -o remount,size=16g /dev/shm; vllm serve Qwen/Qwen3-32B -tp 2", "warning"),
        ({"annotations": {"io.kubernetes.cri-o.ShmSize": "8Gi"}}, "vllm serve Qwen/Qwen3-32B -tp 2", "warning"),
    ],
)
def test_an_annotation_or_a_script_may_make_the_shared_memory_larger(
    tmp_path: Path, metadata: dict[str, Any], script: str, severity: str
) -> None:
    container = {
        "name": "vllm", "image": "vllm/vllm-openai:v0.31.0", "command": ["sh", "-c", script],
        "resources": {"limits": {"nvidia.com/gpu": 2}},
    }  # fmt: skip
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", **metadata},
        "spec": {"containers": [container]},
    }
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod), encoding="utf-8")
    (engine,) = find_engines(read_manifests([str(tmp_path)])).engines
    found = judge_engine(engine, Defaults(accelerator="H100-SXM-80GB")).findings
    told = [each.finding.severity.value for each in found if each.finding.rule.id == "SharedMemoryTooSmall"]
    assert told == [severity]


@pytest.mark.parametrize(
    ("arguments", "container", "pod", "expected"),
    [
        (["-tp", "2"], {}, {}, True),
        (["-pp", "2"], {}, {}, True),
        (["-dp", "2"], {}, {}, False),
        (["-tp", "2"], {"resources": {"limits": {"nvidia.com/gpu": 1}}}, {}, False),
        (["-tp", "2"], {"volumeMounts": [{"name": "s", "mountPath": "/dev/shm/"}]}, {}, False),
        (["-tp", "2"], {}, {"hostIPC": True}, False),
    ],
)
def test_ranks_need_shared_memory(
    tmp_path: Path,
    arguments: list[str],
    container: dict[str, Any],
    pod: dict[str, Any],
    expected: bool,  # noqa: FBT001
) -> None:
    engine = judged(tmp_path, "Qwen/Qwen3-32B", *arguments, gpus=2, container=container, **pod)
    assert ("SharedMemoryTooSmall" in rules(engine)) is expected


@pytest.mark.parametrize(
    ("mount", "env", "size", "arguments", "expected"),
    [
        ("/root/.cache/huggingface", {}, "20Gi", [], True),
        ("/root/.cache/huggingface", {}, "100Gi", [], False),
        ("/cache", {"HF_HOME": "/cache/hf"}, "20Gi", [], True),
        ("/cache", {}, "20Gi", [], False),
        ("/cache", {}, "20Gi", ["--download-dir", "/cache/x"], True),
        ("/cache", {}, "a lot", ["--download-dir=/cache"], False),
    ],
)
def test_a_volume_must_hold_the_weights(
    tmp_path: Path,
    mount: str,
    env: dict[str, str],
    size: str,
    arguments: list[str],
    expected: bool,  # noqa: FBT001
) -> None:
    container = {
        "volumeMounts": [{"name": "c", "mountPath": mount}],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    volumes = [{"name": "c", "emptyDir": {"sizeLimit": size}}]
    engine = judged(tmp_path, "Qwen/Qwen3-32B", *arguments, container=container, volumes=volumes)
    assert ("VolumeTooSmall" in rules(engine)) is expected


@pytest.mark.parametrize(
    ("storage_class", "expected"),
    [("efs", False), ("my-efs-sc", False), ("local-path", False), ("GCSFuse", False), ("gp3", True), ("befsx", True), ("", True)],
)  # fmt: skip
def test_some_classes_of_volumes_grow(tmp_path: Path, storage_class: str, *, expected: bool) -> None:
    claim = {"storageClassName": storage_class, "resources": {"requests": {"storage": "20Gi"}}}
    container = {"volumeMounts": [{"name": "c", "mountPath": "/root/.cache/huggingface"}]}
    volumes = [{"name": "c", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}]
    engine = judged(tmp_path, "Qwen/Qwen3-32B", container=container, volumes=volumes)
    assert ("VolumeTooSmall" in rules(engine)) is expected


@pytest.mark.parametrize(
    ("arguments", "name", "assumed"),
    [
        (["Qwen/Qwen3-8B"], "Qwen/Qwen3-8B", ""),
        (["/models/x", "--served-model-name", "chat", "Qwen/Qwen3-8B"], "Qwen/Qwen3-8B", "served as"),
        (["/models/Qwen/Qwen3-8B"], "Qwen/Qwen3-8B", ""),
        (["/models/Qwen3-8B"], "Qwen3-8B", "assumed from Qwen/Qwen3-8B by its name"),
        (["/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123"], "Qwen/Qwen3-8B", ""),
        (["--model=hf://Qwen/Qwen3-8B@main"], "Qwen/Qwen3-8B", ""),
        (["s3://bucket/qwen3-8b/"], "qwen3-8b", "assumed from Qwen/Qwen3-8B by its name"),
        (["/models/Qwen3-8B-AWQ-4bit"], "Qwen3-8B-AWQ-4bit", "Qwen/Qwen3-8B, quantised as AWQ-4bit"),
    ],
)
def test_weights_at_a_path_are_known_by_another_name(
    tmp_path: Path, arguments: list[str], name: str, assumed: str
) -> None:
    engine = judged(tmp_path, *arguments)
    assert engine.assessment is not None
    assert engine.assessment.budget is not None
    assert engine.assessment.budget.request.shape.name == name
    assert assumed in " ".join(each.text for each in engine.assumed)
    assert bool(engine.assumed) == bool(assumed)


def test_nothing_is_decided_without_a_value_that_would_decide(tmp_path: Path) -> None:
    engine = judged(tmp_path, "Qwen/Qwen3-32B", "--max-model-len=$(LENGTH)", "--port=$(PORT)")
    assert (engine.verdict, engine.assessment) == (Verdict.UNKNOWN, None)
    assert rules(engine) == ["VariableUnknown"]


@pytest.mark.parametrize("unseen", ["$(OPTIONS)", "--config=/etc/vllm.yaml"])
def test_options_that_nobody_sees_may_make_it_fit(tmp_path: Path, unseen: str) -> None:
    arguments = ["meta-llama/Llama-3.1-8B-Instruct", unseen]
    engine = judged(tmp_path, *arguments, gpu="NVIDIA-L4", gpus=2)
    assert engine.verdict is Verdict.MAY_NOT_FIT
    assert rules(engine, Severity.WARNING) == ["KVCacheTooSmall"]
    assert rules(engine, Severity.INFO) == ["VariableUnknown"]
    refused = judged(tmp_path, *arguments, "--max-modle-len=8192", gpu="NVIDIA-L4")
    assert rules(refused, Severity.ERROR) == ["OptionUnknown"]


@pytest.mark.parametrize(
    ("length", "configured", "verdict", "accelerator"),
    [
        (8192, None, Verdict.FITS, "A100-SXM-40GB"),
        (131072, None, Verdict.MAY_NOT_FIT, "A100-SXM-40GB"),
        (131072, "A100-SXM-80GB", Verdict.FITS, "A100-SXM-80GB"),
        (131072, "A100-SXM-40GB", Verdict.DOES_NOT_FIT, "A100-SXM-40GB"),
        (131072, "L4", Verdict.MAY_NOT_FIT, "A100-SXM-40GB"),
        (262144, None, Verdict.DOES_NOT_FIT, "A100-SXM-40GB"),
    ],
)
def test_what_one_of_several_gpus_holds_is_not_refused(
    tmp_path: Path, length: int, configured: str | None, verdict: Verdict, accelerator: str
) -> None:
    engine = judged(
        tmp_path,
        "Qwen/Qwen2.5-14B",
        f"--max-model-len={length}",
        defaults=Defaults(accelerator=configured),
        nodeSelector={"karpenter.k8s.aws/instance-gpu-name": "a100"},
    )
    assert (engine.verdict, engine.accelerator) == (verdict, accelerator)
    assert (Severity.ERROR in {each.finding.severity for each in engine.findings}) == (verdict is Verdict.DOES_NOT_FIT)


@pytest.mark.parametrize(
    ("arguments", "decided"),
    [
        (["--load-format=safetensors"], True),
        (["--load-format=runai_streamer"], True),
        (["--load-format=bitsandbytes"], False),
        (["--cpu-offload-gb=0"], True),
        (["--spec-method=ngram", "--spec-tokens=3"], True),
        (["--spec-method=eagle3", "--spec-model=x/y", "--spec-tokens=3"], False),
        (["--cpu-offload-gb=4"], True),
        (["--enable-lora"], True),
        (["--worker-cls=corp.Worker"], False),
    ],
)
def test_what_has_no_formula_is_not_decided(tmp_path: Path, arguments: list[str], decided: bool) -> None:  # noqa: FBT001
    engine = judged(tmp_path, "Qwen/Qwen3-8B", *arguments)
    assert (engine.verdict is not Verdict.UNKNOWN) == decided


YARN = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}'
LONG = ("Qwen/Qwen3-8B", "--max-num-seqs=1", "--max-model-len=131072")


@pytest.mark.parametrize(
    ("image", "arguments", "env", "verdict"),
    [
        (IMAGE, (), {}, Verdict.DOES_NOT_FIT),
        (IMAGE, (f'--hf-overrides={{"rope_parameters": {YARN}}}',), {}, Verdict.FITS),
        (IMAGE, ("--hf-overrides.text_config.rope_parameters.factor=4",), {}, Verdict.FITS),
        (IMAGE, ('--hf-overrides={"architectures": ["Other"]}',), {}, Verdict.DOES_NOT_FIT),
        ("vllm/vllm-openai:v0.10.2", (f"--rope-scaling={YARN}",), {}, Verdict.FITS),
        (IMAGE, (), {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, Verdict.FITS),
        (IMAGE, (), {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}, Verdict.DOES_NOT_FIT),
    ],
)
def test_requests_longer_than_the_model_was_made_for_need_leave(
    tmp_path: Path, image: str, arguments: tuple[str, ...], env: dict[str, str], verdict: Verdict
) -> None:
    container = {"env": [{"name": name, "value": value} for name, value in env.items()]}
    found = judged(tmp_path, *LONG, *arguments, image=image, container=container)
    assert found.verdict is verdict
    assert ("MaxModelLenAboveModel" in rules(found)) is (verdict is Verdict.DOES_NOT_FIT)


def test_a_length_that_is_not_given_is_not_known_of_an_overridden_model(tmp_path: Path) -> None:
    found = judged(tmp_path, "Qwen/Qwen3-8B", f"--rope-scaling={YARN}", image="vllm/vllm-openai:v0.10.2")
    assert found.verdict is Verdict.UNKNOWN


def test_settings_reach_the_budget_under_their_names(tmp_path: Path) -> None:
    arguments = [
        "--max-model-len=16k", "--kv-cache-dtype=fp8", "--limit-mm-per-prompt", '{"image": 0}', "--no-async-scheduling",
        "--speculative-config.method=ngram", "--speculative-config.num_speculative_tokens=3", "-O.cudagraph_mode=NONE",
    ]  # fmt: skip
    engine = judged(tmp_path, "Qwen/Qwen3-8B", *arguments, image="vllm/vllm-openai:v0.11.0")
    assert engine.assessment is not None
    assert engine.assessment.budget is not None
    settings = engine.assessment.budget.request.settings
    assert (settings.max_model_len, settings.kv_cache_dtype) == (16000, "fp8")
    assert settings.limit_mm_per_prompt == (("image", 0),)
    assert settings.speculation is not None
    assert settings.speculation.num_speculative_tokens == 3
    assert rules(engine, Severity.ERROR) == []


def test_throughput_reaches_the_budget(tmp_path: Path) -> None:
    engine = judged(tmp_path, "Qwen/Qwen3-0.6B", "--max-model-len=4096", "--performance-mode=throughput")
    assert engine.assessment is not None
    assert engine.assessment.budget is not None
    settings = engine.assessment.budget.resolved
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (16384, 2048)


def test_an_engine_whose_gpu_nothing_names_is_answered_with_the_gpus(tmp_path: Path) -> None:
    def told(document: dict[str, Any]) -> JudgedEngine:
        (tmp_path / "x.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        (engine,) = find_engines(read_manifests([str(tmp_path)])).engines
        return judge_engine(engine, Defaults())

    vllm = {"name": "vllm", "image": IMAGE, "command": ["vllm", "serve", "Qwen/Qwen3-14B", "--max-model-len=8192"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [vllm]}}
    found = told(pod)
    assert (found.verdict, found.accelerator, found.judged_on) == (Verdict.FITS, None, "A100-SXM-40GB")
    (finding,) = (each.finding for each in found.findings if each.finding.rule.id == "AcceleratorDecides")
    assert "starts on A100-40GB and larger" in finding.message
    assert "one GPU must have about" in finding.message
    assert "select nodes by nvidia.com/gpu.product" in finding.remediation
    compose = {"services": {"vllm": {"image": IMAGE, "command": ["Qwen/Qwen3-14B", "--max-model-len=8192"]}}}
    (finding,) = (each.finding for each in told(compose).findings if each.finding.rule.id == "AcceleratorDecides")
    assert "select nodes" not in finding.remediation


def test_silence_means_that_it_starts_on_every_gpu(tmp_path: Path) -> None:
    small = judged(tmp_path, "Qwen/Qwen3-0.6B", "--max-model-len=2048", "--max-num-seqs=4", nodeSelector={})
    assert small.verdict is Verdict.FITS
    assert rules(small) == []
    assert {each.verdict for each in small.on_gpus.verdicts} == {Verdict.FITS}


def test_what_no_gpu_holds_with_the_parallel_sizes_of_the_manifest_is_refused(tmp_path: Path) -> None:
    alone = judged(tmp_path, "deepseek-ai/DeepSeek-R1", "--max-model-len=4096", nodeSelector={})
    assert alone.verdict is Verdict.DOES_NOT_FIT
    (error,) = (each.finding.message for each in alone.findings if each.finding.severity is Severity.ERROR)
    assert error.startswith("no GPU of the catalogue holds it; on GB300-288GB, the largest, weights")
    shm = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    mounted = {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}
    arguments = ("deepseek-ai/DeepSeek-R1", "--max-model-len=4096", "--tensor-parallel-size=8")
    spread = judged(tmp_path, *arguments, gpus=8, container=mounted, nodeSelector={}, volumes=[shm])
    assert (spread.verdict, spread.judged_on) == (Verdict.FITS, "H100-NVL-94GB")
    few = judged(tmp_path, "Qwen/Qwen3-0.6B", "--tensor-parallel-size=2", gpus=1, nodeSelector={})
    assert (few.verdict, rules(few, Severity.ERROR)) == (Verdict.DOES_NOT_FIT, ["TooFewGpus"])


@pytest.mark.parametrize(
    ("resource", "image", "vendor"),
    [
        ("nvidia.com/gpu", IMAGE, "nvidia"),
        ("amd.com/gpu", IMAGE, "amd"),
        ("", "vllm/vllm-openai-rocm:v0.32.0", "amd"),
        ("", "rocm/vllm:v0.32.0", "amd"),
        ("", IMAGE, "nvidia"),
    ],
)
def test_the_resource_or_the_image_names_the_vendor(tmp_path: Path, resource: str, image: str, vendor: str) -> None:
    container = {"resources": {"limits": {resource: 1}} if resource else {}}
    found = judged(tmp_path, "Qwen/Qwen3-0.6B", image=image, container=container, nodeSelector={})
    vendors = {catalogue.find_accelerator(each.name).vendor for each in found.on_gpus.verdicts}  # type: ignore[union-attr]
    assert vendors == {vendor}


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        ("google.com/tpu", "a TPU"),
        ("habana.ai/gaudi", "an Intel Gaudi"),
        ("gpu.intel.com/i915", "a GPU of Intel"),
        ("gpu.intel.com/xe", "a GPU of Intel"),
        ("aws.amazon.com/neuroncore", "AWS Neuron"),
        ("huawei.com/Ascend910B3", "a Huawei Ascend NPU"),
        ("huawei.com/ascend-1980", "a Huawei Ascend NPU"),
        ("cambricon.com/mlu", "an accelerator of another vendor"),
    ],
)
def test_other_hardware_is_named_and_is_no_alarm(tmp_path: Path, resource: str, words: str) -> None:
    found = judged(tmp_path, "Qwen/Qwen3-0.6B", container={"resources": {"limits": {resource: 1}}}, nodeSelector={})
    assert found.verdict is NOT_JUDGED
    (finding,) = (each.finding for each in found.findings if each.finding.rule.id == "OtherHardware")
    assert finding.severity is Severity.INFO
    assert words in finding.message
    assert rules(found, Severity.WARNING, Severity.ERROR) == []


def test_the_image_or_a_label_names_other_hardware(tmp_path: Path) -> None:
    for image, labels, rule in (
        ("vllm/vllm-tpu:v0.13.2", {}, "OtherHardware"),
        ("ghcr.io/me/serving:1-vllm0.32.0", {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}, "OtherHardware"),
        ("ghcr.io/me/serving:1-vllm0.32.0", {"kubeai.org/resource-profile": "cpu"}, "RunsOnCpu"),
    ):
        found = judged(tmp_path, "Qwen/Qwen3-0.6B", image=image, gpus=None, nodeSelector=labels)
        assert (found.verdict, rules(found)) == (NOT_JUDGED, [rule])
    refused = judged(
        tmp_path, "Qwen/Qwen3-0.6B", "--max-model-len=x", image="vllm/vllm-tpu:v0.13.2", gpus=None, nodeSelector={}
    )
    assert refused.verdict is Verdict.DOES_NOT_FIT, "what vLLM refuses anywhere is certain"


def test_all_of_the_memory_is_never_free_whatever_the_gpu(tmp_path: Path) -> None:
    found = judged(tmp_path, "Qwen/Qwen3-0.6B", "--gpu-memory-utilization=1.0", nodeSelector={})
    assert (found.verdict, rules(found, Severity.ERROR)) == (Verdict.DOES_NOT_FIT, ["UtilizationTooHigh"])


def test_an_engine_must_start_on_every_gpu_that_the_user_states(tmp_path: Path) -> None:
    arguments = ("Qwen/Qwen3-14B", "--max-model-len=8192", "--max-num-seqs=1")
    found = judged(tmp_path, *arguments, nodeSelector={}, defaults=Defaults(accelerator="L40S-48GB, L4-24GB"))
    assert (found.verdict, found.accelerator) == (Verdict.DOES_NOT_FIT, "L4-24GB")
    assert [(each.name, each.verdict) for each in found.on_gpus.verdicts] == [
        ("L4-24GB", Verdict.DOES_NOT_FIT),
        ("L40S-48GB", Verdict.FITS),
    ]
    (error,) = (each.finding.message for each in found.findings if each.finding.severity is Severity.ERROR)
    assert error.startswith("on L4-24GB: weights")
    both = judged(tmp_path, *arguments, nodeSelector={}, defaults=Defaults(accelerator="L40S-48GB,H100-SXM-80GB"))
    assert (both.verdict, rules(both)) == (Verdict.FITS, [])


def test_a_node_pool_that_the_configuration_describes_names_its_gpus(tmp_path: Path) -> None:
    defaults = Defaults(accelerator="H100-SXM-80GB", pools={"small": ("L4-24GB", "A10G-24GB"), "large": ("L40S-48GB",)})
    arguments = ("Qwen/Qwen3-14B", "--max-model-len=8192", "--max-num-seqs=1")
    small = judged(tmp_path, *arguments, nodeSelector={"karpenter.sh/nodepool": "small"}, defaults=defaults)
    assert small.verdict is Verdict.DOES_NOT_FIT
    assert [each.name for each in small.on_gpus.verdicts] == ["L4-24GB", "A10G-24GB"]
    large = judged(tmp_path, *arguments, nodeSelector={"cloud.google.com/gke-nodepool": "large"}, defaults=defaults)
    assert (large.verdict, large.accelerator) == (Verdict.FITS, "L40S-48GB")
    assert [each.text for each in large.assumed] == ["accelerator L40S-48GB, as pool large has it"]
    other = judged(tmp_path, *arguments, nodeSelector={"cloud.google.com/gke-nodepool": "new"}, defaults=defaults)
    assert other.accelerator == "H100-SXM-80GB"


def test_an_api_key_that_is_given_twice_is_not_repeated(tmp_path: Path) -> None:
    judged_ = judged(
        tmp_path,
        "Qwen/Qwen3-4B",
        "--max-model-len=8192",
        "--api-key",
        "sk-2f9c",
        "--hf-token=hf_2f9c",
        "--api-key=sk-2f9d",
    )
    assert "OptionRepeated" in rules(judged_)
    assert not [each for each in judged_.findings if "2f9" in each.finding.message + each.finding.remediation]


def test_variables_that_an_inference_deployment_may_not_set_are_theirs_in_other_manifests(tmp_path: Path) -> None:
    env = [
        {"name": name, "value": "x"} for name in ("LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "PYTHONPATH", "VLLM_API_KEY")
    ]
    told = judged(
        tmp_path, "Qwen/Qwen3-4B", "--max-model-len=8192", "--ssl-certfile=/tls/tls.crt", container={"env": env}
    )
    assert rules(told, Severity.ERROR) == []


def told(engine: JudgedEngine) -> dict[str, tuple[str, str]]:
    """The circumstances of the ledger: value, and what may hold instead."""
    assert engine.assessment is not None
    assert engine.assessment.budget is not None
    stage = engine.assessment.budget.tightest
    assert stage is not None
    assert stage.ledger is not None
    return {fact.name: (fact.value, fact.other) for line in stage.ledger.lines for fact in line.facts}


def cached(volume: dict[str, Any], path: str = "/root/.cache/vllm") -> dict[str, Any]:
    mount = {"name": "cache", "mountPath": path}
    return {"container": {"volumeMounts": [mount]}, "volumes": [{"name": "cache", **volume}]}


CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "c"}}


@pytest.mark.parametrize(
    ("pod", "cache"),
    [
        ({}, ("cold", "")),
        (cached({"emptyDir": {}}), ("cold", "")),
        (cached(CLAIM), ("cold", "warm")),
        (cached({"hostPath": {"path": "/x"}}, "/root/.cache/"), ("cold", "warm")),
        (cached(CLAIM, "/models"), ("cold", "")),
        (cached(CLAIM, "/root/.cache/vllm-others"), ("cold", "")),
    ],
)
def test_a_compile_cache_that_is_lost_with_the_pod_is_cold(
    tmp_path: Path, pod: dict[str, Any], cache: tuple[str, str]
) -> None:
    assert told(judged(tmp_path, "Qwen/Qwen3-8B", **pod))["compile cache"] == cache


@pytest.mark.parametrize(
    ("env", "cache"),
    [
        ({"VLLM_CACHE_ROOT": "/models/vllm"}, ("cold", "warm")),
        ({"XDG_CACHE_HOME": "/models"}, ("cold", "warm")),
        ({"HOME": "/models"}, ("cold", "warm")),
        ({"HOME": "/models", "VLLM_CACHE_ROOT": "/tmp/x"}, ("cold", "")),
        ({"HOME": "/models", "VLLM_DISABLE_COMPILE_CACHE": "1"}, ("cold", "")),
    ],
)
def test_variables_say_where_the_compile_cache_is(tmp_path: Path, env: dict[str, str], cache: tuple[str, str]) -> None:
    pod = cached(CLAIM, "/models")
    pod["container"]["env"] = [{"name": name, "value": value} for name, value in env.items()]
    assert told(judged(tmp_path, "Qwen/Qwen3-8B", **pod))["compile cache"] == cache


@pytest.mark.parametrize(
    ("image", "env", "sampler"),
    [
        ("vllm/vllm-openai:v0.10.2", {}, ("flashinfer", "")),
        ("registry.local:5000/mirror/vllm/vllm-openai:v0.10.2", {}, ("flashinfer", "")),
        ("vllm/vllm-openai:v0.10.2", {"VLLM_USE_FLASHINFER_SAMPLER": "0"}, ("pytorch", "")),
        ("me/serving:1-vllm0.10.2", {}, ("pytorch", "flashinfer")),
        ("lmcache/vllm-openai:vllm0.10.2", {}, ("pytorch", "flashinfer")),
        ("vllm/vllm-openai:v0.15.1", {}, ("pytorch", "")),
        ("vllm/vllm-openai:v0.15.1", {"VLLM_USE_FLASHINFER_SAMPLER": "1"}, ("flashinfer", "")),
    ],
)
def test_the_image_and_the_variable_say_who_samples(
    tmp_path: Path, image: str, env: dict[str, str], sampler: tuple[str, str]
) -> None:
    container = {"env": [{"name": name, "value": value} for name, value in env.items()]}
    assert told(judged(tmp_path, "Qwen/Qwen3-8B", image=image, container=container))["sampler"] == sampler


def test_a_server_has_its_own_default_of_sequences_whatever_its_batch(tmp_path: Path) -> None:
    assert "default of max_num_seqs" not in told(judged(tmp_path, "Qwen/Qwen3-8B", "--max-num-batched-tokens=2048"))


def test_a_value_that_only_older_releases_take_is_no_error_where_the_release_is_not_known(tmp_path: Path) -> None:
    arguments = ("Qwen/Qwen2.5-7B-Instruct", "--max-model-len=8192", "--enable-chunked-prefill=false")
    unknown = judged(tmp_path, *arguments, image="corp/llm:7")
    assert unknown.vllm_version.startswith("0.7") or unknown.vllm_version.startswith("0.6")
    assert "OptionValue" not in rules(unknown)
    stated = judged(tmp_path, *arguments, image="vllm/vllm-openai:v0.9.2")
    assert "OptionValue" in rules(stated, Severity.ERROR)


@pytest.mark.parametrize("resource", ["huawei.com/Ascend910", "google.com/tpu", "habana.ai/gaudi"])
def test_devices_that_hold_several_chips_are_not_counted_as_gpus(tmp_path: Path, resource: str) -> None:
    found = judged(
        tmp_path, "Qwen/Qwen3-8B", "-tp=2", container={"resources": {"limits": {resource: 1}}}, nodeSelector={}
    )
    assert "TooFewGpus" not in rules(found)


def test_a_refusal_holds_for_all_releases_that_may_run_not_only_for_both_ends(tmp_path: Path) -> None:
    arguments = ("google/gemma-3-27b-it", "--max-model-len=115000", "--gpu-memory-utilization=0.9")
    found = judged(tmp_path, *arguments, image="${IMAGE}")
    ends = {
        release: judged(tmp_path, *arguments, image=f"vllm/vllm-openai:v{release}").verdict
        for release in ("0.8.5", "0.18.0", ASSUMED)
    }
    assert ends["0.8.5"] is ends[ASSUMED] is Verdict.DOES_NOT_FIT
    assert ends["0.18.0"] is not Verdict.DOES_NOT_FIT
    assert found.verdict is Verdict.MAY_NOT_FIT
    assert not rules(found, Severity.ERROR)


def test_what_only_one_release_refuses_is_no_error_beside_what_all_refuse(tmp_path: Path) -> None:
    arguments = ("google/gemma-2-9b-it", "--max-model-len=4096", "--dtype=half", "-tp=2")  # refused from 0.9.2 on
    found = judged(tmp_path, *arguments, image="corp/llm:7", gpu="NVIDIA-H100-80GB-HBM3")
    told = {each.finding.rule.id: each.finding.severity for each in found.findings}
    assert found.verdict is Verdict.DOES_NOT_FIT
    assert (told["TooFewGpus"], told["DtypeRefused"]) == (Severity.ERROR, Severity.WARNING)


OFFLOADED = ("Qwen/Qwen3-8B", "--max-model-len=$(LENGTH)", "--kv-offloading-size=200")
SMALL = {"resources": {"limits": {"nvidia.com/gpu": 1, "memory": "16Gi"}}}


@pytest.mark.parametrize("option", ["-tp", "-pp", "-dp", "-pcp"])
def test_memory_of_the_host_is_judged_without_a_length_and_not_without_a_size(tmp_path: Path, option: str) -> None:
    known = judged(tmp_path, *OFFLOADED, f"{option}=1", container=SMALL)
    path = "spec.containers[0].resources.limits.memory"
    assert [(each.finding.severity, each.path) for each in known.findings if "Memory" in each.finding.rule.id] == [
        (Severity.ERROR, path)
    ]
    assert known.verdict is Verdict.DOES_NOT_FIT
    unknown = judged(tmp_path, *OFFLOADED, f"{option}=$(SIZE)", container=SMALL)
    assert (unknown.verdict, [rule for rule in rules(unknown) if "Memory" in rule]) == (Verdict.UNKNOWN, [])
    unseen = judged(tmp_path, *OFFLOADED, "$(MORE)", container=SMALL)
    assert rules(unseen, Severity.WARNING)[-1:] == ["HostMemoryTooSmall"]
    assert unseen.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("mounts", "folder", "expected"),
    [
        ({"cache": "/root/.cache/huggingface"}, "", "cache"),
        ({"top": "/root", "cache": "/root/.cache/huggingface/"}, "", "cache"),
        ({"cache": "/root/.cache", "other": "/root/.cache/other"}, "", "cache"),
        ({"cache": "/root/.cach"}, "", None),
        ({"cache": "/hf", "top": "/"}, "/hf", "cache"),
        ({"cache": "/hf"}, "/hf/hub", "cache"),
        ({"cache": "/root/.cache/huggingface"}, "/hf", None),
    ],
)
def test_the_volume_of_the_weights_is_the_innermost_around_their_folder(
    tmp_path: Path, mounts: dict[str, str], folder: str, expected: str | None
) -> None:
    container = {
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
        "env": [{"name": "HF_HOME", "value": folder}] if folder else [],
    }
    volumes = [{"name": name, "emptyDir": {"sizeLimit": "1Gi" if name == "cache" else "900Gi"}} for name in mounts]
    found = judged(tmp_path, "Qwen/Qwen3-8B", container=container, volumes=volumes)
    path = f"spec.volumes[{list(mounts).index(expected)}].emptyDir.sizeLimit" if expected else None
    assert [each.path for each in found.findings if each.finding.rule.id == "VolumeTooSmall"] == (
        [path] if path else []
    )


def test_a_release_that_cannot_be_judged_takes_the_certainty_from_the_other(tmp_path: Path) -> None:
    new = judged(tmp_path, "Qwen/Qwen3-0.6B", "--max-model-len=4096")
    old = replace(new, vllm_version="0.9.0", verdict=Verdict.UNKNOWN, assessment=None)
    for ends, shown in (([new, old], new), ([old, new], old)):
        answer = joined_ends(ends)
        assert (answer.verdict, answer.vllm_version) == (Verdict.MAY_NOT_FIT, shown.vllm_version)
        assert "ReleaseDecides" in rules(answer)
        if answer.assessment:
            assert (answer.assessment.verdict, answer.assessment.starts.verdict) == (Verdict.MAY_NOT_FIT,) * 2
    assert joined_ends([old, old]).verdict is Verdict.UNKNOWN


def test_an_option_that_is_refused_decides_both_answers(tmp_path: Path) -> None:
    refused = judged(tmp_path, "Qwen/Qwen3-0.6B", "--max-model-len=4096", "--no-such-option")
    assert refused.verdict is Verdict.DOES_NOT_FIT
    assert refused.assessment is not None
    assert refused.assessment.starts.verdict is Verdict.DOES_NOT_FIT
    start = judged(tmp_path, "Qwen/Qwen3-0.6B", "--max-model-len=4096")
    assert start.assessment is not None
    assert start.assessment.starts.verdict is Verdict.FITS


def test_an_open_range_of_releases_ends_at_the_newest_that_is_known_and_says_so(tmp_path: Path) -> None:
    for image, is_open in (("", True), ("vllm/vllm-openai:latest", True), (IMAGE, False)):
        found = judged(tmp_path, "Qwen/Qwen3-0.6B", "--max-model-len=4096", image=image)
        told = [each.text for each in found.assumed if each.fact == "vllm_version"]
        assert [f"; {ASSUMED} is the newest that kvgate knows" in each for each in told] == ([True] if is_open else [])


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"medium": "Memory", "size": "2Gi"}, ["FieldIgnored"]),
        ({"medium": "Memory", "sizelimit": "2Gi"}, ["FieldIgnored"]),
        ({"medium": "Memory", "sizeLimit": "2Gi"}, []),
        ({}, []),
    ],
)
def test_a_field_that_an_empty_dir_does_not_have_is_told(
    tmp_path: Path, volume: dict[str, Any], expected: list[str]
) -> None:
    engine = judged(tmp_path, "Qwen/Qwen3-0.6B", volumes=[{"name": "shm", "emptyDir": volume}])
    assert [rule for rule in rules(engine) if rule == "FieldIgnored"] == expected


@pytest.mark.parametrize(("length", "is_refused"), [(300000, True), (262144, False)])
def test_a_length_is_held_against_the_config_that_an_option_names(
    tmp_path: Path, length: int, *, is_refused: bool
) -> None:
    """vLLM takes the config of --hf-config-path in place of that of a model which nobody knows."""
    found = judged(tmp_path, "/models/own.gguf", "--hf-config-path=Qwen/Qwen3.5-122B-A10B", f"--max-model-len={length}")
    assert ("MaxModelLenAboveModel" in rules(found, Severity.ERROR)) is is_refused

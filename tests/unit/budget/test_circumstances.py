"""Circumstances of a start: what the ledger takes for known, and what it keeps open."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import plan
from kvgate.budget.engine.circumstances import (
    NO_CIRCUMSTANCES,
    Circumstances,
    Links,
    Sampler,
    UsageContext,
    compile_cache_of,
    sampler_of,
)
from kvgate.budget.engine.request import GraphSettings, Speculation
from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.ground.interval import Interval, Term
from kvgate.budget.ground.units import gib
from kvgate.budget.releases.versions import accounting_of
from support.builders import catalogue_accelerator, catalogue_shape, new_request
from support.tables import table

H100 = catalogue_accelerator("H100-SXM-80GB")


def peak(
    told: Circumstances, version: str, model: str = "Qwen/Qwen2.5-7B-Instruct", gpu: str = "H100-SXM-80GB"
) -> Term:
    request = new_request(
        shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), vllm_version=version, circumstances=told
    )
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    return ledger.lines[1]


@table(
    ("version", "told", "gpu", "expected", "other"),
    [
        ("0.7.3", {"installed_by": "image"}, "H100-SXM-80GB", "pytorch", ""),
        ("0.8.5", {"installed_by": "image"}, "H100-SXM-80GB", "flashinfer", ""),
        ("0.10.1", {"installed_by": "pip"}, "H100-SXM-80GB", "pytorch", "flashinfer"),
        ("0.11.0", {}, "H100-SXM-80GB", "pytorch", "flashinfer"),
        ("0.11.0", {"installed_by": "image", "use_flashinfer_sampler": False}, "H100-SXM-80GB", "pytorch", ""),
        ("0.11.0", {"use_flashinfer_sampler": True}, "H100-SXM-80GB", "flashinfer", ""),
        ("0.11.1", {"installed_by": "image"}, "H100-SXM-80GB", "pytorch", ""),
        ("0.11.2", {"use_flashinfer_sampler": True}, "H100-SXM-80GB", "flashinfer", ""),
        ("0.20.2", {}, "H100-SXM-80GB", "pytorch", ""),
        ("0.21.0", {}, "H100-SXM-80GB", "flashinfer", ""),
        ("0.23.0", {}, "T4-16GB", "flashinfer", ""),
        ("0.24.0", {}, "T4-16GB", "pytorch", ""),
        ("0.21.0", {}, "MI300X-192GB", "pytorch", ""),
        ("0.21.0", {"sampler": "pytorch"}, "H100-SXM-80GB", "pytorch", ""),
    ],
)
def test_the_sampler_follows_from_the_image_the_release_and_the_gpu(
    version: str, told: dict[str, str], gpu: str, expected: str, other: str
) -> None:
    fact = sampler_of(Circumstances(**told), accounting_of(version), catalogue_accelerator(gpu))  # type: ignore[arg-type]
    assert (fact.value, fact.other) == (expected, other)
    assert fact.is_known is not bool(other)
    assert ("not known" in fact.text) is bool(other)


def test_a_mixture_of_samplers_expects_one_and_covers_the_other() -> None:
    sorting = peak(Circumstances(sampler="pytorch"), "0.10.1").amount
    flashinfer = peak(Circumstances(sampler="flashinfer"), "0.10.1").amount
    open_ = peak(Circumstances(), "0.10.1").amount
    assert open_.expected == sorting.expected
    assert flashinfer.expected < sorting.expected - gib(2)
    assert (open_.low, open_.high) == (flashinfer.low, sorting.high)
    assert covers(open_, flashinfer.expected)
    assert covers(open_, sorting.expected)


def covers(amount: Interval, value: int) -> bool:
    return amount.low <= value <= amount.high


def test_a_release_that_mends_another_may_choose_another_sampler() -> None:
    before, after = (peak(Circumstances(installed_by="image"), version).amount for version in ("0.11.0", "0.11.1"))
    assert before.expected < after.expected - gib(2)


def test_the_compile_cache_is_a_mixture_unless_it_is_told() -> None:
    accounting = accounting_of("0.22.0")
    assert compile_cache_of(Circumstances(compile_cache="warm"), accounting).is_known
    assert compile_cache_of(Circumstances(), accounting).other == "warm"
    model = "Qwen/Qwen2.5-7B-Instruct"
    cold, warm, open_ = (
        peak(Circumstances(compile_cache=told), "0.22.0", model, "RTX-4090-24GB").amount
        for told in ("cold", "warm", None)
    )
    assert open_.expected == cold.expected > warm.expected
    assert covers(open_, warm.expected)


def test_the_ledger_names_the_circumstances_it_goes_by() -> None:
    assert [fact.name for fact in peak(Circumstances(), "0.10.1").facts] == ["sampler"]
    assert [fact.name for fact in peak(Circumstances(), "0.22.0").facts] == ["model runner", "sampler", "compile cache"]


@pytest.mark.parametrize(
    ("version", "context", "tokens", "seqs"),
    [
        ("0.8.5", "engine", 2048, 1024),
        ("0.9.1", "engine", 2048, 1024),
        ("0.9.2", "engine", 2048, 128),
        ("0.33.0", "engine", 2048, 128),
        ("0.9.2", "llm", 16384, 1024),
        ("0.9.2", "server", 8192, 1024),
    ],
)
def test_the_entry_point_decides_the_batch_limits(version: str, context: UsageContext, tokens: int, seqs: int) -> None:
    told = Circumstances(usage_context=context)
    resolved = plan(new_request(accelerator=H100, vllm_version=version, circumstances=told)).resolved
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (tokens, seqs)


def rows(gpu: str, told: Circumstances = NO_CIRCUMSTANCES, **settings: int) -> tuple[int, Term]:
    request = new_request(
        shape=catalogue_shape("Qwen/Qwen2.5-7B-Instruct"), accelerator=catalogue_accelerator(gpu), vllm_version="0.10.1",
        circumstances=told, **settings,
    )  # fmt: skip
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    return int(dict(ledger.lines[1].inputs)["sampler_rows"]), ledger.lines[1]


def test_a_printed_default_of_another_program_brings_its_other_default() -> None:
    """Falcon-7B and twelve more on H100 NVL with 0.10.1 (Huzifa1/vllm-profiling) print 2048 tokens and take the rows of 128."""
    seqs, term = rows("H100-SXM-80GB", max_num_batched_tokens=2048)
    assert (seqs, term.facts[-1].value, term.facts[-1].other) == (128, "128", "1024")
    _, of_server = rows("H100-SXM-80GB", Circumstances(usage_context="server"), max_num_batched_tokens=2048)
    assert covers(term.amount, of_server.amount.expected)


def test_what_the_server_prints_too_keeps_the_servers_default() -> None:
    seqs, term = rows("L4-24GB", max_num_batched_tokens=2048)
    assert (seqs, term.facts[-1].other) == (256, "128")


@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 4096}, {"max_num_batched_tokens": 2048, "max_num_seqs": 1024}]
)
def test_other_statements_say_nothing_about_the_program(settings: dict[str, int]) -> None:
    seqs, term = rows("H100-SXM-80GB", **settings)
    assert (seqs, [fact.name for fact in term.facts]) == (1024, ["sampler"])


@table(
    ("version", "gpu", "model", "told", "engine"),
    [
        ("0.7.3", "H100-SXM-80GB", "Qwen/Qwen3-8B", {}, "V0"),
        ("0.8.5", "H100-SXM-80GB", "Qwen/Qwen3-8B", {}, "V1"),
        ("0.8.5", "H100-SXM-80GB", "Qwen/Qwen3-8B", {"use_v1": False}, "V0"),
        ("0.10.1", "T4-16GB", "Qwen/Qwen3-8B", {}, "V0"),
        ("0.10.1", "T4-16GB", "Qwen/Qwen3-8B", {"use_v1": True}, "V1"),
        ("0.10.2", "T4-16GB", "Qwen/Qwen3-8B", {}, "V1"),
        ("0.11.0", "H100-SXM-80GB", "Qwen/Qwen3-8B", {"use_v1": False}, "V1"),
        ("0.9.1", "MI300X-192GB", "Qwen/Qwen3-8B", {}, "V0"),
        ("0.9.2", "MI300X-192GB", "Qwen/Qwen3-8B", {}, "V1"),
        ("0.9.2.dev364+g1f3a", "MI300X-192GB", "Qwen/Qwen3-8B", {}, "V0"),
        ("0.10.1", "H100-SXM-80GB", "state-spaces/mamba-2.8b-hf", {}, "V0"),
        ("0.10.2", "H100-SXM-80GB", "state-spaces/mamba-2.8b-hf", {}, "V1"),
    ],
)
def test_the_engine_follows_from_the_release_the_gpu_the_model_and_the_variable(
    version: str, gpu: str, model: str, told: dict[str, bool], engine: str
) -> None:
    request = new_request(
        shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), vllm_version=version,
        circumstances=Circumstances(**told),
    )  # fmt: skip
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    assert dict(ledger.lines[1].inputs)["runner"] == engine
    falls_back = engine == "V0" and version != "0.7.3"
    assert any(fact.name == "engine" and fact.is_known for fact in ledger.lines[1].facts) is falls_back


@pytest.mark.parametrize(
    ("gpu", "settings", "tokens"),
    [
        ("T4-16GB", {"max_model_len": 8192}, 8192),
        ("T4-16GB", {"max_model_len": 1024}, 2048),
        ("T4-16GB", {"max_model_len": 40_960}, 2048),
        ("T4-16GB", {"max_model_len": 40_960, "enable_chunked_prefill": False}, 40_960),
        ("T4-16GB", {"max_model_len": 8192, "enable_chunked_prefill": True}, 2048),
        (
            "T4-16GB",
            {"max_model_len": 40_960, "speculation": Speculation(method="ngram", num_speculative_tokens=2)},
            40_960,
        ),
        ("MI300X-192GB", {"max_model_len": 40_960}, 40_960),
    ],
)
def test_v0_takes_whole_prompts_unless_they_may_be_long(gpu: str, settings: dict[str, Any], tokens: int) -> None:
    request = new_request(accelerator=catalogue_accelerator(gpu), vllm_version="0.9.1", **settings)
    resolved = plan(request).resolved
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (tokens, 256)


def test_v0_profiles_whole_prompts_with_their_images() -> None:
    """gemma-3-27b-it with 50 images a prompt logged 3.73 GiB (0.8.0rc3, V0, issue 16378)."""

    def profiled(**settings: Any) -> dict[str, int | str]:
        request = new_request(
            shape=catalogue_shape("google/gemma-3-27b-it"), accelerator=H100, vllm_version="0.8.5", tensor=4,
            circumstances=Circumstances(use_v1=False), max_num_batched_tokens=16384, max_num_seqs=64, **settings,
        )  # fmt: skip
        ledger = plan(request).stages[0].ledger
        assert ledger is not None
        return dict(ledger.lines[1].inputs)

    one, fifty = profiled(), profiled(limit_mm_per_prompt=(("image", 50),))
    assert (one["sampler_rows"], fifty["sampler_rows"]) == (64, 1)
    assert int(fifty["encoder_bytes"]) * 64 == int(one["encoder_bytes"]) * 50


def graphs(version: str, gpu: str, *, told: bool | None) -> Interval:
    request = new_request(
        shape=catalogue_shape("Qwen/Qwen2.5-7B-Instruct"), accelerator=catalogue_accelerator(gpu), vllm_version=version,
        circumstances=Circumstances(estimates_graphs=told),
    )  # fmt: skip
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    return ledger.cuda_graphs


@pytest.mark.parametrize(
    ("version", "gpu", "unset", "on", "off"),
    [
        ("0.17.1", "H100-SXM-80GB", False, False, False),
        ("0.19.0", "H100-SXM-80GB", False, True, False),
        ("0.24.0", "H100-SXM-80GB", True, True, False),
        ("0.33.0", "H100-SXM-80GB", True, True, False),
        ("0.19.0", "MI300X-192GB", False, False, False),
    ],
)
def test_the_variable_decides_whether_graphs_are_deducted(
    version: str, gpu: str, *, unset: bool, on: bool, off: bool
) -> None:
    found = [graphs(version, gpu, told=told).high > 0 for told in (None, True, False)]
    assert found == [unset, on, off]


def between(told: Links | None, gpu: str) -> Term:
    request = new_request(
        shape=catalogue_shape("Qwen/Qwen2.5-7B-Instruct"), accelerator=catalogue_accelerator(gpu), vllm_version="0.19.0",
        tensor=2, circumstances=Circumstances(links=told),
    )  # fmt: skip
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    return ledger.lines[2]


def test_links_that_are_told_win_over_the_product() -> None:
    sold_with, told_pcie, sold_without, told_nvlink, told_host = (
        between(told, gpu)
        for gpu, told in (
            ("A100-SXM-40GB", None), ("A100-SXM-40GB", "pcie"), ("A100-PCIe-40GB", None), ("A100-PCIe-40GB", "nvlink"),
            ("A100-SXM-40GB", "host"),
        )
    )  # fmt: skip
    assert [dict(term.inputs)["links"] for term in (sold_with, told_pcie, sold_without, told_nvlink, told_host)] == [
        "NVLink", "PCIe", "PCIe", "NVLink", "host memory",
    ]  # fmt: skip
    assert told_pcie.amount == sold_without.amount
    assert told_host.amount.expected < told_pcie.amount.expected
    # a product that is sold with NVLink may stand in a machine whose GPUs do not reach each other
    assert sold_with.amount == told_nvlink.amount.spanning(told_pcie.amount)
    assert [fact.name for fact in told_pcie.facts] == ["links"]


@pytest.mark.parametrize(
    ("version", "gpu", "tokens"),
    [
        ("0.8.5", "L40S-48GB", 16384), ("0.8.5", "H100-SXM-80GB", 8192), ("0.9.2", "B200-SXM-180GB", 16384),
        ("0.10.0", "B200-SXM-180GB", 8192), ("0.10.2", "A100-SXM-80GB", 16384), ("0.11.0", "A100-SXM-80GB", 2048),
    ],
)  # fmt: skip
def test_an_fp8_cache_without_a_kernel_of_v1_runs_v0(version: str, gpu: str, tokens: int) -> None:
    request = new_request(
        accelerator=catalogue_accelerator(gpu), vllm_version=version, kv_cache_dtype="fp8", max_model_len=16384
    )
    assert plan(request).resolved.max_num_batched_tokens == tokens


def test_a_compiler_that_is_told_to_try_no_kernels_has_no_peak_of_its_own() -> None:
    def parts(**graphs: bool) -> dict[str, int | str]:
        request = new_request(
            shape=catalogue_shape("Qwen/Qwen2.5-7B-Instruct"), accelerator=H100, vllm_version="0.22.0",
            graphs=GraphSettings(**graphs),
        )  # fmt: skip
        ledger = plan(request).stages[0].ledger
        assert ledger is not None
        return dict(ledger.lines[1].inputs)

    assert int(parts()["compiler_bytes"]) > gib(1)
    assert parts(tries_kernels=True) == parts()
    assert parts(tries_kernels=False)["compiler_bytes"] == 0


def test_a_variable_chooses_the_model_runner() -> None:
    """Gemma-4-31B on one B300 with 0.26.0 logged a peak of 3.90 GiB: its engine ran on V1, which the release does not choose for it."""
    chosen, told = (
        peak(told, "0.26.0", "google/gemma-4-31B-it", "B300-SXM-288GB")
        for told in (NO_CIRCUMSTANCES, Circumstances(use_v2_model_runner=False))
    )
    assert [{fact.name: fact.value for fact in term.facts}["model runner"] for term in (chosen, told)] == [
        "V2",
        "V1",
    ]
    assert chosen.amount.high < gib(1.6)
    assert told.amount.low < gib(3.9) < told.amount.high


@pytest.mark.parametrize(("version", "runner"), [("0.21.0", None), ("0.22.0", "V2"), ("0.33.0", "V2")])
def test_no_variable_brings_a_runner_that_the_release_does_not_use(version: str, runner: str | None) -> None:
    facts = {fact.name: fact.value for fact in peak(Circumstances(use_v2_model_runner=True), version).facts}
    assert facts.get("model runner") == runner


def test_a_start_of_0_8_whose_command_nobody_knows_may_run_either_engine() -> None:
    """Qwen2.5-7B on A10G with 0.8.1 ran V0, and nothing in its log says why (issue 15360)."""

    def asked(told: Circumstances, *, is_whole: bool = False, version: str = "0.8.1") -> Ledger:
        request = new_request(
            shape=catalogue_shape("Qwen/Qwen2.5-7B-Instruct"), accelerator=catalogue_accelerator("A10G-24GB"),
            vllm_version=version, circumstances=told, is_whole=is_whole, max_model_len=16384,
        )  # fmt: skip
        ledger = plan(request).stages[0].ledger
        assert ledger is not None
        return ledger

    def engines(ledger: Ledger) -> list[tuple[str, str]]:
        return [(fact.value, fact.other) for fact in ledger.lines[1].facts if fact.name == "engine"]

    open_, newer, older = (asked(Circumstances(use_v1=told)) for told in (None, True, False))
    assert [engines(each) for each in (open_, newer, older)] == [[("V1", "V0")], [], [("V0", "")]]
    assert open_.available.expected == newer.available.expected != older.available.expected
    assert covers(open_.available, older.available.expected)
    assert open_.available.low < newer.available.low
    for known in (
        asked(Circumstances(usage_context="server")),
        asked(NO_CIRCUMSTANCES, is_whole=True),
        asked(NO_CIRCUMSTANCES, version="0.9.1"),
    ):
        assert engines(known) == []


def test_the_v2_runner_of_0_33_takes_less_without_flashinfer_and_older_ones_take_the_same() -> None:
    """By rule, no start known."""

    def sampled(sampler: Sampler, version: str) -> tuple[int, list[str]]:
        term = peak(Circumstances(sampler=sampler), version, "Qwen/Qwen3-8B")
        assert dict(term.inputs)["runner"] == "V2"
        return int(dict(term.inputs)["sampler_bytes"]), [fact.name for fact in term.facts]

    vocabulary, rows, processors = 151_936, 1024, 132
    fused, unfused = (sampled(sampler, "0.33.0") for sampler in ("flashinfer", "pytorch"))
    assert fused[0] - unfused[0] == rows * vocabulary * (14 - 6) - processors * vocabulary * 4
    assert "sampler" in fused[1]
    older = [sampled(sampler, "0.30.0") for sampler in ("flashinfer", "pytorch")]
    assert older[0] == older[1]
    assert "sampler" not in older[0][1]

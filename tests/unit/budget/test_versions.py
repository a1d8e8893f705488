"""What a release of vLLM changes: defaults, batch limits, what is deducted."""

from fractions import Fraction

import pytest
from msgspec.structs import asdict

from kvgate.budget.answers.answer import plan
from kvgate.budget.engine.circumstances import NO_CIRCUMSTANCES
from kvgate.budget.engine.settings import runs_on_v2
from kvgate.budget.ground.interval import UnknownVersion
from kvgate.budget.ground.units import GIB
from kvgate.budget.releases.versions import DEFAULT_VERSION, NEWEST, OLDEST, accounting_of, parse_release
from kvgate.vllm.options import releases_read
from support.builders import catalogue_accelerator, catalogue_shape, new_accelerator, new_model_shape, new_request
from support.tables import table


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.33.0", (0, 33)), ("v0.11.0rc2", (0, 11)), ("0.10.2.dev5+g1f3a", (0, 10)), ("0.6", (0, 6)), (" 0.9.2 ", (0, 9)),
        ("1.0.0", (1, 0)), ("0.20.1-cu129", (0, 20)),
    ],
)  # fmt: skip
def test_a_version_is_read_as_its_minor_release(text: str, release: tuple[int, int]) -> None:
    assert parse_release(text) == release


@table("text", ["", "latest", "33", "0.", "0.x", "v", "-0.3", "0.33.", "0.33.0\n0.34", "nightly-0.33"])
def test_what_is_no_version_is_told_so(text: str) -> None:
    with pytest.raises(UnknownVersion, match="is not a vLLM version"):
        parse_release(text)


@pytest.mark.parametrize("version", ["0.5.5", "0.0.1"])
def test_a_release_before_the_first_known_is_unknown(version: str) -> None:
    with pytest.raises(UnknownVersion, match=r"older than 0\.6"):
        accounting_of(version)


def test_the_default_version_is_the_newest_that_is_known() -> None:
    assert parse_release(DEFAULT_VERSION) == NEWEST
    assert OLDEST == (0, 6)


@pytest.mark.parametrize("version", [f"{NEWEST[0]}.{NEWEST[1] + 9}.0", f"{NEWEST[0] + 1}.0.0", "777.3"])
def test_a_newer_release_counts_as_the_newest_with_a_wider_interval(version: str) -> None:
    assert asdict(accounting_of(version)) == asdict(accounting_of(releases_read()[-1]))
    asked = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}
    known, newer = (plan(new_request(vllm_version=v, **asked)).stages[0].available for v in (DEFAULT_VERSION, version))
    assert newer.expected == known.expected
    assert newer.low < known.low
    assert newer.high > known.high


@pytest.mark.parametrize(
    ("version", "share"),
    [("0.6.6", 90), ("0.8.5", 90), ("0.19.1", 90), ("0.20.0", 92), ("0.33.0", 92)],
)
def test_the_default_utilization_is(version: str, share: int) -> None:
    assert accounting_of(version).gpu_memory_utilization == Fraction(share, 100)


A100, H100, B200, L4, GB10, GH200 = (
    "A100-SXM-80GB",
    "H100-SXM-80GB",
    "B200-SXM-180GB",
    "L4-24GB",
    "GB10-128GB",
    "GH200-120GB",
)


@table(
    ("version", "gpu", "tokens", "seqs"),
    [
        ("0.8.5", A100, 8192, 1024), ("0.9.2", A100, 2048, 256), ("0.33.0", A100, 2048, 256),
        ("0.8.5", H100, 8192, 1024), ("0.9.2", H100, 8192, 1024), ("0.33.0", H100, 8192, 1024),
        ("0.8.5", L4, 2048, 256), ("0.33.0", L4, 2048, 256),
        ("0.27.1", B200, 8192, 1024), ("0.28.0", B200, 16_384, 1024), ("0.33.0", B200, 16_384, 1024),
        ("0.13.0", GB10, 2048, 256), ("0.33.0", GB10, 2048, 256),
        ("0.33.0", GH200, 8192, 1024), ("0.33.0", "H100-80GB-MIG-3g.40gb", 2048, 256),
    ],
)  # fmt: skip
def test_the_batch_limits_of_a_card_are(version: str, gpu: str, tokens: int, seqs: int) -> None:
    settings = plan(new_request(vllm_version=version, accelerator=catalogue_accelerator(gpu))).resolved
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, seqs)


@pytest.mark.parametrize(
    ("asked", "tokens", "seqs"),
    [
        ({"max_model_len": 8192}, 8192, 1024),
        ({"max_model_len": 16, "max_num_seqs": 4}, 64, 4),
        ({"max_model_len": 1}, 1024, 1024),
        ({"max_num_batched_tokens": 100}, 100, 100),
        ({"max_num_batched_tokens": 100, "max_num_seqs": 512}, 100, 512),
        ({"max_num_seqs": 1, "max_model_len": 1}, 1, 1),
    ],
)  # fmt: skip
def test_limits_that_nobody_set_follow_those_that_somebody_did(asked: dict[str, int], tokens: int, seqs: int) -> None:
    settings = plan(new_request(**asked)).resolved
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, seqs)


def test_v0_batches_cover_the_whole_length() -> None:
    assert plan(new_request(vllm_version="0.6.6", max_model_len=32_768)).resolved.max_num_batched_tokens == 32_768
    assert plan(new_request(vllm_version="0.6.6", max_model_len=1024)).resolved.max_num_batched_tokens == 2048


@pytest.mark.parametrize(("version", "blocks"), [("0.28.0", 0), ("0.29.0", 1), ("0.33.0", 1)])
def test_the_null_block_is_kept_back_since_0_29(version: str, blocks: int) -> None:
    budget = plan(new_request(vllm_version=version, kv_cache_memory_bytes=20 * GIB))
    assert budget.num_blocks is not None
    assert budget.usable_blocks is not None
    assert budget.num_blocks.expected - budget.usable_blocks.expected == blocks


@table(
    ("version", "architecture", "deducted"),
    [
        ("0.19.1", "MixtralForCausalLM", False), ("0.20.0", "MixtralForCausalLM", True), ("0.26.0", "MixtralForCausalLM", True),
        ("0.22.1", "Qwen3ForCausalLM", False), ("0.22.1", "LlamaForCausalLM", True), ("0.23.0", "LlamaForCausalLM", False),
        ("0.24.0", "LlamaForCausalLM", False), ("0.24.0", "GemmaForCausalLM", True), ("0.25.0", "GemmaForCausalLM", False),
        ("0.28.0", "LlamaForCausalLM", False), ("0.29.0", "LlamaForCausalLM", True),
    ],
)  # fmt: skip
def test_cuda_graphs_come_out_of_the_budget(version: str, architecture: str, deducted: bool) -> None:  # noqa: FBT001
    facts = accounting_of(version)
    runner = facts.uses_v2_runner(architecture, is_dense=architecture != "MixtralForCausalLM", is_quantized=False)
    assert facts.deducts_graphs("nvidia", v2_runner=runner) is deducted


@pytest.mark.parametrize(("version", "runs"), [("0.22.1", False), ("0.23.0", False), ("0.24.0", True)])
def test_quantised_checkpoints_came_to_the_v2_runner_later(version: str, runs: bool) -> None:  # noqa: FBT001
    assert accounting_of(version).uses_v2_runner("Qwen3ForCausalLM", is_dense=True, is_quantized=True) is runs


@pytest.mark.parametrize("version", ["0.19.0", "0.33.0"])
def test_an_eager_engine_keeps_no_graphs(version: str) -> None:
    ledger = plan(new_request(vllm_version=version, enforce_eager=True)).stages[0].ledger
    assert ledger is not None
    assert (ledger.cuda_graphs.low, ledger.cuda_graphs.high) == (0, 0)


@pytest.mark.parametrize(
    ("version", "dtype"), [("0.11.0", "bfloat16"), ("0.20.0", "turboquant_k8v4"), ("0.33.0", "octave_k3v4")]
)
def test_a_cache_dtype_exists_from_its_release_on(version: str, dtype: str) -> None:
    major, minor = parse_release(version)
    assert dtype in accounting_of(version).kv_cache_dtypes
    assert dtype not in accounting_of(f"{major}.{minor - 1}.9").kv_cache_dtypes


def test_an_accelerator_without_compute_capability_is_planned() -> None:
    gaudi = new_accelerator(compute_capability=None, vendor="intel")
    assert plan(new_request(accelerator=gaudi)).num_blocks is not None


@pytest.mark.parametrize(("version", "length"), [("0.11.0", 131_072), ("0.11.1", 4096), ("0.33.0", 4096)])
def test_longrope_runs_unscaled_unless_more_is_asked(version: str, length: int) -> None:
    shape = new_model_shape(max_model_len=131_072, default_max_model_len=4096)
    assert plan(new_request(shape=shape, vllm_version=version)).resolved.max_model_len == length
    asked = plan(new_request(shape=shape, vllm_version=version, max_model_len=32_768))
    assert asked.resolved.max_model_len == 32_768


@pytest.mark.parametrize(
    ("model", "gpu", "version", "is_v2"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "MI355X-288GB", "0.30.0", False),
        ("deepseek-ai/DeepSeek-V3.2", "B200-SXM-180GB", "0.30.0", True),
        ("deepseek-ai/DeepSeek-V3.2", "MI355X-288GB", "0.32.0", True),
        ("Qwen/Qwen3-32B", "MI355X-288GB", "0.30.0", True),
    ],
)
def test_some_architectures_stay_on_v1_on_amd(model: str, gpu: str, version: str, *, is_v2: bool) -> None:
    shape, vendor = catalogue_shape(model), catalogue_accelerator(gpu).vendor
    assert runs_on_v2(shape, accounting_of(version), NO_CIRCUMSTANCES, vendor) is is_v2


@pytest.mark.parametrize(
    ("since", "before", "field", "values", "source"),
    [
        ("0.12.0", "0.11.0", "lora_graphs_twice", (False, True), "cudagraph_specialize_lora"),
        ("0.18.0", "0.17.0", "estimates_graphs", (False, True), "profile_cudagraph_memory"),
        ("0.20.0", "0.19.0", "all_to_all_tokens", (256, 0), "VLLM_MOE_DP_CHUNK_SIZE"),
        ("0.21.0", "0.20.0", "unsplit_large_blocks", (False, True), "max_split_size_mb"),
        ("0.26.0", "0.25.0", "packed_caches_refuse_windows", (False, True), "supports_sliding_window"),
        ("0.33.0", "0.32.0", "plugs_in_kv_cache_dtypes", (False, True), "register_kv_cache_dtype"),
    ],
)  # fmt: skip
def test_a_name_of_the_source_is_absent_before_and_present_since(
    since: str, before: str, field: str, values: tuple[object, object], source: str
) -> None:
    """Each name was looked for in the source of all releases; VLLM_MOE_DP_CHUNK_SIZE is the one that goes."""
    assert source
    assert (getattr(accounting_of(before), field), getattr(accounting_of(since), field)) == values

"""Start-up logs of every era, written here around the phrases that vLLM prints."""

import pytest

from kvgate.budget.ground.units import gib
from kvgate.sources.start_failure import FailureKind
from kvgate.sources.startup_log import MAX_LOG_CHARACTERS, RankMemory, StartupLog, UnusableLog, read_startup_log

V0 = """\
INFO 01-02 03:04:05 api_server.py:528] vLLM API server version 0.6.3.post1
INFO 01-02 03:04:05 api_server.py:529] args: Namespace(host=None, port=8000, model='org/m', max_model_len=4096, seed=0, \
dispatch_function=<function serve at 0x7f00>)
INFO 01-02 03:04:06 model_runner.py:1067] Loading model weights took 14.9888 GB
INFO 01-02 03:04:07 worker.py:267] the current vLLM instance can use total_gpu_memory (22.07GiB) x gpu_memory_utilization (0.90) = 19.86GiB
INFO 01-02 03:04:07 worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.05GiB; PyTorch activation peak memory takes \
0.22GiB; the rest of the memory reserved for KV Cache is 4.60GiB.
INFO 01-02 03:04:07 gpu_executor.py:122] # GPU blocks: 2356, # CPU blocks: 2048
INFO 01-02 03:04:07 gpu_executor.py:126] Maximum concurrency for 4096 tokens per request: 9.20x
"""
TWO_RANKS = """\
\x1b[1;36m(APIServer pid=7)\x1b[0;0m INFO 01-02 03:04:05 [api_server.py:1] vLLM API server version 0.19.1
(APIServer pid=7) INFO 01-02 03:04:05 [utils.py:1] non-default args: {'model_tag': 'org/m', 'model': 'org/m', \
'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.85, 'kv_cache_dtype': 'fp8', 'hf_token': None, \
'compilation_config': CompilationConfig(level=None), 'runner': <Runner.AUTO: 'auto'>}
(EngineCore_DP0 pid=8) INFO 01-02 03:04:06 [core.py:1] Initializing a V1 LLM engine (v0.19.1) with config: model='org/m', dtype=x
(Worker_TP0 pid=9) INFO 01-02 03:04:07 [gpu_model_runner.py:1] Model loading took 13.95 GiB memory and 9.1 seconds
(Worker_TP1 pid=10) INFO 01-02 03:04:07 [gpu_model_runner.py:1] Model loading took 13.90 GiB memory and 9.2 seconds
(Worker_TP0 pid=9) DEBUG 01-02 03:04:08 [gpu_worker.py:1] Memory profiling takes 3.1 seconds. Total non KV cache memory: 17.2GiB; \
torch peak memory increase: 1.89GiB; non-torch forward increase memory: 0.25GiB; weights memory: 13.95GiB.
(Worker_TP0 pid=9) INFO 01-02 03:04:08 [gpu_worker.py:1] Available KV cache memory: 19.50 GiB
(Worker_TP1 pid=10) INFO 01-02 03:04:08 [gpu_worker.py:1] Available KV cache memory: 19.25 GiB
(EngineCore_DP0 pid=8) INFO 01-02 03:04:08 [kv_cache_utils.py:1] GPU KV cache size: 201,856 tokens
(EngineCore_DP0 pid=8) INFO 01-02 03:04:08 [kv_cache_utils.py:2] Maximum concurrency for 32,768 tokens per request: 6.16x
(Worker_TP0 pid=9) INFO 01-02 03:04:09 [gpu_model_runner.py:1] Graph capturing finished in 7 secs, took 0.91 GiB
(APIServer pid=7) INFO:     Application startup complete.
"""
CONSUMED = """\
(APIServer pid=1) INFO 01-02 03:04:05 [api_utils.py:1]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0
(APIServer pid=1) INFO 01-02 03:04:05 [api_utils.py:1] non-default args: {'model': 'org/m', 'max_num_seqs': 16}
(EngineCore pid=2) INFO 01-02 03:04:06 [model_runner.py:1] Model loading took 15.67 GiB and 3.2 seconds
(EngineCore pid=2) INFO 01-02 03:04:07 [gpu_worker.py:1] Estimated CUDA graph memory: -0.53 GiB total
(EngineCore pid=2) INFO 01-02 03:04:07 [gpu_worker.py:2] Available KV cache memory: 21.75 GiB
(EngineCore pid=2) INFO 01-02 03:04:07 [kv_cache_utils.py:1] Overriding num_gpu_blocks=9000 with num_gpu_blocks_override=64
(EngineCore pid=2) INFO 01-02 03:04:07 [kv_cache_utils.py:2] GPU KV cache size: 8,192 tokens, Maximum concurrency for 4,096 tokens \
per request: 2.00x
(EngineCore pid=2) INFO 01-02 03:04:09 [gpu_worker.py:3] CUDA graph pool memory: 0.22 GiB (actual), 0.42 GiB (estimated), difference: x
(EngineCore pid=2) DEBUG 01-02 03:04:09 [gpu_worker.py:4] Free memory on device (46.99/47.37 GiB) on startup. Desired GPU memory \
utilization is (0.85, 40.27 GiB). Actual usage is 16.17 GiB for consumed memory (weights + non-torch), 1.46 GiB for peak activation, \
and 0.22 GiB for CUDAGraph memory.
"""
REFUSED = """\
(EngineCore_DP0 pid=2) INFO 01-02 03:04:05 [core.py:1] Initializing a V1 LLM engine (v0.17.1) with config: model='org/m', dtype=x
(EngineCore_DP0 pid=2) INFO 01-02 03:04:06 [gpu_model_runner.py:1] Model loading took 14.25 GiB memory and 3.0 seconds
(EngineCore_DP0 pid=2) INFO 01-02 03:04:07 [gpu_worker.py:1] Available KV cache memory: -0.75 GiB
(EngineCore_DP0 pid=2) ERROR 01-02 03:04:07 [core.py:2] ValueError: No available memory for the cache blocks. Try something.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_v0_prints_the_whole_ledger_and_the_parsers_namespace() -> None:
    assert read_startup_log(V0) == StartupLog(
        vllm_version="0.6.3.post1",
        model="org/m",
        arguments={"port": 8000, "model": "org/m", "max_model_len": 4096, "seed": 0},
        unread_arguments=("dispatch_function",),
        ranks=(
            RankMemory(
                total_bytes=gib(22.07), weights_bytes=gib(14.9888), peak_activation_bytes=gib(0.22), non_torch_bytes=gib(0.05),
                available_kv_cache_bytes=gib(4.6),
            ),
        ),
        num_gpu_blocks=2356,
        max_concurrency=9.2,
        max_model_len=4096,
    )  # fmt: skip


def test_every_rank_of_v1_is_kept_and_the_tightest_is_the_one_with_the_least_kv_cache() -> None:
    log = read_startup_log(TWO_RANKS)
    assert (log.vllm_version, log.model, log.refusal) == ("0.19.1", "org/m", None)
    assert log.arguments == {
        "model_tag": "org/m", "model": "org/m", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.85, "kv_cache_dtype": "fp8"
    }  # fmt: skip
    assert log.unread_arguments == ("compilation_config", "runner")
    assert log.ranks == (
        RankMemory(
            process="Worker_TP0 pid=9", weights_bytes=gib(13.95), peak_activation_bytes=gib(1.89), non_torch_bytes=gib(0.25),
            cuda_graph_bytes=gib(0.91), available_kv_cache_bytes=gib(19.5),
        ),
        RankMemory(process="Worker_TP1 pid=10", weights_bytes=gib(13.9), available_kv_cache_bytes=gib(19.25)),
    )  # fmt: skip
    assert log.tightest is log.ranks[1]
    assert (log.kv_cache_tokens, log.max_concurrency, log.max_model_len) == (201856, 6.16, 32768)


def test_recent_releases_print_consumed_memory_and_both_figures_on_one_line() -> None:
    log = read_startup_log(CONSUMED)
    assert log.vllm_version == "0.32.0"
    assert log.tightest == RankMemory(
        process="EngineCore pid=2", total_bytes=gib(47.37), free_bytes=gib(46.99), weights_bytes=gib(15.67), consumed_bytes=gib(16.17),
        peak_activation_bytes=gib(1.46), cuda_graph_estimate_bytes=gib(-0.53), cuda_graph_bytes=gib(0.22),
        available_kv_cache_bytes=gib(21.75),
    )  # fmt: skip
    assert (log.num_gpu_blocks, log.kv_cache_tokens, log.max_concurrency, log.max_model_len) == (64, 8192, 2.0, 4096)


def test_a_refused_start_tells_its_figures_and_its_cause() -> None:
    log = read_startup_log(REFUSED)
    assert log.refusal is not None
    assert log.refusal.kind is FailureKind.NO_MEMORY_FOR_KV_CACHE
    assert log.tightest is not None
    assert (log.model, log.tightest.available_kv_cache_bytes) == ("org/m", gib(-0.75))


def test_an_error_after_the_start_is_no_refusal() -> None:
    assert read_startup_log(TWO_RANKS + "torch.OutOfMemoryError: CUDA out of memory.\n").refusal is None


@pytest.mark.parametrize(
    ("before", "last", "starts"),
    [
        (REFUSED, CONSUMED, 2),
        (CONSUMED, TWO_RANKS, 2),
        (REFUSED + REFUSED, REFUSED, 3),
        (V0[V0.index("INFO 01-02 03:04:07") :], V0, 2),
        ("", V0, 1),
        ("Traceback of something else\n", TWO_RANKS, 1),
    ],
    ids=["a refusal first", "another release first", "crash loop", "the first one cut", "one", "other lines first"],
)
def test_the_last_start_counts_and_their_number_is_told(before: str, last: str, starts: int) -> None:
    log, alone = read_startup_log(before + last), read_startup_log(last)
    assert log.starts == starts
    assert (log.ranks, log.arguments, log.vllm_version) == (alone.ranks, alone.arguments, alone.vllm_version)


@pytest.mark.parametrize(
    "prefix", ["2026-01-02T03:04:05.123Z ", "2026-01-02T03:04:05.1Z stdout F ", "vllm-1  | ", "[pod/vllm-0] "]
)
def test_what_a_reader_of_logs_sets_before_each_line_does_not_matter(prefix: str) -> None:
    assert read_startup_log("".join(prefix + line for line in TWO_RANKS.splitlines(keepends=True))) == read_startup_log(
        TWO_RANKS
    )


def test_lines_without_the_names_of_processes_keep_the_smallest_kv_cache() -> None:
    log = read_startup_log("Available KV cache memory: 9.5 GiB\nAvailable KV cache memory: 9.25 GiB\n")
    assert log.ranks == (RankMemory(available_kv_cache_bytes=gib(9.25)),)


def test_of_several_engines_the_smallest_counts() -> None:
    lines = "(EngineCore_DP{0} pid={0}) GPU KV cache size: {0},000 tokens, Maximum concurrency for 100 tokens per request: {0}.5x\n"
    log = read_startup_log("".join(lines.format(engine) for engine in (7, 3, 5)))
    assert (log.kv_cache_tokens, log.max_concurrency) == (3000, 3.5)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("{'model': 'm', 'limit_mm_per_prompt': {'image': 2}}", {"model": "m", "limit_mm_per_prompt": {"image": 2}}),
        ("{'model': __import__('os').abort()}", {}),
        ("{'model': 'm'", {}),
        ("{" + "(" * 5000 + "}", {}),
        ("{**{'a': 1}, 2: 3, 'model': 'm'}", {"model": "m"}),
    ],
    ids=["plain", "code is not run", "cut", "nested too deeply", "odd keys"],
)
def test_arguments_are_read_as_plain_values_only(arguments: str, read: dict[str, object]) -> None:
    assert read_startup_log(f"non-default args: {arguments}\nGPU KV cache size: 10 tokens\n").arguments == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the log is empty"),
        (" \n", "the log is empty"),
        ("Starting nginx\nready\n", "no line of a vLLM start is in it"),
        ("\x1f\x8b\x00\x00binary", "the log is not text"),
        ("\ufffd" * 50, "the log is not text"),
        (TWO_RANKS[: TWO_RANKS.index("(Worker_TP0")], "no line says how large the KV cache is"),
        ("x" * (MAX_LOG_CHARACTERS + 1), "more than 33554432"),
    ],
    ids=["nothing", "blank", "another program", "an archive", "undecodable", "cut before the figures", "huge"],
)
def test_a_log_that_tells_nothing_is_refused_with_what_to_give(text: str, said: str) -> None:
    with pytest.raises(UnusableLog, match=said) as error:
        read_startup_log(text)
    assert "give" in str(error.value)


def test_a_line_that_is_longer_than_any_start_prints_is_cut() -> None:
    """Logged prompts are such lines; the figures around them are read."""
    lines = CONSUMED.splitlines()
    prompt = f"(APIServer pid=1) INFO Received request: prompt: {'a' * 22_000_000} Model loading took 99.0 GiB"
    assert read_startup_log("\n".join([*lines, prompt])) == read_startup_log(CONSUMED)


def test_arguments_that_no_start_prints_are_refused_before_they_are_parsed() -> None:
    """22 MB of them took 6.4 GB of memory."""
    arguments = "non-default args: {" + "'a': [1], " * 2_200_000 + "}"
    with pytest.raises(UnusableLog, match="line 2 holds the arguments of vLLM and 2200") as error:
        read_startup_log(f"vLLM API server version 0.19.1\n{arguments}\n")
    assert "more than 65536" in str(error.value)
    assert "give the options themselves" in str(error.value)


def test_what_stands_far_from_the_beginning_of_a_line_belongs_to_no_process() -> None:
    far = f"(Worker_TP0 pid=9) {'a' * 10_000} Available KV cache memory: 1.00 GiB\n"
    assert [rank.process for rank in read_startup_log(f"(x pid=1)\n{far}").ranks] == [""]


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (
            "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 4.1 s",
            {"compile_cache": "warm"},
        ),
        ("Directly load AOT compilation from path /root/.cache/vllm/x", {"compile_cache": "warm"}),
        ("Compiling a graph for dynamic shape takes 21.03 s", {"compile_cache": "cold"}),
        (
            "Compiling a graph for compile range (1, 2048) takes 9.10 s\nDirectly load the compiled graph(s)",
            {"compile_cache": "cold"},
        ),
        ("Using FlashInfer for top-p & top-k sampling.", {"sampler": "flashinfer"}),
        (
            "FlashInfer is not available. Falling back to the PyTorch-native implementation of top-p & top-k sampling.",
            {"sampler": "pytorch"},
        ),
        ("Starting to load model x...", {}),
    ],
)
def test_lines_that_show_a_circumstance_are_read(lines: str, shown: dict[str, str]) -> None:
    log = read_startup_log(f"{lines}\nAvailable KV cache memory: 6.06 GiB\n")
    assert log.circumstances == shown

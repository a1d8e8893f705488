"""Why vLLM did not start: its own phrases by release, in short logs of our own making."""

import pytest

from kvgate.budget.ground.units import GIB, MIB, gib
from kvgate.sources.start_failure import (
    MAX_SENTENCE_CHARACTERS,
    FailureKind,
    Rank,
    StartFailure,
    failure_rows,
    messages,
    recognise,
    words_of_failures,
)

ENGINE = "(EngineCore_DP0 pid=77) ERROR 01-02 03:04:05 [core.py:9] "
V1_TOO_SMALL = (
    "To serve at least one request with the models's max seq len (8192), (2.5 GiB KV cache is needed, which is larger than "
    "the available KV cache memory (0.75 GiB). Based on the available memory, the estimated maximum model length is 2448."
)
ADVICE = " Try increasing `gpu_memory_utilization`."
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
WARM_UP = "CUDA out of memory occurred when warming up sampler with 256 dummy requests."
TOO_LONG = (
    "User-specified max_model_len (9000) is greater than the derived max_model_len (max_position_embeddings=4096)."
)

CASES = [
    pytest.param(
        f"{ENGINE}ValueError: {V1_TOO_SMALL}{ADVICE}",
        StartFailure(
            id="KVCacheTooSmall", sentence=V1_TOO_SMALL, max_model_len=8192, max_model_len_that_fits=2448,
            needed_bytes=gib(2.5), available_bytes=gib(0.75),
        ),
        id="V1 0.17",
    ),
    pytest.param(
        "ValueError: To serve one request with the model's max seq len (8192), 2.0 GiB KV cache is needed, which is larger than "
        "the available KV cache memory (0.5 GiB).",
        StartFailure(
            id="KVCacheTooSmall", max_model_len=8192, needed_bytes=2 * GIB, available_bytes=GIB // 2,
            sentence="To serve one request with the model's max seq len (8192), 2.0 GiB KV cache is needed, which is larger than "
            "the available KV cache memory (0.5 GiB).",
        ),
        id="0.28, no estimate",
    ),
    pytest.param(
        "ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV cache "
        "(23648). Try increasing it.",
        StartFailure(
            id="KVCacheTooSmall", max_model_len=29000, max_model_len_that_fits=23648,
            sentence="The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV cache "
            "(23648).",
        ),
        id="V0 0.6",
    ),
    pytest.param(
        f"{ENGINE}ValueError: No available memory for the cache blocks.{ADVICE}",
        StartFailure(id="NoMemoryForKVCache", sentence="No available memory for the cache blocks."),
        id="no memory, every release",
    ),
    pytest.param(
        "INFO [gpu_worker.py:1] Available KV cache memory: -1.25 GiB",
        StartFailure(
            id="NoMemoryForKVCache", available_bytes=gib(-1.25), sentence="Available KV cache memory: -1.25 GiB"
        ),
        id="V1, the log ends before the refusal",
    ),
    pytest.param(
        "model weights take 5.20GiB; the rest of the memory reserved for KV Cache is -1.50GiB.",
        StartFailure(
            id="NoMemoryForKVCache", available_bytes=gib(-1.5),
            sentence="model weights take 5.20GiB; the rest of the memory reserved for KV Cache is -1.50GiB.",
        ),
        id="V0 0.6, overdrawn",
    ),
    pytest.param(
        "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856). Please lower it.",
        StartFailure(
            id="MambaBlocks", max_num_seqs=1024, max_num_seqs_that_fits=856,
            sentence="max_num_seqs (1024) exceeds available Mamba cache blocks (856).",
        ),
        id="hybrids 0.28",
    ),
    pytest.param(
        "ValueError: Free memory on device cuda:0 (2.5/80.0 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 72.0 GiB). Decrease it.",
        StartFailure(
            id="GpuMemoryTaken", available_bytes=gib(2.5), total_bytes=80 * GIB, needed_bytes=72 * GIB,
            sentence="Free memory on device cuda:0 (2.5/80.0 GiB) on startup is less than desired GPU memory utilization "
            "(0.9, 72.0 GiB).",
        ),
        id="taken 0.14",
    ),
    pytest.param(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 1 has a total capacity of 79.25 GiB of "
        "which 500.00 MiB is free.\n"
        f"RuntimeError: {WARM_UP} Please try lowering it.",
        StartFailure(
            id="OutOfMemorySampler", sentence=WARM_UP, needed_bytes=594 * MIB, available_bytes=500 * MIB,
            total_bytes=gib(79.25),
        ),
        id="warm-up 0.11 after torch's own error: one cause, the figures of both",
    ),
    pytest.param(
        f"pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, {TOO_LONG} To allow overriding this "
        "maximum, set something. [type=value_error]",
        StartFailure(
            id="MaxModelLenAboveModel", max_model_len=9000, found={"derived_max_model_len": 4096},
            sentence=f"{TOO_LONG} To allow overriding this maximum, set something.",
        ),
        id="longer than the model 0.32",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("log", "failure"), CASES)
def test_the_cause_is_recognised_with_its_sentence_and_figures(log: str, failure: StartFailure) -> None:
    assert recognise(log) == failure


@pytest.mark.parametrize(("log", "failure"), CASES)
def test_the_cause_wins_over_the_tracebacks_around_it(log: str, failure: StartFailure) -> None:
    assert recognise(f"{ENGINE}EngineCore failed to start.\n{log}\nTraceback\n{WRAPPER}\n") == failure


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("torch.cuda.OutOfMemoryError: HIP out of memory.", FailureKind.OUT_OF_MEMORY),
        ("Cannot auto-fit max_model_len: not enough GPU memory available", FailureKind.NO_MEMORY_FOR_KV_CACHE),
        ("AssertionError: Error in memory profiling. Initial free memory 3 GiB", FailureKind.GPU_MEMORY_TAKEN),
        ("ValueError: Chunked MM input: max_tokens_per_mm_item (2496) is larger than max_num_batched_tokens (2048)",
         FailureKind.INVALID_SETTING),
        ("max_num_batched_tokens (2048) is smaller than max_model_len (4096).", FailureKind.INVALID_SETTING),
        ("Total number of attention heads (14) must be divisible by tensor parallel size (4).", FailureKind.INVALID_SETTING),
        ("AssertionError: 14 is not divisible by 4", FailureKind.INVALID_SETTING),
        ("Weight input_size_per_partition = 96 is not divisible by min_thread_k = 128.", FailureKind.INVALID_SETTING),
        ("ValueError: No valid attention backend found for cuda with …", FailureKind.INVALID_SETTING),
        ("ValueError: Head size 80 is not supported by FlashAttention.", FailureKind.INVALID_SETTING),
        ("FP8 KV cache is not supported by the Triton attention backend", FailureKind.INVALID_SETTING),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.", FailureKind.INVALID_SETTING),
        ("ValueError: Model architectures ['NoSuchLM'] are not supported for now.", FailureKind.INVALID_SETTING),
        ("vllm: error: unrecognized arguments: --no-such-option", FailureKind.INVALID_SETTING),
        ("api_server.py: error: argument --kv-cache-dtype: invalid choice: 'fp9'", FailureKind.INVALID_SETTING),
        ("1 validation error for VllmConfig\n  Value error, any other reason.", FailureKind.INVALID_SETTING),
        (WRAPPER, FailureKind.ENGINE_CORE_FAILED),
        ("RuntimeError: Engine process failed to start. See stack trace for the root cause.", FailureKind.ENGINE_CORE_FAILED),
    ],
)  # fmt: skip
def test_every_other_phrase_has_its_kind(log: str, kind: FailureKind) -> None:
    failure = recognise(log)
    assert failure is not None
    assert failure.kind is kind


@pytest.mark.parametrize(
    "log",
    [
        "",
        "Traceback (most recent call last):\nKeyError: 'x'",
        "\x00\x7f\ufffd" * 100,
        "INFO Available KV cache memory: 12.5 GiB\nINFO GPU KV cache size: 1,000 tokens",
        f"WARNING [model.py:1] {TOO_LONG} It must be used with extreme caution.",
        "If out-of-memory error occurs during cudagraph capture, consider decreasing `gpu_memory_utilization`",
    ],
    ids=["empty", "another program", "binary", "a start that went well", "a warning 0.32", "advice 0.6"],
)
def test_what_is_no_failure_of_vllm_is_none(log: str) -> None:
    assert recognise(log) is None


def test_the_last_cause_counts_where_a_container_logged_two() -> None:
    failure = recognise(f"{WARM_UP}\n{ENGINE}ValueError: {V1_TOO_SMALL}")
    assert failure is not None
    assert (failure.kind, failure.total_bytes) == (FailureKind.KV_CACHE_TOO_SMALL, None)


def test_a_sentence_cut_at_its_beginning_is_recognised() -> None:
    failure = recognise(V1_TOO_SMALL[V1_TOO_SMALL.index("which is larger") :])
    assert failure is not None
    assert (failure.kind, failure.needed_bytes, failure.available_bytes) == (
        FailureKind.KV_CACHE_TOO_SMALL,
        None,
        gib(0.75),
    )
    assert failure.max_model_len_that_fits == 2448


def test_a_sentence_is_short_whatever_the_line_is() -> None:
    failure = recognise("x" * 10_000 + " No available memory for the cache blocks " + "x" * 10_000)
    assert failure is not None
    assert len(failure.sentence) == MAX_SENTENCE_CHARACTERS
    assert "No available memory for the cache blocks" in failure.sentence


@pytest.mark.parametrize("piece", ["1", "1.", "max seq len (", f"{TOO_LONG} ", "Model architectures [", "[x] "])
def test_a_megabyte_of_nearly_matching_text_is_read(piece: str) -> None:
    assert recognise(piece * (1_000_000 // len(piece))) is None


ROWS = failure_rows()
HEALTHY = """\
WARNING 10-10 10:22:58 _custom_ops.py:18] Failed to import from vllm._C with ImportError('libcuda.so.1: cannot open shared object file')
WARNING 11-02 03:04:05 [interface.py:1] Unknown vLLM environment variable detected: VLLM_MY_OWN
(APIServer pid=1) INFO 11-02 03:04:05 [api_server.py:1] vLLM API server version 0.11.0
(APIServer pid=1) WARNING 11-02 03:04:05 [__init__.py:1] argument '--disable-log-requests' is deprecated
HTTP Request: HEAD https://huggingface.co/m/resolve/main/adapter_config.json "HTTP/1.1 404 Not Found"
404 Client Error. Entry Not Found for url: https://huggingface.co/m/resolve/main/adapter_config.json.
`torch_dtype` is deprecated! Use `dtype` instead!
(EngineCore_DP0 pid=9) INFO 11-02 03:04:06 [utils.py:1] Address already in use. Retrying with a new port.
(EngineCore_DP0 pid=9) INFO 11-02 03:04:06 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds. This \
typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation).
(EngineCore_DP0 pid=9) WARNING 11-02 03:04:06 [topk_topp_sampler.py:69] FlashInfer is not available. Falling back to the PyTorch-native \
implementation of top-p & top-k sampling.
(EngineCore_DP0 pid=9) WARNING 11-02 03:04:06 [fused_moe.py:1] Using default MoE config. Performance might be sub-optimal! Config file not \
found at ['/x/E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json']
(EngineCore_DP0 pid=9) WARNING 11-02 03:04:06 [cuda.py:1] CUDA graphs are disabled; possible reason: out-of-memory during capture
(EngineCore_DP0 pid=9) INFO 11-02 03:04:06 [weight_utils.py:1] No model.safetensors.index.json found in remote.
(EngineCore_DP0 pid=9) INFO 11-02 03:04:08 [gpu_worker.py:1] Available KV cache memory: 23.42 GiB
[W1224 08:50:36.247935068 ProcessGroupNCCL.cpp:1524] Warning: destroy_process_group() was not called before program exit
If out-of-memory error occurs during cudagraph capture, consider decreasing `gpu_memory_utilization` or switching to eager mode.
Capturing CUDA graphs (decode, FULL): 100%|██████████| 51/51 [00:09<00:00,  5.4it/s]
(APIServer pid=1) INFO:     127.0.0.1:51012 - "GET /health HTTP/1.1" 200 OK
shm              64M     0   64M   0% /dev/shm
NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64
(EngineCore pid=9) WARNING 08-31 15:25:47 [gpu_worker.py:595] CUDA graph memory profiling is disabled \
(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). Without it, CUDA graph memory is not accounted for during KV cache allocation, which may \
require lowering --gpu-memory-utilization to avoid OOM.
Startup probe failed: Get "http://10.0.0.7:8000/health": dial tcp 10.0.0.7:8000: connect: connection refused
  Type     Reason     Age   From     Message
  Normal   Pulled     2m    kubelet  Container image already present on machine
  Normal   Started    2m    kubelet  Started container vllm
"""


@pytest.mark.parametrize("name", ROWS)
def test_the_recorded_text_of_a_row_is_recognised_as_that_row(name: str) -> None:
    failure = recognise(ROWS[name].text)
    assert failure is not None
    assert failure.id == name
    assert failure.sentence


@pytest.mark.parametrize("name", ROWS)
def test_no_other_root_stands_in_the_recorded_text_of_a_row(name: str) -> None:
    also = {each.row.id for each in messages(ROWS[name].text)} - {name}
    assert also <= {"OutOfMemory"}  # which vLLM's own words about an allocation contain


@pytest.mark.parametrize("line", HEALTHY.splitlines())
def test_a_line_that_a_healthy_start_prints_is_no_failure(line: str) -> None:
    assert recognise(line) is None


def test_a_whole_healthy_start_is_no_failure() -> None:
    assert recognise(HEALTHY * 50) is None


def test_every_row_says_all_that_people_and_programs_need() -> None:
    for row in ROWS.values():
        assert row.cause.endswith(".")
        assert row.do.endswith(".")
        assert row.source
        assert row.ledger in ("", "kv-cache", "weights", "gpu", "states", "host", "settings")
        assert row.releases == "any" or row.releases[0].isdigit()


def test_every_phrase_has_words_by_which_a_long_log_is_searched() -> None:
    words = words_of_failures()
    assert min(map(len, words)) >= 5
    assert all(any(word in row.text.encode() for word in words) for row in ROWS.values())


def test_what_follows_from_a_cause_never_hides_it_in_either_order() -> None:
    causes = [row for row in ROWS.values() if row.rank is Rank.ROOT and not row.near]
    others = [row for row in ROWS.values() if row.rank is not Rank.ROOT]
    for cause in causes:
        for other in others:
            for log in (f"{cause.text}\n{other.text}", f"{other.text}\n{cause.text}"):
                failure = recognise(log)
                assert failure is not None
                # an allocation of an unknown step, and an engine that is dead and not one that did not start: it served
                served = (cause.id, other.id) == ("OutOfMemory", "EngineDead")
                assert failure.id == ("OutOfMemoryServing" if served else cause.id), (cause.id, other.id)


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        (("in load_model", "in create_weights"), "OutOfMemoryLoading"),
        (("in determine_available_memory", "in profile_run", "in _dummy_run"), "OutOfMemoryProfiling"),
        (("in compile_or_warm_up_model", "in capture_model"), "OutOfMemoryCapture"),
        (("in compile_or_warm_up_model", "in _dummy_sampler_run"), "OutOfMemorySampler"),
        (("in initialize_from_config", "in initialize_kv_cache_tensors"), "OutOfMemoryKVCache"),
        (("in capture_end",), "OutOfMemoryCapture"),
        (("in run_busy_loop", "in execute_model"), "OutOfMemoryServing"),
        (("in somewhere",), "OutOfMemory"),
    ],
)
def test_the_traceback_tells_at_which_stage_memory_ran_out(frames: tuple[str, ...], name: str) -> None:
    traceback = "".join(f'{ENGINE}  File "/vllm/x.py", line 1, {frame}\n' for frame in frames)
    failure = recognise(f"{traceback}{ENGINE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.\n")
    assert failure is not None
    assert failure.id == name


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (f"Capturing CUDA graphs (decode, FULL):  12%|█▏        | 6/51\n{OUT_OF_MEMORY}", "OutOfMemoryCapture"),
        (
            f"Capturing CUDA graphs (decode, FULL): 100%|████| 51/51\nGraph capturing finished in 9 secs, took 0.5 GiB\n{OUT_OF_MEMORY}",
            "OutOfMemory",
        ),
        (f"INFO: Application startup complete.\n{OUT_OF_MEMORY}", "OutOfMemoryServing"),
        (
            f"Capturing CUDA graphs (decode, FULL): 100%|████| 51/51\nINFO: Application startup complete.\n{OUT_OF_MEMORY}",
            "OutOfMemoryServing",
        ),
        (
            f'{OUT_OF_MEMORY}\n  File "core.py", line 1, in run_busy_loop\n  File "x.py", line 1, in load_model',
            "OutOfMemoryServing",
        ),
        (f"{OUT_OF_MEMORY}\n" + "x\n" * 4_000 + "in load_model", "OutOfMemory"),
        (f"{OUT_OF_MEMORY}\nRuntimeError: Engine core initialization failed.", "OutOfMemory"),
    ],
    ids=[
        "in the capture",
        "after the capture",
        "under load",
        "under load after a capture",
        "frames below",
        "far below",
        "at the start",
    ],
)
def test_steps_that_a_log_begins_and_frames_below_tell_the_stage(log: str, name: str) -> None:
    failure = recognise(log)
    assert failure is not None
    assert failure.id == name


def test_the_words_below_a_refused_configuration_are_the_sentence() -> None:
    failure = recognise("1 validation error for VllmConfig\n  Value error, the draft is wrong. [type=value_error]")
    assert failure is not None
    assert failure.sentence.startswith("the draft is wrong.")

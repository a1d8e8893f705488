"""What vLLM refuses before it looks at memory; the cases are refusals and acceptances of vLLM 0.32."""

from typing import Any

from kvgate.budget.answers.support import kv_cache_dtype_refusal, parallelism_refusals
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.releases.versions import DEFAULT_VERSION, accounting_of
from support import kinds
from support.builders import catalogue_accelerator, catalogue_shape
from support.tables import table

H100, A100, L40S, T4 = "H100-SXM-80GB", "A100-SXM-80GB", "L40S-48GB", "T4-16GB"
LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3"
DEEPSEEK_V4, QWEN_FP8 = "deepseek-ai/DeepSeek-V4-Flash", "Qwen/Qwen3-235B-A22B-FP8"


@table(
    ("name", "model", "gpu", "version", "refused"),
    [
        ("auto", DEEPSEEK, T4, "0.6.0", ""),
        ("fp8", LLAMA, H100, "0.32.0", ""),
        ("auto", DEEPSEEK_V4, H100, "0.20.0", "asserts an fp8 cache"),
        ("bfloat16", DEEPSEEK_V4, H100, "0.29.0", "asserts an fp8 cache"),
        ("auto", DEEPSEEK_V4, H100, "0.30.0", ""),
        ("auto", DEEPSEEK_V4, "B200-SXM-180GB", "0.24.0", ""),
        ("fp8", DEEPSEEK_V4, H100, "0.24.0", ""),
        ("auto", LLAMA, H100, "0.24.0", ""),
        ("fp8", LLAMA, A100, "0.32.0", ""),
        ("fp8", LLAMA, T4, "0.32.0", "compute capability 8.0"),
        ("fp8", LLAMA, T4, "0.22.0", ""),
        ("fp8_e5m2", LLAMA, T4, "0.8.5", ""),
        ("int8_per_token_head", LLAMA, T4, "0.32.0", ""),
        ("fp8", "google/gemma-3-12b-it", A100, "0.9.2", ""),
        ("fp8", DEEPSEEK, A100, "0.9.2", "compute capability 8.9"),
        ("fp8", DEEPSEEK, H100, "0.32.0", ""),
        ("fp8", DEEPSEEK, A100, "0.32.0", "compute capability 8.9"),
        ("fp8_per_token_head", LLAMA, A100, "0.32.0", "compute capability 8.9"),
        ("int8_per_token_head", LLAMA, A100, "0.32.0", ""),
        ("int8_per_token_head", DEEPSEEK, H100, "0.32.0", "no attention kernel for MLA"),
        ("fp8_ds_mla", DEEPSEEK, H100, "0.32.0", "sparse MLA"),
        ("fp8_ds_mla", LLAMA, H100, "0.32.0", "sparse MLA"),
        ("bfloat16", LLAMA, T4, "0.32.0", ""),
        ("bfloat16", LLAMA, H100, "0.10.0", "this vLLM release does not have it"),
        ("octave_k3v4", LLAMA, H100, "0.33.0", "AMD GPUs only"),
        ("ultraquant_4bit", LLAMA, H100, "0.32.0", "AMD GPUs only"),
        ("ultraquant_4bit", LLAMA, "MI300X-192GB", "0.32.0", ""),
        ("nvfp4", LLAMA, "B200-SXM-180GB", "0.20.0", "has no kernels"),
        ("nvfp4", LLAMA, "B200-SXM-180GB", "0.21.0", ""),
        ("nvfp4", LLAMA, H100, "0.31.0", "compute capability 10.x"),
        ("nvfp4", LLAMA, H100, "0.32.0", ""),
        ("nvfp4", LLAMA, A100, "0.32.0", ""),
        ("nvfp4", "meta-llama/Llama-3.2-1B", A100, "0.32.0", "heads of 64 elements"),
        ("nvfp4", "meta-llama/Llama-3.2-1B", "B200-SXM-180GB", "0.32.0", ""),
        ("nvfp4", "microsoft/Phi-3-mini-128k-instruct", "B200-SXM-180GB", "0.32.0", "heads of 96 elements"),
        ("nvfp4", DEEPSEEK, "B200-SXM-180GB", "0.32.0", "no attention kernel for MLA"),
        ("nvfp4_4over6", LLAMA, H100, "0.32.0", "compute capability 10.x"),
        ("nvfp4_4over6", LLAMA, "B200-SXM-180GB", "0.32.0", ""),
        ("turboquant_k8v4", LLAMA, A100, "0.32.0", ""),
        ("fp16", LLAMA, H100, "0.32.0", "this vLLM release does not have it"),
        ("of_a_plug_in", LLAMA, H100, "0.33.0", ""),
        ("octave_k3v4", LLAMA, H100, "0.32.0", "this vLLM release does not have it"),
        ("", LLAMA, H100, "0.33.0", "this vLLM release does not have it"),
        ("", LLAMA, H100, "0.32.0", "this vLLM release does not have it"),
    ],
)
def test_a_cache_dtype(name: str, model: str, gpu: str, version: str, refused: str) -> None:
    reason = kv_cache_dtype_refusal(name, catalogue_shape(model), catalogue_accelerator(gpu), accounting_of(version))
    assert (reason is None) is (refused == "")
    assert refused in (reason or "")


@table(
    ("name", "shape", "gpu", "refused"),
    [
        ("fp8_ds_mla", kinds.deepseek_v32(), H100, ""),
        ("nvfp4_ds_mla", kinds.deepseek_v32(), "B200-SXM-180GB", ""),
        ("nvfp4_ds_mla", kinds.deepseek_v32(), H100, "compute capability 10.0"),
        ("fp8_ds_mla", kinds.kimi_linear(), H100, "sparse MLA"),
        ("turboquant_k8v4", kinds.kimi_linear(), H100, "no attention kernel for MLA"),
        ("fp8", kinds.deepseek_v4_flash(), A100, ""),
        ("fp8", kinds.gpt_oss_120b(), A100, "compute capability 8.9"),
        ("int8_per_token_head", kinds.gpt_oss_120b(), A100, ""),
        ("int4_per_token_head", kinds.gemma_4_31b(), A100, ""),
        ("fp8", kinds.gpt_oss_120b(), L40S, ""),
        ("turboquant_k8v4", kinds.gpt_oss_120b(), H100, "attention sinks"),
        ("turboquant_k8v4", kinds.gemma_3_27b(), H100, "a sliding window"),
        ("turboquant_k8v4", kinds.qwen_35_27b(), H100, ""),
        ("nvfp4", kinds.gpt_oss_120b(), H100, "heads of 64 elements"),
        ("nvfp4", kinds.gpt_oss_120b(), "B200-SXM-180GB", ""),
        ("nvfp4", kinds.qwen_35_27b(), H100, ""),
        ("fp8", kinds.gemma_4_31b(), A100, "compute capability 8.9"),
        ("fp8", kinds.gemma_4_e4b(), A100, "compute capability 8.9"),
        ("fp8", kinds.gemma_3_27b(), A100, ""),
        ("fp8", kinds.qwen_35_27b(), A100, ""),
    ],
)
def test_a_cache_dtype_of_a_kind_of_layer(name: str, shape: ModelShape, gpu: str, refused: str) -> None:
    reason = kv_cache_dtype_refusal(name, shape, catalogue_accelerator(gpu), accounting_of("0.32.0"))
    assert (reason is None) is (refused == "")
    assert refused in (reason or "")


def test_windows_that_keep_the_model_dtype_do_not_mind_a_packed_format() -> None:
    about = ("turboquant_k8v4", kinds.gemma_3_27b(), catalogue_accelerator(H100))
    assert kv_cache_dtype_refusal(*about, accounting_of("0.33.0"), ("sliding_window",)) is None
    assert kv_cache_dtype_refusal(*about, accounting_of("0.25.0")) is None


@table(
    ("model", "sizes", "field"),
    [
        ("facebook/opt-125m", {"tensor": 8}, "tensor_parallel_size"),
        ("Qwen/Qwen2.5-7B", {"tensor": 8}, "tensor_parallel_size"),
        ("Qwen/Qwen2.5-7B", {"tensor": 4}, ""),
        ("microsoft/phi-4", {"tensor": 4}, "tensor_parallel_size"),
        ("microsoft/phi-4", {"tensor": 8}, "tensor_parallel_size"),
        ("microsoft/phi-4", {"tensor": 2}, ""),
        ("microsoft/phi-4", {"tensor": 4, "pipeline": 2}, "tensor_parallel_size"),
        (LLAMA, {"tensor": 16}, ""),
        (LLAMA, {"tensor": 64}, "tensor_parallel_size"),
        (LLAMA, {"pipeline": 32}, ""),
        (LLAMA, {"pipeline": 33}, "pipeline_parallel_size"),
        (DEEPSEEK, {"tensor": 8, "decode_context": 8}, ""),
        (DEEPSEEK, {"tensor": 8, "decode_context": 3}, "decode_context_parallel_size"),
        (DEEPSEEK, {"tensor": 1, "decode_context": 2}, "decode_context_parallel_size"),
    ],
)
def test_parallel_sizes(model: str, sizes: dict[str, Any], field: str) -> None:
    fields = {name for name, _ in parallelism_refusals(catalogue_shape(model), Parallelism(**sizes), DEFAULT_VERSION)}
    assert fields == ({field} if field else set())


@table(
    ("model", "sizes", "version", "refused"),
    [
        (QWEN_FP8, {"tensor": 8}, "0.28.0", "yes"),
        (QWEN_FP8, {"tensor": 8}, "0.29.0", ""),
        (QWEN_FP8, {"tensor": 4}, "0.28.0", ""),
        (QWEN_FP8, {"tensor": 8, "expert": True}, "0.28.0", ""),
        (QWEN_FP8, {"pipeline": 2}, "0.28.0", ""),
        ("Qwen/Qwen3-235B-A22B", {"tensor": 8}, "0.28.0", ""),
        (DEEPSEEK, {"tensor": 8}, "0.28.0", ""),
    ],
)
def test_blocks_of_experts_become_finer_since_0_29(
    model: str, sizes: dict[str, Any], version: str, refused: str
) -> None:
    assert bool(parallelism_refusals(catalogue_shape(model), Parallelism(**sizes), version)) == bool(refused)

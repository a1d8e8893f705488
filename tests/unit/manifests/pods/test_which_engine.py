"""Which engine it is: names in images, commands and fields."""

from typing import Any

import pytest

from kvgate.documents.written import Written
from kvgate.manifests.pods.which_engine import (
    ENGINES,
    VLLM,
    engine_in,
    engine_stated,
    is_of_another,
    is_simulator,
    server_in,
)
from support.tables import table


@table(
    ("words", "server"),
    [
        ("lmsysorg/sglang:v0.5.3-cu129", "SGLang"),
        ("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.5.0", "SGLang"),
        ("python3 -m sglang.launch_server --tp 8", "SGLang"),
        ("python3 -m dynamo.trtllm", "TensorRT-LLM"),
        ("trtllm-serve /models/x", "TensorRT-LLM"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0", "TensorRT-LLM"),
        ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.5.0", "TensorRT-LLM"),
        ("nvcr.io/nvidia/tritonserver:25.09-trtllm-python-py3", "TensorRT-LLM"),
        ("nvcr.io/nvidia/tritonserver:25.09-py3", "Triton Inference Server"),
        ("ghcr.io/huggingface/text-generation-inference:3.3", "Text Generation Inference"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda", "llama.cpp"),
        ("openmmlab/lmdeploy:v0.10.0", "LMDeploy"),
        ("docker.io/ollama/ollama", "Ollama"),
        ("alpindale/aphrodite-openai:v0.9", "Aphrodite"),
        ("ghcr.io/ericlbuehler/mistral.rs:cuda-86", "mistral.rs"),
        ("ghcr.io/ericlbuehler/candle-vllm:latest", "an engine named after vLLM"),
        ("team/vllm.cpp:1", "an engine named after vLLM"),
        ("corp/trt-llm:1", "TensorRT-LLM"),
        ("text-generation-launcher --model-id x", "Text Generation Inference"),
        ("llama-server -m x", "llama.cpp"),
        ("corp/llamafile", "llama.cpp"),
        ("corp/triton-inference-server:1", "Triton Inference Server"),
        ("mlc_llm serve x", "MLC LLM"),
        ("ghcr.io/huggingface/text-embeddings-inference:1", "Text Embeddings Inference"),
        ("paddle/fastdeploy-cuda:2", "FastDeploy"),
        ("aphrodite-engine run x", "Aphrodite"),
        ("mistralrs-server", "mistral.rs"),
        ("corp/mini-vllm:1", "an engine named after vLLM"),
        ("corp/rvllm:1", "an engine named after vLLM"),
        ("vllm/vllm-openai:v0.32.0", ""),
        ("--attention-backend FLASHINFER_TRTLLM", "TensorRT-LLM"),  # values of vLLM's options are never asked
        ("registry.example/tgi-frontend", ""),
        ("my-sglangish-thing", ""),
    ],
)
def test_a_server_is_known_by_its_name(words: str, server: str) -> None:
    assert server_in(words) == server
    assert not server or "vllm" in words or any(word in words.lower() for each in ENGINES for word in each.words), (
        "else nobody reads the document"
    )


@table(
    ("value", "engine"),
    [
        ("trtllm", "TensorRT-LLM"),
        ("TRT-LLM", "TensorRT-LLM"),
        ("dynamo-trt", "TensorRT-LLM"),
        ("TensorRT_LLM", "TensorRT-LLM"),
        ("SGLang", "SGLang"),
        ("dynamo-sglang", "SGLang"),
        ("tgi", "Text Generation Inference"),
        ("llamacpp", "llama.cpp"),
        ("llama.cpp", "llama.cpp"),
        ("mocker", "a simulator"),
        ("atom", "ATOM"),
        ("nano-vllm", "an engine named after vLLM"),
        ("tensorrt", "TensorRT-LLM"),
        ("turbomind", "LMDeploy"),
        ("mlc", "MLC LLM"),
        ("tei", "Text Embeddings Inference"),
        ("hf-transformers", "Transformers"),
        ("transformers", "Transformers"),
        ("deepspeed-mii", "DeepSpeed"),
        ("openvino", "OpenVINO Model Server"),
        ("ovms", "OpenVINO Model Server"),
        ("mock", "a simulator"),
        ("simulated", "a simulator"),
        ("dummy", "a simulator"),
        ("Ollama", "Ollama"),
        ("o" * 60 + " trt", ""),
        ("s" * 56 + " trt", "TensorRT-LLM"),
        ("cutlass_trt", ""),
        ("trt_moe", ""),
        ("nano-vllm and vllm", "an engine named after vLLM"),
        ("TRITON_ATTN", ""),
        ("triton-mla", ""),
        ("flashinfer_trtllm", ""),
        ("triton", "Triton Inference Server"),
        ("VLLM", VLLM),
        ("dynamo-vllm", VLLM),
        ("nvidia", ""),
        ("ray", ""),
        ("pytorch", ""),
        ("v1", ""),
        ("an engine that is at least as fast as SGLang, on every GPU that we have", ""),
    ],
)
def test_a_field_about_engines_may_name_one_shortly(value: str, engine: str) -> None:
    assert engine_in(value) == engine


@table(
    ("node", "path"),
    [
        ({"backend": {"type": "trtllm"}}, "x.backend.type"),
        ({"backendFramework": "sglang"}, "x.backendFramework"),
        ({"runtime": "nvidia", "inferenceEngine": "vllm"}, "x.inferenceEngine"),
        ({"llm-engine": {"name": "SGLang"}}, "x.llm-engine.name"),
        ({"attention": {"backend": "TRTLLM"}}, ""),
        ({"attention_backend": "TRTLLM"}, ""),
        ({"backend": "ray"}, ""),
        ({"description": "sglang"}, ""),
    ],
)
def test_the_field_that_names_the_engine(node: object, path: str) -> None:
    assert engine_stated(Written(value=node, path="x")).path == path


@table(
    "name",
    [
        "backend", "backendType", "backend-framework", "framework", "engine", "engineType", "inferenceBackend",
        "inferenceEngine", "inference_framework", "inferenceServer", "llm_backend", "LLM_ENGINE", "modelServer", "runtime",
        "runtimeType", "serverType", "servingBackend", "servingEngine", "serving-framework", "serving.runtime",
    ],
)  # fmt: skip
def test_every_field_about_engines_is_asked_and_its_parts_too(name: str) -> None:
    values: list[Any] = ["sglang", *({part: "sglang"} for part in ("type", "name", "kind", "framework"))]
    assert [engine_stated(Written(value={"other": "sglang", name: each})).text for each in values] == ["sglang"] * 5
    assert not engine_stated(Written(value={name: {"other": "sglang"}, f"my_{name}": "sglang"})).is_set


@table(
    ("name", "expected"),
    [
        *(
            (f"sglang{end}", True)
            for end in ("_args", "-settings", "_options", "Server", "_runtime", "_engine", "Values")
        ),
        ("trtllm_config", True),
        ("sglangConfig", True),
        ("sglang", True),
        ("tensorrt-llm", True),
        ("vllm_config", False),
        ("trt", False),
        ("models-for-sglang-and-others", False),
    ],
)
def test_settings_of_another_engine_stand_under_its_name(name: str, *, expected: bool) -> None:
    assert is_of_another(name) is expected


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("ghcr.io/llm-d/llm-d-inference-sim:v0.5.0", True),
        ("ghcr.io/llm-d/llm-d-inference-sim-dev:v0.5.0", True),
        ("aibrix/vllm-mock:nightly", True),
        ("corp/simple-server:1", False),
    ],
)
def test_a_simulator_holds_no_weights(image: str, *, expected: bool) -> None:
    assert is_simulator(image) is expected

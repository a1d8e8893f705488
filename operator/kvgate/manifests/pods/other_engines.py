"""Engines that are not vLLM, by the names that they have in images, commands and fields; kvgate has no tables for them.

Fields were read in manifests of NVIDIA Dynamo (`backendFramework`), srt-slurm (`backend.type`, `trtllm_config`), InferenceX (`framework`),
Ray Serve (`llm_engine`), KServe, and charts of public repositories.
"""

from collections.abc import Mapping

from kvgate.documents.written import NOTHING, Written
from kvgate.text.patterns import pattern

VLLM = "vLLM"
STAND_IN = r"sim(?:ulator)?(?=[:@]|$)|inference-sim|mock(?:er)?(?:s)?(?=[-:@]|$)|fake|dummy|stub|emulator"
"""Names of programs that answer as vLLM does and hold no weights."""
_SIMULATORS = pattern(rf"(?:^|[-_/])(?:{STAND_IN})")
NAMED_AFTER_VLLM = r"(?:candle|nano|mini)[-_.]?vllm|rvllm|vllm[-_.](?:cpp|rs|mlx|lite)"
"""Names of other programs that have vLLM's name in theirs."""
_NAMED_AFTER = "an engine named after vLLM"
_SERVERS: Mapping[str, str] = {
    "SGLang": r"sglang",
    "TensorRT-LLM": r"trt[-_]?llm|tensorrt[-_]?llm",
    "Text Generation Inference": r"text[-_]generation[-_](?:inference|launcher)",
    "llama.cpp": r"llama[-_.]?cpp|llama-server|llamafile",
    "LMDeploy": r"lmdeploy",
    "Ollama": r"ollama",
    "Triton Inference Server": r"tritonserver|triton-inference-server",
    "MLC LLM": r"mlc[-_]llm",
    "Text Embeddings Inference": r"text-embeddings-inference",
    "FastDeploy": r"fastdeploy",
    "Aphrodite": r"aphrodite[-_](?:engine|openai)",
    "mistral.rs": r"mistral\.?rs",
    _NAMED_AFTER: NAMED_AFTER_VLLM,
}
"""Name for people → expression for the name anywhere, in small letters."""
WORDS = (
    "sglang", "trtllm", "trt-llm", "trt_llm", "tensorrt", "text-generation-", "text_generation_", "llama.cpp", "llama-cpp", "llama_cpp",
    "llamacpp", "llama-server", "llamafile", "lmdeploy", "ollama", "tritonserver", "triton-inference-server", "mlc-llm", "mlc_llm",
    "text-embeddings-inference", "fastdeploy", "aphrodite-", "aphrodite_", "mistral.rs", "mistralrs",
)  # fmt: skip
"""Words in small letters, of which every such name has one."""
_IN_FIELDS: Mapping[str, str] = {
    "TensorRT-LLM": r"trt|tensorrt",
    "Text Generation Inference": r"tgi",
    "Triton Inference Server": r"triton",
    "LMDeploy": r"turbomind",
    "MLC LLM": r"mlc",
    "Text Embeddings Inference": r"tei",
    "Transformers": r"(?:hf[-_])?transformers",
    "DeepSpeed": r"deepspeed(?:[-_]mii)?",
    "OpenVINO Model Server": r"openvino|ovms",
    "ATOM": r"atom",
    "a simulator": r"mocker|mock|sim|simulator|simulated|fake|dummy|stub|emulator",
}
"""The same for short names, which name an engine only where a field is about engines."""
_WORD = r"(?:^|[^a-z0-9])(?:{})(?![a-z0-9])"
_ANYWHERE = {name: pattern(_WORD.format(names)) for name, names in _SERVERS.items()}
_STATED = {name: pattern(_WORD.format(names)) for name, names in _IN_FIELDS.items()}
_KERNELS = pattern(r"(?:^|[^a-z])(?:flash\w*|cutlass)|[-_](?:attn|attention|mla|moe|gemm)(?![a-z])")
"""Values of fields about kernels, some of which are named after an engine: `flashinfer_trtllm`, `TRITON_ATTN`."""
_FIELDS = frozenset({
    "backend", "backend_type", "backend_framework", "framework", "engine", "engine_type", "inference_backend", "inference_engine",
    "inference_framework", "inference_server", "llm_backend", "llm_engine", "model_server", "runtime", "runtime_type", "server_type",
    "serving_backend", "serving_engine", "serving_framework", "serving_runtime",
})  # fmt: skip
"""Names of fields, in small letters with `_` between words, whose value may be the engine's name."""
_PARTS = ("type", "name", "kind", "framework")
"""Fields of an object under such a name."""
_ENDS = ("_config", "_args", "_engine_args", "_settings", "_options", "_server", "_runtime", "_engine", "_values")
_BOUNDARY = pattern(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")
_MAX_CHARACTERS = 60
"""Length of a value that names an engine; a longer one is a sentence."""


def snake(name: str) -> str:
    """Return `max_model_len` of maxModelLen, max-model-len and MAX_MODEL_LEN."""
    return _BOUNDARY.sub("_", name).lower()


def is_simulator(image: str) -> bool:
    """Return True for llm-d's stand-in for vLLM and the like, which hold no weights."""
    return _SIMULATORS.search(image) is not None


def server_in(words: str) -> str:
    """Return the other model server that an image or a command names; empty where it names none."""
    small = words.lower()
    return next((name for name, names in _ANYWHERE.items() if names.search(small)), "")


def engine_in(value: str) -> str:
    """Return the engine that the value of a field about engines names: `VLLM`, another one, or nothing."""
    small = value.lower()
    server = server_in(value)
    if "vllm" in small and server != _NAMED_AFTER:
        return VLLM
    if len(value) > _MAX_CHARACTERS or _KERNELS.search(small):
        return ""
    return server or next((name for name, names in _STATED.items() if names.search(small)), "")


def engine_stated(node: Written) -> Written:
    """Return the field of an object that names the engine, vLLM or another one: `backend.type`, `engine`; NOTHING where none does."""
    for name, child in node.fields():
        if snake(name) in _FIELDS:
            for field in (child, *(child.get(part) for part in _PARTS)):
                if field.text and engine_in(field.text):
                    return field
    return NOTHING


def is_of_another(name: str) -> bool:
    """Return whether a name of an object says that another engine's settings stand in it: `trtllm_config`, `sglang`."""
    whole = snake(name)
    short = next((whole.removesuffix(end) for end in _ENDS if whole.endswith(end)), whole)
    return any(names.fullmatch(short) for names in _ANYWHERE.values())

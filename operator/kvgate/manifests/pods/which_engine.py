"""Which engine it is, before any of its options is read: names in images, commands and fields, programs and options that only vLLM has.

Fields were read in manifests of NVIDIA Dynamo (`backendFramework`), srt-slurm (`backend.type`, `trtllm_config`), InferenceX (`framework`),
Ray Serve (`llm_engine`), KServe, and charts of public repositories.
"""

from collections.abc import Iterable, Sequence
from itertools import dropwhile

from msgspec import Struct

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument
from kvgate.vllm.images import counts_releases_of_vllm, with_short_variables
from kvgate.vllm.options import UNKNOWN_PROGRAM, Kind, Program

_STAND_IN = r"sim(?:ulator)?(?=[:@]|$)|inference-sim|mock(?:er)?(?:s)?(?=[-:@]|$)|fake|dummy|stub|emulator"
"""Names of programs that answer as vLLM does and hold no weights."""
_NAMED_AFTER_VLLM = r"(?:candle|nano|mini)[-_.]?vllm|rvllm|vllm[-_.](?:cpp|rs|mlx|lite)"
"""Names of other programs that have vLLM's name in theirs."""


class Engine(Struct, frozen=True, kw_only=True):
    """One engine, or one model server, and the names that show that it runs."""

    name: str
    anywhere: str = ""
    """Expression for names that mean it wherever they stand, in small letters."""
    in_fields: str = ""
    """The same for short names, which mean it only where a field is about engines."""
    words: tuple[str, ...] = ()
    """Words in small letters, of which every name that means it anywhere has one."""


VLLM = "vLLM"
_NAMED_AFTER = "an engine named after vLLM"
ENGINES = (
    Engine(
        name=VLLM,
        words=(
            "vllm", "max-model-len", "max_model_len", "maxmodellen",
            "gpu-memory-utilization", "gpu_memory_utilization", "gpumemoryutilization",
        ),
    ),
    Engine(name="SGLang", anywhere=r"sglang", words=("sglang",)),
    Engine(
        name="TensorRT-LLM", anywhere=r"trt[-_]?llm|tensorrt[-_]?llm", in_fields=r"trt|tensorrt",
        words=("trtllm", "trt-llm", "trt_llm", "tensorrt"),
    ),
    Engine(
        name="Text Generation Inference", anywhere=r"text[-_]generation[-_](?:inference|launcher)", in_fields=r"tgi",
        words=("text-generation-", "text_generation_"),
    ),
    Engine(
        name="llama.cpp", anywhere=r"llama[-_.]?cpp|llama-server|llamafile",
        words=("llama.cpp", "llama-cpp", "llama_cpp", "llamacpp", "llama-server", "llamafile"),
    ),
    Engine(name="LMDeploy", anywhere=r"lmdeploy", in_fields=r"turbomind", words=("lmdeploy",)),
    Engine(name="Ollama", anywhere=r"ollama", words=("ollama",)),
    Engine(
        name="Triton Inference Server", anywhere=r"tritonserver|triton-inference-server", in_fields=r"triton",
        words=("tritonserver", "triton-inference-server"),
    ),
    Engine(name="MLC LLM", anywhere=r"mlc[-_]llm", in_fields=r"mlc", words=("mlc-llm", "mlc_llm")),
    Engine(
        name="Text Embeddings Inference", anywhere=r"text-embeddings-inference", in_fields=r"tei",
        words=("text-embeddings-inference",),
    ),
    Engine(name="FastDeploy", anywhere=r"fastdeploy", words=("fastdeploy",)),
    Engine(name="Aphrodite", anywhere=r"aphrodite[-_](?:engine|openai)", words=("aphrodite-", "aphrodite_")),
    Engine(name="mistral.rs", anywhere=r"mistral\.?rs", words=("mistral.rs", "mistralrs")),
    Engine(name=_NAMED_AFTER, anywhere=_NAMED_AFTER_VLLM, words=("vllm",)),
    Engine(name="Transformers", in_fields=r"(?:hf[-_])?transformers"),
    Engine(name="DeepSpeed", in_fields=r"deepspeed(?:[-_]mii)?"),
    Engine(name="OpenVINO Model Server", in_fields=r"openvino|ovms"),
    Engine(name="ATOM", in_fields=r"atom"),
    Engine(name="a simulator", in_fields=r"mocker|mock|sim|simulator|simulated|fake|dummy|stub|emulator"),
)  # fmt: skip
"""vLLM first, whose evidence stands below; kvgate has no tables for the options of the others."""
WORDS_OF_VLLM = ENGINES[0].words
"""Words of a container with vLLM: its program or image, or else an option that only vLLM has."""
_WORD = r"(?:^|[^a-z0-9])(?:{})(?![a-z0-9])"
_ANYWHERE = {each.name: pattern(_WORD.format(each.anywhere)) for each in ENGINES if each.anywhere}
_IN_FIELDS = {each.name: pattern(_WORD.format(each.in_fields)) for each in ENGINES if each.in_fields}
_SIMULATORS = pattern(rf"(?:^|[-_/])(?:{_STAND_IN})")
_IMAGE_NAME = pattern(r"([\w.\-]*)(?:[:@]|\Z)")
"""A name in the path of an image, with nothing but a tag or a digest behind it."""
_IMAGES_OF_VLLM = frozenset({"llm-d", "llm-d-cuda", "llm-d-dev", "llm-d-rocm", "llm-d-xpu"})
"""Names without vLLM's own."""
_BESIDE_VLLM = pattern(
    rf"router|proxy|exporter|sidecar|{_STAND_IN}|bench|client|gateway|loader|operator|runtime|{_NAMED_AFTER_VLLM}"
)
"""Images named after vLLM that hold something else, or something beside it."""
_OPTIONS_OF_VLLM = frozenset(
    {"gpu-memory-utilization", "max-model-len", "max-num-seqs", "max-num-batched-tokens", "kv-transfer-config"}
)
"""Options that no other model server has; one that stands alone may be of a program that writes vLLM's options."""
SETTINGS_LIKE_VLLM = (
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size",
    "pipeline_parallel_size", "kv_cache_dtype", "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip
"""Names of fields that few other servers have, or not under these names; two of them beside a model are read as vLLM's."""
SETTINGS_OF_VLLM = frozenset({"gpu_memory_utilization", "max_model_len", "max_num_seqs", "enforce_eager"})
"""Those of them that no other server has."""
_COMMANDS = ("serve", "run-batch")
"""Commands of `vllm` that start an engine; the second takes options of its own beside the engine's."""
_SERVERS_OF_VLLM = pattern(
    r"vllm\.entrypoints\.(?:openai\.)?api_server|vllm\.entrypoints\.(?:launchers\.)?grpc_server|(?:.*/)?api_server\.py"
)
_MODULE = pattern(r"vllm\.entrypoints\.openai\.api_server|(?:.*/)?openai/api_server\.py")
"""The server of OpenAI's API among them."""
_WRAPPERS = pattern(
    r"(dynamo)\.vllm|vllm_tgis_adapter|huggingfaceserver|vllm\.entrypoints\.openai\.run_batch|(?:.*/)?(inference_api)\.py"
)
"""Programs that take options of their own beside vLLM's: Dynamo, the TGIS adapter, KServe, offline batches, KAITO."""
_NO_SERVERS = frozenset({
    "apt", "apt-get", "conda", "cp", "curl", "echo", "export", "git", "hf", "huggingface-cli", "mkdir", "pip", "pip3", "uv", "wget",
})  # fmt: skip
"""Programs that load or name another one, and do not start it."""
_BESIDE_SERVERS = pattern(r"bench|router|client|eval|proxy|gateway|\.(?:py|sh)$")
"""Programs of a model server that are not the server, and files that may be anything."""
_BEFORE_PROGRAMS = frozenset({"exec", "env", "nohup", "time", "tini", "dumb-init", "sudo", "--", "-g", "-s"})
_INTERPRETERS = pattern(r"python[\d.]*|(?:ba|da|z|a)?sh")
_FOLDERS_OF_THE_SYSTEM = ("/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/opt/nvidia/")
_NO_SCRIPTS_OF_ENGINES = pattern(
    r"(?i)bench|eval|test|client|load|convert|quanti[sz]|multi-node-serving|wait|init|install|setup|train|sleep|activate|proxy|router|health"
)
"""Names of scripts that serve nobody, or join a cluster of Ray."""
_KERNELS = pattern(r"(?:^|[^a-z])(?:flash\w*|cutlass)|[-_](?:attn|attention|mla|moe|gemm)(?![a-z])")
"""Values of fields about kernels, some of which are named after an engine: `flashinfer_trtllm`, `TRITON_ATTN`."""
_FIELDS = frozenset({
    "backend", "backend_type", "backend_framework", "framework", "engine", "engine_type", "inference_backend", "inference_engine",
    "inference_framework", "inference_server", "llm_backend", "llm_engine", "model_server", "runtime", "runtime_type", "server_type",
    "serving_backend", "serving_engine", "serving_framework", "serving_runtime",
})  # fmt: skip
"""Names of fields, in small letters with `_` between words, whose value may be the engine's name."""
_ENDS = ("_config", "_args", "_engine_args", "_settings", "_options", "_server", "_runtime", "_engine", "_values")
_BOUNDARY = pattern(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")
_MAX_CHARACTERS = 60
"""Length of a value that names an engine; a longer one is a sentence."""


def snake(name: str) -> str:
    """Return `max_model_len` of maxModelLen, max-model-len and MAX_MODEL_LEN."""
    return _BOUNDARY.sub("_", name).lower()


def is_vllm_image(image: str) -> bool:
    """Return True by the image's name; `vllm-router` and the like do not count."""
    *folders, last = with_short_variables(image).replace("$", "").lower().split("/")
    steps = [*(f"{folder}/" for folder in folders), last]
    names = [match[1] for step in steps if (match := _IMAGE_NAME.match(step))]
    found = next((name for name in names if "vllm" in name or name in _IMAGES_OF_VLLM), None)
    return found is not None and not _BESIDE_VLLM.search(found)


def are_of_vllm(words: Sequence[str], variables: Iterable[str] = ()) -> bool:
    """Return True where words are options that only vLLM has, so that they name the program whatever its image is called.

    A variable of vLLM's counts like such an option.
    """
    flags = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    own = {flag[2:] for flag in flags} & _OPTIONS_OF_VLLM
    is_set = any(name.startswith("VLLM_") for name in variables)
    return len(own) > 1 or (bool(own or is_set) and "--model" in flags)


def starts_vllm(image: str, words: Sequence[Argument], variables: Iterable[str], *, has_words: bool) -> bool:
    """Return whether an image's own program is vLLM, by the image's name or by the words that it gets. `has_words`: from any source.

    `${VLLM_IMAGE}` and `corp/llm:7` are, with options that only vLLM has. `corp/ui-for-vllm` is none without any word.
    """
    if is_vllm_image(image):
        return has_words or counts_releases_of_vllm(image)
    # what stands beside an engine often has the same variables, and `--model` too
    seen = () if is_beside_vllm(image) else variables
    return not (is_simulator(image) or server_in(image)) and are_of_vllm([word.text for word in words], seen)


def is_beside_vllm(image: str) -> bool:
    """Return whether the last name of an image is that of a router, a proxy or the like."""
    return _BESIDE_VLLM.search(image.rpartition("/")[2]) is not None


def vllm_program(words: Sequence[Argument]) -> Sequence[tuple[int, Program, bool]]:
    """Return (index of the last word of the first program of a command that starts vLLM, the program, whether it is one around vLLM)."""
    for index, word in enumerate(words):
        before = words[index - 1].text.rpartition("/")[2] if index else ""
        wrapper = _WRAPPERS.fullmatch(word.text)
        if word.text in _COMMANDS and before in ("vllm", "vllm-omni", "vllm.entrypoints.cli.main"):
            if word.text != "serve":
                return [(index, UNKNOWN_PROGRAM, True)]
            is_omni = any(each.text == "--omni" for each in words[index + 1 :])  # where vllm-omni is installed
            return [(index, Program(kind=Kind.SERVE, own_options="vllm-omni" if is_omni else ""), is_omni)]
        if wrapper:
            name = next((each for each in wrapper.groups() if each), "")
            # these start KAITO's other server, which has the same name and runs Transformers
            launchers = [each for each in words[:index] if each.text.rpartition("/")[2] in ("accelerate", "torchrun")]
            own_options = {"dynamo": "dynamo", "inference_api": "kaito"}.get(name, "")
            is_other = name == "inference_api" and launchers
            return [] if is_other else [(index, Program(own_options=own_options), True)]
        if _SERVERS_OF_VLLM.fullmatch(word.text) and not server_in(word.text):
            return [(index, Program(kind=Kind.API_SERVER if _MODULE.fullmatch(word.text) else Kind.OTHER), False)]
    return []


def other_program(lines: Iterable[Sequence[Argument]]) -> Argument | None:
    """Return the word by which a command starts another model server, one before its first option: `python3 -m sglang.launch_server`."""
    for line in lines:
        for word in line:
            if word.text.rpartition("/")[2] in _NO_SERVERS or (word.text.startswith("-") and word.text != "-m"):
                break
            if server_in(word.text) and not _BESIDE_SERVERS.search(word.text.lower()):
                return word
    return None


def unseen_script(lines: Iterable[Sequence[Argument]]) -> Argument | None:
    """Return the script by which a command may start vLLM: a file that is not read here, or Python code that names vLLM."""
    commands = [list(dropwhile(lambda word: word.text in _BEFORE_PROGRAMS or "=" in word.text, line)) for line in lines]
    if any([word.text.rpartition("/")[2] for word in words[:2]] == ["ray", "start"] for words in commands):
        return None  # a worker, whose leader starts vLLM
    for words in commands:
        is_run = bool(words) and _INTERPRETERS.fullmatch(words[0].text.rpartition("/")[2]) is not None
        rest = [*dropwhile(lambda word: word.text in ("-u", "-O", "-e", "-x", "-l"), words[1:])] if is_run else words
        code = rest[1] if is_run and len(rest) > 1 and rest[0].text == "-c" else None
        if code and words[0].text.rpartition("/")[2].startswith("python") and "vllm" in code.text:
            return code
        name = rest[0].text if rest and not rest[0].text.startswith("-") else ""
        is_file = name.startswith(("/", "./")) and not name.startswith(_FOLDERS_OF_THE_SYSTEM)
        if (is_file or name.endswith((".sh", ".py"))) and not _NO_SCRIPTS_OF_ENGINES.search(name.rpartition("/")[2]):
            return rest[0]
    return None


def is_simulator(image: str) -> bool:
    """Return True for llm-d's stand-in for vLLM and the like, which hold no weights."""
    return _SIMULATORS.search(image) is not None


def server_in(words: str) -> str:
    """Return the other model server that an image or a command names; empty where it names none."""
    small = words.lower()
    return next((name for name, names in _ANYWHERE.items() if names.search(small)), "")


def engine_in(value: str) -> str:
    """Return the engine that the value of a field about engines names: `VLLM`, another one, or nothing."""
    small, server = value.lower(), server_in(value)
    if "vllm" in small and server != _NAMED_AFTER:
        return VLLM
    if len(value) > _MAX_CHARACTERS or _KERNELS.search(small):
        return ""
    return server or next((name for name, names in _IN_FIELDS.items() if names.search(small)), "")


def engine_stated(node: Written) -> Written:
    """Return the field of an object that names the engine, vLLM or another one: `backend.type`, `engine`; NOTHING where none does."""
    for name, child in node.fields():
        if snake(name) in _FIELDS:
            for field in (child, *(child.get(part) for part in ("type", "name", "kind", "framework"))):
                if field.text and engine_in(field.text):
                    return field
    return NOTHING


def is_of_another(name: str) -> bool:
    """Return whether a name of an object says that another engine's settings stand in it: `trtllm_config`, `sglang`."""
    whole = snake(name)
    short = next((whole.removesuffix(end) for end in _ENDS if whole.endswith(end)), whole)
    return any(names.fullmatch(short) for names in _ANYWHERE.values())


def sign_of_another(engine: FoundEngine) -> Written | None:
    """Return the field that names another engine than vLLM; None where vLLM's own program gets the words, or nothing names another."""
    if engine.program.kind is not Kind.OTHER or engine.program.own_options:
        return None
    if engine_in(engine.stated.text) not in ("", VLLM):
        # a short name in a field may be of something else, and an image of vLLM is none of another engine
        is_sure = server_in(engine.stated.text) or not is_vllm_image(engine.image.text)
        return engine.stated if is_sure else None
    images = () if engine.is_wrapped else (engine.image, engine.version)
    return next((each for each in images if server_in(each.text) and not is_vllm_image(each.text)), None)

"""Causes of failed starts, read from the end of vLLM's log: the last root cause counts, not the tracebacks around it.

The phrases are those of vLLM's source, 0.6.6 to 0.33.0, and of torch. With the engine in a process of its own (every release
with V1) the API server's traceback alone is longer than the 2048 bytes that Kubernetes keeps as termination message: on
0.32.0 they hold no more than `Engine core initialization failed`. Whoever wants the cause reads the container's log.
"""

import re
from enum import StrEnum

from msgspec import Struct

from kvgate.budget.ground.units import GIB, KIB, MIB, gib

MAX_SENTENCE_CHARACTERS = 400


class FailureKind(StrEnum):
    """Kinds of causes, by what must change: the budget, the neighbours on the GPU, a setting, or first the view of the log."""

    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    """There is a KV cache, and one request of max_model_len does not fit into it."""
    NO_MEMORY_FOR_KV_CACHE = "NoMemoryForKVCache"
    """Weights and activations leave nothing."""
    MAMBA_BLOCKS = "MambaBlocks"
    """Fewer blocks of state than max_num_seqs."""
    GPU_MEMORY_TAKEN = "GpuMemoryTaken"
    """Somebody else holds, or gave back meanwhile, memory of the GPU."""
    OUT_OF_MEMORY = "OutOfMemory"
    """An allocation failed: while loading and profiling, or in the warm-up after the KV cache was sized."""
    INVALID_SETTING = "InvalidSetting"
    """vLLM refuses a setting, or the model with it, whatever memory there is."""
    ENGINE_CORE_FAILED = "EngineCoreFailed"
    """The cause was printed before this piece of the log begins."""


class StartFailure(Struct, frozen=True, kw_only=True):
    """The cause in vLLM's words, and the figures that it reports; GiB are printed with one or two decimals."""

    kind: FailureKind
    sentence: str
    needed_bytes: int | None = None
    available_bytes: int | None = None
    """Bytes for the KV cache or, where memory is taken or ran out, bytes of the GPU."""
    total_bytes: int | None = None
    """Bytes of the GPU."""
    max_model_len: int | None = None
    max_model_len_that_fits: int | None = None
    """vLLM's estimate; before V1 the tokens that the KV cache holds."""
    max_num_seqs: int | None = None
    max_num_seqs_that_fits: int | None = None

    @property
    def is_of_kv_cache(self) -> bool:
        """True where vLLM had measured the memory for the KV cache and refused it; after any other failure no figure is a capacity."""
        return self.kind in (FailureKind.KV_CACHE_TOO_SMALL, FailureKind.NO_MEMORY_FOR_KV_CACHE)

    @property
    def available_kv_cache_bytes(self) -> int | None:
        """Bytes that vLLM had found for the KV cache; None where the failure states none, or is of something else."""
        return self.available_bytes if self.is_of_kv_cache else None


_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}


def _pattern(kind: FailureKind, phrase: str) -> tuple[FailureKind, re.Pattern[str]]:
    """Make a pattern of a phrase: `<x_bytes>` is a size with its unit, `<x_gib>` one without, every other `<x>` a whole number."""

    def group(match: re.Match[str]) -> str:
        name = match[1]
        if name.endswith("_bytes"):
            return rf"(?P<{name}>{_NUMBER} ?[KMG]iB)"
        return rf"(?P<{name}>{_NUMBER})" if name.endswith("_gib") else rf"(?P<{name}>\d{{1,12}})"

    return kind, re.compile(re.sub(r"<(\w+)>", group, phrase))


_KV, _NO_KV, _MAMBA, _TAKEN, _OOM, _SETTING, _WRAPPER = FailureKind
_PATTERNS = (
    # V1: "models's" until 0.20, brackets around the sizes come and go; V0, until 0.10, counts tokens
    _pattern(_KV, r"max seq len \(<max_model_len>\)(?:,| is larger)"),
    _pattern(_KV, r"<needed_bytes> KV cache is needed"),
    _pattern(_KV, r"larger than the available KV cache memory \(<available_bytes>\)"),
    _pattern(_KV, r"estimated maximum model length is <max_model_len_that_fits>"),
    _pattern(_KV, r"maximum number of tokens that can be stored in KV cache \(<max_model_len_that_fits>\)"),
    _pattern(
        _MAMBA,
        r"(?:max_num_seqs \(<max_num_seqs>\) )?exceeds available Mamba cache blocks \(<max_num_seqs_that_fits>\)",
    ),
    _pattern(_NO_KV, r"No available memory for the cache blocks"),
    _pattern(_NO_KV, r"Cannot auto-fit max_model_len: not enough GPU memory"),
    _pattern(_NO_KV, r"Available KV cache memory: (?=-)<available_bytes>"),
    _pattern(_NO_KV, r"memory reserved for KV Cache is (?=-)<available_bytes>"),  # V0
    _pattern(
        _TAKEN,  # 0.9.2; names the device since 0.14
        r"Free memory on device[^(\n]{0,40}\(<available_gib>/<total_gib> GiB\) on startup is less than "
        r"desired GPU memory utilization \([\d.]+, <needed_bytes>\)",
    ),
    _pattern(_TAKEN, r"Error in memory profiling\. Initial free memory"),
    _pattern(_OOM, r"out of memory occurred when warming up \w+ with \d+ dummy requests"),
    _pattern(
        _OOM,  # torch; "capacty" until 2.2
        r"Tried to allocate <needed_bytes>\. GPU \d+ has a total capaci?ty of <total_bytes> of which <available_bytes> is free",
    ),
    _pattern(_OOM, r"(?:CUDA|HIP|XPU) out of memory|CUDA error: out of memory|OutOfMemoryError"),
    # with VLLM_ALLOW_LONG_MAX_MODEL_LEN the first half is a mere warning
    _pattern(
        _SETTING,
        r"User-specified max_model_len \(<max_model_len>\) is greater than the derived.{1,400}To allow overriding this maximum",
    ),
    _pattern(_SETTING, r"max_tokens_per_mm_item \(\d+\) is larger than max_num_batched_tokens"),
    _pattern(_SETTING, r"max_num_batched_tokens \(\d+\) is smaller than max_model_len \(<max_model_len>\)"),
    _pattern(_SETTING, r"must be divisible by tensor parallel size"),
    _pattern(_SETTING, r"AssertionError: \d+ is not divisible by \d+"),
    _pattern(_SETTING, r"Weight (?:in|out)put_size_per_partition\b.{1,99} is not divisible by"),
    _pattern(_SETTING, r"No valid attention backend found"),
    _pattern(_SETTING, r"Head size \d+ is not supported by"),
    _pattern(_SETTING, r"FP8 KV cache is not supported"),
    _pattern(_SETTING, r"Bfloat16 is only supported on GPUs with compute capability"),
    _pattern(_SETTING, r"Model architectures \[.{1,200}\] (?:are not supported|failed to be inspected)"),
    _pattern(_SETTING, r"error: (?:unrecognized arguments|argument [-\w/]+):"),
    _pattern(_SETTING, r"validation errors? for \w+Config\n +(?:\w+\n +)?"),
    # the ends of a traceback whose beginning is not in the text
    _pattern(
        _WRAPPER,
        r"Engine core initialization failed|EngineCore(?:_DP\d+)? failed to start|Engine process failed to start",
    ),
)
"""Most specific first; every repetition is bounded, because a log may hold anything."""


def recognise(text: str) -> StartFailure | None:
    """Return the failure; None where the text reports none that is known here, such as the plain crash of another program."""
    matches = [(kind, list(pattern.finditer(text))) for kind, pattern in _PATTERNS]
    found = [(kind, of_kind[-1]) for kind, of_kind in matches if of_kind]
    causes = [(kind, match) for kind, match in found if kind is not _WRAPPER]
    if not found:
        return None
    kind, match = max(causes or found, key=lambda cause: cause[1].end())
    figures: dict[str, int] = {}
    for other, match_of_other in sorted(found, key=lambda cause: cause[1].end()):
        if other is kind:
            figures |= (_figure(name, value) for name, value in match_of_other.groupdict().items() if value)
    return StartFailure(kind=kind, sentence=_sentence(text, match), **figures)


def _figure(name: str, value: str) -> tuple[str, int]:
    if name.endswith("_gib"):
        return name.removesuffix("gib") + "bytes", gib(float(value))
    if name.endswith("_bytes"):
        return name, round(float(value[:-3]) * _UNITS[value[-3:]])
    return name, int(value)


_PREFIX = re.compile(r".*(?:Error|Exception|Value error)(?::|,) |.*\] ")
"""Process, level, time and file before the words, and the kind of exception."""


def _sentence(text: str, match: re.Match[str]) -> str:
    """Return the whole sentence around the phrase, without the prefix of vLLM's log."""
    start = text.rfind("\n", 0, match.start()) + 1
    if prefix := _PREFIX.match(text, start, match.start()):
        start = prefix.end()
    start = max(start, match.start() - MAX_SENTENCE_CHARACTERS // 2)
    line_end = text.find("\n", match.end())
    line = text[start : line_end if line_end >= 0 else len(text)]
    stop = line.find(". ", match.end() - start)
    sentence = " ".join((line if stop < 0 else line[: stop + 1]).split())
    return sentence[:MAX_SENTENCE_CHARACTERS]

"""A vLLM start-up log, any release from 0.6 to 0.33: the arguments of the start, and what it found.

Sizes are those that vLLM prints, GiB with one to four decimals, also where V0 writes GB; each rank prints its own.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from kvgate.budget.ground.units import gib
from kvgate.sources.start_failure import FailureKind, Message, StartFailure, failure_of, messages, root_of

MAX_LOG_CHARACTERS = 32 * 2**20
MAX_LINE_CHARACTERS = 64 * 1024
"""The longest line that a start prints holds its arguments, some 10,000 characters; longer ones, such as logged prompts, are cut."""
_PREFIX_CHARACTERS = 4096
"""Characters at the start of a line that may name its process; text further in the line names none."""


class UnusableLog(ValueError):
    """A log that no start can be read from; the message says why and what to do."""


class RankMemory(Struct, frozen=True, kw_only=True):
    """Figures that one process reports about its GPU; of repeated ones the least KV cache and the most of all others count."""

    process: str = ""
    """The name in front of its lines, `Worker_TP1 pid=77`; empty where the release or the log's reader left it out."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    """Memory that nobody used when the engine started."""
    weights_bytes: int | None = None
    peak_activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    consumed_bytes: int | None = None
    """Weights, what else is held, and non-torch in one; since 0.27 in their place."""
    cuda_graph_estimate_bytes: int | None = None
    """Deducted since 0.20; negative in some releases."""
    cuda_graph_bytes: int | None = None
    """Bytes that the capture took in the end."""
    available_kv_cache_bytes: int | None = None


class StartupLog(Struct, frozen=True, kw_only=True):
    """The last start in a log."""

    vllm_version: str | None = None
    model: str | None = None
    arguments: Mapping[str, Any]
    """Under vLLM's names; until 0.8 with the defaults."""
    quantization: str = ""
    """Format of the weights that the engine's configuration names; empty where it names none."""
    unread_arguments: tuple[str, ...] = ()
    """Printed as Python objects that are no plain values."""
    ranks: tuple[RankMemory, ...] = ()
    num_gpu_blocks: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    """The length that max_concurrency counts."""
    circumstances: Mapping[str, str] = {}
    """`sampler` (flashinfer, pytorch), `links` (host, pcie) and `compile_cache` (warm, cold), as far as lines of the log show them."""
    refusal: StartFailure | None = None
    is_crash: bool = False
    """True where the start ended, and not because vLLM refused the KV cache that it had measured: no figure of it is a capacity."""
    is_ready: bool = False
    """True where the server said that it serves."""
    is_size_given: bool = False
    """True where vLLM was given the size of the KV cache, so that its blocks say nothing about the memory that is left."""
    starts: int = 1
    """Starts in the log; all but the last were left out."""

    @property
    def tightest(self) -> RankMemory | None:
        """The rank whose KV cache is the smallest: vLLM gives every rank its number of blocks."""
        known = [rank for rank in self.ranks if rank.available_kv_cache_bytes is not None]
        return min(known or self.ranks, key=lambda rank: rank.available_kv_cache_bytes or 0, default=None)


_GIB = r"(-?\d{1,6}(?:\.\d{1,6})?)"
_MEMORY = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("weights_bytes", rf"(?:Model loading|Loading model weights) took {_GIB} G"),
        ("weights_bytes", rf"weights (?:take |memory: ){_GIB}"),
        ("weights_bytes", rf"\b{_GIB} (?:GiB )?(?:for )?weight\b"),
        ("total_bytes", rf"total_gpu_memory(?: \(|=){_GIB}"),  # V0
        ("total_bytes", rf"Free memory on device(?: \w{{1,9}}:\d{{1,3}})?:? \(?{_GIB}/{_GIB} GiB"),
        ("free_bytes", rf"Free memory on device(?: \w{{1,9}}:\d{{1,3}})?:? \(?{_GIB}/\d"),
        ("total_bytes", rf"has a total capaci?ty of {_GIB} GiB"),
        ("peak_activation_bytes", rf"PyTorch activation peak memory takes {_GIB}"),  # V0
        ("peak_activation_bytes", rf"torch peak memory increase:? {_GIB}"),
        ("peak_activation_bytes", rf"\b{_GIB} (?:GiB )?(?:for )?peak activation"),
        ("non_torch_bytes", rf"non_torch_memory(?: takes |=){_GIB}"),  # V0
        ("non_torch_bytes", rf"non-torch forward increase memory: {_GIB}"),
        ("non_torch_bytes", rf"\b{_GIB} (?:GiB )?(?:for )?non-torch"),
        ("consumed_bytes", rf"\b{_GIB} (?:GiB )?(?:for )?consumed\b"),
        ("cuda_graph_estimate_bytes", rf"Estimated (?:MRV2 )?CUDA graph memory: {_GIB}"),
        ("cuda_graph_estimate_bytes", rf"CUDA graph pool memory: {_GIB} GiB \(actual\), {_GIB} GiB \(estimated\)"),
        ("cuda_graph_bytes", rf"CUDA graph pool memory: {_GIB} GiB \(actual\)"),
        ("cuda_graph_bytes", rf"Graph capturing finished in \d{{1,6}} secs?, took {_GIB}"),
        ("cuda_graph_bytes", rf"\b{_GIB} (?:GiB )?(?:for )?CUDAGraph"),
        ("available_kv_cache_bytes", rf"Available KV cache memory: {_GIB} G"),
        ("available_kv_cache_bytes", rf"memory reserved for KV Cache is {_GIB}"),  # V0
        ("available_kv_cache_bytes", rf"kv_cache_size={_GIB}GiB"),  # V0
        ("available_kv_cache_bytes", rf"Current kv cache memory in use is {_GIB} GiB"),
        ("available_kv_cache_bytes", rf"Explicitly set \({_GIB}/[\d.]{{1,9}}\) GiB for KV cache"),  # on CPUs
    )
)
"""The last group is the size; the first pattern that a process prints wins."""
_COUNTS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("num_gpu_blocks", r"# (?:GPU|cuda|CUDA) blocks: (\d[\d,]{0,20})"),  # V0
        ("num_gpu_blocks", r"num_gpu_blocks is: (\d[\d,]{0,20})"),
        ("num_gpu_blocks", r"num_gpu_blocks=\d{1,12} with num_gpu_blocks_override=(\d{1,12})"),
        ("kv_cache_tokens", r"[GC]PU KV cache size: (\d[\d,]{0,20}) tokens"),
        ("max_concurrency", r"Maximum concurrency for \d[\d,]{0,20} tokens per request: (\d{1,9}\.\d{1,4})x"),
        ("max_model_len", r"Maximum concurrency for (\d[\d,]{0,20}) tokens per request"),
    )
)
_CIRCUMSTANCES = (
    ("sampler", "flashinfer", re.compile(r"Using FlashInfer for top-p & top-k sampling")),
    ("sampler", "pytorch", re.compile(r"PyTorch-native implementation of top-p")),
    ("links", "host", re.compile(r"Custom allreduce is disabled because your platform lacks GPU P2P")),
    ("links", "pcie", re.compile(r"Custom allreduce is disabled because it's not supported on more than two PCIe")),
    # a start that compiles one graph of several has no complete cache, so this line decides before those of graphs that were found
    ("compile_cache", "cold", re.compile(r"Compiling a graph for (?:dynamic|general|compile|shape)")),
    ("compile_cache", "warm", re.compile(r"Directly load (?:the compiled graph|AOT compilation)")),
)
"""(key of a request, value, line that shows it), 0.7 to 0.33; of two lines that contradict each other the earlier row decides."""
_GIVEN = re.compile(r"as specified by kv_cache_memory_bytes config|with num_gpu_blocks_override=\d")
"""Printed where vLLM does not measure (0.10.2+), or does not use what it measured."""
_VERSION = re.compile(r"(?:vLLM API server version |LLM engine \(v|[█▀▄ ]{4} version +)(\d[\w.+-]{1,60})")
_MODEL = re.compile(r"LLM engine \(v[^\n]{1,80} with config: (?:model=)?'([^'\n]{1,400})'")
_QUANTIZATION = re.compile(r"LLM engine \(v[^\n]{1,4000}?[ ,]quantization=(?!None\b)([\w-]{1,40})")
_MARKS = (
    re.compile(r"vLLM API server version \d|[█▀▄ ]{4} version +\d"),
    re.compile(r"Initializing an? (?:V1 )?LLM engine \(v"),
)
"""Printed once by each process of a start; the second where no server was started."""
_READY = re.compile(r"Application startup complete|Available routes are:")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_PROCESS = re.compile(r"\((\w[\w =-]{0,40}? pid=\d{1,9}[^)\n]{0,60})\)")
_COLOUR = re.compile(r"\x1b\[[\d;]{0,12}m")
_PRINTED = re.compile(r"non-default args: (?=\{)|\bargs: (?=Namespace\()")
"""Before the arguments: a dictionary; until 0.8 the whole namespace of the parser."""
_OBJECT = re.compile(r"<[^<>{}\n]{0,200}>")
"""`<function serve at 0x7f…>`, which is not Python."""


def read_startup_log(text: str) -> StartupLog:
    """Return the last start in a log. Raises UnusableLog where there is none, or nothing about its KV cache."""
    text = _bounded_text(text)
    if len(models := dict.fromkeys(match[1] for match in _MODEL.finditer(text))) > 1:
        first, second, *_ = models
        raise UnusableLog(f"it holds the lines of two engines, {first} and {second}; give the log of one container")
    starts = split_starts(text)
    log = read_start(starts[-1], starts=len(starts))
    caches = (log.num_gpu_blocks, log.kv_cache_tokens, log.max_concurrency)
    if log.refusal or any(cache is not None for cache in caches):
        return log
    if any(rank.available_kv_cache_bytes is not None for rank in log.ranks):
        return log
    if log.vllm_version is None and not log.arguments and not log.ranks:
        raise UnusableLog("no line of a vLLM start is in it; give the log of the vLLM container from its first line")
    raise UnusableLog(
        "no line says how large the KV cache is, nor why there is none: the log ends before that, or VLLM_LOGGING_LEVEL hides "
        "it; give the log up to `Maximum concurrency for … tokens per request`, at level INFO"
    )


def _bounded_text(text: str) -> str:
    """Cut lines longer than any that a start prints. Raises UnusableLog for what is no log, or too large.

    Arguments are not cut: half of them would be others.
    """
    if not text.strip():
        raise UnusableLog("the log is empty; give what the vLLM container printed, `kubectl logs POD -c vllm`")
    if len(text) > MAX_LOG_CHARACTERS:
        raise UnusableLog(
            f"the log holds {len(text)} characters, more than {MAX_LOG_CHARACTERS}; give the start of the server, `head -n 5000`"
        )
    if "\0" in text or text.count("\ufffd") > len(text) // 100:
        raise UnusableLog("the log is not text; give it as the container printed it, unpacked")
    lines = _COLOUR.sub("", text).split("\n")
    for index, line in enumerate(lines):
        if len(line) > MAX_LINE_CHARACTERS:
            lines[index] = line[:MAX_LINE_CHARACTERS]
            if _PRINTED.search(lines[index]):
                raise UnusableLog(
                    f"line {index + 1} holds the arguments of vLLM and {len(line)} characters, more than {MAX_LINE_CHARACTERS}; "
                    "take that line out and give the options themselves"
                )
    return "\n".join(lines)


def split_starts(text: str) -> list[str]:
    """Return the text of each start: cut where a process prints its mark a second time, or where figures stand before the first."""
    marks = next(filter(None, (list(mark.finditer(text)) for mark in _MARKS)), [])
    seen: set[str] = set()
    cuts = [0]
    for mark in marks:
        process = _process(text, mark.start()).partition(" pid=")[0]
        before = text[: mark.start()]
        if process in seen or (not seen and any(pattern.search(before) for _, pattern in (*_MEMORY, *_COUNTS))):
            cuts.append(text.rfind("\n", 0, mark.start()) + 1)
            seen.clear()
        seen.add(process)
    return [text[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]


_TELLING = (
    "GiB", "GB", "blocks: ", "num_gpu_blocks", "KV cache size", "Maximum concurrency", "kv_cache_memory_bytes config", "sampling",
    "Compiling a graph", "Directly load", "Custom allreduce is disabled", "LLM engine (v", "API server version", " version ", "args: ",
    "startup complete", "Available routes", "Traceback (most",
)  # fmt: skip
"""Words of which every line that a pattern of this module finds has one; all other lines are passed over."""


def read_start(text: str, *, starts: int = 1, found: Sequence[Message] | None = None) -> StartupLog:
    """Return one start, as far as its lines tell it.

    `starts`: the number of those in the log that it is the last of. `found`: the messages of failures in the text, where they are known.
    """
    telling = [word for word in _TELLING if word in text]  # a log repeats lines that have none of these few
    whole, text = text, "\n".join(line for line in text.split("\n") if any(word in line for word in telling))
    arguments, unread = _printed_arguments(text)
    version, model, quantization = _VERSION.search(text), _MODEL.search(text), _QUANTIZATION.search(text)
    counts: dict[str, Any] = {}  # the least of all engines; blocks set by hand replace those that were found
    for name, pattern in _COUNTS:
        if counted := [match[1].replace(",", "") for match in pattern.finditer(text)]:
            counts[name] = min(map(float if name == "max_concurrency" else int, counted))
    # where a server that is not ready raised an error after all its figures, that was the end; an error before them was not
    last = max((match.end() for _, pattern in (*_MEMORY, *_COUNTS) for match in pattern.finditer(text)), default=0)
    is_ready = _READY.search(text) is not None
    found = () if is_ready else messages(whole) if found is None else found
    root = root_of(found)
    if root and root.row.kind is FailureKind.ENVIRONMENT and last:  # a download that was tried again is no end
        at = whole.rfind(text[text.rfind("\n", 0, last) + 1 : last])
        found = [each for each in found if each.match.start() > at]
        root = root_of(found)
    refusal = failure_of(whole, root, found) if root else None
    ends_in_traceback = not is_ready and _TRACEBACK.search(text, last) is not None
    named = arguments.get("model") or arguments.get("model_tag") or (model[1] if model else None)
    return StartupLog(
        vllm_version=version[1] if version else None,
        model=str(named) if named else None,
        quantization=quantization[1] if quantization else "",
        arguments=arguments,
        unread_arguments=unread,
        ranks=_ranks(text),
        **counts,
        circumstances={key: value for key, value, line in reversed(_CIRCUMSTANCES) if line.search(text)},
        refusal=refusal,
        is_crash=not refusal.is_of_kv_cache if refusal else ends_in_traceback,
        is_ready=is_ready,
        is_size_given=_GIVEN.search(text) is not None,
        starts=starts,
    )


def _ranks(text: str) -> tuple[RankMemory, ...]:
    """Return the figures of each process; the first pattern that a process prints decides, by the least KV cache or the most of others."""
    figures: dict[str, dict[str, int]] = {}
    for name, pattern in _MEMORY:
        sizes = defaultdict(list)
        for match in pattern.finditer(text):
            sizes[_process(text, match.start())].append(gib(float(match[match.lastindex or 0])))
        decides = min if name == "available_kv_cache_bytes" else max
        for process, printed in sizes.items():
            figures.setdefault(process, {}).setdefault(name, decides(printed))
    return tuple(RankMemory(process=process, **sizes) for process, sizes in sorted(figures.items()))


def _process(text: str, position: int) -> str:
    """Return the process that its line names in front of a position; empty where it names none."""
    start = text.rfind("\n", max(0, position - _PREFIX_CHARACTERS), position) + 1
    if not start and position > _PREFIX_CHARACTERS:
        return ""
    found = _PROCESS.search(text, start, min(position, start + 200))
    return found[1] if found else ""


def _printed_arguments(text: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the arguments that vLLM prints when it starts, read without running them, and the names of those that are no plain values.

    Arguments that are None are left out.
    """
    printed = _PRINTED.search(text)
    if printed is None:
        return {}, ()
    line = text[printed.end() :].partition("\n")[0]
    expression = line[: max(line.rfind("}"), line.rfind(")")) + 1]
    try:
        tree = ast.parse(_OBJECT.sub("object()", expression), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}, ()
    entries: list[tuple[Any, ast.expr]] = []
    if isinstance(tree, ast.Call):
        entries = [(keyword.arg, keyword.value) for keyword in tree.keywords]
    elif isinstance(tree, ast.Dict):
        pairs = zip(tree.keys, tree.values, strict=True)
        entries = [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant)]
    values: dict[str, Any] = {}
    unread: list[str] = []
    for name, node in entries:
        if not isinstance(name, str):
            continue
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            unread.append(name)
            continue
        if value is not None:
            values[name] = value
    return values, tuple(unread)

"""Logs → the starts in them: what each printed, the cause of its end, and its line."""

import re
from collections.abc import Iterable

from msgspec import Struct

from kvgate.cli.why.gathered import Log
from kvgate.manifests.pods.which_engine import server_in
from kvgate.sources.start_failure import StartFailure, failure_of, messages, root_of
from kvgate.sources.startup_log import StartupLog, read_start, split_starts

_HEAD_CHARACTERS = 200_000
_PIDS = re.compile(r"\(APIServer pid=(\d{1,9})\)")
_OTHER_LOGS = {
    "Ollama": ("source=server.go", "source=routes.go", 'msg="llama runner', "ollama"),
    "llama.cpp": ("llama_model_loader:", "llama_init_from_model", "ggml_cuda_init", "ggml_backend_", "ggml_gallocr", "llm_load_tensors"),
    "SGLang": ("server_args=ServerArgs(", "/sglang/", "sglang.", "mem-fraction-static"),
    "TensorRT-LLM": ("[TRT-LLM]", "[TensorRT-LLM]", "tensorrt_llm"),
    "Text Generation Inference": ("text_generation_launcher", "text-generation-inference", "text_generation_server"),
    "LMDeploy": ("lmdeploy", "[TM][",),
}  # fmt: skip
"""Words that the logs of other servers have, and vLLM's have not."""
_ERROR = re.compile(
    r"^(?:.{0,200}[\s\])])?(?P<kind>[\w.]{0,80}(?:Error|Exception|Interrupt|Exit))(?::.*|$)", re.MULTILINE
)


class Start(Struct, frozen=True, kw_only=True):
    """One start in a log."""

    file: str
    source: str = ""
    """Pod or container that its lines name."""
    log: StartupLog = StartupLog(arguments={})
    failure: StartFailure | None = None
    line: int = 0
    """Line of the cause; 0 where there is none."""
    words: str = ""
    """The line itself."""
    others: tuple[str, ...] = ()
    """Names of the other rows that the text matches."""
    ends_in_error: bool = False
    """True where it ended in an error whose cause the table does not know."""
    engine: str = ""
    """The other server whose log it is; empty for vLLM."""
    is_mixed: bool = False
    """True where lines of two servers stand between each other."""


def starts_in(logs: Iterable[Log]) -> list[Start]:
    """Return one start for each model of each source: a later one, unless only the earlier one failed."""
    found: dict[tuple[str, str, str], Start] = {}
    for log in logs:
        text = log.stream.text
        first, *others = dict.fromkeys(_PIDS.findall(text[:_HEAD_CHARACTERS])) or [""]
        is_mixed = any(text.find(f"pid={pid})") < text.rfind(f"(APIServer pid={first})") for pid in others)
        pieces, position = split_starts(text), 0
        last: dict[str, Start] = {}  # of each model in this log
        for piece in pieces:
            start = _start(log, piece, position, is_mixed=is_mixed, starts=len(pieces))
            position += len(piece)
            if start:
                last[start.log.model or ""] = start
        if len(last) > 1:
            last.pop("", None)
        for model, start in last.items():
            key = (start.file, start.source, model)
            earlier = found.get(key)
            found[key] = start if earlier is None or start.failure or not earlier.failure else earlier
    return list(found.values())


def _start(log: Log, piece: str, position: int, *, is_mixed: bool, starts: int) -> Start | None:
    found = messages(piece)
    read = read_start(piece, starts=starts, found=found)
    if read.is_ready:
        ready = max(piece.rfind("Application startup complete"), piece.rfind("Available routes are:"))
        found = [each for each in found if each.match.start() > ready]
    root = root_of(found)
    error = None  # the place of the exception that ended the log; none where something else was printed after it
    if root is None and (found or not read.is_ready):
        begin = max(0, len(piece) - (200_000 if read.is_crash else 4_000))
        for each in _ERROR.finditer(piece, begin):
            error = error if "404 Client Error" in each[0] else each.start("kind")
    at, head = root.match.start() if root else error, piece[:_HEAD_CHARACTERS]
    is_vllm = bool(read.vllm_version or read.arguments or read.ranks or read.max_concurrency is not None)
    others = (name for name, words in _OTHER_LOGS.items() if any(word in head for word in words))
    engine = "" if is_vllm else next(others, server_in(head))
    if not (is_vllm or root or engine or error is not None):
        return None
    line = "" if at is None else piece[piece.rfind("\n", 0, at) + 1 :].partition("\n")[0].strip()
    return Start(
        file=log.file,
        source=log.stream.source,
        log=read,
        failure=failure_of(piece, root, found) if root else None,
        line=log.stream.number_at(position + at) if at is not None else 0,
        words=line,
        others=tuple(dict.fromkeys(each.row.id for each in found if root and each.row.id != root.row.id)),
        ends_in_error=error is not None,
        engine=engine,
        is_mixed=is_mixed,
    )

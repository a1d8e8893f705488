"""Causes of failed starts, by one table: the messages of vLLM and of what it runs on, each with its stage and what to do.

`data/start_failures.yaml` is the table; its head explains the columns. The phrases of vLLM are those of its source, 0.6.6 to 0.33.0.

With the engine in a process of its own (every release with V1) the API server's traceback alone is longer than the 2048 bytes that
Kubernetes keeps as termination message: on 0.32.0 they hold no more than `Engine core initialization failed`. Whoever wants the cause
reads the container's log.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml
from msgspec import Struct

from kvgate.budget.ground.units import GIB, KIB, MIB, gib

MAX_SENTENCE_CHARACTERS = 400
_TABLE = Path(__file__).parent / "data" / "start_failures.yaml"
_NEAR_CHARACTERS = 12_000
"""Length of a traceback; frames further above belong to something else."""
_BELOW_CHARACTERS = 4_000
"""Length of the frames that people paste below the error, or that the API server prints after it."""


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
    ENVIRONMENT = "Environment"
    """Something around vLLM is missing or fails: the model's files, network, driver, libraries, host memory, the cluster."""
    ENGINE_CORE_FAILED = "EngineCoreFailed"
    """The cause was printed before this piece of the log begins."""


class Stage(StrEnum):
    """Steps of a start in their order, and what may end it from outside."""

    CONFIGURATION = "configuration"
    DOWNLOAD = "download"
    LOAD = "load"
    PROFILE = "profile"
    KV_CACHE = "kv-cache"
    CAPTURE = "capture"
    SERVE = "serve"
    HOST = "host"
    KUBERNETES = "kubernetes"


class Rank(StrEnum):
    """Whether a message is the cause itself, what follows from one, or only the end of a traceback."""

    ROOT = "root"
    CONSEQUENCE = "consequence"
    WRAPPER = "wrapper"


class FailureRow(Struct, frozen=True, kw_only=True):
    """One cause of the table."""

    id: str
    kind: FailureKind
    stage: Stage
    cause: str
    """One sentence for people."""
    do: str
    phrases: tuple[str, ...]
    releases: str
    source: str
    text: str
    """Lines in which it was printed, for the tests and the reference page."""
    near: tuple[str, ...] = ()
    since: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    rank: Rank = Rank.ROOT
    ledger: str = ""
    """The part of kvgate's arithmetic that judges it; empty where none does."""
    is_followed: bool = False
    """True where the words that people need stand in the next line."""


class StartFailure(Struct, frozen=True, kw_only=True):
    """The cause in vLLM's words, and the figures that it reports; GiB are printed with one or two decimals."""

    id: str
    """Name of its row."""
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
    found: Mapping[str, int | str] = {}
    """Other figures and texts of the message, by the names that its phrases give them."""

    @property
    def row(self) -> FailureRow:
        return failure_rows()[self.id]

    @property
    def kind(self) -> FailureKind:
        return self.row.kind

    @property
    def is_of_kv_cache(self) -> bool:
        """True where vLLM had measured the memory for the KV cache and refused it; after any other failure no figure is a capacity."""
        return self.kind in (FailureKind.KV_CACHE_TOO_SMALL, FailureKind.NO_MEMORY_FOR_KV_CACHE)

    @property
    def available_kv_cache_bytes(self) -> int | None:
        """Bytes that vLLM had found for the KV cache; None where the failure states none, or is of something else."""
        return self.available_bytes if self.is_of_kv_cache else None


class Message(NamedTuple):
    """The last place of a text where a row's words stand."""

    row: FailureRow
    match: re.Match[str]


_NUMBER = r"-?\d{1,15}(?:\.\d{1,9})?"
_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_PLACEHOLDER = re.compile(r"<([\w*#-]+)>")


class _Phrase(NamedTuple):
    row: FailureRow
    shape: bytes
    """The longest of its words without a placeholder, and without digits: most texts lack it, which is found out fast."""
    pattern: re.Pattern[str]
    word: str = ""
    """The same words with their digits where the phrase begins with a placeholder: a pattern without a beginning is slow on a long log."""

    def everywhere(self, text: str) -> Iterator[re.Match[str]]:
        """Yield every place of the phrase, which is within one line."""
        at = text.find(self.word) if self.word else -1
        if not self.word:
            yield from self.pattern.finditer(text)
        while at >= 0:
            begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            end = len(text) if end < 0 else end
            yield from self.pattern.finditer(text, begin, end)
            at = text.find(self.word, end)


@cache
def failure_rows() -> Mapping[str, FailureRow]:
    """Return the table by the names of its rows."""
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = yaml.load(_TABLE.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - one of the safe loaders
    return {row.id: row for row in msgspec.convert(rows, tuple[FailureRow, ...], strict=True)}


@cache
def _phrases() -> Sequence[_Phrase]:
    """Compile all phrases; every repetition is bounded, because a log may hold anything."""
    found = []
    phrases = [(row, text) for row in failure_rows().values() for text in row.phrases]
    for row, text in phrases:
        pieces = _PLACEHOLDER.split(text)
        written = "".join(re.escape(piece) if index % 2 == 0 else _group(piece) for index, piece in enumerate(pieces))
        words = max(pieces[::2], key=len)
        is_in_line = not pieces[0] and "\n" not in text
        found.append(_Phrase(row, _without_digits(words), re.compile(written), words if is_in_line else ""))
    return found


def words_of_failures() -> frozenset[bytes]:
    """Return words of which every line with a phrase of the table has one, for those who must read a long log fast."""
    near = (word for row in failure_rows().values() for word in (*row.near, *row.since, *row.until))
    return frozenset(
        max(_PLACEHOLDER.split(text)[::2], key=len).encode() for row in failure_rows().values() for text in row.phrases
    ) | {word.encode() for word in near}


def _group(name: str) -> str:
    if name in ("*", "#", "w"):
        return {"*": r".{0,400}?", "#": r"\d{1,12}", "w": r"\w{1,60}"}[name]
    if name.endswith("_text"):
        return rf"(?P<{name}>.{{1,400}})"
    sign = "(?=-)" if name.startswith("-") else ""
    name = name.removeprefix("-")
    if name.endswith("_bytes"):
        return rf"{sign}(?P<{name}>{_NUMBER} ?(?:[KMG]iB|bytes))"
    return rf"(?P<{name}>{_NUMBER})" if name.endswith("_gib") else rf"(?P<{name}>\d{{1,12}})"


def messages(text: str) -> list[Message]:
    """Return the last message of every row that the text has, for each phrase of the row; rows that share words exclude each other."""
    found: list[Message] = []
    taken = set[tuple[int, int]]()
    # every different line once, without digits: a log repeats few lines, and is searched for hundreds of words
    shapes = b"\n".join(set(_without_digits(text).split(b"\n")))
    present = [(each.row, list(each.everywhere(text))) for each in _phrases() if each.shape in shapes]
    for belongs in (_is_below, _is_above, lambda row, *_: not row.near):
        for row, everywhere in present:
            matches = [each for each in everywhere if each.span() not in taken and belongs(row, text, each)]
            if matches:
                found.append(Message(row, matches[-1]))
                taken |= {each.span() for each in matches if row.near}
    return found


def _without_digits(text: str) -> bytes:
    return text.encode(errors="replace").translate(None, b"0123456789")


def _is_below(row: FailureRow, text: str, match: re.Match[str]) -> bool:
    """Return whether a match stands in the step of its row: below a frame of its traceback, or while the log says that the step lasts."""
    begin = max(0, match.start() - _NEAR_CHARACTERS)
    if any(text.rfind(word, begin, match.end()) >= 0 for word in row.near):
        return True
    last = max((text.rfind(word, begin, match.start()) for word in row.since), default=-1)
    return last >= 0 and all(text.find(word, last, match.start()) < 0 for word in row.until)


def _is_above(row: FailureRow, text: str, match: re.Match[str]) -> bool:
    """Return whether a frame of the row stands below a match, before one of any other row."""
    end = match.end() + _BELOW_CHARACTERS
    found = [
        (at, each.id)
        for each in failure_rows().values()
        for word in each.near
        if (at := text.find(word, match.end(), end)) >= 0
    ]
    return bool(row.near) and bool(found) and min(found)[1] == row.id


def root_of(found: Sequence[Message]) -> Message | None:
    """Return the message that is the cause: the last root, else the last consequence, else the end of a traceback."""
    for rank in Rank:
        if of_rank := [each for each in found if each.row.rank is rank]:
            return max(of_rank, key=lambda each: each.match.end())
    return None


def recognise(text: str) -> StartFailure | None:
    """Return the failure; None where the text reports none that is known here, such as the plain crash of another program."""
    found = messages(text)
    root = root_of(found)
    return failure_of(text, root, found) if root else None


def failure_of(text: str, root: Message, found: Sequence[Message]) -> StartFailure:
    """Return a message as a failure, with the figures of all messages of its kind."""
    figures: dict[str, int | str] = {}
    alike = sorted((each for each in found if each.row.kind is root.row.kind), key=lambda each: each.match.end())
    for name, value in ((name, value) for each in alike for name, value in each.match.groupdict().items() if value):
        if name.endswith("_text"):
            figures[name] = value
        elif name.endswith("_gib"):
            figures[name.removesuffix("gib") + "bytes"] = gib(float(value))
        elif name.endswith("_bytes"):
            number, unit = re.findall(r"[A-Za-z]+|[^A-Za-z ]+", value)
            figures[name] = round(float(number) * _UNITS[unit])
        else:
            figures[name] = int(value)
    own = {name: value for name, value in figures.items() if name in StartFailure.__struct_fields__}
    others = {name: value for name, value in figures.items() if name not in own}
    return msgspec.convert({"id": root.row.id, "sentence": _sentence(text, root), **own, "found": others}, StartFailure)


_PREFIX = re.compile(r".*(?:Error|Exception|Value error)(?::|,) |.*\] ")
"""Process, level, time and file before the words, and the kind of exception."""


def _sentence(text: str, message: Message) -> str:
    """Return the whole sentence around the phrase, without the prefix of vLLM's log."""
    match = message.match
    start = text.rfind("\n", 0, match.start()) + 1
    if prefix := _PREFIX.match(text, start, match.start()):
        start = prefix.end()
    start = max(start, match.start() - MAX_SENTENCE_CHARACTERS // 2)
    line_end = text.find("\n", match.end())
    if message.row.is_followed and line_end >= 0:
        # the next line with words that are not the name of a field
        lines = text[line_end + 1 : line_end + 4000].split("\n")[:3]
        followed = next((line for line in lines if " " in line.strip()), "")
        prefix = _PREFIX.match(followed)
        return (followed[prefix.end() :] if prefix else followed).strip()[:MAX_SENTENCE_CHARACTERS]
    line = text[start : line_end if line_end >= 0 else len(text)]
    stop = line.find(". ", match.end() - start)
    sentence = " ".join((line if stop < 0 else line[: stop + 1]).split())
    return sentence[:MAX_SENTENCE_CHARACTERS]

"""Logs as people have them: cut, coloured, with the prefixes of what printed them, of several pods at once, or gigabytes of requests.

`LogReader` takes lines and keeps what may show a cause, so that its memory is bounded; `streams` gives the lines of each source apart.
"""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, islice

import msgspec
from msgspec import Struct

from kvgate.sources.start_failure import words_of_failures

WHOLE_BYTES = 4 << 20
"""Up to this size every line is kept."""
HEAD_BYTES, TAIL_BYTES = 1 << 20, 6 << 20
"""The lines of a longer log that are kept: those at its beginning, and the last ones that may show something."""
MAX_LINE_CHARACTERS = 64 * 1024
_SAMPLE = 400
"""Lines by which the prefix of a source is found."""
_WORDS_OF_STARTS = (
    b"vLLM API server version", b"LLM engine (v", b" version ", b"non-default args", b"args: Namespace(", b"GiB", b"GB", b"blocks:",
    b"KV cache", b"Maximum concurrency", b"startup complete", b"Available routes", b"Traceback (most", b"Error", b"error", b"sampling",
    b"Compiling a graph", b"Directly load",
)  # fmt: skip
_OF_REQUESTS = (b'" 200 OK', b" throughput: ", b"it/s]", b"s/it]")
"""Words of lines that a healthy server prints all day; none of them shows a cause."""

_COLOUR = re.compile(r"\x1b\[[\d;?]{0,20}[A-Za-z]|\x1b\][^\x07\n]{0,200}\x07|\[[\d;]{1,8}m(?=\(|\[|\d|I|E|W)")
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_WORDS_OF_VLLM = r"(?=\(?\w|\s{2,}|$)"
_PREFIXES: Mapping[str, re.Pattern[str]] = {
    "kubectl logs --prefix": re.compile(r"\[(?P<source>pod/[\w./-]{1,300})\] "),
    "CRI": re.compile(rf"{_TIME} (?:stdout|stderr) [FP] "),
    "cloud": re.compile(rf"(?:DEFAULT|DEBUG|INFO|WARNING|ERROR) {_TIME} \[resource\.labels\.\w{{1,40}}: (?P<source>[\w.-]{{1,200}})\] "),
    "time": re.compile(rf"\[?{_TIME}\]?:? "),
    "journal": re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} (?P<source>[\w.@/-]{1,64})(?:\[\d{1,9}\])?: "),
    "journal with dates": re.compile(rf"(?:{_TIME} )?[\w.-]{{1,64}} (?P<source>(?!pid)[\w.@/-]{{1,64}})\[\d{{1,9}}\]: "),
    "compose": re.compile(r"(?P<source>[\w.-]{1,80}) {0,40}\| "),
    "stern": re.compile(
        r"(?:[\w-]{1,63} › )?(?P<source>[a-z0-9][a-z0-9.-]{1,100} [a-z0-9][a-z0-9-]{0,62})(?: \|)? "
        r"(?=\(\w|INFO |WARNING |ERROR |DEBUG |Traceback|\s{2}|[\w.]{1,80}(?:Error|Exception):)"
    ),
    "quoted": re.compile(r"(?:> ?){1,4}"),
}  # fmt: skip
_OF_JSON = ("log", "message", "msg", "MESSAGE", "textPayload", "line", "text", "body")
_SOURCES_OF_JSON = ("pod", "pod_name", "container", "container_name", "_SYSTEMD_UNIT", "CONTAINER_NAME")


class Stream(Struct, frozen=True, kw_only=True):
    """The lines of one source, as the engine printed them."""

    source: str
    """Pod, container or unit in front of its lines; empty where they name none."""
    text: str
    ends: tuple[int, ...]
    """Position behind each line."""
    numbers: tuple[int, ...]
    """Number of each line in what was given, from 1."""

    def number_at(self, position: int) -> int:
        """Return the line of the input in which a position of the text stands."""
        return self.numbers[min(bisect_right(self.ends, position), len(self.numbers) - 1)] if self.numbers else 0


class LogReader:
    """The lines of one log that may show a cause, in bounded memory."""

    def __init__(self) -> None:
        self._head: list[tuple[int, bytes]] = []
        self._tail: deque[tuple[int, bytes]] = deque()
        self._num_lines = self.num_bytes = self._tail_bytes = 0
        self._words = (*_WORDS_OF_STARTS, *words_of_failures())
        self.left_out = 0
        """Lines that may show something and that had no room."""

    def add(self, data: bytes) -> None:
        """Take whole lines."""
        begin = self._num_lines
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        self._num_lines += len(lines)
        self.num_bytes += len(data)
        numbered: Iterable[tuple[int, bytes]] = enumerate(lines, begin + 1)
        if self.num_bytes > WHOLE_BYTES:
            numbered = self._telling(numbered)
        for number, whole in numbered:
            line = whole[:MAX_LINE_CHARACTERS]
            if self.num_bytes <= HEAD_BYTES:
                self._head.append((number, line))
                continue
            self._tail.append((number, line))
            self._tail_bytes += len(line) + 1
            while self._tail_bytes > TAIL_BYTES:
                self._tail_bytes -= len(self._tail.popleft()[1]) + 1
                self.left_out += 1

    def _telling(self, numbered: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Return the lines that have a word of a start or of a failure."""
        rest = [each for each in numbered if not any(word in each[1] for word in _OF_REQUESTS)]
        joined = b"\n".join(line for _, line in rest)
        words = [word for word in self._words if word in joined]
        return [each for each in rest if any(word in each[1] for word in words)]

    def lines(self) -> Iterator[tuple[int, str]]:
        for number, line in (*self._head, *self._tail):
            yield number, line.decode(errors="replace").rstrip("\r")


def streams(lines: Iterable[tuple[int, str]]) -> list[Stream]:
    """Return the lines of each source without colours and prefixes, in the order of their first lines."""
    written = [(number, _COLOUR.sub("", line) if "\x1b" in line or "[0" in line else line) for number, line in lines]
    strip = _stripper([line for _, line in islice((each for each in written if each[1].strip()), _SAMPLE)])
    by_source: dict[str, list[tuple[int, str]]] = {}
    for number, line in written:
        source, text = strip(line)
        by_source.setdefault(source, []).extend((number, part) for part in text.rstrip("\n").split("\n"))
    if len(by_source) > 1 and "" in by_source and not any(text.strip() for _, text in by_source[""]):
        del by_source[""]
    return [
        Stream(
            source=source,
            text="\n".join(text for _, text in found),
            ends=tuple(accumulate(len(text) + 1 for _, text in found)),
            numbers=tuple(number for number, _ in found),
        )
        for source, found in by_source.items()
    ]


def _stripper(sample: list[str]) -> Callable[[str], tuple[str, str]]:
    """Return the function that takes the prefix from a line: that of most lines of the sample, and what stands behind it."""
    if sum(line.startswith("{") and line.rstrip().endswith("}") for line in sample) * 2 > len(sample):
        return _of_json
    chosen: list[re.Pattern[str]] = []
    rest = sample
    for _ in range(3):
        counted = {name: sum(pattern.match(line) is not None for line in rest) for name, pattern in _PREFIXES.items()}
        name = max(counted, key=lambda each: counted[each]) if rest else ""
        if not rest or counted[name] * 2 < len(rest):
            break
        pattern = _PREFIXES[name]
        chosen.append(pattern)
        rest = [line[match.end() :] if (match := pattern.match(line)) else line for line in rest]

    def strip(line: str) -> tuple[str, str]:
        source = ""
        for pattern in chosen:
            if match := pattern.match(line):
                source = source or match.groupdict().get("source") or ""
                line = line[match.end() :]
        return source, line

    return strip if chosen else lambda line: ("", line)


def _of_json(line: str) -> tuple[str, str]:
    """Return the source and the message of a line of JSON; the line itself where it holds none."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return "", line
    if not isinstance(value, dict):
        return "", line
    text = next((value[key] for key in _OF_JSON if isinstance(value.get(key), str)), None)
    if text is None:
        return "", line
    places = (
        value,
        value.get("kubernetes"),
        value.get("labels"),
        (value.get("resource") or {}).get("labels") if isinstance(value.get("resource"), dict) else None,
    )
    named = (
        place[key]
        for place in places
        if isinstance(place, dict)
        for key in _SOURCES_OF_JSON
        if isinstance(place.get(key), str)
    )
    return next(named, ""), _COLOUR.sub("", text)

"""Whatever somebody pastes → the pieces that say something: manifests, commands, descriptions of pods, and logs, each with its place."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.cli.why.bundle import Bundle, bundle_in
from kvgate.documents.launch_files import form_of
from kvgate.manifests.pasted import Pasted, commands_in, described_in, is_description, pasted_object
from kvgate.sources.log_streams import WHOLE_BYTES, LogReader, Stream, streams

CHUNK_BYTES = 1 << 20
MAX_FILES = 5_000
"""Files of a folder that are looked at."""
MAX_MANIFEST_BYTES = 16 << 20
_HEAD_BYTES = 64 << 10
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_MANIFEST = re.compile(r"\s*[\"']?(?:apiVersion|kind|services|items)[\"']?\s*:|---\s*$")
_YAML_LINE = re.compile(r"\s|#|-|$|[\w./\"'-]+:(?:\s|$)|[}\]]")
_NO_YAML_LINE = re.compile(r"Name: {2,}\S|[\w.]*(?:Error|Exception): |(?:INFO|WARNING|ERROR|DEBUG)[ :]")
_DESCRIBED = re.compile(r"Name: {2,}\S")
_LOGGED = re.compile(
    r"\(?\w{1,40} pid=|(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d|Traceback|[\w.]{0,80}(?:Error|Exception): "
)
_PROSE_CHARACTERS = 60_000
"""Length of a text that somebody wrote around what programs printed."""
_IN_BACKTICKS = re.compile(r"`[^`]*`")
_PRINTED = re.compile(
    r"pid=|^\s*File \"|\b(?:INFO|WARNING|ERROR|DEBUG)\b|(?:Error|Exception):|\d\d:\d\d:\d\d|^\s*[\w.-]{1,60}\s*[:=]\s"
)
_IS_YAML = re.compile(r"^\s{0,40}[\"']?(?:apiVersion|kind|services|image|containers|spec)[\"']?\s*:", re.MULTILINE)
_FENCE = re.compile(r"\s{0,12}(?:```|~~~)\w{0,20}\s*$")
_LOOKS_LIKE_PATH = re.compile(r"[\w./~-]{1,300}\.(?:ya?ml|json|log|txt|out)|[./~][\w./-]{0,300}")
_MANIFEST_ENDS = (".yaml", ".yml", ".json", ".tf", ".tpl")
_LOG_ENDS = (".log", ".txt", ".out", ".err")
_GPU_LINE = re.compile(
    r"\bGPU \d{1,2}: (?P<listed>[^\n(]{3,60})|device_name=(?P<config>[\w.-]{3,60}?)(?:,|\.json)|"
    r"Your (?P<words>[^\n]{3,60}?) GPU has compute capability|"
    r"\|\s{1,4}\d{1,2}\s{2}(?P<table>(?:NVIDIA|Tesla|Quadro|AMD)[^|\n]{2,40}?)\s{2,}"
)


class Log(Struct, frozen=True, kw_only=True):
    file: str
    stream: Stream


class Gathered(Struct, kw_only=True):
    """The pieces of everything that was given."""

    paths: list[str] = field(default_factory=list)
    """Files and folders with manifests."""
    texts: list[tuple[str, str]] = field(default_factory=list)
    """(name, text) of manifests that stand in no file of their own."""
    pasted: list[tuple[str, Pasted]] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    bundles: list[Bundle] = field(default_factory=list)
    read: list[tuple[str, str]] = field(default_factory=list)
    """(name, text) of everything that is no file of manifests, for a bundle."""
    gpus: list[str] = field(default_factory=list)
    """Names of GPUs, as programs print them."""
    prose: list[str] = field(default_factory=list)
    """Short lines that no program printed; they may name the GPU."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what was left out, or could not be read."""

    @property
    def is_empty(self) -> bool:
        return not (self.paths or self.texts or self.pasted or self.logs or self.bundles)


class NoSuchInput(ValueError):
    """A word of the command line is a path, and there is no such file."""


def gather(given: Sequence[str], stdin: BinaryIO) -> Gathered:
    """Read every file, folder, text in quotes, or standard input. Raises NoSuchInput and OSError."""
    found = Gathered()
    for what in given:
        path = Path(what) if len(what) < 4096 and "\n" not in what and "\0" not in what else None
        if what == "-":
            _add_stream(found, "<stdin>", stdin)
        elif path is not None and path.is_dir():
            _add_folder(found, path)
        elif path is not None and path.exists():
            _add_file(found, path)
        elif _LOOKS_LIKE_PATH.fullmatch(what):
            raise NoSuchInput(f"{what}: there is no such file or folder; a text stands in quotes")
        else:
            add_text(found, "<text>", what)
    return found


def _add_folder(found: Gathered, folder: Path) -> None:
    """Add the manifests of a folder, and its logs; the number of files is bounded."""
    files = (path for path in folder.rglob("*") if path.suffix in (*_MANIFEST_ENDS, *_LOG_ENDS) and path.is_file())
    listed = list(islice(files, MAX_FILES + 1))
    if len(listed) > MAX_FILES:
        found.notes.append(
            f"{folder} has more than {MAX_FILES} files: {MAX_FILES} of them were looked at; name the one that you mean"
        )
        found.paths += (str(path) for path in sorted(listed[:MAX_FILES]) if path.suffix in _MANIFEST_ENDS)
    else:
        found.paths.append(str(folder))
    for path in sorted(path for path in listed[:MAX_FILES] if path.suffix in _LOG_ENDS):
        _add_file(found, path)


def _add_file(found: Gathered, path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        file.seek(0)
        if form_of(path.name):
            found.paths.append(str(path))
        elif path.suffix in _MANIFEST_ENDS and b"kvgateBundle" not in head[:200] and _is_manifest(head):
            found.paths.append(str(path))
            if path.stat().st_size <= MAX_MANIFEST_BYTES:
                _add_states(found, str(path), file.read().decode(errors="replace"))
        else:
            _add_stream(found, str(path), file)


def _is_manifest(head: bytes) -> bool:
    """Return whether a file of YAML or JSON holds manifests or values, and is no log with such a name."""
    text = head.decode(errors="replace")
    first = next((line for line in text.split("\n") if line.strip()), "")
    is_json_log = first.startswith("{") and first.rstrip().endswith("}") and '"apiVersion"' not in first
    return not is_json_log and not _NO_YAML_LINE.match(first) and not is_description(text[:4000])


def _add_stream(found: Gathered, name: str, file: BinaryIO) -> None:
    """Read a stream in pieces: a short one as a text, a long one as a log of which only telling lines are kept."""
    reader, rest, parts = LogReader(), b"", list[bytes]()
    while data := file.read(CHUNK_BYTES):
        if not parts and (kind := next((kind for mark, kind in _PACKED.items() if data.startswith(mark)), "")):
            found.notes.append(f"{name} is packed with {kind}; unpack it first")
            return
        if b"\0" in data[:_HEAD_BYTES]:
            found.notes.append(f"{name} is not text; give the log as the container printed it")
            return
        if len(parts) * CHUNK_BYTES < MAX_MANIFEST_BYTES:
            parts.append(data)
        whole, newline, last = (rest + data).rpartition(b"\n")
        reader.add(whole + newline)
        rest = last if len(last) < CHUNK_BYTES else b""
    reader.add(rest)
    if reader.num_bytes <= WHOLE_BYTES or (parts and _MANIFEST.match(parts[0][:200].decode(errors="replace"))):
        add_text(found, name, b"".join(parts).decode(errors="replace"))
        return
    lines = list(reader.lines())
    found.read.append((name, "\n".join(line for _, line in lines)))
    found.notes.append(
        f"{name} has {reader.num_bytes / 1e6:.0f} MB: lines that may show a cause were kept"
        + (f", and {reader.left_out} of those were left out in the middle" if reader.left_out else "")
    )
    _add_gpus(found, (line for _, line in lines))
    found.logs += (Log(file=name, stream=each) for each in streams(lines))


def add_text(found: Gathered, name: str, text: str) -> None:
    """Add the pieces of a text."""
    if not text.strip():
        found.notes.append(f"{name} is empty")
        return
    if (bundle := bundle_in(text)) is not None:
        found.bundles.append(bundle)
        return
    found.read.append((name, text))
    if text.lstrip().startswith("{") and '"apiVersion"' in text[:_HEAD_BYTES]:
        found.texts.append((name, text))
        _add_states(found, name, text)
        return
    rest: list[tuple[int, str]] = []
    for kind, lines in _parts(text):
        if kind == "manifest":
            # lines before it keep the numbers of its own
            found.texts.append((name, "\n" * (lines[0][0] - 1) + "\n".join(line for _, line in lines) + "\n"))
            _add_states(found, name, found.texts[-1][1])
        elif kind == "description":
            found.pasted += ((name, each) for each in described_in(lines))
            rest += lines  # its events and its last state say why
        else:
            rest += lines
    commands = list(commands_in(rest))
    found.pasted += ((name, each) for each in commands)
    taken = {number for each in commands for number in each.numbers}
    left = [each for each in rest if each[0] not in taken]
    _add_gpus(found, (line for _, line in left))
    if len(text) <= _PROSE_CHARACTERS:
        spoken = ((number, _IN_BACKTICKS.sub(" ", line)) for number, line in rest if number not in taken or "`" in line)
        found.prose += (line for _, line in spoken if len(line) <= 400 and not _PRINTED.search(line))
    if any(line.strip() for _, line in left):
        found.logs += (Log(file=name, stream=each) for each in streams(left))


_HAS_STATE = re.compile(
    r"[\"']?(?:containerStatuses|conditions)[\"']?\s*:|^[\"']?kind[\"']?\s*:\s*[\"']?Node\b", re.MULTILINE
)


def _add_states(found: Gathered, name: str, text: str) -> None:
    """Add what the status of a pod says about its end, as lines of a log, and the labels of a node."""
    if len(text) > MAX_MANIFEST_BYTES or not (_HAS_STATE.search(text) or '"kind": "Node"' in text):
        return
    try:
        values = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, RecursionError, ValueError):
        return
    objects = [
        each
        for value in values
        if isinstance(value, dict)
        for each in (value.get("items") or [value])
        if isinstance(each, dict)
    ]
    for value in objects[:1000]:
        written = value.get("metadata")
        metadata = written if isinstance(written, dict) else {}
        if value.get("kind") == "Node":
            found.pasted.append((name, pasted_object({"kind": "Node", "metadata": metadata})))
        elif value.get("kind") == "Pod" and isinstance(value.get("status"), dict):
            lines = list(_lines_of_status(value["status"]))
            if lines:
                (stream,) = streams([(1, line) for line in lines])
                found.logs.append(Log(file=name, stream=replace(stream, source=str(metadata.get("name") or ""))))


def _lines_of_status(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ends and the obstacles in a pod's status as `kubectl describe` words them."""
    for condition in status.get("conditions") or ():
        if isinstance(condition, dict) and condition.get("status") == "False" and condition.get("message"):
            yield f"{condition.get('reason')}: {condition['message']}"
    if status.get("message"):
        yield f"{status.get('reason')}: {status['message']}"
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        for when in ("lastState", "state") if isinstance(each, dict) else ():
            for state in (each.get(when) or {}).values():
                if (
                    isinstance(state, dict)
                    and (state.get("reason") or state.get("exitCode"))
                    and state.get("exitCode") != 0
                ):
                    yield f"Reason:       {state.get('reason')}"
                    yield f"Exit Code:    {state.get('exitCode')}"
                    yield from str(state.get("message") or "").split("\n")


def _add_gpus(found: Gathered, lines: Iterator[str]) -> None:
    for line in lines:
        # every line about the load has `GPU KV cache usage`
        is_about_gpu = "GPU" in line and "GPU KV cache usage" not in line
        if is_about_gpu or "NVIDIA" in line or "device_name=" in line or "Tesla" in line or "Quadro" in line:
            for match in _GPU_LINE.finditer(line[:2000]):
                named = next(filter(None, match.groups())).strip().replace("_", "-")
                if named not in found.gpus:
                    found.gpus.append(named)


def _parts(text: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yield (`manifest`, `description` or `text`, lines) of the pieces of a text; a fence of Markdown stands between pieces."""
    kind, lines = "text", list[tuple[int, str]]()
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        following = _kind_after(kind, line)
        if following != kind and lines:
            yield _checked(kind, lines)
            lines = []
        kind = following
        if not _FENCE.fullmatch(line):
            lines.append((number, line))
    if lines:
        yield _checked(kind, lines)


def _kind_after(kind: str, line: str) -> str:
    if _FENCE.fullmatch(line):
        return "text"
    if _DESCRIBED.match(line):
        return "description"
    if kind != "manifest" and _MANIFEST.match(line) and not line.startswith((" ", "\t")):
        return "manifest"
    if kind == "manifest" and (not _YAML_LINE.match(line) or _NO_YAML_LINE.match(line)):
        return "text"
    if kind == "description" and _LOGGED.match(line):
        return "text"
    return kind


def _checked(kind: str, lines: list[tuple[int, str]]) -> tuple[str, list[tuple[int, str]]]:
    is_real = kind != "manifest" or _IS_YAML.search("\n".join(line for _, line in lines)) is not None
    return (kind if is_real else "text"), lines

"""Observed starts as text that is kept, exported and committed: a header, then one JSON object per line.

The controller keeps it in a ConfigMap, `kvgate calibrate` writes the same into a file, and every door reads it. In a cluster a start
teaches only where its image is trusted.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, fields

from kvgate.budget import Calibration, GpuAtStart, Interval, ObservedStart, Origin, StartKey
from kvgate.budget.observed.machine import CIRCUMSTANCES

FORMAT_VERSION = 4
"""It states the node of a start, and the figures that physics allows."""
_READ_VERSIONS = (3, FORMAT_VERSION)
"""Version 3 stated neither: the starts of all its pods are those of one node, so they are one witness."""
HEADER = {"format": "kvgate-calibration", "version": FORMAT_VERSION}
MAX_STARTS = 600
"""Starts of one text. A ConfigMap holds 1 MiB; a start takes about 900 bytes, and 2100 with the longest names."""
MAX_PROBLEMS = 20
"""Broken lines after which reading stops: the text is something else."""
MAX_LINE_BYTES = 4096
MAX_TEXT_BYTES = (MAX_STARTS + 1) * MAX_LINE_BYTES
"""Size of a file of starts, with its header."""
MAX_FIGURE = 1 << 50
"""A PiB, in bytes; a figure beyond the range of float could not even be formatted."""
MAX_REVISION = 1 << 53
"""Integers up to this one are the same in every reader of JSON."""
MAX_NAME = 253
"""Characters of a namespace, an object or a pod: no name of Kubernetes is longer."""
MAX_IMAGE = 400
"""Characters of a repository (255 at most) and its digest."""
MAX_LABEL = 63
"""Characters of a node's label."""
MAX_SOURCE = 200
MAX_FROZEN = 32
"""Entries of a header's `frozen`."""
EVERYTHING = "*"
"""Entry of `frozen` by which nothing new is learnt at all; other entries are a namespace, or NAMESPACE/SETTING."""

_KEY_TYPES = {field.name: field.type for field in fields(StartKey)}
_FIGURES = (
    "requested_bytes",
    "available_kv_cache_bytes",
    "resolution_bytes",
    "swing_bytes",
    "scatter_bytes",
    "revision",
    "max_num_seqs",
)
_OF_A_POD = {"namespace": MAX_NAME, "owner": MAX_NAME, "pod": MAX_NAME, "image": MAX_IMAGE}
"""Keys of a start's origin, each with its longest value in characters."""
_TEXTS = {**_OF_A_POD, "node": MAX_NAME, "driver": MAX_LABEL, "product": MAX_LABEL}
_MARKS = ("is_pinned", "is_dropped", "is_expired")


class Records(Struct, frozen=True, kw_only=True):
    """The starts in a text, and the problems of lines that could not be read."""

    starts: tuple[ObservedStart, ...] = ()
    problems: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    """Namespaces and settings of which nothing new is learnt."""
    highest: int = 0
    """The highest revision that was ever given: a start may have been removed, and its number is not given again."""
    taken_over: str = ""
    """Digest of the text of an older release whose starts are among these."""

    @property
    def calibration(self) -> Calibration:
        return Calibration(starts=self.starts)


def read_records(text: str) -> Records:
    """Read every line that can be read; a line that cannot is reported as a problem and costs no other."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        return Records()
    header = _header_problem(lines[0][1])
    if header:
        return Records(problems=(f"line {lines[0][0]}: {header}",))
    header = json.loads(lines[0][1])
    starts, problems = [], []
    for number, line in lines[1:]:
        try:
            starts.append(_start(line, header["version"]))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
        if len(problems) == MAX_PROBLEMS:
            problems.append(f"line {number} is not the last of {len(lines)}: the lines after it were not read")
            break
    if len(starts) > MAX_STARTS:
        problems.append(f"{len(starts)} starts; the newest {MAX_STARTS} are used")
    kept = tuple(starts[-MAX_STARTS:])
    highest = max(header.get("revision", 0), *(start.revision for start in kept), 0)
    return Records(
        starts=kept,
        problems=tuple(problems),
        frozen=tuple(header.get("frozen", ())),
        highest=highest,
        taken_over=str(header.get("taken_over", ""))[:MAX_LABEL],
    )


def write_records(
    starts: Iterable[ObservedStart], *, frozen: Iterable[str] = (), highest: int = 0, taken_over: str = ""
) -> str:
    """Return the starts as text; reading it back gives the same starts."""
    about = {"revision": highest, "frozen": sorted(frozen), "taken_over": taken_over}
    lines = [json.dumps({**HEADER, **{name: value for name, value in about.items() if value}})]
    for start in starts:
        bounds = start.predicted
        written = {
            **asdict(start.key),
            **{name: getattr(start, name) for name in _FIGURES},
            "predicted_bytes": [bounds.low, bounds.expected, bounds.high],
            "possible_bytes": start.possible_bytes,
            **({"compile_cache": start.compile_cache} if start.compile_cache else {}),
            **({"circumstances": dict(start.circumstances)} if start.circumstances else {}),
            **({} if start.residue_bytes is None else {"residue_bytes": start.residue_bytes}),
            **({} if start.gpu_at_start is GpuAtStart.UNKNOWN else {"gpu_at_start": start.gpu_at_start.value}),
            "source": start.source,
            "origin": start.origin.value,
            **{name: value for name in (*_TEXTS, *_MARKS) if (value := getattr(start, name))},
        }
        lines.append(json.dumps(written))
    return "\n".join(lines) + "\n"


def _header_problem(line: str) -> str:
    try:
        header = json.loads(line[:MAX_LINE_BYTES])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != HEADER["format"]:
        return f"this is not a calibration file: the first line must be {json.dumps(HEADER)}"
    if header.get("version") not in _READ_VERSIONS:
        return f"version is {header.get('version')!r}; this release reads versions 3 and {FORMAT_VERSION}"
    revision, frozen = header.get("revision", 0), header.get("frozen", [])
    if type(revision) is not int or not 0 <= revision <= MAX_REVISION:
        return f"revision must be a number from 0 to {MAX_REVISION}"
    if not isinstance(frozen, list) or len(frozen) > MAX_FROZEN or not all(isinstance(name, str) for name in frozen):
        return f"frozen must be a list of at most {MAX_FROZEN} names"
    return ""


def _start(line: str, version: int) -> ObservedStart:
    """Read one line. Raises ValueError that names the first thing that is wrong."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the line has {len(line)} characters; a start has at most {MAX_LINE_BYTES}")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - one kind of error for all that a line can have wrong
    low, expected, high = _bounds(found, "predicted_bytes", "low", "expected", "high")
    occupied = found.get("gpu_at_start", GpuAtStart.UNKNOWN.value)
    if occupied not in tuple(GpuAtStart):
        raise ValueError(f"gpu_at_start is {occupied!r}; it must be one of {', '.join(GpuAtStart)}")
    key = StartKey(**{name: _typed(found, name, kind) for name, kind in _KEY_TYPES.items()})
    figures: dict[str, Any] = {name: _figure(found, name) for name in _FIGURES}
    least, most = (-MAX_FIGURE, figures["requested_bytes"])
    if version != 3:
        least, most = _bounds(found, "possible_bytes", "least", "most")
    kind = found.get("compile_cache", "")
    if kind not in ("", "warm", "cold"):
        raise ValueError(f"compile_cache is {kind!r}; it must be warm or cold, or be left out")
    circumstances, residue_bytes = _explanation(found)
    return ObservedStart(
        key=key,
        predicted=Interval(low=low, expected=expected, high=high),
        possible_bytes=(least, most),
        compile_cache=str(kind),
        circumstances=circumstances,
        residue_bytes=residue_bytes,
        gpu_at_start=GpuAtStart(occupied),
        **{name: _typed(found, name, bool) for name in _MARKS if name in found},
        source=str(found.get("source", ""))[:MAX_SOURCE],
        **figures,
        **_provenance(found),
    )


def _explanation(found: Mapping[str, Any]) -> tuple[tuple[tuple[str, str], ...], int | None]:
    """Read the circumstances that explain a figure, and what they leave; records of older releases have neither."""
    told = found.get("circumstances", {})
    if not isinstance(told, dict) or not all(value in CIRCUMSTANCES.get(name, ()) for name, value in told.items()):
        raise ValueError(f"circumstances is {told!r}; it may have {', '.join(CIRCUMSTANCES)}")
    residue = found.get("residue_bytes")
    if residue is not None and (type(residue) is not int or abs(residue) > MAX_FIGURE):
        raise ValueError(f"residue_bytes is {residue!r}; it must be bytes within {MAX_FIGURE}")
    return tuple(sorted(told.items())), residue


def _bounds(found: Mapping[str, Any], name: str, *names: str) -> list[int]:
    """Read figures in bytes that must not fall."""
    bounds = found.get(name)
    if not (isinstance(bounds, list) and len(bounds) == len(names) and all(type(bound) is int for bound in bounds)):
        raise ValueError(f"{name} is {bounds!r}; it must be [{', '.join(names)}] in bytes")
    if max(map(abs, bounds)) > MAX_FIGURE:
        raise ValueError(f"{name} holds a figure beyond {MAX_FIGURE}")
    if bounds != sorted(bounds):
        raise ValueError(f"{name} is {bounds}; {', '.join(names[:-1])} and {names[-1]} must not fall")
    return bounds


def _provenance(found: Mapping[str, Any]) -> dict[str, Any]:
    """Read the origin of a start; a pod's must state its namespace, owner and image."""
    if found.get("origin") not in tuple(Origin):
        raise ValueError(f"origin is {found.get('origin')!r}; it must be one of {', '.join(Origin)}")
    texts = {name: _typed(found, name, str) for name in _TEXTS if name in found}
    for name, value in texts.items():
        if len(value) > _TEXTS[name]:
            raise ValueError(f"{name} has {len(value)} characters; it may have {_TEXTS[name]}")
    missing = [name for name in _OF_A_POD if not texts.get(name)]
    if found["origin"] == Origin.POD and missing:
        raise ValueError(f"{' and '.join(missing)} must be given where origin is {Origin.POD.value}")
    return {"origin": Origin(found["origin"]), **texts}


def _figure(found: Mapping[str, Any], name: str) -> int:
    """Return a figure in bytes; only the memory left for the KV cache may be below 0, where it was overdrawn."""
    value: int = _typed(found, name, int)
    least = -MAX_FIGURE if name == "available_kv_cache_bytes" else 0
    most = MAX_REVISION if name == "revision" else MAX_FIGURE
    if not least <= value <= most:
        raise ValueError(f"{name} is not within {least} and {most}")
    return value


def _typed(found: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = found.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r}; it must be of type {kind.__name__}")
    return value

"""Observed starts as text that is kept, exported and committed: a header, then one JSON object per line.

The controller keeps it in a ConfigMap, `kvgate calibrate` writes the same into a file, and every door reads it. In a cluster a start
teaches only where its image is trusted.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, fields, replace

from kvgate.budget import (
    MIN_WITNESSES,
    Budget,
    Calibration,
    CalibrationScope,
    Interval,
    ObservedStart,
    Origin,
    StartKey,
    StartState,
    observed_start,
)
from kvgate.budget.units import format_gib, gib
from kvgate.text.patterns import pattern

FORMAT_VERSION = 2
OLD_FORMAT_VERSION = 1
"""It stated no origin: its starts are read with an unknown one."""
HEADER = {"format": "kvgate-calibration", "version": FORMAT_VERSION}
MAX_STARTS = 600
"""A ConfigMap holds 1 MiB; a start takes about 900 bytes, and 1500 with the longest names. The oldest start of the namespace with the
most starts is dropped first."""
MAX_STARTS_OF_A_SETTING = 8
MAX_PROBLEMS = 20
"""Broken lines after which reading stops: the text is something else."""
MAX_LINE_BYTES = 4096
MAX_TEXT_BYTES = (MAX_STARTS + 1) * MAX_LINE_BYTES
"""Size of a file of starts, with its header."""
MAX_FIGURE = 1 << 50
"""A PiB, in bytes; a figure beyond the range of float could not even be formatted."""
LOG_ROUNDING_BYTES = gib(0.005)
"""Logs print GiB with two decimals."""
MAX_NAME = 253
"""Characters of a namespace, an object or a pod: no name of Kubernetes is longer."""
MAX_IMAGE = 400
"""Characters of a repository (255 at most) and its digest."""
MAX_SOURCE = 200
_HUB = "docker.io"
_PATTERN = pattern(r"[a-z0-9._/:*?\[\]-]+")
"""Characters of a repository, and wildcards."""

_KEY_TYPES = {field.name: field.type for field in fields(StartKey)}
_FIGURES = (
    "requested_bytes",
    "available_kv_cache_bytes",
    "resolution_bytes",
    "swing_bytes",
    "scatter_bytes",
    "revision",
)
_TEXTS = {"namespace": MAX_NAME, "owner": MAX_NAME, "pod": MAX_NAME, "image": MAX_IMAGE}
"""Keys of a start's origin, each with its longest value in characters."""


class Records(Struct, frozen=True, kw_only=True):
    """The starts in a text, and the problems of lines that could not be read."""

    starts: tuple[ObservedStart, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def calibration(self) -> Calibration:
        return Calibration(starts=self.starts)


def image_repository(image: str) -> str:
    """Return the repository of an image, with its registry as a container runtime writes it: `docker.io/vllm/vllm-openai`."""
    name = image.rpartition("://")[2].partition("@")[0]
    folder, slash, last = name.rpartition("/")
    name = f"{folder}{slash}{last.partition(':')[0]}"
    registry, slash, _ = name.partition("/")
    if not slash:
        return f"{_HUB}/library/{name}"
    if "." in registry or ":" in registry or registry == "localhost":
        return name.replace(f"index.{_HUB}/", f"{_HUB}/", 1) if registry == f"index.{_HUB}" else name
    return f"{_HUB}/{name}"


class Trust(Struct, frozen=True, kw_only=True):
    """The rule which starts in a cluster may correct verdicts."""

    images: tuple[str, ...]
    """Repositories without tag, `*` for any part; as `image_repository` writes them."""
    scope: CalibrationScope = CalibrationScope.NAMESPACE

    @classmethod
    def of(cls, patterns: Iterable[str], scope: str) -> "Trust":
        """Read patterns; an empty one stands for no image. Raises ValueError that names the pattern and what is wrong with it."""
        images = []
        for given in filter(None, patterns):
            if "@" in given or ":" in given.rpartition("/")[2]:
                raise ValueError(
                    f"{given!r} names a tag or a digest; give the repository alone, such as vllm/vllm-openai"
                )
            if not _PATTERN.fullmatch(given):
                raise ValueError(
                    f"{given!r} is not a repository; give one such as vllm/vllm-openai or registry.example/team/*"
                )
            images.append(given if given.startswith("*") else image_repository(given))
        return cls(images=tuple(images), scope=CalibrationScope(scope))

    def distrust(self, declared: str, ran: str) -> str:
        """Return why a pod's start teaches nothing; empty where it may teach.

        Both the image in its spec and the one that the runtime reports must be trusted.
        """
        if not ran.rpartition("://")[2].partition("@")[1]:
            return f"the container runtime does not report which image ran (imageID {ran!r}): the start teaches nothing"
        for image in (declared, ran):
            if not self._allows(image):
                return f"image {image_repository(image)} is not among calibration.images: its starts teach nothing"
        return ""

    def calibration(self, starts: Iterable[ObservedStart]) -> Calibration:
        """Return the starts that verdicts may use; a start whose image is no longer trusted stays in the records unused."""
        return Calibration(starts=tuple(filter(self.teaches, starts)), scope=self.scope)

    def teaches(self, start: ObservedStart) -> bool:
        return start.origin is not Origin.POD or self._allows(start.image)

    def _allows(self, image: str) -> bool:
        repository = image_repository(image)
        return any(fnmatchcase(repository, pattern) for pattern in self.images)


def read_records(text: str) -> Records:
    """Read every line that can be read; a line that cannot is reported as a problem and costs no other."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        return Records()
    header = _header_problem(lines[0][1])
    if header:
        return Records(problems=(f"line {lines[0][0]}: {header}",))
    starts, problems, version = [], [], json.loads(lines[0][1])["version"]
    for number, line in lines[1:]:
        try:
            starts.append(_start(line, version))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
        if len(problems) == MAX_PROBLEMS:
            problems.append(f"line {number} is not the last of {len(lines)}: the lines after it were not read")
            break
    if len(starts) > MAX_STARTS:
        problems.append(f"{len(starts)} starts; the newest {MAX_STARTS} are used")
    return Records(starts=tuple(starts[-MAX_STARTS:]), problems=tuple(problems))


def write_records(starts: Iterable[ObservedStart]) -> str:
    """Return the starts as text; reading it back gives the same starts."""
    lines = [json.dumps(HEADER)]
    for start in starts:
        bounds = start.predicted
        written = {
            **asdict(start.key),
            **{name: getattr(start, name) for name in _FIGURES},
            "predicted_bytes": [bounds.low, bounds.expected, bounds.high],
            **({"compile_cache": start.compile_cache} if start.compile_cache else {}),
            "source": start.source,
            "origin": start.origin.value,
            **{name: getattr(start, name) for name in _TEXTS if getattr(start, name)},
        }
        lines.append(json.dumps(written))
    return "\n".join(lines) + "\n"


def with_start(
    starts: tuple[ObservedStart, ...], start: ObservedStart, *, revision: int = 0
) -> tuple[ObservedStart, ...]:
    """Return the starts with a new one, under this revision or the next; the same object where the new one adds nothing.

    The same figure of a second pod adds something: two pods are believed where one is not. Starts of one setting, and of pods of one
    namespace or of none, are compared. No namespace can push another's starts out before it has more of them.
    """
    setting = (start.key, start.origin, start.namespace)
    alike = [known for known in starts if (known.key, known.origin, known.namespace) == setting]
    same = [known for known in alike if abs(known.overhead_bytes - start.overhead_bytes) <= start.resolution_bytes]
    if any(known.pod == start.pod for known in same) or len({known.pod for known in same}) >= MIN_WITNESSES:
        return starts
    is_full = len(alike) >= MAX_STARTS_OF_A_SETTING
    is_witnessed = start.origin is Origin.STATED or len({known.pod for known in alike}) >= MIN_WITNESSES
    if is_full and is_witnessed and Calibration(starts=(*alike, start)).state(start) is not StartState.CONTRADICTORY:
        return starts  # it would only push out a start that a verdict depends on
    dropped = alike[0] if is_full else None
    if len(starts) >= MAX_STARTS and not is_full:  # the oldest of the namespace that has the most starts
        counts = Counter(known.namespace for known in starts)
        dropped = max(starts, key=lambda known: (counts[known.namespace], -known.revision))
    kept = tuple(known for known in starts if known is not dropped)
    newest = max((known.revision for known in starts), default=0)
    return (*kept, replace(start, revision=max(revision, newest + 1)))


def start_of_blocks(
    budget: Budget, num_gpu_blocks: int, *, block_size: int | None = None, source: str
) -> ObservedStart | None:
    """Make a start of an engine's blocks on its tightest rank; None where the memory was given or pinned, or has no formula."""
    stage = budget.tightest
    if stage is None or not stage.bytes_per_block:
        return None
    # attention backends choose the block: the engine's may have another size than the expected one
    size, groups = stage.bytes_per_block, budget.kv_cache.groups if budget.kv_cache else ()
    if block_size and len(groups) == 1 and groups[0].spec.block_size:
        size = size * block_size // groups[0].spec.block_size
    return start_of_bytes(budget, num_gpu_blocks * size + size // 2, resolution_bytes=size // 2, source=source)


def start_of_bytes(
    budget: Budget, available_kv_cache_bytes: int, *, source: str, resolution_bytes: int = LOG_ROUNDING_BYTES,
    compile_cache: str = "",
) -> ObservedStart | None:  # fmt: skip
    """Make a start of a figure in bytes, as a start-up log has it, and of the kind that the log shows."""
    stage = budget.tightest
    if stage is None or stage.ledger is None or budget.request.settings.gives_cache_memory or budget.pin:
        return None
    return observed_start(
        budget.request, budget.resolved, budget.accounting, (stage.first, stage.last),
        available_kv_cache_bytes=available_kv_cache_bytes, resolution_bytes=resolution_bytes, source=source,
        compile_cache=compile_cache,
    )  # fmt: skip


def unused_text(calibration: Calibration, start: ObservedStart) -> str | None:
    """Return the reason, for people, why a start corrects nothing; None where it corrects something."""
    state, key = calibration.state(start), start.key
    if state is StartState.USED:
        return None
    what = f"{start.source or 'a start'} of {key.architecture} on {key.accelerator}, vLLM {key.vllm_version}"
    seen = f"{format_gib(start.available_kv_cache_bytes)} of KV cache"
    if state is StartState.IMPLAUSIBLE:
        expected = format_gib(start.predicted.expected)
        return f"{what} reported {seen} where {expected} was expected: it is not used; is it another setting, or a shared GPU?"
    consequence = "none is used" if calibration.scope is None else "it makes verdicts less certain and moves none"
    return f"{what} reported {seen}, other starts of the same setting reported something else: {consequence}; remove those that are wrong"


def unused_texts(calibration: Calibration) -> Iterator[str]:
    """Yield the reasons of all starts that correct nothing."""
    return filter(None, (unused_text(calibration, start) for start in calibration.starts))


def _header_problem(line: str) -> str:
    try:
        header = json.loads(line[:MAX_LINE_BYTES])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != HEADER["format"]:
        return f"this is not a calibration file: the first line must be {json.dumps(HEADER)}"
    if header.get("version") not in (OLD_FORMAT_VERSION, FORMAT_VERSION):
        return f"version is {header.get('version')!r}; this release reads versions {OLD_FORMAT_VERSION} and {FORMAT_VERSION}"
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
    bounds = found.get("predicted_bytes")
    if not (isinstance(bounds, list) and len(bounds) == 3 and all(type(bound) is int for bound in bounds)):
        raise ValueError(f"predicted_bytes is {bounds!r}; it must be [low, expected, high] in bytes")
    if max(map(abs, bounds)) > MAX_FIGURE:
        raise ValueError(f"predicted_bytes holds a figure beyond {MAX_FIGURE}")
    if bounds != sorted(bounds):
        raise ValueError(f"predicted_bytes is {bounds}; low, expected and high must not fall")
    low, expected, high = bounds
    key = StartKey(**{name: _typed(found, name, kind) for name, kind in _KEY_TYPES.items()})
    figures: dict[str, Any] = {name: _figure(found, name) for name in _FIGURES}
    kind = found.get("compile_cache", "")
    if kind not in ("", "warm", "cold"):
        raise ValueError(f"compile_cache is {kind!r}; it must be warm or cold, or be left out")
    return ObservedStart(
        key=key,
        predicted=Interval(low=low, expected=expected, high=high),
        compile_cache=str(kind),
        source=str(found.get("source", ""))[:MAX_SOURCE],
        **figures,
        **_provenance(found, version),
    )


def _provenance(found: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Read the origin of a start; a pod's must state its namespace and its image."""
    if version == OLD_FORMAT_VERSION:
        return {"origin": Origin.UNKNOWN}
    if found.get("origin") not in tuple(Origin):
        raise ValueError(f"origin is {found.get('origin')!r}; it must be one of {', '.join(Origin)}")
    texts = {name: _typed(found, name, str) for name in _TEXTS if name in found}
    for name, value in texts.items():
        if len(value) > _TEXTS[name]:
            raise ValueError(f"{name} has {len(value)} characters; it may have {_TEXTS[name]}")
    missing = [name for name in _TEXTS if not texts.get(name)]
    if found["origin"] == Origin.POD and missing:
        raise ValueError(f"{' and '.join(missing)} must be given where origin is {Origin.POD.value}")
    return {"origin": Origin(found["origin"]), **texts}


def _figure(found: Mapping[str, Any], name: str) -> int:
    """Return a figure in bytes; only the memory left for the KV cache may be below 0, where it was overdrawn."""
    value: int = _typed(found, name, int)
    least = -MAX_FIGURE if name == "available_kv_cache_bytes" else 0
    if not least <= value <= MAX_FIGURE:
        raise ValueError(f"{name} is not within {least} and {MAX_FIGURE}")
    return value


def _typed(found: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = found.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r}; it must be of type {kind.__name__}")
    return value

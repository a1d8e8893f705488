"""The kinds of cases by name: from a seed to what is wrong with it, exceptions included."""

import re
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fuzz import configs, documents, expositions, reviews

MAX_CPU_SECONDS = 10.0
"""Of one case; the slowest of a quarter of a million takes a tenth of it."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One thing that is fuzzed."""

    check: Callable[[int, Path], list[str]]
    written: Callable[[int], bytes]
    """The input of a seed, to be kept."""
    weight: int = 1
    """Documents in one case."""


KINDS = {
    "documents": Kind(check=documents.check_seed, written=documents.stream_of, weight=documents.DOCUMENTS_PER_STREAM),
    "reviews": Kind(check=reviews.check_seed, written=reviews.written),
    "configs": Kind(check=lambda seed, _: configs.check_seed(seed), written=configs.written),
    "expositions": Kind(check=lambda seed, _: expositions.check_seed(seed), written=expositions.written),
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A case that broke a promise."""

    kind: str
    seed: int
    problems: tuple[str, ...]
    trace: str = ""

    @property
    def signature(self) -> str:
        """The same for cases that break it alike."""
        return f"{self.kind}: " + "; ".join(re.sub(r"\d+", "N", problem)[:100] for problem in self.problems[:1])

    def text(self) -> str:
        return "\n".join(
            [f"{self.kind}:{self.seed} {problem}" for problem in self.problems] + ([self.trace] if self.trace else [])
        )


@lru_cache(maxsize=1)
def _folder() -> Path:
    """One file in it is written again and again."""
    return Path(tempfile.mkdtemp(prefix="kvgate-fuzz-"))


def failure_of(kind: str, seed: int) -> Failure | None:
    """None where every promise holds."""
    return judged(kind, seed, lambda folder: KINDS[kind].check(seed, folder))


def judged(kind: str, seed: int, check: Callable[[Path], list[str]]) -> Failure | None:
    started = time.process_time()
    try:
        problems = check(_folder())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "kvgate" in frame.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        told = f"raises {type(error).__name__} in {where}: {str(error)[:200]}"
        return Failure(kind=kind, seed=seed, problems=(told,), trace=traceback.format_exc())
    if (seconds := time.process_time() - started) > MAX_CPU_SECONDS:
        problems = [*problems, f"takes {seconds:.1f} s"]
    return Failure(kind=kind, seed=seed, problems=tuple(problems)) if problems else None

"""Reviews in worker processes: the event loop never judges, and one namespace's reviews do not hold up another's."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from kvgate.api.allowed import NOTHING_ALLOWED, AllowedPods
from kvgate.budget import Calibration
from kvgate.calibration.keeping import SHARDS, Store
from kvgate.calibration.trust import Trust
from kvgate.checkpoint.published import PublishedModels
from kvgate.checkpoint.stored import MAX_ENTRY_BYTES, SUFFIX, StoredModels
from kvgate.rendering.workload import VLLM_ALONE
from kvgate.runtime.pool import Pool
from kvgate.runtime.worker import Limits, WorkerLost
from kvgate.webhook.review import Answer, Known, Mistake, answers

WORKERS = 2
LIMITS = Limits(workers=WORKERS, budget_seconds=2.0, wall_seconds=4.5, max_waiting=64, memory_bytes=128 << 20)
"""The slowest InferenceDeployment of the catalogue takes a twentieth of a second; so does the largest body that can be sent. The wall
time, which includes the wait for a worker, is less than the 5 s that an API server waits."""
WAIT_SECONDS = 2.5
"""Longest wait for a worker."""

_NAMESPACE = re.compile(rb'"namespace"\s*:\s*"([-a-z0-9]{1,63})"')
_HEAD_BYTES = 4096
"""Bytes that are searched for the namespace. An API server writes it before the object, after a few hundred bytes."""

_MAX_FILES = 1000
"""Files of fetched models that are read; the controller stores less than half as many."""

OLD_FILE, SHARD_SUFFIX = "starts", ".jsonl"
"""Names in the folder: starts.jsonl of the ConfigMap of older releases, and 0.jsonl to 15.jsonl."""

_log = logging.getLogger(__name__)


def namespace_in(text: bytes) -> str:
    """Return the namespace whose turn a review takes. It is searched without parsing, because it decides the order only.

    In a string JSON escapes the quotation mark, so only a key can look like this.
    """
    found = _NAMESPACE.search(text, 0, _HEAD_BYTES)
    return found[1].decode() if found else ""


async def review_in_worker(pool: Pool, newest: Callable[[], Known], text: bytes) -> Answer | Mistake:
    """Answer a body with the newest facts, which are the same object until one of them changes. Raises NoAnswer."""
    known = newest()
    pool.share(known)
    task = (namespace_in(text), answers, text, known, datetime.now(UTC))
    try:
        return (await pool.run(*task, wait_seconds=WAIT_SECONDS)).value
    except WorkerLost:  # a node without memory may end a worker because of another review: try once more
        return (await pool.run(*task, wait_seconds=WAIT_SECONDS)).value


class StartsFile:
    """The observed starts of a mounted file, or of a folder with the files of all shards. They may be missing."""

    def __init__(self, path: Path | None, trust: Trust = VLLM_ALONE) -> None:
        self._path = path
        self._trust = trust
        self._texts: dict[str, str] = {}
        self._store = Store()
        self.calibration: Calibration = trust.calibration(())
        self.reload()

    def reload(self) -> None:
        """Read the files again if they changed, and log the lines that cannot be read."""
        changed = False
        for number, path in self._places():
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                text = ""
            if text == self._texts.get(path.name, ""):
                continue
            self._texts[path.name], changed = text, True
            self._store = self._store.with_text(number, text)
            for place, problem in self._store.problems:
                if place == number:
                    _log.warning("calibration: %s: %s", path, problem)
        if changed:
            starts = self._store.starts
            self.calibration = self._trust.calibration(starts)
            _log.info("observed starts read", extra={"fields": {"starts": len(starts)}})

    def _places(self) -> Iterator[tuple[int | None, Path]]:
        """Yield the number of each shard with its file, and None with the file of older releases."""
        if self._path is not None and self._path.is_dir():
            yield None, self._path / f"{OLD_FILE}{SHARD_SUFFIX}"
            yield from ((number, self._path / f"{number}{SHARD_SUFFIX}") for number in range(SHARDS))
        elif self._path is not None:
            yield None, self._path


class ModelsFolder:
    """The fetched models of a mounted ConfigMap, one file each. The folder may be missing or empty: then none is known."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int]] = {}
        """Time and size of each file that was read."""
        self.models = StoredModels({})
        self.reload()

    def reload(self) -> None:
        """Read the files again if one of them changed. They are unpacked when they are needed."""
        if self._folder is None:
            return
        try:
            names = [path.name for path in self._folder.iterdir() if path.name.endswith(SUFFIX)]
        except OSError:
            names = []
        seen, entries = dict[str, tuple[int, int]](), dict[str, bytes]()
        for name in sorted(names)[:_MAX_FILES]:
            with contextlib.suppress(OSError):  # the kubelet replaces the folder meanwhile
                found = (self._folder / name).stat()
                if found.st_size > MAX_ENTRY_BYTES:
                    continue
                time_and_size = found.st_mtime_ns, found.st_size
                is_known = self._seen.get(name) == time_and_size
                entries[name] = self.models.entries[name] if is_known else (self._folder / name).read_bytes()
                seen[name] = time_and_size
        if seen != self._seen:
            self._seen, self.models = seen, StoredModels(entries)
            _log.info("fetched models read", extra={"fields": {"models": len(entries)}})


class MountedFacts:
    """All that the webhook reads from its mounted files."""

    def __init__(
        self, starts: StartsFile, folder: ModelsFolder, *, asks_hub: bool, audits: bool = False,
        allowed: AllowedPods = NOTHING_ALLOWED, max_skip_days: int = 0,
    ) -> None:  # fmt: skip
        self._allowed = allowed
        self._starts = starts
        self._folder = folder
        self._asks_hub = asks_hub
        self._audits = audits
        self._max_skip_days = max_skip_days
        self._known: tuple[object, object, Known] | None = None

    def __call__(self) -> Known:
        """Return the newest facts: the same object until one of the files changes."""
        calibration, models = self._starts.calibration, self._folder.models
        if self._known is None or self._known[0] is not calibration or self._known[1] is not models:
            published = PublishedModels(fetched=models)
            known = Known(
                calibration=calibration,
                models=published,
                asks_hub=self._asks_hub,
                audits=self._audits,
                allowed=self._allowed,
                max_skip_days=self._max_skip_days,
            )
            self._known = calibration, models, known
        return self._known[2]

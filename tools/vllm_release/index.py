"""A release's source distribution from the package index, fetched and unpacked without running any of it.

`pip download` runs a source distribution's build to learn its metadata. Only pip knows which index, mirror, proxy, certificates and
credentials it is configured with, so pip's own finder and session are used here, and nothing of pip's that builds. They are no public
interface of pip: `tests/unit/vllm_release/test_index.py` holds them against the pip that is installed.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = "vllm"
MAX_ARCHIVE_BYTES = 512 * 2**20
"""The source distributions of 2026 have about 40 MB; what is far larger is something else."""
_CHUNK_BYTES = 2**20


class NoSource(Exception):
    """The index has no source distribution that can be used; the message says why."""


@dataclass(frozen=True, kw_only=True)
class SourceArchive:
    """A source distribution on this machine, whose hash is the index's own."""

    version: str
    path: Path
    sha256: str


def available_versions() -> tuple[str, ...]:
    """Final releases that have a source distribution, oldest first."""
    versions = {candidate.version for candidate in _with_finder(_source_candidates)}
    return tuple(str(version) for version in sorted(versions) if not version.is_prerelease)


def fetch(version: str, cache: Path) -> SourceArchive:
    """Download the release, or find it in the cache, which is keyed by content. Raises NoSource."""
    return _with_finder(lambda finder, session: _fetched(version, cache, finder, session))


def default_cache() -> Path:
    """The user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvgate" / "vllm-sources"


def _with_finder(work: Any) -> Any:
    """Run work(finder, session) with pip's configuration: files, environment, default."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that pip brings along
        from pip._internal.commands.index import IndexCommand

        command = IndexCommand("index", "")
        options, _ = command.parse_args(["--no-binary=:all:", "--ignore-requires-python"])
        with command.main_context(), command._build_session(options) as session:
            return work(command._build_package_finder(options, session, ignore_requires_python=True), session)


def _source_candidates(finder: Any, _session: Any) -> list[Any]:
    return [candidate for candidate in finder.find_all_candidates(PROJECT) if not candidate.link.is_wheel]


def _fetched(version: str, cache: Path, finder: Any, session: Any) -> SourceArchive:
    candidates = _source_candidates(finder, session)
    links = [candidate.link for candidate in candidates if str(candidate.version) == version]
    links = [link for link in links if link.filename.endswith(".tar.gz")]
    if not links:
        known = ", ".join(str(each) for each in sorted({candidate.version for candidate in candidates})[-3:])
        raise NoSource(
            f"the index has no source distribution of vLLM {version}; its newest are {known or 'none at all'}"
        )
    link = links[0]
    if link.hash_name != "sha256":
        raise NoSource(f"the index states no sha256 of {link.filename}; use an index that does")
    path = cache / f"{link.hash}.tar.gz"
    if not path.exists():
        _download(link, path, session)
    return SourceArchive(version=version, path=path, sha256=link.hash)


def _download(link: Any, path: Path, session: Any) -> None:
    """To a file of another name first, so that what has its name has its content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    digest, size = hashlib.sha256(), 0
    try:
        with session.get(link.url_without_fragment, stream=True) as response, partial.open("wb") as file:
            response.raise_for_status()
            for chunk in response.iter_content(_CHUNK_BYTES):
                size += len(chunk)
                if size > MAX_ARCHIVE_BYTES:
                    raise NoSource(
                        f"{link.filename} is larger than {MAX_ARCHIVE_BYTES} bytes; look at what the index serves"
                    )
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != link.hash:
            raise NoSource(
                f"{link.filename} has sha256 {digest.hexdigest()}, and the index says {link.hash}; fetch it again"
            )
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)

"""A folder of files: one that somebody names, or a commit in huggingface_hub's cache."""

from pathlib import Path

from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published
from kvgate.documents.bounded_files import open_file
from kvgate.fetching.bounded_http import broken, too_large
from kvgate.fetching.checkpoint_names import MAIN, CheckpointName
from kvgate.fetching.limits import LIMITS, CouldNotFetch
from kvgate.fetching.reading import CheckpointFiles, Part, published
from kvgate.text.inert import inert

_SNAPSHOTS = "snapshots"
"""Folder of the commits in the cache; their files are links to `blobs` beside it."""


class FolderFiles(CheckpointFiles):
    """The files that lie directly in a folder; links may not lead out of it, nor out of the repository in the cache."""

    def __init__(self, folder: Path, *, source: str, commit: str = "", is_partial: bool = False) -> None:
        self.source, self.commit, self.is_partial = source, commit, is_partial
        self._folder = folder
        self._inside = folder.parent.parent if folder.parent.name == _SNAPSHOTS else folder
        try:
            self.names = frozenset(each.name for each in folder.iterdir() if each.is_file())
        except OSError as error:
            raise CouldNotFetch(
                Reason.NOT_FOUND,
                f"{source} cannot be read: {error.strerror or error}",
                "name a folder with a config.json",
            ) from None

    def read(self, name: str, *, max_bytes: int) -> bytes:
        part = self.read_part(name, start=0, length=max_bytes + 1)
        if len(part.data) > max_bytes:
            raise too_large(part.file_bytes or len(part.data), max_bytes)
        return part.data

    def read_part(self, name: str, *, start: int, length: int) -> Part:
        try:
            with open_file(self._folder / name, self._inside) as file:
                size = file.seek(0, 2)
                file.seek(start)
                return Part(file.read(length), size)
        except OSError as error:
            raise broken(f"{inert(name)} cannot be read: {error.strerror or error}") from None


def read_folder(folder: Path, *, name: str, gguf_file: str = "") -> Published | NotFetched:
    """Return the facts of the files in a folder, or of a GGUF file there, under a name, such as the path that a manifest has.

    Nothing is requested.
    """
    shown = inert(str(folder))
    try:
        files = FolderFiles(folder, source=f"folder {shown}")
        wanted = CheckpointName(name=name, repository=shown, revision=MAIN, gguf_file=gguf_file)
        return published(files, wanted, num_parallel=LIMITS.num_parallel)
    except CouldNotFetch as error:
        return NotFetched(name=name, reason=error.reason, message=f"{shown}: {error.message}", remedies=error.remedies)


def cached(cache: Path | None, wanted: CheckpointName, host: str) -> FolderFiles | None:
    """Return the commit of a repository in huggingface_hub's cache; None where it is not there."""
    if cache is None:
        return None
    folder = cache / f"models--{wanted.repository.replace('/', '--')}"
    reference = folder / "refs" / wanted.revision
    try:
        commit = reference.read_text(encoding="utf-8").strip()[:64] if reference.is_file() else wanted.revision
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = folder / _SNAPSHOTS / commit
    if not commit.isalnum() or not snapshot.is_dir():
        return None
    return FolderFiles(snapshot, source=f"{host}, from the cache", commit=commit, is_partial=True)

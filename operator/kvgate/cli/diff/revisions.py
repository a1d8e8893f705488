"""Manifests of a revision, read from Git's objects into a folder: nothing is checked out, and Git runs no program for it."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from shutil import which

from msgspec import Struct

from kvgate.cli.exits import BadInput
from kvgate.documents.discovery import SUFFIXES

MAX_FILES = 200_000
MAX_BYTES = 1 << 30
"""Sizes of one revision, as far as its files are of interest."""
_SECONDS = 120
_READ_SUFFIXES = (*SUFFIXES, ".tpl", ".env")
"""Endings of files that `kvgate check` may read in a folder, or that a manifest may name."""
_READ_NAMES = frozenset({"pyvenv.cfg"})
_OPTIONS = (
    "--no-pager",
    "--no-replace-objects",
    "--literal-pathspecs",
    "-c",
    "protocol.allow=never",
    "-c",
    "core.fsmonitor=false",
)
"""Nothing is fetched for a partial clone (Git before 2.45 does not know GIT_NO_LAZY_FETCH), and no monitor of files is asked."""
_ENVIRONMENT = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class Compared(Struct, frozen=True, kw_only=True):
    """The two sides of a comparison; None: the files on disk."""

    old: str
    new: str | None


class Repository(Struct, frozen=True, kw_only=True):
    """The repository that a folder lies in."""

    top: Path
    folder: Path
    """The folder itself, which paths of the command line are relative to."""

    def resolved(self, text: str) -> Compared:
        """Read `A...B` (from the merge base), `A..B` or `A`; an empty side is HEAD. Raises BadInput."""
        for separator in ("...", ".."):
            old, found, new = text.partition(separator)
            if found:
                first, second = self._commit(old or "HEAD"), self._commit(new or "HEAD")
                if found == "...":
                    advice = "fetch more of the history (git fetch --unshallow), or compare with two dots"
                    without = f"{text}: the two have no commit in common; {advice}"
                    first = self._hash(without, "merge-base", first, second)
                return Compared(old=first, new=second)
        return Compared(old=self._commit(text), new=None)

    def _commit(self, name: str) -> str:
        without = f"{name} is neither a file nor a revision of {self.top}; a shallow clone may lack it: git fetch origin {name}"
        return self._hash(without, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")

    def _hash(self, without: str, *command: str) -> str:
        """Return the hash of the commit that git prints. Raises BadInput with the text for the case that there is none."""
        done = _git(self.top, *command)
        if done.returncode:
            raise BadInput(without)
        return done.stdout.decode().strip()

    def below_top(self, path: str) -> str:
        """Return a path of the command line as it is below the top. Raises BadInput."""
        absolute = Path(os.path.normpath(self.folder / path))
        if not absolute.is_relative_to(self.top):
            raise BadInput(f"{path} is outside of the repository {self.top}")
        return absolute.relative_to(self.top).as_posix()

    def write(self, commit: str, paths: Sequence[str], folder: Path) -> None:
        """Write the files of a commit that may be read into a folder. Raises BadInput."""
        listed = list(self._blobs(commit, paths))
        if len(listed) > MAX_FILES or sum(size for _, size, _ in listed) > MAX_BYTES:
            raise BadInput(
                f"{commit[:12]} has more than {MAX_FILES} manifests or {MAX_BYTES >> 20} MiB of them; name the folders to compare"
            )
        with _started(self.top, "cat-file", "--batch") as process:
            if process.stdin is None or process.stdout is None:
                raise BadInput("git has no pipes")
            for blob, size, name in listed:
                process.stdin.write(f"{blob}\n".encode())
                process.stdin.flush()
                head = process.stdout.readline().split()
                if len(head) != 3 or head[1] != b"blob" or int(head[2]) != size:
                    raise BadInput(f"{name} of {commit[:12]} cannot be read; a partial clone may lack it: git fetch")
                data = process.stdout.read(size + 1)[:-1]
                target = folder.joinpath(*PurePosixPath(name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            process.stdin.close()

    def _blobs(self, commit: str, paths: Sequence[str]) -> Iterator[tuple[str, int, str]]:
        """Yield (object, bytes, path) of every plain file that may be read, with the settings in the folders above the paths."""
        named = [path for path in paths if path != "."]
        done = _git(self.top, "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
        if done.returncode:
            raise BadInput(f"{commit[:12]} cannot be read: {_words(done.stderr)}")
        for entry in done.stdout.split(b"\0"):
            head, tab, raw = entry.partition(b"\t")
            mode, kind, blob, size = (head.split() if tab else [b""] * 4)[:4]
            name = os.fsdecode(raw)
            path = PurePosixPath(name)
            is_plain = kind == b"blob" and mode in (b"100644", b"100755")  # no link, no submodule
            if not is_plain or path.is_absolute() or {"..", ".git"} & set(path.parts):
                continue
            is_below = not named or any(path.is_relative_to(each) for each in named)
            is_setting = path.name.startswith(".") and any(
                PurePosixPath(each).is_relative_to(path.parent) for each in named
            )
            has_suffix = path.name.lower().endswith(_READ_SUFFIXES) or path.name in _READ_NAMES
            if (is_below and (has_suffix or path.name.startswith(".") or name in named)) or is_setting:
                yield blob.decode(), int(size), name

    def renamed(self, old: str, new: str) -> dict[str, str]:
        """Return the old path → the new one of files that Git takes for renamed."""
        options = ("-r", "-M", "-z", "--name-status", "--diff-filter=R", "--no-ext-diff", "--no-textconv")
        done = _git(self.top, "diff-tree", *options, old, new)
        names = [os.fsdecode(each) for each in done.stdout.split(b"\0")] if not done.returncode else []
        return dict(zip(names[1::3], names[2::3], strict=False))


def repository_of_folder(folder: Path) -> Repository:
    """Return the repository that a folder lies in. Raises BadInput, with Git's own reason where it refuses."""
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode:
        raise BadInput(f"{folder} is in no repository that Git can read: {_words(done.stderr)}")
    return Repository(top=Path(os.fsdecode(done.stdout.rstrip(b"\n"))).resolve(), folder=folder.resolve())


def _program() -> str:
    found = which("git")
    if found is None or not os.path.isabs(found):  # noqa: PTH117 - a text
        raise BadInput("revisions need git, which is not on PATH; install it, or compare two folders")
    return found


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(  # noqa: S603 - Git by its full path, with options of ours
            [_program(), *_OPTIONS, *arguments],
            cwd=folder,
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"git {arguments[0]} failed: {error}") from None


def _started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - as above
        [_program(), *_OPTIONS, *arguments],
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _words(told: bytes) -> str:
    return " ".join(told.decode(errors="replace").split()).removeprefix("fatal: ") or "git says nothing"

"""Manifests of a revision, read from Git's objects into a folder: nothing is checked out, and Git runs no program for it."""

import os
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from shutil import which

from msgspec import Struct

from kvgate.cli.check.given_facts import CONFIG_NAME
from kvgate.cli.exits import BadInput
from kvgate.documents.bounded_files import read_file
from kvgate.documents.discovery import SUFFIXES
from kvgate.documents.launch_files import LAUNCH_FORMS
from kvgate.documents.reading import Document, parsed
from kvgate.documents.written import Written
from kvgate.hf_config.formats.quantization import QUANTIZATION_FILES

MAX_FILES = 200_000
MAX_BYTES = 1 << 30
"""Sizes of one revision, as far as its files are of interest."""
_SECONDS = 120
_READ_SUFFIXES = (*SUFFIXES, *LAUNCH_FORMS, "makefile", ".tpl", ".env")
"""Endings of files that `kvgate check` may read in a folder, or that a manifest may name."""
_READ_NAMES = frozenset({"pyvenv.cfg"})
_SETTINGS = frozenset({CONFIG_NAME, ".kvgateignore", ".gitignore"})
MAX_CONFIGS, MAX_BYTES_OF_CONFIG = 1000, 256 << 10
"""Configurations of one revision whose files are read, and the size of one."""
_OPTIONS = (
    "--no-pager",
    "--no-replace-objects",
    "--literal-pathspecs",
    "-c",
    "core.fsmonitor=false",
)
_ENVIRONMENT = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
"""Nothing is fetched for a partial clone, whatever its configuration allows: Git before 2.45 may not know GIT_NO_LAZY_FETCH, and then
knows no protocol. No monitor of files is asked."""
_SHALLOW = "this clone is shallow: git fetch --unshallow brings the rest of its history, and a branch of the remote is named origin/BRANCH"
_PARTIAL = (
    "this clone is partial (git clone --filter), and kvgate fetches nothing: "
    "git fetch --refetch --no-filter completes it, or compare in a clone without --filter"
)
"""Remedies for a user whose Git lacks an object or a revision."""


class Repository(Struct, frozen=True, kw_only=True):
    """The repository that a folder lies in."""

    top: Path
    folder: Path
    """The folder itself, which paths of the command line are relative to."""

    def resolved(self, text: str) -> tuple[str, str | None]:
        """Read both sides of `A...B` (from the merge base), `A..B` or `A`, whose other side is None: the files on disk.

        An empty side is HEAD. Raises BadInput.
        """
        for separator in ("...", ".."):
            old, found, new = text.partition(separator)
            if found:
                first, second = self._commit(old or "HEAD"), self._commit(new or "HEAD")
                if found == "...":
                    without = f"{text}: the two have no commit in common; compare with two dots"
                    first = self._hash(without, "merge-base", first, second)
                return first, second
        return self._commit(text), None

    def _commit(self, name: str) -> str:
        without = f"{name} is neither a file nor a revision of {self.top}"
        return self._hash(without, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")

    def _hash(self, without: str, *command: str) -> str:
        """Return the hash of the commit that git prints. Raises BadInput with the text for the case that there is none."""
        done = _git(self.top, *command)
        if done.returncode:
            is_shallow = _git(self.top, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
            raise BadInput(f"{without}; {_SHALLOW}" if is_shallow else without)
        return done.stdout.decode().strip()

    def below_top(self, path: str) -> str:
        """Return a path of the command line as it is below the top. Raises BadInput."""
        absolute = Path(os.path.normpath(self.folder / path))
        if not absolute.is_relative_to(self.top):
            raise BadInput(f"{path} is outside of the repository {self.top}")
        return absolute.relative_to(self.top).as_posix()

    def write(self, commit: str, paths: Sequence[str], folder: Path) -> None:
        """Write the files of a commit that may be read into a folder, and those that its settings name. Raises BadInput."""
        named = [path for path in paths if path != "."]

        def is_wanted(path: PurePosixPath) -> bool:
            is_below = not named or any(path.is_relative_to(each) for each in named)
            above = any(PurePosixPath(each).is_relative_to(path.parent) for each in named)
            has_suffix = path.name.lower().endswith(_READ_SUFFIXES) or path.name in _READ_NAMES
            is_setting = path.name.startswith(".")  # also in the folders above the paths
            return (is_below and (has_suffix or is_setting or str(path) in named)) or (is_setting and above)

        self._write(commit, is_wanted, folder)
        self._write_named(commit, folder)

    def write_settings(self, revision: str, files: Sequence[Path], folder: Path) -> None:
        """Write the settings of a revision into a folder, the files that they name, and `files` with what lies beside them.

        Raises BadInput.
        """
        commit, beside = self._commit(revision), {PurePosixPath(file.as_posix()) for file in files}
        self._write(commit, lambda path: path.name in _SETTINGS or path in beside or _is_beside(path, beside), folder)
        self._write_named(commit, folder)

    def _write_named(self, commit: str, folder: Path) -> None:
        """Write the files that the configurations of a commit name; one that cannot be read is reported when it is used."""
        named = set[PurePosixPath]()
        for config in list(folder.rglob(CONFIG_NAME))[:MAX_CONFIGS]:
            try:
                data = read_file(config, max_bytes=MAX_BYTES_OF_CONFIG, inside=config.parent)
                document = next(iter(parsed(str(config), BytesIO(data))), None)
            except OSError:
                continue
            root = Written(value=document.load() if isinstance(document, Document) else None)
            own = (root.get("calibration"), root.get("models", "lock"), root.get("modelConfig"))
            of_mappings = (mapping.get("modelConfig") for mapping in root.get("mappings").items())
            below = config.parent.relative_to(folder)
            named |= {PurePosixPath(os.path.normpath(below / each.text)) for each in (*own, *of_mappings) if each.text}
        if named:
            self._write(commit, lambda path: path in named or _is_beside(path, named), folder)

    def _write(self, commit: str, is_wanted: Callable[[PurePosixPath], bool], folder: Path) -> None:
        listed, num_bytes = list(self._blobs(commit, is_wanted)), 0
        with subprocess.Popen(  # noqa: S603 - as below
            [_program(), *_OPTIONS, "cat-file", "--batch"],
            cwd=self.top,
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            if process.stdin is None or process.stdout is None:
                raise BadInput("git has no pipes")
            for blob, name in listed:
                process.stdin.write(f"{blob}\n".encode())
                process.stdin.flush()
                head = process.stdout.readline().split()
                if len(head) != 3 or head[1] != b"blob":
                    raise BadInput(f"{name} of {commit[:12]} cannot be read: {self._why_unread()}")
                num_bytes += int(head[2])
                if len(listed) > MAX_FILES or num_bytes > MAX_BYTES:
                    raise BadInput(
                        f"{commit[:12]} has more than {MAX_FILES} manifests or {MAX_BYTES >> 20} MiB of them; name the folders to compare"
                    )
                data = process.stdout.read(int(head[2]) + 1)[:-1]
                target = folder.joinpath(*PurePosixPath(name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            process.stdin.close()

    def _why_unread(self, stderr: bytes = b"") -> str:
        """Return why Git has no copy of an object, and what to do; `stderr` is what Git says where the clone is complete."""
        promised = _git(self.top, "config", "--get-regexp", r"^(extensions\.partialclone|remote\..*\.promisor)$")
        return _words(stderr or b"the repository lacks it: git fsck") if promised.returncode else _PARTIAL

    def _blobs(self, commit: str, is_wanted: Callable[[PurePosixPath], bool]) -> Iterator[tuple[str, str]]:
        """Yield (object, path) of every plain file that is wanted."""
        done = _git(self.top, "ls-tree", "-r", "-z", "--full-tree", commit)
        if done.returncode:
            raise BadInput(f"{commit[:12]} cannot be read: {self._why_unread(done.stderr)}")
        for entry in done.stdout.split(b"\0"):
            head, tab, raw = entry.partition(b"\t")
            mode, kind, blob = (head.split() if tab else [b""] * 3)[:3]
            name = os.fsdecode(raw)
            path = PurePosixPath(name)
            is_plain = kind == b"blob" and mode in (b"100644", b"100755")  # no link, no submodule
            if is_plain and not path.is_absolute() and not {"..", ".git"} & set(path.parts) and is_wanted(path):
                yield blob.decode(), name

    def renamed(self, old: str, new: str) -> dict[str, str]:
        """Return the old path → the new one of files that Git takes for renamed; in a partial clone, of those with equal content."""
        options = ("-r", "-z", "--name-status", "--diff-filter=R", "--no-ext-diff", "--no-textconv")
        done = _git(self.top, "diff-tree", "-M", *options, old, new)
        if done.returncode:
            done = _git(self.top, "diff-tree", "-M100%", *options, old, new)
        names = [os.fsdecode(each) for each in done.stdout.split(b"\0")] if not done.returncode else []
        return dict(zip(names[1::3], names[2::3], strict=False))


def _is_beside(path: PurePosixPath, files: Collection[PurePosixPath]) -> bool:
    """Return True for a file that states the quantisation beside a config.json that is named."""
    return path.name in QUANTIZATION_FILES and any(path.parent == each.parent for each in files)


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


def _words(stderr: bytes) -> str:
    return " ".join(stderr.decode(errors="replace").split()).removeprefix("fatal: ") or "git says nothing"

"""Files whose names or contents other people choose: read up to a limit and, inside a folder, only if they are plain files of it."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_GIT = ".git"
"""Folder of Git in a repository: its settings may hold credentials, and nothing in it is part of the checkout."""
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Refused(OSError):
    """A file that is not read on purpose; its text says why."""


def repository_of(folder: Path) -> Path | None:
    """Return the nearest folder upward that holds `.git`, without links; None where there is none."""
    resolved = folder.resolve()
    return next((up for up in (resolved, *resolved.parents) if (up / _GIT).exists()), None)


def guard_of(path: Path, root: Path | None) -> Path | None:
    """Return the folder that a path of the command line must not lead out of: the root, if the path is written as one below it.

    Return None if somebody named another place on purpose, or if there is no root.
    """
    if root is None:
        return None
    folder = Path(os.path.abspath(root))  # noqa: PTH100 - as it is written, so without following links
    return root if Path(os.path.abspath(path)).is_relative_to(folder) else None  # noqa: PTH100


def open_file(path: Path, inside: Path | None) -> BinaryIO:
    """Open for reading. `inside`: refuse what lies outside of this folder, also behind links, and what is no plain file.

    Without `inside` somebody named the file on the command line, and a pipe is as good as a file. Raises OSError.
    """
    if inside is None:
        return path.open("rb")
    target = _target(path, inside)
    _check_kind(os.lstat(target).st_mode)  # before it is opened: some devices act when they are
    descriptor = os.open(target, _FLAGS)
    try:
        _check_kind(os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, *, max_bytes: int, inside: Path | None) -> bytes:
    """Read a whole file. Raises OSError, also for a longer one: the sizes that the system reports of devices and pipes are none."""
    with open_file(path, inside) as file:
        return read_all(file, max_bytes=max_bytes)


def read_all(file: BinaryIO, *, max_bytes: int) -> bytes:
    """Read the rest of a file or a stream. Raises Refused where it is longer."""
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise Refused(f"it has more than {max_bytes} bytes, the limit for such a file")
    return data


def read_text(path: Path, *, max_bytes: int, inside: Path | None) -> str:
    """Read a whole file as UTF-8. Raises OSError and UnicodeDecodeError."""
    return read_file(path, max_bytes=max_bytes, inside=inside).decode()


def write_text(path: Path, text: str, *, inside: Path | None) -> None:
    """Write a file anew. `inside`: refuse where links lead out of this folder. Raises OSError."""
    target = path if inside is None else _target(path, inside, may_be_missing=True)
    target.write_text(text, encoding="utf-8")


def _target(path: Path, inside: Path, *, may_be_missing: bool = False) -> Path:
    try:
        target, folder = path.resolve(strict=not may_be_missing), inside.resolve()
    except (RuntimeError, ValueError) as error:  # links in a circle, a name that no file can have
        raise Refused(str(error)) from None
    if not target.is_relative_to(folder):
        raise Refused(f"it is outside of {folder}")
    if _GIT in target.relative_to(folder).parts:
        raise Refused("it is one of Git's own files")
    return target


def _check_kind(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise Refused(f"it is {_KINDS.get(stat.S_IFMT(mode), 'a device')}, not a plain file")

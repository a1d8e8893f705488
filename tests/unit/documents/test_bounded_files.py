"""Files that other people name or fill: what is read of them, and what is not even opened."""

import os
import socket
from pathlib import Path

import pytest

from kvgate.documents.bounded_files import Refused, guard_of, open_file, read_file, read_text, repository_of, write_text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "repository" / "plain").write_text("inside")
    (tmp_path / "repository" / ".git" / "config").write_text("token")
    return tmp_path / "repository"


def test_a_plain_file_and_a_link_to_one_are_read(root: Path) -> None:
    (root / "link").symlink_to("plain")
    assert read_text(root / "plain", max_bytes=6, inside=root) == "inside"
    assert read_text(root / "link", max_bytes=6, inside=root) == "inside"


@pytest.mark.parametrize(
    "target", ["../secret", "/etc/passwd", "/proc/self/environ", ".git/config", "/dev/zero", "link"]
)
def test_a_link_that_leads_elsewhere_is_refused(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    with pytest.raises(OSError, match=r"outside of|Git's own|Too many levels|loop"):
        read_file(root / "link", max_bytes=100, inside=root)


def test_a_linked_folder_leads_nowhere_else(root: Path) -> None:
    (root / "folder").symlink_to("..")
    with pytest.raises(Refused, match="outside of"):
        read_file(root / "folder" / "secret", max_bytes=100, inside=root)


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a folder"])
def test_what_is_no_plain_file_is_refused_without_being_opened(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = root / "x"
    monkeypatch.chdir(root)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as endpoint:
        {"a pipe": lambda: os.mkfifo(path), "a socket": lambda: endpoint.bind("x"), "a folder": path.mkdir}[kind]()
        monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
        with pytest.raises(Refused, match=kind):
            open_file(path, root)


def test_a_device_is_refused_without_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(Refused, match="a device"):
        open_file(Path("/dev/zero"), Path("/dev"))


def test_what_becomes_a_pipe_between_looking_and_opening_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = os.lstat

    def swapped(path: Path) -> os.stat_result:
        found = looked(path)
        if path == root / "plain":
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "lstat", swapped)
    with pytest.raises(Refused, match="a pipe"):
        open_file(root / "plain", root)


def test_what_is_named_on_the_command_line_may_be_a_pipe_and_not_without_end(root: Path) -> None:
    os.mkfifo(root / "pipe")
    writer = os.open(root / "pipe", os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"text")
    with open_file(root / "pipe", None) as file:
        os.close(writer)
        assert file.read() == b"text"
    with pytest.raises(Refused, match="more than 1000 bytes"):
        read_file(Path("/dev/zero"), max_bytes=1000, inside=None)


def test_a_file_may_have_as_many_bytes_as_the_limit(root: Path) -> None:
    assert read_file(root / "plain", max_bytes=6, inside=root) == b"inside"
    with pytest.raises(Refused, match="more than 5 bytes"):
        read_file(root / "plain", max_bytes=5, inside=root)


def test_a_name_that_no_file_can_have_is_refused(root: Path) -> None:
    with pytest.raises(OSError, match="null"):
        read_file(root / "a\0b", max_bytes=5, inside=root)


def test_nothing_is_written_through_a_link_that_leads_out(root: Path) -> None:
    (root / "link").symlink_to("../secret")
    with pytest.raises(Refused, match="outside of"):
        write_text(root / "link", "x", inside=root)
    write_text(root / "new", "x", inside=root)
    assert (root.parent / "secret").read_text() == "outside"
    assert (root / "new").read_text() == "x"


def test_the_guard_is_for_paths_that_are_written_below_the_root(root: Path) -> None:
    assert guard_of(root / "a", root) == root
    assert guard_of(root / ".." / "secret", root) is None
    assert guard_of(root / "a", None) is None


def test_a_repository_is_the_nearest_folder_with_git(root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    assert repository_of(root / "a" / "b") == root
    (root / "a" / ".git").write_text("gitdir: elsewhere")
    assert repository_of(root / "a" / "b") == root / "a"

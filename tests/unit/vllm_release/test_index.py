"""A source distribution is fetched through pip's configuration, checked against the index's hash, and never built."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vllm_release import index
from vllm_release.source import NotRead, read_archive

SETUP = "from pathlib import Path\nPath('{marker}').touch()\n"


def archive(members: dict[str, str]) -> bytes:
    """A .tar.gz of these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as file:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            file.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


class Index:
    """A package index on the loopback with one project."""

    def __init__(self, files: dict[str, bytes], *, fragments: dict[str, str] | None = None) -> None:
        self.files = files
        self.requested: list[str] = []
        sums = {name: f"#sha256={hashlib.sha256(content).hexdigest()}" for name, content in files.items()} | (
            fragments or {}
        )
        page = "".join(f'<a href="/files/{name}{sums[name]}">{name}</a>' for name in files)
        self.page = f"<!DOCTYPE html><html><body>{page}</body></html>".encode()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requested.append(self.path)
                body = outer.page if self.path.startswith("/simple/vllm") else outer.files[self.path.rpartition("/")[2]]
                self.send_response(200)
                self.send_header("Content-Type", "text/html" if body is outer.page else "application/gzip")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    started = []

    def start(files: dict[str, bytes], **arguments: dict[str, str]) -> Index:
        found = Index(files, **arguments)
        started.append(found)
        monkeypatch.setenv("PIP_INDEX_URL", found.url)
        return found

    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield start
    for each in started:
        each.server.shutdown()
        each.server.server_close()


def test_a_release_is_fetched_and_its_build_is_not_run(serve: type[Index], tmp_path: Path) -> None:
    marker = tmp_path / "was-built"
    content = archive({"vllm-0.34.0/setup.py": SETUP.format(marker=marker), "vllm-0.34.0/vllm/a.py": "x = 1\n"})
    serve({"vllm-0.33.0.tar.gz": b"", "vllm-0.34.0.tar.gz": content, "vllm-0.34.0-py3-none-any.whl": b""})
    found = index.fetch("0.34.0", tmp_path / "cache")
    assert found.path.read_bytes() == content
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert read_archive("0.34.0", found.path).files == {"vllm/a.py": "x = 1\n"}
    assert not marker.exists()
    assert index.available_versions() == ("0.33.0", "0.34.0")


def test_what_is_in_the_cache_is_not_fetched_again(serve: type[Index], tmp_path: Path) -> None:
    served = serve({"vllm-0.34.0.tar.gz": archive({"vllm-0.34.0/vllm/a.py": ""})})
    index.fetch("0.34.0", tmp_path)
    index.fetch("0.34.0", tmp_path)
    assert served.requested.count("/files/vllm-0.34.0.tar.gz") == 1


def test_content_of_another_hash_is_refused_and_not_kept(serve: type[Index], tmp_path: Path) -> None:
    serve({"vllm-0.34.0.tar.gz": b"other"}, fragments={"vllm-0.34.0.tar.gz": f"#sha256={'0' * 64}"})
    with pytest.raises(index.NoSource, match="the index says 0000"):
        index.fetch("0.34.0", tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_index_without_hashes_is_refused(serve: type[Index], tmp_path: Path) -> None:
    serve({"vllm-0.34.0.tar.gz": b"x"}, fragments={"vllm-0.34.0.tar.gz": ""})
    with pytest.raises(index.NoSource, match="states no sha256"):
        index.fetch("0.34.0", tmp_path)


def test_a_release_that_is_not_there_is_said_with_the_newest_that_are(serve: type[Index], tmp_path: Path) -> None:
    serve({"vllm-0.33.0.tar.gz": b"", "vllm-0.34.0-py3-none-any.whl": b""})
    with pytest.raises(index.NoSource, match=r"no source distribution of vLLM 0\.34\.0; its newest are 0\.33\.0"):
        index.fetch("0.34.0", tmp_path)


def test_an_archive_is_read_without_being_unpacked(tmp_path: Path) -> None:
    """Files outside of the package, links and other kinds of files are passed over; nothing is written."""
    path = tmp_path / "x.tar.gz"
    path.write_bytes(
        archive({"vllm-1/vllm/a.py": "a", "../../evil.py": "b", "vllm-1/tests/c.py": "c", "vllm-1/vllm/d.cu": "d"})
    )
    assert read_archive("1.0.0", path).files == {"vllm/a.py": "a"}
    assert [each.name for each in tmp_path.iterdir()] == ["x.tar.gz"]


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(archive({"other-1/other/a.py": "a"}))
    with pytest.raises(NotRead, match="holds no Python file of vllm"):
        read_archive("1.0.0", path)

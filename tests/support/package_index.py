"""A package index on the loopback, as pip reads one."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ONLY_THIS_INDEX = {
    **dict.fromkeys(("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "http_proxy", "HTTP_PROXY"), ""),
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_NO_CACHE_DIR": "1",
    "NO_PROXY": "127.0.0.1",
}
"""Environment in which pip asks nobody else."""


def archive(members: Mapping[str, str]) -> bytes:
    """A .tar.gz of these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as file:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            file.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


class Index:
    """An index with one project."""

    def __init__(self, files: Mapping[str, bytes], fragments: Mapping[str, str]) -> None:
        self.requested: list[str] = []
        sums = {name: f"#sha256={hashlib.sha256(content).hexdigest()}" for name, content in files.items()} | fragments
        links = "".join(f'<a href="/files/{name}{sums[name]}">{name}</a>' for name in files)
        page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requested.append(self.path)
                body = page if self.path.startswith("/simple/vllm") else files[self.path.rpartition("/")[2]]
                self.send_response(200)
                self.send_header("Content-Type", "text/html" if body is page else "application/gzip")
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


@contextmanager
def package_index(files: Mapping[str, bytes], fragments: Mapping[str, str] | None = None) -> Iterator[Index]:
    """Serve these files; `fragments` replaces the checksum in the link of a file."""
    index = Index(files, fragments or {})
    try:
        yield index
    finally:
        index.server.shutdown()
        index.server.server_close()

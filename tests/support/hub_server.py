"""A model hub on loopback that answers as huggingface.co does, with a second port in the place of its CDN, and with faults.

What the real one answers is taken from huggingface_hub 2.4 (`get_hf_file_metadata`, `hf_raise_for_status`, its tests of both):

- `/api/models/NAME/revision/REV`: the commit as `sha`, the files as `siblings`; 401 `RepoNotFound` without a token, 404 with one;
- `/NAME/resolve/REV/FILE`: a small file by a relative redirect (307), one in large-file storage by a redirect to another host (302)
  with `X-Repo-Commit`, `X-Linked-Etag` and `X-Linked-Size`; 401 or 403 `GatedRepo`, 404 `EntryNotFound`, `RevisionNotFound`;
- ranges (206), `Retry-After` and `RateLimit` with 429.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from re import fullmatch
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

COMMIT = sha1(b"first", usedforsecurity=False).hexdigest()
TOKEN = "hf_loopback"


class LargeFile(bytes):
    """A file of which only the beginning is written: the rest is zeros, as far as its size."""

    size: int


class Repository(Struct, kw_only=True):
    """One model of the hub."""

    files: dict[str, bytes]
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    is_private: bool = False
    is_gated: bool = False
    accepted: tuple[str, ...] = ()
    """Tokens whose accounts a gated model lets in."""


class Request(Struct, frozen=True):
    """A request as the server saw it."""

    place: str
    """`hub` or `cdn`."""
    path: str
    headers: Mapping[str, str]

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization")


Fault = Callable[["Handler", bytes], None]
"""Answers instead of the hub; the second argument is the file, where the path is one."""


class LoopbackHub:
    """The hub with its CDN."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.tokens = [TOKEN]
        self.faults: dict[str, Fault] = {}
        """By the end of a path: of the hub, or with `cdn:` before it of the CDN."""
        self.stopped = Event()
        self._servers = [_server(self, place) for place in ("hub", "cdn")]
        self.endpoint, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def add(self, name: str, files: Mapping[str, bytes | Mapping[str, Any]], **options: Any) -> Repository:
        """Publish a model; JSON files may be given as mappings."""
        data = {path: each if isinstance(each, bytes) else json.dumps(each).encode() for path, each in files.items()}
        self.repositories[name.lower()] = repository = Repository(files=data, **options)
        return repository

    def requested(self, place: str = "hub") -> list[str]:
        """Return the paths that were requested."""
        return [request.path for request in self.requests if request.place == place]

    def start(self) -> None:
        for server in self._servers:
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()


@contextmanager
def loopback_hub() -> Iterator[LoopbackHub]:
    """Run a hub while the block lasts."""
    hub = LoopbackHub()
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


def _server(hub: LoopbackHub, place: str) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Handler", (Handler,), {"hub": hub, "place": place}))
    server.daemon_threads = True
    return server


class Handler(BaseHTTPRequestHandler):
    """Both servers: the hub, and the place of its large files."""

    hub: LoopbackHub
    place: str
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(
            Request(self.place, path, {name.lower(): value for name, value in self.headers.items()})
        )
        wanted = ((end.removeprefix("cdn:"), end.startswith("cdn:"), fault) for end, fault in self.hub.faults.items())
        faults = (each for end, of_cdn, each in wanted if path.endswith(end) and of_cdn == (self.place == "cdn"))
        fault = next(faults, None)
        try:
            if fault:
                fault(self, self._stored(path) or b"")
            elif self.place == "cdn":
                self.send(self._stored(path) or b"")
            else:
                self._answer(path)
        except (BrokenPipeError, ConnectionResetError):  # the client has heard enough
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 - the server's own name

    def _stored(self, path: str) -> bytes | None:
        """Return the file of a path of either server."""
        if found := fullmatch(r"/(?:api/resolve-cache/models/)?(.+?)(?:/resolve/[^/]+|/[0-9a-f]{40})/(.+)", path):
            repository = self.hub.repositories.get(found[1].lower())
            return repository.files.get(found[2]) if repository else None
        return None

    def _answer(self, path: str) -> None:
        if found := fullmatch(r"/api/models/(.+?)/revision/(.+)", path):
            if repository := self._permitted(found[1], found[2]):
                files = [{"rfilename": name} for name in repository.files]
                self.send_json({"id": found[1], "sha": repository.commit, "siblings": files})
        elif found := fullmatch(r"/api/resolve-cache/models/(.+?)/([0-9a-f]{40})/(.+)", path):
            self.send(self.hub.repositories[found[1].lower()].files[found[3]])
        elif found := fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            self._resolve(*found.groups())
        else:
            self.refuse(404, "", "Not found")

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository = self._permitted(name, revision)
        if repository is None:
            return
        if repository.is_gated and (self._token not in repository.accepted):
            status = 403 if self._token else 401
            self.refuse(status, "GatedRepo", f"Access to model {name} is restricted.")
        elif file not in repository.files:
            self.refuse(404, "EntryNotFound", "Entry not found")
        else:
            data, commit = repository.files[file], {"X-Repo-Commit": repository.commit}
            if file.endswith((".safetensors", ".gguf", ".bin")):
                etag = f'"{sha256(data).hexdigest()}"'
                linked = {"X-Linked-Etag": etag, "X-Linked-Size": str(len(data))}
                location = f"{self.hub.cdn}/{name}/{commit['X-Repo-Commit']}/{file}?Signature=x"
                self.send(b"", status=302, headers={"Location": location, **linked, **commit})
            else:
                location = f"/api/resolve-cache/models/{name}/{repository.commit}/{file}"
                self.send(b"", status=307, headers={"Location": location, **commit})

    @property
    def _token(self) -> str | None:
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        return token or None

    def _permitted(self, name: str, revision: str) -> Repository | None:
        repository = self.hub.repositories.get(name.lower())
        if self._token is not None and self._token not in self.hub.tokens:
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.is_private and self._token is None):
            self.refuse(404 if self._token else 401, "RepoNotFound", "Repository not found")
        elif revision not in (*repository.revisions, repository.commit):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repository
        return None

    def refuse(self, status: int, code: str, message: str, **headers: str) -> None:
        """Answer with an error as the hub words it."""
        coded = {"X-Error-Code": code} if code else {}
        self.send_json({"error": message}, status=status, headers={"X-Error-Message": message, **coded, **headers})

    def send_json(self, value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send(json.dumps(value).encode(), status=status, headers=headers)

    def send(self, data: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answer with a file, or with the range of it that is asked for."""
        asked = fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        size = data.size if isinstance(data, LargeFile) else len(data)
        if asked and status == 200:
            first, last = int(asked[1]), min(int(asked[2]), size - 1)
            status, headers = 206, {**(headers or {}), "Content-Range": f"bytes {first}-{last}/{size}"}
            data = data[first : last + 1].ljust(last + 1 - first, b"\0")
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), "ETag": '"x"', **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Write nothing."""


def safetensors(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> LargeFile:
    """Return a file of weights by the dtypes and shapes of its tensors."""
    sizes = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + sizes[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file = LargeFile(struct.pack("<Q", len(text)) + text)
    file.size = len(file) + end
    return file

"""Kustomizations and charts that read, ask or run something beyond their checkout, and a watch that notices it.

Each case is a folder. With no wall at all the real kubectl or Helm does what the case wants; else the case would prove nothing.
"""

import ctypes
import gzip
import io
import json
import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

SECRET = "canary-5f2d"
_ENGINE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args: [--model=Qwen/Qwen3-8B, --max-model-len=4096]
        resources: {limits: {nvidia.com/gpu: 1}}
"""
_IN_OPEN = 0x20
_ROOT = "../" * 20
Files = dict[str, str | bytes | Path]
"""Path in the checkout → content; a path is the target of a link."""


class Watch:
    """A file outside of the checkout that nobody may open, a port of the loopback that nobody may ask, and a `git` that nobody may run."""

    def __init__(self, folder: Path) -> None:
        self.canary, self.programs, self._ran = folder / "canary.yaml", folder / "bin", folder / "ran"
        self.canary.write_text(f"{SECRET}: {SECRET}\n")
        self.programs.mkdir()
        git = self.programs / "git"
        git.write_text(f"#!/bin/sh\necho \"$@\" >>'{self._ran}'\nexit 1\n")
        git.chmod(0o755)
        self._asked = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()
        self._events: int = self._libc.inotify_init1(os.O_NONBLOCK)
        assert self._libc.inotify_add_watch(self._events, os.fsencode(self.canary), _IN_OPEN) > 0
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        os.close(self._events)

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._asked += 1
            with connection, suppress(OSError):
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    def noticed(self, *outputs: bytes | str) -> list[str]:
        """What has happened since the last call; `outputs` may show text of the canary."""
        found = []
        with suppress(BlockingIOError):
            found += ["read"] if os.read(self._events, 4096) else []
        found += ["printed"] if any(SECRET in str(each) for each in outputs) else []
        found += ["asked"] if self._asked else []
        found += ["ran"] if self._ran.exists() else []
        self._asked = 0
        self._ran.unlink(missing_ok=True)
        return found


@dataclass(frozen=True, kw_only=True)
class Case:
    """A hostile folder; `files` is given the watch, for paths and ports."""

    name: str
    files: Callable[[Watch], Files]
    links: Mapping[str, str] = field(default_factory=dict)
    is_respelt: bool = False
    """True for what another case wants too, in other letters: kustomize and Helm ask the kernel for the same."""


def write(files: Files, folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


# ── kustomizations ────────────────────────────────────────────────────────────────────────────────────────────────


def _absolute(watch: Watch) -> str:
    return str(watch.canary)


def _relative(watch: Watch) -> str:
    return f"{_ROOT}{str(watch.canary)[1:]}"


def _linked(_: Watch) -> str:
    return "link.yaml"


def _address(watch: Watch) -> str:
    return f"http://127.0.0.1:{watch.port}/x.yaml"


_PLACES = {"absolute": _absolute, "above": _relative, "link": _linked, "address": _address}
_TARGET = {"kind": "Deployment"}
_PLUGINS: dict[str, Callable[[str], dict[str, Any]]] = {
    "ConfigMapGenerator files": lambda place: {"files": [f"key={place}"]},
    "ConfigMapGenerator envs": lambda place: {"envs": [place]},
    "SecretGenerator files": lambda place: {"files": [f"key={place}"]},
    "SecretGenerator envs": lambda place: {"envs": [place]},
    "PatchTransformer": lambda place: {"path": place, "target": _TARGET},
    "PatchJson6902Transformer": lambda place: {"path": place, "target": {**_TARGET, "name": "llama"}},
    "PatchStrategicMergeTransformer": lambda place: {"paths": [place]},
    "ReplacementTransformer": lambda place: {"replacements": [{"path": place}]},
}
_FIELDS: dict[str, Callable[[str], Any]] = {
    "configMapGenerator": lambda place: [{"name": "stolen", "files": [f"key={place}"]}],
    "configMapGenerator.envs": lambda place: [{"name": "stolen", "envs": [place]}],
    "configMapGenerator.env": lambda place: [{"name": "stolen", "env": place}],
    "secretGenerator": lambda place: [{"name": "stolen", "files": [f"key={place}"]}],
    "secretGenerator.envs": lambda place: [{"name": "stolen", "envs": [place]}],
    "patches": lambda place: [{"path": place, "target": _TARGET}],
    "patchesJson6902": lambda place: [{"path": place, "target": {**_TARGET, "version": "v1", "group": "apps", "name": "llama"}}],
    "patchesStrategicMerge": lambda place: [place],
    "replacements": lambda place: [{"path": place}],
    "configurations": lambda place: [place],
    "crds": lambda place: [place],
    "openapi": lambda place: {"path": place},
    "resources": lambda place: ["engine.yaml", place],
    "generators": lambda place: [place],
    "transformers": lambda place: [place],
    "validators": lambda place: [place],
}  # fmt: skip


def _kustomization(fields: Mapping[str, Any], watch: Watch, **more: str | bytes) -> Files:
    has_resources = any(name.casefold() == "resources" for name in fields)
    own = {"commonAnnotations": {"engine": "vllm"}} if has_resources else {"resources": ["engine.yaml"]}
    written = yaml.safe_dump({**own, **fields}, allow_unicode=True)
    return {"engine.yaml": _ENGINE, "kustomization.yaml": written, "link.yaml": watch.canary, **more}


def _in_other_letters(name: str) -> Iterator[str]:
    """Go takes a field in these spellings too: it folds the case of letters, those of Unicode included."""
    yield name[:1].upper() + name[1:]
    yield name.upper()
    if "s" in name:
        yield name[::-1].replace("s", "ſ", 1)[::-1]
    if "k" in name:
        yield name.replace("k", "K", 1)


def _respelt(value: Any, old: str, new: str) -> Any:
    """The value with a key in other letters."""
    if isinstance(value, dict):
        return {new if key == old else key: _respelt(child, old, new) for key, child in value.items()}
    return [_respelt(each, old, new) for each in value] if isinstance(value, list) else value


def _plugin(kind: str, given: dict[str, Any]) -> str:
    return yaml.safe_dump({"apiVersion": "builtin", "kind": kind, "metadata": {"name": "stolen"}, **given})


def _of_plugin(kind: str, field_name: str, place: Callable[[Watch], str], how: str, *, inline: bool) -> Case:
    def files(watch: Watch) -> Files:
        text = _plugin(kind, _PLUGINS[how](place(watch)))
        return _kustomization({field_name: [text if inline else "plugin.yaml"]}, watch, **{"plugin.yaml": text})

    is_respelt = inline or field_name not in ("generators", "transformers")
    name = f"{field_name}: {how}, {place.__name__[1:]}{', inline' if inline else ''}"
    return Case(name=name, files=files, is_respelt=is_respelt)


def _of_field(name: str, written: str, how: str, place: Callable[[Watch], str]) -> Case:
    def files(watch: Watch) -> Files:
        return _kustomization({written: _FIELDS[how](place(watch))}, watch)

    return Case(name=f"{how} as {written}, {place.__name__[1:]}", files=files, is_respelt=written != name)


def _of_nested_field(how: str, old: str, new: str) -> Case:
    def files(watch: Watch) -> Files:
        return _kustomization({how.partition(".")[0]: _respelt(_FIELDS[how](str(watch.canary)), old, new)}, watch)

    return Case(name=f"{how} with {new}", files=files, is_respelt=True)


def _of_git(name: str, repository: str, *, is_folder: bool = False, field_name: str = "resources") -> Case:
    def files(watch: Watch) -> Files:
        address = repository.format(port=watch.port)
        more = {f"{address.partition('?')[0]}/kustomization.yaml": "namePrefix: x-\n"} if is_folder else {}
        is_resources = field_name.casefold() == "resources"
        return _kustomization({field_name: ["engine.yaml", address] if is_resources else [address]}, watch, **more)

    return Case(name=f"git: {name}", files=files)


def kustomizations() -> Iterator[Case]:
    """Every way to a file, an address or a program that is known, in every spelling that kustomize takes."""
    for how in _PLUGINS:
        kind = how.partition(" ")[0]
        field_name = "generators" if "Generator" in kind else "transformers"
        for place in _PLACES.values():
            yield _of_plugin(kind, field_name, place, how, inline=False)
        yield _of_plugin(kind, field_name, _absolute, how, inline=True)
        for spelling in _in_other_letters(field_name):
            yield _of_plugin(kind, spelling, _absolute, how, inline=False)
    for how in _FIELDS:
        name = how.partition(".")[0]
        for place in _PLACES.values():
            yield _of_field(name, name, how, place)
        for spelling in _in_other_letters(name):
            yield _of_field(name, spelling, how, _absolute)
    for how, old in (
        ("configMapGenerator", "files"), ("configMapGenerator.envs", "envs"), ("configMapGenerator.env", "env"),
        ("patches", "path"), ("patchesJson6902", "path"), ("replacements", "path"),
    ):  # fmt: skip
        for new in _in_other_letters(old):
            yield _of_nested_field(how, old, new)
    yield from _repositories()


def _repositories() -> Iterator[Case]:
    """Addresses from which kustomize fetches with `git`, and folders of the checkout that are called like one."""
    for name, repository in {
        "http": "http://127.0.0.1:{port}/a/b.git?ref=x",
        "forced": "git::http://127.0.0.1:{port}/a/b",
        "ssh": "ssh://git@127.0.0.1:{port}/a/b.git",
        "scp": "git@127.0.0.1:a/b.git",
        "hub": "github.com/a/b?ref=main",
        "hub in letters": "GitHub.com/a/b",
        "option in the reference": "https://github.com/a/b?ref=--upload-pack=touch",
        "file": "file:///tmp/a.git",
        "folder": "https://127.0.0.1:{port}/a/b//c?ref=v1",
        "submodules": "https://127.0.0.1:{port}/a/b?submodules=true&timeout=1s",
    }.items():
        yield _of_git(name, repository)
    yield _of_git("base", "https://github.com/a/b?ref=x", field_name="bases")
    yield _of_git("component", "https://github.com/a/b?ref=x", field_name="components")
    for spelling in ("Resources", "reſources", "Bases", "Components"):
        yield _of_git(f"as {spelling}", "https://github.com/a/b?ref=x", field_name=spelling)
    yield _of_git("folder with the name of an address", "github.com/a/b", is_folder=True)
    yield _of_git("base with the name of an address", "github.com/a/b", is_folder=True, field_name="bases")
    yield _of_git("component with the name of an address", "github.com/a/b", is_folder=True, field_name="components")


# ── charts ────────────────────────────────────────────────────────────────────────────────────────────────────────

_CHART = "apiVersion: v2\nname: serving\nversion: 1.0.0\n"
_TEMPLATE = '{{ .Files.Get "files/link" }}\n---\n' + _ENGINE


def _chart(more: Files) -> Files:
    return {"Chart.yaml": _CHART, "values.yaml": "a: 1  # vllm\n", "templates/engine.yaml": _ENGINE, **more}


def _packed(files: Mapping[str, str | bytes], name: str = "sub") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, content in {"Chart.yaml": _CHART.replace("serving", name), **files}.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


_Member = tuple[str, str, dict[int, bytes]]
"""Name, content, and bytes of the header by their offset."""
_AS = 156
"""Offset of a member's kind in its header."""


def _record(text: str) -> str:
    """One record of a pax header, which begins with its own length."""
    length = next(each for each in range(1000) if each == len(f"{each} {text}\n"))
    return f"{length} {text}\n"


def _archive(*members: _Member) -> bytes:
    """A tar whose headers say what they should not."""
    data = b""
    for name, content, changes in members:
        header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
        for offset, value in {124: b"%011o" % len(content), **changes, 148: b" " * 8}.items():
            header[offset : offset + len(value)] = value
        header[148:156] = b"%06o\0 " % sum(header)
        data += bytes(header) + content.encode() + bytes(-len(content) % 512)
    return data


def _parts(form: str, schema: str) -> list[bytes]:
    """A packed chart, in one or more streams of gzip, that Python's `tarfile` takes for one without this schema."""
    start, end = _archive(("sub/Chart.yaml", _CHART.replace("serving", "sub"), {})), bytes(1024)
    named: _Member = ("sub/values.schema.json", schema, {})
    match form:
        case "two streams":
            return [start, _archive(named) + end]
        case "a number of 2^56":
            return [start + _archive((*named[:2], {100: b"\x81" + bytes(7)})) + end]
        case "a step to itself":
            return [start + _archive((f"{named[0]}/.", schema, {})) + end]
        case "a step up":
            return [start + _archive((f"{named[0]}/x/..", schema, {})) + end]
        case "a header of Solaris":
            return [start + _archive(("sub/x", _record("path=sub/other"), {_AS: b"X"}), named) + end]
    return [_archive(("sub/x", _record("path=sub/other"), {_AS: b"g"})) + start + _archive(named) + end]


_FORMS = (
    "two streams",
    "a number of 2^56",
    "a step to itself",
    "a step up",
    "a header of Solaris",
    "a header for all members",
)


def _archive_case(form: str) -> Case:
    def files(watch: Watch) -> Files:
        parts = _parts(form, json.dumps({"$ref": watch.canary.as_uri()}))
        return _chart({"charts/sub-1.0.0.tgz": b"".join(map(gzip.compress, parts))})

    return Case(name=f"packed chart with {form}", files=files)


_SCHEMAS: dict[str, Callable[[str, str], Any]] = {
    "at the top": lambda place, _: {"$ref": place},
    "in a property": lambda place, _: {"properties": {"a": {"$ref": place}}},
    "in allOf": lambda place, _: {"allOf": [{"$ref": place}]},
    "in definitions": lambda place, _: {"definitions": {"x": {"$ref": place}}, "$ref": "#/definitions/x"},
    "below an id": lambda _, folder: {"allOf": [{"$id": folder, "$ref": "canary.yaml"}]},
    "below the id of the root": lambda _, folder: {"$id": folder, "allOf": [{"$ref": "canary.yaml"}]},
    "with a fragment": lambda place, _: {"$ref": f"{place}#/a"},
    "as the schema": lambda place, _: {"$schema": place},
    "dynamic": lambda place, _: {"$schema": "https://json-schema.org/draft/2020-12/schema", "$dynamicRef": place},
    "in items": lambda place, _: {"properties": {"a": {"items": {"$ref": place}}}},
    "in not": lambda place, _: {"not": {"$ref": place}},
    "in if": lambda place, _: {"if": {"$ref": place}},
}


def _schema_case(how: str, form: str) -> Case:
    def files(watch: Watch) -> Files:
        if form == "address":
            place, folder = _address(watch), f"http://127.0.0.1:{watch.port}/"
        else:
            place, folder = watch.canary.as_uri(), f"{watch.canary.parent.as_uri()}/"
        schema = json.dumps(_SCHEMAS[how](place, folder))
        name = "values.schema.json"
        match form:
            case "escaped":
                return _chart({name: schema.replace("$ref", "\\u0024ref")})
            case "subchart":
                return _chart({"charts/sub/Chart.yaml": _CHART.replace("serving", "sub"), f"charts/sub/{name}": schema})
            case "packed":
                return _chart({"charts/sub-1.0.0.tgz": _packed({name: schema})})
            case "packed twice":
                return _chart({"charts/sub-1.0.0.tgz": _packed({"charts/y-1.tgz": _packed({name: schema}, "y")})})
        return _chart({name: schema})

    return Case(name=f"schema {how}, {form}", files=files, is_respelt=form == "escaped")


def charts() -> Iterator[Case]:
    """Schemas that lead elsewhere, and links."""
    for how in _SCHEMAS:
        for form in ("file", "address", "escaped"):
            yield _schema_case(how, form)
    for form in ("subchart", "packed", "packed twice"):
        for how in ("at the top", "in a property", "below an id"):
            yield _schema_case(how, form)
    yield from map(_archive_case, _FORMS)
    yield Case(
        name="a link to a file", files=lambda watch: _chart({"files/link": watch.canary, "templates/t.yaml": _TEMPLATE})
    )
    yield Case(
        name="a link to a folder",
        files=lambda watch: _chart(
            {"files": watch.canary.parent, "templates/t.yaml": '{{ .Files.Get "files/canary.yaml" }}'}
        ),
    )
    yield Case(name="a template that is a link", files=lambda watch: _chart({"templates/t.yaml": watch.canary}))
    yield Case(name="values that are a link", files=lambda watch: {**_chart({}), "values.yaml": watch.canary})

"""Overlays of kustomize, rendered from a copy of the files that they name, and the place of each object in these files."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from msgspec import Struct, field

from kvgate.documents.bounded_files import Refused, read_file
from kvgate.documents.discovery import KUSTOMIZATIONS
from kvgate.documents.kustomizations import (
    FILES,
    FILES_OR_TEXTS,
    GENERATOR,
    INCLUDED,
    MAX_BYTES,
    OBJECTS_WITH_PATH,
    Tree,
    is_text,
    listed,
)
from kvgate.documents.nodes import YamlError, value_of, without_surrogates
from kvgate.documents.origins import Resource
from kvgate.documents.positions import entry_of
from kvgate.documents.programs import Failed, run_program
from kvgate.documents.reading import Document, parsed
from kvgate.documents.written import Written
from kvgate.text.patterns import pattern

PROGRAMS = ("kustomize", "kubectl")
MAX_TREE_BYTES = 64 << 20
"""Size of all files of one overlay, and of its copy, in which a file stands as often as it is named."""
_TOO_LARGE = f"its files, each as often as it is named, have more than {MAX_TREE_BYTES >> 20} MiB"
_LARGE_BYTES = 16 << 10
_DEFINES = b"\nkind: CustomResourceDefinition\n"
_START = pattern(rb"(?m)^(---\s)")
_SPEC = pattern(rb"(?m)^spec:[ ]*\n(?:(?:[ \t#-].*)?\n)*")
"""The field `spec` at the top of an object, with all lines below it."""
_FOLDER, _FILE = "kvgate-overlay-", "kvgate-file-"
_NAME = pattern(rf"(?:{_FOLDER}\d+/)?({_FILE}\d+\.yaml)|({_FOLDER}\d+)")
"""Pattern of a name of the copy in a message."""


def read_files(tree: Tree, inside: Path) -> Mapping[Path, bytes]:
    """Read the files of an overlay. Raises OSError."""
    texts: dict[Path, bytes] = {}
    num_bytes = 0
    for file in tree.files:
        texts[file] = read_file(file, max_bytes=MAX_BYTES * 8, inside=inside)
        num_bytes += len(texts[file])
        if num_bytes > MAX_TREE_BYTES:
            raise Refused(_TOO_LARGE)
    return texts


class Layout(Struct, kw_only=True):
    """The copy that kustomize reads. No name in it comes from the checkout: kustomize takes some names of folders for addresses."""

    folders: Mapping[Path, str]
    names: dict[str, Path]
    """Name of a file or a folder in the copy → the one of the checkout."""
    files: dict[str, bytes] = field(default_factory=dict)
    num_bytes: int = 0

    def add(self, name: str, content: bytes) -> None:
        """Raises Refused."""
        self.num_bytes += len(content)
        if self.num_bytes > MAX_TREE_BYTES:
            raise Refused(_TOO_LARGE)
        self.files[name] = content


def lay_out(tree: Tree, texts: Mapping[Path, bytes]) -> Layout:
    """Write an overlay anew, each of its kustomizations in a folder beside the others, with all files that it names. Raises Refused."""
    missing = _missing_keys(tree, texts)
    folders = {each.folder: f"{_FOLDER}{index}" for index, each in enumerate(tree.kustomizations)}
    layout = Layout(folders=folders, names={name: folder for folder, name in folders.items()})
    for each in tree.kustomizations:
        copy = _Copy(each.folder, texts, layout)
        fields = dict(copy.fields(_with_keys(each.fields, missing) if each.left_out else each.fields))
        if each is tree.root:
            fields["buildMetadata"] = [*listed(fields.get("buildMetadata")), "originAnnotations"]
        text = StringIO()
        for part in json.JSONEncoder(default=str).iterencode(fields):
            text.write(part)
            if text.tell() > MAX_TREE_BYTES:  # aliases can stand for any length
                raise Refused(_TOO_LARGE)
        name = f"{folders[each.folder]}/{KUSTOMIZATIONS[0]}"
        layout.add(name, without_surrogates(text.getvalue()).encode())
    return layout


class _Copy:
    def __init__(self, folder: Path, texts: Mapping[Path, bytes], layout: Layout) -> None:
        self.folder, self.texts, self.layout = folder, texts, layout

    def fields(self, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the fields with the names of the copy."""
        for name, value in fields.items():
            if name in (*INCLUDED, FILES, FILES_OR_TEXTS):
                yield name, [self._text(each) if is_text(each) else self._named(each) for each in value]
            elif name in OBJECTS_WITH_PATH:
                yield (
                    name,
                    [{**each, "path": self._named(each["path"])} if each.get("path") else each for each in value],
                )
            elif name == GENERATOR:
                yield name, [self._config_map(each) for each in value]
            else:
                yield name, value

    def _named(self, name: str) -> str:
        path = Path(os.path.normpath(self.folder / name))
        folder = self.layout.folders.get(path.resolve())
        return f"../{folder}" if folder else self._text(self.texts[path], path)

    def _text(self, text: str | bytes, path: Path | None = None) -> str:
        name, layout = f"{_FILE}{len(self.layout.files)}.yaml", self.layout
        layout.add(f"{layout.folders[self.folder]}/{name}", text.encode() if isinstance(text, str) else text)
        layout.names[name] = path or self.folder
        return name

    def _config_map(self, generator: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a generator whose files keep their keys: `key=file`, or the file's own name."""
        written = dict(generator)
        if files := listed(generator.get("files")):
            split = ((each.rpartition("=")[0] or Path(each).name, each.rpartition("=")[2]) for each in files)
            written["files"] = [f"{key}={self._named(file)}" for key, file in split]
        if envs := listed(generator.get("envs")):
            written["envs"] = [self._named(each) for each in envs]
        if env := generator.get("env"):
            written["env"] = self._named(env)
        return written


def build(program: Path, layout: Layout) -> bytes | Failed:
    """Render an overlay; large schemas, which hold no engine, are left out first, and kept where a patch needs them."""
    small = {name: _without_schemas(text) for name, text in layout.files.items()}
    done = _built(program, small)
    if isinstance(done, Failed) and any(len(small[name]) < len(text) for name, text in layout.files.items()):
        done = _built(program, layout.files)
    if isinstance(done, Failed):
        shown = {name: os.path.relpath(path, layout.names[f"{_FOLDER}0"]) for name, path in layout.names.items()}
        return Failed(message=_NAME.sub(lambda found: shown.get(found[1] or found[2], found[0]), done.message))
    return done


def _without_schemas(text: bytes) -> bytes:
    """Return a text without what large definitions of resources specify: kustomize takes two seconds for each MB of it."""
    if len(text) < _LARGE_BYTES or _DEFINES not in text:
        return text
    parts = (b"\n" + part for part in _START.split(text))
    return b"".join(_SPEC.sub(b"", part + b"\n") if _DEFINES in part else part[1:] for part in parts)


def _built(program: Path, files: Mapping[str, bytes]) -> bytes | Failed:
    with TemporaryDirectory(prefix="kvgate-") as temporary:
        folder = Path(temporary).resolve()
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(text)
        verb = "build" if program.stem == PROGRAMS[0] else PROGRAMS[0]
        done = run_program(program, [verb, str(folder / f"{_FOLDER}0")], folder)
    return Failed(message=done.message.replace(f"{folder}/", "")) if isinstance(done, Failed) else done


def _missing_keys(tree: Tree, texts: Mapping[Path, bytes]) -> dict[str, set[str]]:
    """Return ConfigMap → keys that replacements take from it and that no generator has; a file that is made at a deploy may have them."""
    wanted = dict[str, set[str]]()
    for source in _sources_of_replacements(tree, texts):
        kind, _, key = source.get("fieldPath").text.partition(".")
        if kind == "data" and key:
            wanted.setdefault(source.get("name").text, set()).add(key)
    keys = {key for each in wanted.values() for key in each}

    @cache
    def keys_in(file: Path) -> set[str]:
        lines = texts.get(file, b"").decode(errors="replace").splitlines()
        return keys.intersection(line.partition("=")[0].strip() for line in lines)

    for kustomization in tree.kustomizations:
        for generator in Written(value=kustomization.fields).get("configMapGenerator").items():
            missing = wanted.get(generator.get("name").text, set())
            missing -= {item.text.partition("=")[0] for item in generator.get("literals").items()}
            missing -= {Path(item.text.rpartition("=")[2]).name for item in generator.get("files").items()}
            missing -= {item.text.partition("=")[0] for item in generator.get("files").items()}
            envs = {*(item.text for item in generator.get("envs").items()), generator.get("env").text}
            for file in (kustomization.folder / name for name in envs if name and missing):
                missing -= keys_in(Path(os.path.normpath(file)))
    return wanted


def _sources_of_replacements(tree: Tree, texts: Mapping[Path, bytes]) -> Iterator[Written]:
    """Yield where replacements take their values from; they stand in the kustomizations, or in files that these name."""
    files = dict[Path, None]()
    for kustomization in tree.kustomizations:
        for each in Written(value=kustomization.fields).get("replacements").items():
            yield each.get("source")
            files[Path(os.path.normpath(kustomization.folder / each.get("path").text))] = None
    num_bytes = 0
    for file in files:
        num_bytes += len(texts.get(file, b""))
        with suppress(YamlError, UnicodeDecodeError):
            value = value_of(texts[file].decode()) if file in texts and num_bytes <= MAX_BYTES else None
            yield from (
                item.get("source") for item in Written(value=value if isinstance(value, list) else [value]).items()
            )


def _with_keys(fields: Mapping[str, Any], missing: dict[str, set[str]]) -> Mapping[str, Any]:
    """Return the fields with a placeholder for each missing key, as `${MODEL}`; each key is given once."""
    generators = []
    for each in listed(fields.get("configMapGenerator")):
        keys = missing.pop(str(each.get("name")), set()) if isinstance(each, Mapping) else set()
        placeholders = [f"{key}=${{{key}}}" for key in sorted(keys)]
        generators.append({**each, "literals": [*listed(each.get("literals")), *placeholders]} if keys else each)
    return {**fields, "configMapGenerator": generators} if generators else fields


class Overlay(Struct, frozen=True, kw_only=True, dict=True):
    """A rendered overlay: from an object to its place in the files."""

    tree: Tree
    names: Mapping[str, Path]
    """Names of the copy, as of its layout."""
    inside: Path
    shown: Callable[[Path], str]
    """Path of a file → its name in findings."""
    read: dict[Path, Mapping[str, Mapping[str, Document]]] = field(default_factory=dict)
    """Resources that were read: file → kind → name → object."""

    def origin(self, document: Document) -> Resource | None:
        """Return where an object comes from; None for one that a generator makes."""
        note = _text_at(document.node, "metadata", "annotations", "config.kubernetes.io/origin")
        path = next((line.removeprefix("path: ") for line in note.splitlines() if line.startswith("path: ")), "")
        file = self.names.get(Path(path).name)
        source = _same_object(document, self._documents(file)) if file else None
        if file is None or source is None:
            return None
        return Resource(
            file=self.shown(file),
            node=source.node,
            line_offset=source.line_offset,
            first_line=source.first_line,
            comments=source.comments,
            kustomization=self.shown(self.tree.root.path),
            others=self._others,
            inside=self.inside,
        )

    def _documents(self, file: Path) -> Mapping[str, Mapping[str, Document]]:
        """Return the objects in a resource, of each kind and name the first."""
        if file not in self.read:
            found = dict[str, dict[str, Document]]()
            self.read[file] = found
            with suppress(OSError):
                data = read_file(file, max_bytes=MAX_BYTES * 8, inside=self.inside)
                for each in parsed(self.shown(file), BytesIO(data)):
                    if isinstance(each, Document):
                        found.setdefault(each.kind, {}).setdefault(_name(each), each)
        return self.read[file]

    @cached_property
    def _others(self) -> tuple[str, ...]:
        resources = {file for each in self.tree.kustomizations for file in each.resources}
        others = (file for each in self.tree.kustomizations for file in (*each.files, each.path))
        return tuple(self.shown(file) for file in dict.fromkeys(others) if file not in resources)


def _same_object(rendered: Document, sources: Mapping[str, Mapping[str, Document]]) -> Document | None:
    """Return the object of the file with the same kind and name; kustomize may have put words before and behind the name."""
    of_kind, name = sources.get(rendered.kind, {}), _name(rendered)
    if name in of_kind:
        return of_kind[name]
    only = next(iter(of_kind)) if len(of_kind) == 1 else ""
    return of_kind.get(next((own for own in of_kind if own and own in name), only))


def _name(document: Document) -> str:
    return _text_at(document.node, "metadata", "name")


def _text_at(node: yaml.Node, *names: str) -> str:
    for name in names:
        entry = entry_of(node, name)
        if entry is None:
            return ""
        node = entry[1]
    return str(node.value)

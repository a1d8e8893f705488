"""The Applications that an ApplicationSet of Argo CD makes, as far as its generators read nothing but the checkout.

Generators and fields of templates: argo-cd.readthedocs.io, "Generators" and "Templates".
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvgate.documents.bounded_files import read_file
from kvgate.documents.globs import steps_match
from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import Written
from kvgate.text.patterns import pattern

MAX_APPLICATIONS = 50
"""Applications of one set; a larger one is told and cut. Rendering one takes 0.1 to 0.2 seconds."""
_MAX_FILE_BYTES = 1 << 20
_FIELD = pattern(r"\{\{-?\s*\.?([\w.\[\]-]+)\s*-?\}\}")
"""A field of a template without functions: `{{ .path.basename }}`, `{{path.basename}}`."""

Parameters = Mapping[str, str]
"""Path of a value → its text: `path.basename`, `values.model`."""


class Made(Struct, frozen=True, kw_only=True):
    """The Applications of one set."""

    objects: Sequence[Mapping[str, Any]]
    unread: Sequence[str]
    """Sentences about what is not evaluated."""


def applications(value: Mapping[str, Any], tree: "Tree") -> Made:
    """Return the Applications that a set makes of a checkout."""
    spec = Written(value=value).get("spec")
    template = spec.get("template").value
    unread: dict[str, None] = {}
    sets = [each for generator in spec.get("generators").items() for each in _generated(generator, tree, unread)]
    if len(sets) > MAX_APPLICATIONS:
        unread[f"it makes {len(sets)} Applications; the first {MAX_APPLICATIONS} are read"] = None
    objects = [_filled(template, each) for each in sets[:MAX_APPLICATIONS]]
    return Made(objects=[each for each in objects if isinstance(each, Mapping)], unread=list(unread))


class Tree:
    """The folders and the files of YAML of a checkout, each by its steps from the root."""

    def __init__(self, root: Path, files: Iterable[Path]) -> None:
        self.root, self._paths = root.resolve(), files

    @cached_property
    def files(self) -> Sequence[tuple[str, ...]]:
        resolved = (path.resolve() for path in self._paths)
        return sorted({path.relative_to(self.root).parts for path in resolved if path.is_relative_to(self.root)})

    @cached_property
    def folders(self) -> Sequence[tuple[str, ...]]:
        return sorted({each[:depth] for each in self.files for depth in range(1, len(each))})


def _generated(generator: Written, tree: Tree, unread: dict[str, None]) -> Sequence[Parameters]:
    """Return the sets of parameters of one generator; one that asks a cluster or a server gives one set without parameters."""
    if generator.get("list").is_set:
        return [_flat(each.value) for each in generator.get("list", "elements").items()]
    if generator.get("git").is_set:
        values = {f"values.{name}": field.text for name, field in generator.get("git", "values").fields()}
        return [{**values, **each} for each in _of_git(generator.get("git"), tree)]
    if generator.get("matrix").is_set:
        first, *rest = generator.get("matrix", "generators").items() or [generator.get("matrix")]
        found: list[Parameters] = list(_generated(first, tree, unread))
        for each in rest:
            pairs = ((one, _generated(Written(value=_filled(each.value, one)), tree, unread)) for one in found)
            both: Iterator[Parameters] = ({**one, **other} for one, others in pairs for other in others)
            found = list(islice(both, 2 * MAX_APPLICATIONS))
        return found
    names = [name for name, _ in generator.fields() if name not in ("selector", "template")]
    unread[f"the generator {', '.join(names)} reads more than the checkout, and is not evaluated"] = None
    return [{}]


def _of_git(git: Written, tree: Tree) -> Iterator[Parameters]:
    """Yield the parameters of each folder or file that a generator names."""
    folders = git.get("directories").items()
    wanted = [_steps(each) for each in folders if each.get("exclude").value is not True]
    excluded = [_steps(each) for each in folders if each.get("exclude").value is True]
    for folder in tree.folders:
        if _is_any(folder, wanted) and not _is_any(folder, excluded):
            yield _of_path(folder)
    globs = [_steps(each) for each in git.get("files").items()]
    for file in tree.files:
        if _is_any(file, globs):
            try:
                value = value_of(
                    read_file(tree.root.joinpath(*file), max_bytes=_MAX_FILE_BYTES, inside=tree.root).decode()
                )
            except (OSError, UnicodeDecodeError, YamlError):
                continue
            for each in value if isinstance(value, list) else [value]:
                yield {**_flat(each), **_of_path(file[:-1]), "path.filename": file[-1]}


def _steps(each: Written) -> Sequence[str]:
    return os.path.normpath(each.get("path").text or ".").split("/")


def _is_any(steps: Sequence[str], globs: Iterable[Sequence[str]]) -> bool:
    return any(steps_match(steps, each) for each in globs)


def _of_path(steps: Sequence[str]) -> Parameters:
    """Return the parameters about a folder, under the names of both kinds of templates."""
    whole, name = "/".join(steps), steps[-1] if steps else ""
    numbered = {f"path[{index}]": step for index, step in enumerate(steps)}
    return {"path": whole, "path.path": whole, "path.basename": name, "path.basenameNormalized": name, **numbered}


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Return every text and number of a value, by its path."""
    if isinstance(value, Mapping):
        below = (_flat(each, f"{path}.{name}" if path else str(name)) for name, each in value.items())
        return {name: text for each in below for name, text in each.items()}
    if isinstance(value, bool):
        return {path: str(value).lower()}
    return {path: str(value)} if isinstance(value, str | int | float) else {}


def _filled(value: Any, parameters: Parameters) -> Any:
    """Return a template with its fields; one without a parameter, or with a function, stays as it is written."""
    if isinstance(value, Mapping):
        return {name: _filled(each, parameters) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, parameters) for each in value]
    if isinstance(value, str) and "{{" in value:
        return _FIELD.sub(lambda found: parameters.get(found[1], found[0]), value)
    return value

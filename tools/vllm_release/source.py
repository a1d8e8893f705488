"""vLLM's source as syntax trees: modules of an archive, what a name in one of them means, functions by their qualified names.

Nothing is imported, executed or unpacked to a disk: files of the archive are read into memory one by one.
"""

from __future__ import annotations

import ast
import tarfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = "vllm"
"""The package."""
MAX_FILE_BYTES = 8 * 2**20
"""The largest Python file of a release has 0.2 MB."""


class NotRead(Exception):
    """Source that is not as this program knows it; the message says where, and what was expected."""


@dataclass(frozen=True)
class Ref:
    """A class, a function, or the expression that a name stands for, with the module that its own names mean something in."""

    module: Module
    node: ast.AST

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "")


@dataclass(eq=False)
class Module:
    """One file of the release."""

    source: Source
    path: str
    tree: ast.Module

    @cached_property
    def bindings(self) -> Mapping[str, ast.AST]:
        """Names of the module; what stands under TYPE_CHECKING gives way to its `else`, which is what a run sees."""
        return dict(_bindings(self.tree.body))

    def find(self, name: str) -> Ref | None:
        """Return what a name of this module stands for, through imports within the package; None for all others."""
        node = self.bindings.get(name)
        if isinstance(node, ast.ImportFrom):
            return self._imported(node, name)
        return Ref(self, node) if node is not None and not isinstance(node, ast.Import) else None

    def _imported(self, node: ast.ImportFrom, name: str) -> Ref | None:
        module = self.source.module(self._absolute(node))
        original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        return module.find(original) if module else None

    def _absolute(self, node: ast.ImportFrom) -> str:
        """The imported module's dotted name."""
        if not node.level:
            return node.module or ""
        package = self.path.removesuffix(".py").removesuffix("/__init__").split("/")
        drop = node.level - 1 if self.path.endswith("__init__.py") else node.level
        return ".".join([*package[: len(package) - drop], *([node.module] if node.module else [])])


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name, statement) for alias in statement.names)
        elif isinstance(statement, ast.Assign):
            yield from ((target.id, statement.value) for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            yield statement.target.id, statement.value
        elif isinstance(statement, ast.If):
            yield from _bindings([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            yield from _bindings([*(s for each in statement.handlers for s in each.body), *statement.body])


@dataclass(eq=False)
class Source:
    """The Python files of one release, by their paths: `vllm/config/cache.py`."""

    version: str
    files: Mapping[str, str]
    _modules: dict[str, Module] = field(default_factory=dict)

    def module(self, dotted: str) -> Module | None:
        """By its name, `vllm.config`; None for what is not in the package."""
        stem = dotted.replace(".", "/")
        return next((self.file(path) for path in (f"{stem}.py", f"{stem}/__init__.py") if path in self.files), None)

    def file(self, path: str) -> Module:
        """By its path. Raises NotRead where the release has no such file."""
        if path not in self.files:
            raise NotRead(f"vLLM {self.version} has no {path}; find where its content went")
        if path not in self._modules:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # escapes in their texts
                self._modules[path] = Module(self, path, ast.parse(self.files[path]))
        return self._modules[path]

    def definition(self, path: str, qualified: str) -> ast.AST | None:
        """The class or function `Worker.determine_available_memory` of a file; None where either is missing."""
        if path not in self.files:
            return None
        body: list[ast.stmt] = self.file(path).tree.body
        node: ast.AST | None = None
        for name in qualified.split("."):
            node = next((each for each in _definitions(body) if each.name == name), None)
            if node is None:
                return None
            body = node.body
        return node

    def paths_of(self, qualified: str) -> tuple[str, ...]:
        """Files that have a class or function of that name: where one may have gone."""
        last = qualified.rpartition(".")[2]
        likely = (path for path, text in self.files.items() if f"def {last}" in text or f"class {last}" in text)
        return tuple(path for path in sorted(likely) if self.definition(path, qualified))


def _definitions(body: list[ast.stmt]) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The last of a name counts; overloads are none."""
    found = [each for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    return found[::-1]


def read_archive(version: str, path: Path) -> Source:
    """The package's Python files of a source distribution."""
    files: dict[str, str] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            inner = member.name.partition("/")[2]
            if member.isfile() and inner.startswith(f"{ROOT}/") and inner.endswith(".py"):
                if member.size > MAX_FILE_BYTES:
                    raise NotRead(f"{member.name} has {member.size} bytes; look at what this archive is")
                content = archive.extractfile(member)
                files[inner] = content.read().decode("utf-8", errors="replace") if content else ""
    if not files:
        raise NotRead(f"{path.name} holds no Python file of {ROOT}")
    return Source(version, files)

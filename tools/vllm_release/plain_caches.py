"""Attention layers that a model class builds without the settings of the cache: they keep the model's dtype, whatever the user sets.

A layer takes its dtype from its argument `cache_config`, which is None by default (`Attention.__init__`). The argument is lost where a
class builds a layer without it, or where another class builds that class without it. Calls are followed into the classes that they name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain

from vllm_release.hints import last_name
from vllm_release.source import NotRead, Ref, Source

ARGUMENT = "cache_config"
REGISTRY = "vllm/model_executor/models/registry.py"
_LAYERS = frozenset({"Attention", "MLAAttention"})
_WITHOUT_CACHE = (".ENCODER", ".ENCODER_ONLY")
"""Kinds of attention that keep nothing between steps (`AttentionType`)."""

Condition = tuple[str, ...]
"""Tests of a class's source, all of which hold; empty: always."""


def read_plain_caches(source: Source) -> frozenset[tuple[str, str]]:
    """Return (model class of the registry, condition in the source); the condition is empty where there is none. Raises NotRead."""
    registered = _registered(source)
    reader = _Reader(registered)
    found = ((name, each) for name, ref in registered.items() for each in _merged(reader.lost(ref, has_argument=True)))
    return frozenset((name, " and ".join(condition)) for name, condition in found)


def _registered(source: Source) -> dict[str, Ref]:
    """Return the classes of the registry by their names; those that are not in the package are left out."""
    tables = [node for node in source.file(REGISTRY).bindings.values() if isinstance(node, ast.Dict)]
    found: dict[str, Ref] = {}
    for key, value in chain.from_iterable(zip(table.keys, table.values, strict=True) for table in tables):
        match key, value:
            case ast.Constant(value=name), ast.Tuple(elts=[ast.Constant(value=file), ast.Constant(value=class_name)]):
                module = source.module(file if file.startswith("vllm.") else f"vllm.model_executor.models.{file}")
                ref = module.find(class_name) if module else None
                if ref is not None and isinstance(ref.node, ast.ClassDef):
                    found[name] = ref
    if not found:
        raise NotRead(f"{REGISTRY} of vLLM {source.version} names no class; find where the model classes are kept")
    return found


@dataclass(eq=False)
class _Reader:
    registered: Mapping[str, Ref]
    _known: dict[tuple[int, bool], frozenset[Condition]] = field(default_factory=dict)

    def lost(self, ref: Ref, *, has_argument: bool) -> frozenset[Condition]:
        """Return the conditions under which an object of the class holds a layer without the argument."""
        key = (id(ref.node), has_argument)
        if key not in self._known:
            self._known[key] = frozenset()  # a class that builds itself
            self._known[key] = frozenset(self._lost(ref, has_argument=has_argument))
        return self._known[key]

    def _lost(self, ref: Ref, *, has_argument: bool) -> Iterator[Condition]:
        functions = _functions(ref)
        if "__init__" not in functions:
            yield from chain.from_iterable(self.lost(each, has_argument=has_argument) for each in _above(ref))
        for function in functions.values():
            scope = _Scope(ref, function, has_argument)
            for call, condition in _calls(function.body, ()):
                yield from self._lost_by(call, condition, scope)
                for each in (*scope.handed_over(call), *self._by_architecture(call)):
                    yield from self.lost(each, has_argument=True)

    def _lost_by(self, call: ast.Call, condition: Condition, scope: _Scope) -> Iterator[Condition]:
        for ref in scope.built_by(call):
            parameters = _parameters(ref)
            passes = ARGUMENT not in parameters or scope.passes(call, parameters.index(ARGUMENT))
            if _is_layer(ref) and not _is_of_itself(call):
                lost = frozenset() if passes or _keeps_nothing(call) else frozenset({condition})
            else:
                lost = self.lost(ref, has_argument=passes)
            # the condition of the call that loses the argument counts
            yield from {condition} if lost and not passes and scope.has_argument else lost

    def _by_architecture(self, call: ast.Call) -> Iterator[Ref]:
        """Yield the classes that `architectures=["…"]` names."""
        for keyword in call.keywords:
            if keyword.arg == "architectures" and isinstance(keyword.value, ast.List):
                names = (each.value for each in keyword.value.elts if isinstance(each, ast.Constant))
                yield from (self.registered[str(name)] for name in names if str(name) in self.registered)


@dataclass(frozen=True)
class _Scope:
    """A method, and whether an object of its class is given the argument."""

    ref: Ref
    function: ast.FunctionDef
    has_argument: bool

    def passes(self, call: ast.Call, position: int) -> bool:
        """True where the call gives the argument; with `*` or `**` it may, and counts as if it did."""
        if any(keyword.arg is None for keyword in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args):
            return True
        given = [keyword.value for keyword in call.keywords if keyword.arg == ARGUMENT] or call.args[position:][:1]
        match given:
            case [] | [ast.Constant(value=None)]:
                return False
            case [ast.Name(id=name)] if name == ARGUMENT and name not in self.assigned:
                return self.has_argument or self.function.name != "__init__"
            case _:
                return True

    def built_by(self, call: ast.Call) -> Iterator[Ref]:
        """Yield the classes of which the call makes an object: `A(…)`, `(A if x else B)(…)`, `self.kind(…)`, `super().__init__(…)`."""
        match call.func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
                yield from _above(self.ref)
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
                names = (name for key, name in _class_variables(self.ref) if key == attribute)
                yield from _class_refs(self.ref, names)
            case expression:
                yield from _class_refs(self.ref, self._names(expression))

    def handed_over(self, call: ast.Call) -> Iterator[Ref]:
        """Yield the classes that the call passes on, for others to build."""
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            yield from _class_refs(self.ref, self._names(value))

    def _names(self, node: ast.expr, depth: int = 3) -> Iterator[str]:
        match node:
            case ast.IfExp(body=one, orelse=other):
                yield from chain(self._names(one, depth), self._names(other, depth))
            case ast.Name(id=name):
                values = self.assigned.get(name, ())
                yield from chain.from_iterable(self._names(value, depth - 1) for value in values) if depth else ()
                yield name

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """Return the values of the names that the method sets, and of its parameters' defaults."""
        arguments = self.function.args
        parameters = [*arguments.posonlyargs, *arguments.args][::-1]
        pairs = [(each.arg, value) for each, value in zip(parameters, arguments.defaults[::-1], strict=False)]
        pairs += [
            (each.arg, value) for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
        ]
        found: dict[str, list[ast.expr]] = {}
        for name, value in pairs:
            if name != ARGUMENT:
                found.setdefault(name, []).append(value)
        for node in ast.walk(self.function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found.setdefault(name, []).append(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    found.setdefault(name, []).append(value)
        return found


def _class_refs(ref: Ref, names: Iterable[str]) -> Iterator[Ref]:
    for found in (ref.module.find(name) for name in dict.fromkeys(names) if name.lstrip("_")[:1].isupper()):
        if found is not None and isinstance(found.node, ast.ClassDef):
            yield found


@cache
def _functions(ref: Ref) -> dict[str, ast.FunctionDef]:
    body = ref.node.body  # type: ignore[attr-defined]
    return {each.name: each for each in body if isinstance(each, ast.FunctionDef)}


@cache
def _above(ref: Ref) -> list[Ref]:
    """Return the classes that a class names as its bases; one of its own name is the one that its module imports."""
    found = []
    for name in (last_name(base) for base in ref.node.bases):  # type: ignore[attr-defined]
        above = ref.module.find(name)
        if above is not None and above.node is ref.node:
            imports = (each for each in ref.module.tree.body if isinstance(each, ast.ImportFrom))
            node = next((each for each in imports if any((a.asname or a.name) == name for a in each.names)), None)
            above = ref.module._imported(node, name) if node else None
        if above is not None and isinstance(above.node, ast.ClassDef):
            found.append(above)
    return found


def _lineage(ref: Ref) -> Iterator[Ref]:
    yield ref
    yield from chain.from_iterable(map(_lineage, _above(ref)))


@cache
def _is_layer(ref: Ref) -> bool:
    return any(each.name in _LAYERS and "attention" in each.module.path for each in _lineage(ref))


def _is_of_itself(call: ast.Call) -> bool:
    """True for `super().__init__(…)`: what it builds is the object itself."""
    return isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call)


def _keeps_nothing(call: ast.Call) -> bool:
    kinds = (ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "attn_type")
    return any(kind.endswith(_WITHOUT_CACHE) for kind in kinds) or last_name(call.func).startswith("EncoderOnly")


@cache
def _parameters(ref: Ref) -> list[str]:
    """Return the names of the parameters with which an object is made, without `self`."""
    makers = (_functions(each).get("__init__") for each in _lineage(ref))
    maker = next((each for each in makers if each is not None), None)
    if maker is None:
        return []
    arguments = maker.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)][1:]


def _class_variables(ref: Ref) -> Iterator[tuple[str, str]]:
    for each in _lineage(ref):
        for statement in each.node.body:  # type: ignore[attr-defined]
            match statement:
                case ast.Assign(targets=[ast.Name(id=key)], value=ast.Name(id=name)):
                    yield key, name
                case ast.AnnAssign(target=ast.Name(id=key), value=ast.Name(id=name)):
                    yield key, name


def _calls(body: Iterable[ast.AST], condition: Condition) -> Iterator[tuple[ast.Call, Condition]]:
    """Yield every call with the tests of the statements around it."""
    for node in body:
        if isinstance(node, ast.Call):
            yield node, condition
        if isinstance(node, ast.If):
            yield from _calls([node.test], condition)
            yield from _calls(node.body, (*condition, ast.unparse(node.test)))
            yield from _calls(node.orelse, (*condition, _negated(ast.unparse(node.test))))
        else:
            yield from _calls(ast.iter_child_nodes(node), condition)


def _negated(test: str) -> str:
    return f"not {test}" if test.replace(".", "").isidentifier() else f"not ({test})"


def _merged(conditions: Iterable[Condition]) -> set[Condition]:
    """Return the conditions without those that others cover: both branches of a test are what stands before it."""
    found = set(conditions)
    while True:
        pairs = ((each, (*each[:-1], _negated(each[-1]))) for each in found if each)
        both = next(((one, other) for one, other in pairs if other in found), None)
        if both is None:
            return {each for each in found if not any(each[:length] in found for length in range(len(each)))}
        found = (found - set(both)) | {both[0][:-1]}

"""Follow the expressions and straight-line statements of a parser's definition on the syntax tree.

Only what such definitions consist of is understood: constants, containers, names, attributes of configuration classes, calls of the
functions that make up the parser. Anything else is an Unread value, or raises NotRead where the reading would depend on it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm_release.hints import last_name, literal_values
from vllm_release.source import Module, NotRead, Ref
from vllm_release.values import Bound, EnumMember, Frame, Kind, Made, Unread, lineage

_ARGV = ["vllm", "serve"]
"""`sys.argv` of the command that is read."""


class Reading:
    """Follows definitions; `natives` stand in place of what has those names: functions of vLLM's and of Python."""

    def __init__(self, natives: Mapping[str, Any]) -> None:
        self.natives = natives

    def call(self, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """The result of a function of vLLM's, of a native one, or of a class."""
        if callable(function):
            is_of_text = isinstance(getattr(function, "__self__", None), str)
            return _text_made_by(function, arguments, keywords) if is_of_text else function(*arguments, **keywords)
        if isinstance(function, Kind):
            return arguments[0] if isinstance(arguments[0], int | float) else Unread(f"a call of {function.text}")
        if isinstance(function, Bound):
            first = [] if "staticmethod" in _decorators(function.ref) else [function.owner]
            return self._run(function.ref, [*first, *arguments], keywords, function.owner)
        if isinstance(function, Ref):
            if isinstance(function.node, ast.ClassDef):
                return Made(function)
            if function.name in self.natives:
                return self.natives[function.name](*arguments, **keywords)
            return self._run(function, arguments, keywords, None)
        return Unread(f"{function.text}()" if isinstance(function, Unread) else f"a call of {type(function).__name__}")

    def _run(self, ref: Ref, arguments: Sequence[Any], keywords: Mapping[str, Any], owner: Ref | None) -> Any:
        if not isinstance(ref.node, ast.FunctionDef):
            raise NotRead(f"{ref.module.path}: {ref.name or 'a lambda'} is called, and is no plain function")
        names = [argument.arg for argument in (*ref.node.args.posonlyargs, *ref.node.args.args)]
        frame = Frame(ref.module, owner=_defining(ref, owner))
        defaults = ref.node.args.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            frame.names[name] = self.value(default, frame)
        frame.names |= dict(zip(names, arguments, strict=False)) | dict(keywords)
        self._follow(ref.node.body, frame)
        return frame.result

    # Statements

    def _follow(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        for statement in body:
            if frame.is_over:
                return
            follow = _STATEMENTS.get(type(statement))
            if follow is None:
                where = f"{frame.module.path}:{statement.lineno}"
                raise NotRead(
                    f"{where}: a parser is defined by a statement of a kind that is not read: {type(statement).__name__}"
                )
            follow(self, statement, frame)

    def _expression(self, node: ast.Expr, frame: Frame) -> None:
        self.value(node.value, frame)

    def _return(self, node: ast.Return, frame: Frame) -> None:
        frame.result, frame.is_over = (self.value(node.value, frame) if node.value else None), True

    def _assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.value(node.value, frame)
        for target in node.targets:
            self._put(target, value, frame)

    def _annotated(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value:
            self._put(node.target, self.value(node.value, frame), frame)

    def _augmented(self, node: ast.AugAssign, frame: Frame) -> None:
        before, added = self.value(node.target, frame), self.value(node.value, frame)
        self._put(node.target, _sum(before, added), frame)

    def _put(self, target: ast.expr, value: Any, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, ast.Subscript):
            self.value(target.value, frame)[self.value(target.slice, frame)] = value
        elif isinstance(target, ast.Tuple):
            for each, part in zip(target.elts, value, strict=True):
                self._put(each, part, frame)
        # attributes of the parser itself (its epilog) do not matter

    def _delete(self, node: ast.Delete, frame: Frame) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                del self.value(target.value, frame)[self.value(target.slice, frame)]

    def _if(self, node: ast.If, frame: Frame) -> None:
        test = self.value(node.test, frame)
        if isinstance(test, Unread):
            raise NotRead(
                f"{frame.module.path}:{node.lineno}: options depend on {test.text}, which the source does not show"
            )
        self._follow(node.body if test else node.orelse, frame)

    def _for(self, node: ast.For, frame: Frame) -> None:
        over = self.value(node.iter, frame)
        if isinstance(over, Unread):
            raise NotRead(
                f"{frame.module.path}:{node.lineno}: options depend on {over.text}, which the source does not show"
            )
        for each in list(over):
            self._put(node.target, each, frame)
            self._follow(node.body, frame)

    def _import(self, node: ast.ImportFrom, frame: Frame) -> None:
        within = Module(frame.module.source, frame.module.path, ast.Module(body=[node], type_ignores=[]))
        for alias in node.names:
            name = alias.asname or alias.name
            frame.names[name] = self._meaning(within.find(name), name)

    def _nothing(self, node: ast.stmt, frame: Frame) -> None:
        """`pass`, `import x`, `assert`, nested functions."""
        if isinstance(node, ast.FunctionDef):
            frame.names[node.name] = Ref(frame.module, node)

    # Expressions

    def value(self, node: ast.expr, frame: Frame) -> Any:
        """Return the value of an expression."""
        read = _EXPRESSIONS.get(type(node))
        return read(self, node, frame) if read else Unread(ast.unparse(node))

    def _constant(self, node: ast.Constant, _: Frame) -> Any:
        return node.value

    def _name(self, node: ast.Name, frame: Frame) -> Any:
        if node.id in frame.names:
            return frame.names[node.id]
        if node.id in frame.module.bindings:
            return self._meaning(frame.module.find(node.id), node.id)
        return self.natives.get(node.id, Unread(node.id))

    def _meaning(self, ref: Ref | None, name: str) -> Any:
        """A class or a function as such, the value of anything else."""
        if ref is None:
            return self.natives.get(name, Unread(name))
        if isinstance(ref.node, ast.ClassDef | ast.FunctionDef):
            return ref
        if isinstance(ref.node, ast.Subscript) and last_name(ref.node.value) == "Literal":
            return literal_values(ref.node, ref.module)
        return self.value(ref.node, Frame(ref.module)) if isinstance(ref.node, ast.expr) else Unread(name)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        dotted = ast.unparse(node)
        if dotted == "sys.argv":
            return list(_ARGV)
        owner = self.value(node.value, frame)
        if isinstance(owner, Ref) and isinstance(owner.node, ast.ClassDef):
            return self.class_attribute(owner, node.attr)
        if isinstance(owner, EnumMember) and node.attr == "value":
            return owner.value
        if isinstance(owner, Unread):
            module = self._module_named(owner.text, frame)
            return self._meaning(module.find(node.attr), dotted) if module else self.natives.get(dotted, Unread(dotted))
        return (
            getattr(owner, node.attr)
            if isinstance(owner, dict | list | str | tuple | set) or callable(owner)
            else self._own(owner, node)
        )

    def _own(self, owner: Any, node: ast.Attribute) -> Any:
        found = getattr(owner, node.attr, None)
        return found if callable(found) and not isinstance(owner, Ref | Bound | Made) else Unread(ast.unparse(node))

    def _module_named(self, name: str, frame: Frame) -> Module | None:
        """`envs` of `import vllm.envs as envs`."""
        node = frame.module.bindings.get(name)
        if isinstance(node, ast.Import):
            dotted = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), "")
            return frame.module.source.module(dotted)
        if isinstance(node, ast.ImportFrom) and not node.level:
            return frame.module.source.module(f"{node.module}.{name}")
        return None

    def class_attribute(self, owner: Ref, name: str) -> Any:
        """A method, a member of an enumeration, the default of a field; of the class itself or of what it inherits from."""
        if name in ("__name__", "__doc__"):
            return owner.name if name == "__name__" else ""
        for ref in lineage(owner):
            for statement in ref.node.body:  # type: ignore[attr-defined]
                if isinstance(statement, ast.FunctionDef) and statement.name == name:
                    return Bound(Ref(ref.module, statement), owner)
                if _assigned(statement) == name and statement.value is not None:  # type: ignore[attr-defined]
                    return self._field_or_member(statement.value, ref, owner)  # type: ignore[attr-defined]
        return Unread(f"{owner.name}.{name}")

    def _field_or_member(self, node: ast.expr, ref: Ref, owner: Ref) -> Any:
        value = self.default(node, ref.module)
        is_enum = any(last_name(base).endswith("Enum") for base in owner.node.bases)  # type: ignore[attr-defined]
        return EnumMember(value) if is_enum else value

    def default(self, node: ast.expr, module: Module) -> Any:
        """A field's default: of `Field(default=…)` what is in it, of a factory what it makes."""
        frame = Frame(module)
        if not isinstance(node, ast.Call) or last_name(node.func) not in ("Field", "field", "PydanticField"):
            return self.value(node, frame)
        stated = {keyword.arg: keyword.value for keyword in node.keywords}
        if node.args:
            return self.value(node.args[0], frame)
        if "default" in stated:
            return self.value(stated["default"], frame)
        factory = stated.get("default_factory")
        if factory is None:
            return None
        if isinstance(factory, ast.Lambda):
            return self.value(factory.body, frame)
        made_by = self.value(factory, frame)
        try:
            return Made(made_by.owner) if isinstance(made_by, Bound) else self.call(made_by, (), {})
        except NotRead as error:
            return Unread(str(error))

    def _call(self, node: ast.Call, frame: Frame) -> Any:
        if last_name(node.func) == "cast":
            return self.value(node.args[1], frame)
        if (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Call)
            and last_name(node.func.value.func) == "super"
        ):
            function: Any = self._super(node.func.attr, frame)
        else:
            function = self.value(node.func, frame)
        arguments: list[Any] = []
        for each in node.args:
            value = self.value(each.value if isinstance(each, ast.Starred) else each, frame)
            arguments.extend(value if isinstance(each, ast.Starred) else [value])
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is None and isinstance(value, Unread):
                raise NotRead(
                    f"{frame.module.path}:{node.lineno}: {ast.unparse(keyword.value)} is not read: {value.text}"
                )
            keywords |= value if keyword.arg is None else {keyword.arg: value}
        return self.call(function, arguments, keywords)

    def _super(self, name: str, frame: Frame) -> Any:
        """The method of the class above, on the class that was called."""
        if frame.owner is None:
            raise NotRead(f"{frame.module.path}: super() outside of a class")
        for ref in lineage(frame.owner)[1:]:
            found = next((s for s in ref.node.body if isinstance(s, ast.FunctionDef) and s.name == name), None)  # type: ignore[attr-defined]
            if found:
                return Bound(Ref(ref.module, found), ref)
        raise NotRead(f"{frame.module.path}: {frame.owner.name} inherits no {name}")

    def _list(self, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Any:
        values = [self.value(each, frame) for each in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values

    def _dict(self, node: ast.Dict, frame: Frame) -> Any:
        made: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            read = self.value(value, frame)
            if key is None and not isinstance(read, dict):
                return Unread(ast.unparse(value))
            made |= read if key is None else {self.value(key, frame): read}
        return made

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        owner = self.value(node.value, frame)
        if isinstance(owner, Unread):
            return Unread(ast.unparse(node))
        if isinstance(node.slice, ast.Slice):
            low, high = (self.value(each, frame) if each else None for each in (node.slice.lower, node.slice.upper))
            return owner[low:high]
        key = self.value(node.slice, frame)
        try:
            return owner[key]
        except (KeyError, IndexError, TypeError) as error:
            raise NotRead(f"{frame.module.path}:{node.lineno}: {ast.unparse(node)} is not there: {error}") from None

    def _binary(self, node: ast.BinOp, frame: Frame) -> Any:
        left, right = self.value(node.left, frame), self.value(node.right, frame)
        operate = _OPERATORS.get(type(node.op))
        if operate is None or isinstance(left, Unread) or isinstance(right, Unread):
            return Unread(ast.unparse(node))
        return operate(left, right)

    def _unary(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value = self.value(node.operand, frame)
        if isinstance(value, Unread):
            return value
        return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else value

    def _boolean(self, node: ast.BoolOp, frame: Frame) -> Any:
        value: Any = None
        for each in node.values:
            value = self.value(each, frame)
            if isinstance(value, Unread) or bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        left, right = self.value(node.left, frame), self.value(node.comparators[0], frame)
        compare = _COMPARISONS.get(type(node.ops[0]))
        if compare is None or len(node.ops) > 1 or isinstance(left, Unread) or isinstance(right, Unread):
            return Unread(ast.unparse(node))
        return compare(left, right)

    def _choice(self, node: ast.IfExp, frame: Frame) -> Any:
        test = self.value(node.test, frame)
        return test if isinstance(test, Unread) else self.value(node.body if test else node.orelse, frame)

    def _text(self, node: ast.JoinedStr, frame: Frame) -> str:
        """With what is in braces where it is known."""
        parts = (
            self.value(each.value, frame) if isinstance(each, ast.FormattedValue) else each.value
            for each in node.values
        )  # type: ignore[attr-defined]
        return "".join("…" if isinstance(part, Unread) else str(part) for part in parts)

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Ref:
        return Ref(frame.module, node)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp, frame: Frame) -> Any:
        over = self.value(node.generators[0].iter, frame)
        if len(node.generators) > 1 or not isinstance(over, list | tuple | dict | type({}.items())):
            return Unread(ast.unparse(node))
        made = []
        for each in over:
            within = Frame(frame.module, dict(frame.names), frame.owner)
            self._put(node.generators[0].target, each, within)
            if all(self.value(test, within) for test in node.generators[0].ifs):
                parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
                made.append(tuple(self.value(part, within) for part in parts))
        return dict(made) if isinstance(node, ast.DictComp) else [part for (part,) in made]


def _defining(ref: Ref, owner: Ref | None) -> Ref | None:
    """The class whose body holds the method."""
    return next((each for each in lineage(owner) if ref.node in each.node.body), owner) if owner else None  # type: ignore[attr-defined]


def _decorators(ref: Ref) -> list[str]:
    return [last_name(each) for each in getattr(ref.node, "decorator_list", ())]


def _assigned(statement: ast.stmt) -> str:
    if isinstance(statement, ast.AnnAssign):
        return last_name(statement.target)
    return last_name(statement.targets[0]) if isinstance(statement, ast.Assign) else ""


def _text_made_by(method: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """A text's method; what it makes of values that are not read is not read either."""
    try:
        return method(*arguments, **keywords)
    except TypeError as error:
        return Unread(str(error))


def _sum(before: Any, added: Any) -> Any:
    return Unread("a sum") if isinstance(before, Unread) or isinstance(added, Unread) else before + added


_STATEMENTS: Mapping[type, Callable[[Reading, Any, Frame], None]] = {
    ast.Expr: Reading._expression,
    ast.Return: Reading._return,
    ast.Assign: Reading._assign,
    ast.AnnAssign: Reading._annotated,
    ast.AugAssign: Reading._augmented,
    ast.Delete: Reading._delete,
    ast.If: Reading._if,
    ast.For: Reading._for,
    ast.ImportFrom: Reading._import,
    ast.Import: Reading._nothing,
    ast.Pass: Reading._nothing,
    ast.Assert: Reading._nothing,
    ast.FunctionDef: Reading._nothing,
}
_EXPRESSIONS: Mapping[type, Callable[[Reading, Any, Frame], Any]] = {
    ast.Constant: Reading._constant,
    ast.Name: Reading._name,
    ast.Attribute: Reading._attribute,
    ast.Call: Reading._call,
    ast.List: Reading._list,
    ast.Tuple: Reading._list,
    ast.Set: Reading._list,
    ast.Dict: Reading._dict,
    ast.Subscript: Reading._subscript,
    ast.BinOp: Reading._binary,
    ast.UnaryOp: Reading._unary,
    ast.BoolOp: Reading._boolean,
    ast.Compare: Reading._compare,
    ast.IfExp: Reading._choice,
    ast.JoinedStr: Reading._text,
    ast.Lambda: Reading._lambda,
    ast.ListComp: Reading._comprehension,
    ast.GeneratorExp: Reading._comprehension,
    ast.SetComp: Reading._comprehension,
    ast.DictComp: Reading._comprehension,
}
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.LShift: lambda a, b: a << b,
}
_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}

"""Small wrong changes of a module's source: one operator, constant, condition or function in another's place.

Text that only people read is left alone (docstrings, sentences, f-strings), and so is code that computes nothing: annotations,
decorators, the options of a class.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.Pow: ast.Mult,
}  # fmt: skip
FUNCTIONS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change: the text between two positions of the source, in bytes, and the text in its place."""

    line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with this change."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"line {self.line}: `{self.before}` → `{self.after}`"


def changes_of(source: bytes) -> list[Change]:
    """Return every change of a module, in the order of its text."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Change] = []
    for node in _computing(tree):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = source[start:end].decode()
        found += (
            Change(line=node.lineno, start=start, end=end, before=before, after=after) for after in _replacements(node)
        )
    return sorted(found, key=lambda change: (change.start, change.end, change.after))


def _computing(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions under a node that compute something."""
    match node:
        case ast.JoinedStr() | ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return
        case (
            ast.Subscript(value=ast.Name(id="Literal")) | ast.Assign(targets=[ast.Name(id="__all__" | "TYPE_CHECKING")])
        ):
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            below = [*node.body, *node.args.defaults, *(each for each in node.args.kw_defaults if each)]
        case ast.ClassDef():
            below = list(node.body)
        case ast.AnnAssign():
            below = [node.value] if node.value else []
        case _:
            below = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.expr):
        yield node
    if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield ast.copy_location(ast.UnaryOp(op=ast.Invert(), operand=node.test), node.test)  # to be negated
    for child in below:
        yield from _computing(child)


def _replacements(node: ast.expr) -> Iterator[str]:
    """Yield the texts that may stand in the place of an expression; several where it has several parts."""
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                other = [*node.ops[:index], COMPARISONS[type(operator)](), *node.ops[index + 1 :]]
                yield _text(ast.Compare(left=node.left, ops=other, comparators=node.comparators))
        case ast.BinOp(op=ast.BitOr()):
            yield _text(node.left)
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield _text(ast.BinOp(left=node.left, op=OPERATORS[type(node.op)](), right=node.right))
        case ast.BoolOp():
            yield _text(ast.BoolOp(op=ast.Or() if isinstance(node.op, ast.And) else ast.And(), values=node.values))
        case ast.UnaryOp(op=ast.Invert()):
            yield _text(ast.UnaryOp(op=ast.Not(), operand=node.operand))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield _text(node.operand)
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            yield _text(ast.Call(func=ast.Name(id=FUNCTIONS[name]), args=node.args, keywords=node.keywords))
        case ast.Constant():
            yield from _other_constant(node.value)


def _other_constant(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield repr(not value)
    elif isinstance(value, int):
        yield repr(value + 1)
    elif isinstance(value, float):
        yield repr(value * 2 or 1.0)
    elif isinstance(value, str) and value and " " not in value:  # a name; sentences are for people
        yield repr(f"not {value}")


def _text(node: ast.expr) -> str:
    """Return the source in brackets, so that it binds as the expression did whose place it takes."""
    return f"({ast.unparse(node)})"

"""Docstrings under the fields of a class, read from its source: only the CRD's generator needs them, so only it pays."""

import ast
import inspect
from itertools import pairwise


def attribute_docstrings(model: type) -> dict[str, str]:
    """Field → the text under it; of the class itself, not of its bases."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    if not isinstance(definition, ast.ClassDef):
        return {}
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }

"""Base of all API types. They are camelCase outside and snake_case inside, frozen, take no unknown fields, and have rules over fields."""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

from msgspec import Struct
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, PlainValidator, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from kvgate.api.quantity import MAX_QUANTITY_LENGTH, QUANTITY_PATTERN, parse_quantity


def attribute_docstrings(model: type) -> dict[str, str]:
    """Return the text below each field of a class, read from its source; fields of its bases are left out."""
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


class CelRule(Struct, frozen=True, kw_only=True):
    """A rule over several fields: in CEL for the API server, in Python for the command line. A test on a real API server compares both."""

    rule: str
    """The rule in CEL; `self` is the object as it is written, in camelCase."""
    message: str
    """The requirement in plain words, without the value."""
    holds: Callable[[Any], bool]
    """The same rule on the parsed object."""
    field_path: str = ""
    """The field that is wrong, such as `.extraArgs`; empty: the object itself."""
    culprits: Callable[[Any], Iterable[str]] = lambda _: ()
    """Names of the wrong parts, for the command line: CEL cannot name them."""

    def broken_by(self, value: Any) -> str:
        named = ", ".join(self.culprits(value))
        return f"{self.message}: {named}" if named else self.message

    def schema(self) -> dict[str, str]:
        """Return the rule as an entry of x-kubernetes-validations."""
        path = {"fieldPath": self.field_path} if self.field_path else {}
        return {"rule": self.rule, "message": self.message, **path}


class ApiModel(BaseModel):
    """Base of every object in a spec or status. The text below a field is its description in the CRD."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        frozen=True,
        extra="forbid",
        defer_build=True,  # once, on first use, and not once per class: the command line starts faster
    )
    cel_rules: ClassVar[tuple[CelRule, ...]] = ()

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Return the object that a document describes. Only the CRD's names count; `model_validate` would take Python's names too.

        The API server drops the unknown field `max_model_len`. A reader that took it would judge another object than the stored one.
        """
        return cls.model_validate(document, by_alias=True, by_name=False)

    def broken_rules(self, path: str = "") -> Iterator[tuple[str, str]]:
        """Yield (path, message) of every rule that does not hold, of this object and of those inside it."""
        yield from (
            (f"{path}{rule.field_path}".lstrip("."), rule.broken_by(self))
            for rule in self.cel_rules
            if not rule.holds(self)
        )
        for name, field in type(self).model_fields.items():
            value, inside = getattr(self, name), f"{path}.{field.alias or name}".lstrip(".")
            if isinstance(value, ApiModel):
                yield from value.broken_rules(inside)
            elif isinstance(value, tuple):
                for index, item in enumerate(value):
                    if isinstance(item, ApiModel):
                        yield from item.broken_rules(f"{inside}[{index}]")

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        for base in reversed([each for each in cls.__mro__ if issubclass(each, ApiModel)]):
            for name, text in attribute_docstrings(base).items():
                schema["properties"][cls.model_fields[name].alias]["description"] = text
        if cls.cel_rules:
            schema["x-kubernetes-validations"] = [rule.schema() for rule in cls.cel_rules]
        return schema


DnsName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Switch = Annotated[bool, Field(strict=True)]
"""True or false, and no text or number in their place, as the API server requires."""
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
ParallelSize = Annotated[int, Field(strict=True, ge=1, le=1024)]
MAX_TOKENS = 100_000_000
Tokens = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)]


def _tokens_or_auto(value: Any) -> Any:
    """Read a length as the API server does: a whole number, or the word auto."""
    if value == "auto" or (type(value) is int and 1 <= value <= MAX_TOKENS):
        return value
    raise PydanticCustomError("tokens_or_auto", "It must be a number of tokens from 1 to 100000000, or auto")


TokensOrAuto = Annotated[
    int | str,
    PlainValidator(_tokens_or_auto),
    WithJsonSchema({
        "x-kubernetes-int-or-string": True,
        "x-kubernetes-validations": [{
            "rule": f"type(self) == int ? self >= 1 && self <= {MAX_TOKENS} : self == 'auto'",
            "message": f"must be a number of tokens from 1 to {MAX_TOKENS}, or auto",
        }],
    }),
]  # fmt: skip
"""A length in tokens, or auto for the longest that fits."""


def _count_or_percent(value: Any) -> Any:
    if (type(value) is int and 0 <= value <= 10_000) or (isinstance(value, str) and re.fullmatch(_PERCENT, value)):
        return value
    raise PydanticCustomError("count_or_percent", "It must be a number of pods from 0 to 10000, or text such as 25%")


_PERCENT = "(100|[0-9]{1,2})%"
CountOrPercent = Annotated[
    int | str,
    PlainValidator(_count_or_percent),
    WithJsonSchema({
        "x-kubernetes-int-or-string": True,
        "maxLength": 4,
        "x-kubernetes-validations": [{
            "rule": f"type(self) == int ? self >= 0 && self <= 10000 : self.matches('^{_PERCENT}$')",
            "message": "must be a number of pods from 0 to 10000, or text such as 25%",
        }],
    }),
]  # fmt: skip
"""A number of pods, or a percentage of spec.replicas as text."""
GpuShare = Annotated[str, Field(strict=True, max_length=5, pattern=r"^(0\.[0-9]{1,3}|1(\.0{1,3})?)$")]
"""A decimal string: the API has no floats."""
_PATH_PART = "[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*"
IMAGE_PATTERN = (
    r"^(([a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?([.][a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*|\[[a-fA-F0-9:]+\])(:[0-9]+)?/)?"
    rf"{_PATH_PART}(/{_PATH_PART})*(:[A-Za-z0-9_][-.A-Za-z0-9_]{{0,127}})?"
    r"(@(sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128}))?$"
)
"""References of images as container runtimes take them (github.com/distribution/reference)."""
ImageReference = Annotated[str, Field(min_length=1, max_length=1024, pattern=IMAGE_PATTERN)]
FreeForm = WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})


def _quantity(value: Any) -> Any:
    """Read a quantity as the API server does: from a whole number, or from text."""
    if type(value) not in (int, str) or parse_quantity(value) is None:
        raise PydanticCustomError("quantity", "It must be a quantity of 0 or more, such as 4, 500m, 1.5Gi or 2e9")
    return value


QUANTITY_SCHEMA: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "pattern": QUANTITY_PATTERN,
    "maxLength": MAX_QUANTITY_LENGTH,
    "minimum": 0,
}
"""Pattern and length are the limits of a text, the minimum is that of a number."""
Quantity = Annotated[int | str, PlainValidator(_quantity), WithJsonSchema(QUANTITY_SCHEMA)]
"""An amount of a resource."""


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse repeated items, as the API server does in lists of the types set and map."""
    keys = [getattr(item, "name", item) for item in items]
    twice = [str(key) for index, key in enumerate(keys) if key in keys[:index]]
    if twice:
        raise PydanticCustomError("distinct", "{names} stands more than once", {"names": ", ".join(twice)})
    return items


Distinct = AfterValidator(_distinct)
"""Validator for lists with x-kubernetes-list-type set, or map by name."""
Document = dict[str, Any]
"""A Kubernetes object as YAML or JSON give it."""


class KeyRef(ApiModel):
    """A key of an object in the same namespace."""

    name: DnsName
    """Name of the object."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key in its data."""

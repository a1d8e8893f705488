"""Pydantic models → structural schemas; what Kubernetes could not keep raises here, with its path."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from kvgate.api.base import ApiModel
from kvgate.api.crd import NotStructural, custom_resource_definition, structural_schema
from support.tables import table


class Leaf(ApiModel):
    count: int = 3


class Tree(ApiModel):
    children: tuple["Tree", ...] = ()


class Float(ApiModel):
    share: float


class FloatInside(ApiModel):
    leaves: dict[str, Annotated[float, Field(gt=0)]]


class Union(ApiModel):
    value: int | str


class ModelUnion(ApiModel):
    value: Leaf | Tree


class Anything(ApiModel):
    value: Any


class AnythingInside(ApiModel):
    values: tuple[Any, ...]


class Pair(ApiModel):
    value: tuple[int, str]


@table(
    ("model", "path"),
    [
        (Float, "Float.share"), (FloatInside, "FloatInside.leaves[]"), (Tree, "Tree.children[]"), (Union, "Union.value"),
        (ModelUnion, "ModelUnion.value"), (Anything, "Anything.value"), (AnythingInside, "AnythingInside.values[]"),
        (Pair, "Pair.value"),
    ],
)  # fmt: skip
def test_what_is_not_structural_raises_with_its_path(model: type[BaseModel], path: str) -> None:
    with pytest.raises(NotStructural) as error:
        structural_schema(model)
    assert str(error.value).startswith(f"{path}:")


class Fine(ApiModel):
    leaf: Leaf = Leaf()
    maybe: Leaf | None = None
    above: Annotated[int, Field(gt=0, lt=9)]
    word: Literal["a"]
    names: dict[Literal["x", "y"], str] | None = None
    empty: tuple[int, ...] = ()


def test_a_model_of_plain_parts_is_structural() -> None:
    schema = structural_schema(Fine)
    assert schema["properties"]["above"] == {
        "type": "integer",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 9,
        "exclusiveMaximum": True,
    }
    assert schema["properties"]["word"] == {"type": "string", "enum": ["a"]}
    assert schema["properties"]["leaf"]["default"] == {"count": 3}
    assert "default" not in schema["properties"]["maybe"]
    assert "default" not in schema["properties"]["empty"]
    assert schema["required"] == ["above", "word"]


def schemas(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below a schema, with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(node.get(keyword), dict):
            yield from schemas(node[keyword], f"{path}[]")


def nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(nulls, value.values()))
    return value is None or (isinstance(value, list) and any(map(nulls, value)))


CRD = custom_resource_definition()
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
ALL = dict(schemas(SCHEMA))


def test_there_is_no_null_anywhere_in_the_crd() -> None:
    assert not nulls(CRD)


@table(
    "keyword",
    ["$ref", "$defs", "title", "anyOf", "oneOf", "allOf", "const", "propertyNames", "prefixItems", "examples"],
)
def test_no_schema_uses(keyword: str) -> None:
    assert [path for path, node in ALL.items() if keyword in node] == []


def test_every_schema_has_a_type() -> None:
    free = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    assert [path for path, node in ALL.items() if "type" not in node and not any(key in node for key in free)] == []
    assert {node["type"] for node in ALL.values() if "type" in node} == {
        "object",
        "array",
        "string",
        "integer",
        "boolean",
    }


def test_every_field_of_spec_and_status_is_described() -> None:
    bare = [
        path
        for path, node in ALL.items()
        if path.count(".") > 1 and "[]" not in path[-2:] and "description" not in node
    ]
    assert bare == []


def test_every_text_list_and_map_of_the_spec_is_bounded() -> None:
    """The API server estimates the cost of rules from these bounds, and a document stays small."""
    bounds = {"string": ("maxLength", "enum", "format"), "array": ("maxItems",)}
    spec = {path: node for path, node in ALL.items() if path.startswith(".spec")}
    unbounded = [
        path
        for path, node in spec.items()
        if node.get("type") in bounds and not any(b in node for b in bounds[node["type"]])
    ]
    unbounded += [path for path, node in spec.items() if "additionalProperties" in node and "maxProperties" not in node]
    assert unbounded == []


def test_defaults_pass_their_own_schema() -> None:
    for path, node in ALL.items():
        if "default" in node and "enum" in node:
            assert node["default"] in node["enum"], path
        if "default" in node and node.get("type") == "integer":
            assert node.get("minimum", node["default"]) <= node["default"] <= node.get("maximum", node["default"]), path


def test_columns_and_selectors_point_at_fields_that_exist() -> None:
    version = CRD["spec"]["versions"][0]
    paths = [entry["jsonPath"] for entry in (*version["additionalPrinterColumns"], *version["selectableFields"])]
    paths += [
        version["subresources"]["scale"][key] for key in ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
    ]
    plain = [path for path in paths if "conditions" not in path and not path.startswith(".metadata")]
    assert plain
    assert [path for path in plain if path not in ALL] == []


def test_no_field_of_the_status_has_a_default() -> None:
    """The API server would add it to what kvgate writes, and kvgate would write for ever."""
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    status = schema["properties"]["status"]
    found = [path for path, node in nodes(status) if "default" in node and "type" in node]
    assert found == ["status"], "the whole of it alone, so that kstatus waits for the first look at an object"
    assert status["default"] == {"observedGeneration": -1}


def nodes(node: Any, path: str = "status") -> Iterator[tuple[str, Any]]:
    yield path, node
    for name, child in (node.get("properties") or {}).items():
        yield from nodes(child, f"{path}.{name}")
    if isinstance(node.get("items"), dict):
        yield from nodes(node["items"], f"{path}[]")

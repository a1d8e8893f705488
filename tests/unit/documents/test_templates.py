"""Templates of OpenShift: which objects they become, and what stays a reference."""

import io
from typing import Any

import pytest

from kvgate.documents.reading import Document, parsed
from kvgate.documents.templates import _MAX_ADDED, objects_of
from support.tables import table


def objects(text: str) -> list[Any]:
    document = next(iter(parsed("f.yaml", io.BytesIO(text.encode()))))
    assert isinstance(document, Document)
    return [each.load() for each in objects_of(document)]


HEAD = "apiVersion: template.openshift.io/v1\nkind: Template\n"


@table(
    ("written", "value"),
    [
        ("'a-${NAME}-b'", "a-7-b"),
        ("'${{NAME}}'", 7),
        ("'${{TEXT}}'", "seven"),
        ("'${{SWITCH}}'", True),
        ("'${{RATIO}}'", 1.5),
        ("'${NAME}'", "7"),
        ("'${OPEN} ${{OPEN}} $(NAME) $NAME'", "${OPEN} ${{OPEN}} $(NAME) $NAME"),
        ("'x ${{NAME}}'", "x ${{NAME}}"),
        ("{'${NAME}': 1}", {"7": 1}),
        ("['${NAME}', 1]", ["7", 1]),
    ],
)
def test_a_parameter_stands_where_it_is_named(written: str, value: object) -> None:
    values = {"NAME": "'7'", "TEXT": "seven", "OPEN": "''", "SWITCH": "true", "RATIO": "1.5"}
    parameters = [f"{{name: {name}, value: {value}}}" for name, value in values.items()]
    assert objects(f"{HEAD}objects: [{{a: {written}}}]\nparameters: [{', '.join(parameters)}]") == [{"a": value}]


def test_a_position_is_the_one_in_the_template() -> None:
    text = f"{HEAD}objects:\n- a: 1\n- b:\n    c: '${{X}}'\nparameters: [{{name: X, value: y}}]"
    document = next(iter(parsed("f.yaml", io.BytesIO(text.encode()))))
    assert isinstance(document, Document)
    second = list(objects_of(document))[1]
    assert (second.load(), second.position_of("b.c").line) == ({"b": {"c": "y"}}, 6)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("Pod", "apiVersion: v1\nkind: Pod\nobjects: [{a: 1}]"),
        ("Template", "apiVersion: serving.kserve.io/v1\nkind: Template\nobjects: [{a: 1}]"),
        ("Template", f"{HEAD}objects: {{a: 1}}"),
        ("Template", HEAD),
    ],
)
def test_any_other_document_stays_as_it_is(kind: str, text: str) -> None:
    assert [each["kind"] for each in objects(text)] == [kind]


def test_values_that_make_the_objects_large_stay_references() -> None:
    value = "x" * 1000
    listed = ", ".join(["'${X}'"] * (_MAX_ADDED // 500))
    (found,) = objects(f"{HEAD}objects: [{{a: [{listed}]}}]\nparameters: [{{name: X, value: {value}}}]")
    assert {value, "${X}"} == set(found["a"])
    assert found["a"].count(value) * 1000 <= _MAX_ADDED


def test_objects_that_aliases_share_are_filled_once_and_alike() -> None:
    text = f"{HEAD}objects: [{{a: &a {{x: '${{X}}'}}, b: *a, c: [*a, *a]}}]\nparameters: [{{name: X, value: y}}]"
    assert objects(text) == [{"a": {"x": "y"}, "b": {"x": "y"}, "c": [{"x": "y"}, {"x": "y"}]}]

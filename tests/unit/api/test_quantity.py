"""Quantities as the API server reads them; the table of tests/cluster/test_quantities.py holds both against the real one."""

from fractions import Fraction

import pytest

from kvgate.api.quantity import MAX_VALUE, format_bytes, is_same_amount, parse_quantity, plus_bytes
from kvgate.api.validation import InvalidDocument, parse_document
from support.builders import new_document
from support.tables import table

GOOD: list[tuple[object, Fraction | int]] = [
    (0, 0), (4, 4), ("4", 4), ("+4", 4), ("1.", 1), (".5", Fraction(1, 2)), ("0.5", Fraction(1, 2)), ("500m", Fraction(1, 2)),
    ("1e3", 1000), ("12E6", 12_000_000), ("1E", 10**18), ("1e-3", Fraction(1, 1000)), ("1E+2", 100), ("1Ei", 1 << 60),
    ("1n", Fraction(1, 10**9)), ("1u", Fraction(1, 10**6)), ("0.1n", Fraction(1, 10**9)), ("1k", 1000), ("1Ki", 1024),
    ("1.5Gi", 3 << 29), ("64Gi", 64 << 30), ("9" * 22, MAX_VALUE), ("1e30", MAX_VALUE), (MAX_VALUE, MAX_VALUE),
    ("1e999999999", MAX_VALUE), ("0e999999999", 0), ("1e-999999999", Fraction(1, 10**9)),
]  # fmt: skip
BAD: list[object] = [
    -1, "-1", "-1Gi", "", " 1", "1 ", "1\n", "lots", "1K", "1ki", "1mi", "1e", "1e1.5", "1.2.3", ".", "+", "Gi", "1GiB", "1,5", "\u0663",
    True, 1.5, None, [], "1" * 33,
]  # fmt: skip


@table(("written", "value"), GOOD)
def test_a_quantity_is_read_and_may_stand_in_a_spec(written: object, value: Fraction | int) -> None:
    assert parse_quantity(written) == value
    amounts = {"requests": {"cpu": written, "memory": written, "ephemeral-storage": written}}
    parse_document(new_document(template={"resources": amounts}))
    assert parse_quantity(plus_bytes(written, 1 << 30)) is not None


@table("written", BAD)
def test_what_is_no_quantity_is_a_finding_at_every_door(written: object) -> None:
    assert written is None or parse_quantity(written) is None or not isinstance(written, int | str)
    with pytest.raises(InvalidDocument) as error:
        parse_document(new_document(template={"resources": {"requests": [{"memory": written}]}}))
    if written is not None:  # null is absent
        with pytest.raises(InvalidDocument) as error:
            parse_document(new_document(template={"resources": {"limits": {"memory": written}}}))
        (finding,) = error.value.findings
        assert finding.field == "spec.template.resources.limits.memory"
        assert "quantity of 0 or more" in finding.message


@table(
    ("one", "other", "same"),
    [("0.0001", "1m", True), ("1000m", "1", True), (1, "1", True), ("1Gi", "1024Mi", True), ("1.5", "1500m", True),
     ("1", "2", False), ("1Gi", "1G", False), ("x", "x", False), ("9" * 22, str(MAX_VALUE), True)],
)  # fmt: skip
def test_amounts_are_the_same_where_the_api_server_stores_the_same(one: object, other: object, same: object) -> None:
    assert is_same_amount(one, other) is same


def test_bytes_are_written_in_the_largest_unit_that_is_exact() -> None:
    assert [format_bytes(size) for size in (65 << 30, 1536 << 20, 1 << 10, 1)] == ["65Gi", "1536Mi", "1Ki", "1"]

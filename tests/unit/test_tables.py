"""A table checks every row and names those that do not hold."""

import pytest

from support.tables import table


def test_every_row_is_checked_and_all_that_fail_are_named() -> None:
    seen = []

    @table(("number", "is_even"), [(1, False), (2, False), (3, True), (4, True)], ids=["one", "two", "three", "four"])
    def check(number: int, *, is_even: bool) -> None:
        seen.append(number)
        assert (number % 2 == 0) is is_even

    with pytest.raises(
        pytest.fail.Exception, match=r"2 of 4 rows:\ntwo: AssertionError.*\n(.*\n)*three: AssertionError"
    ):
        check()
    assert seen == [1, 2, 3, 4]


@table("text", ["a", "b"])
@table("number", [1, 2])
def test_fixtures_and_two_tables_go_together(capsys: pytest.CaptureFixture[str], text: str, number: int) -> None:
    print(text * number)
    assert capsys.readouterr().out.strip() == text * number


def test_a_table_without_a_row_is_no_check() -> None:
    with pytest.raises(AssertionError, match="without a row"):
        table("x", [])


def test_rows_of_a_function_are_made_when_the_test_runs() -> None:
    made: list[int] = []

    def rows() -> list[int]:
        made.append(len(made))
        return list(made) if len(made) > 1 else []

    @table("number", rows)
    def check(number: int) -> None:
        assert number < 1

    assert made == []
    with pytest.raises(AssertionError, match="without a row"):
        check()
    with pytest.raises(pytest.fail.Exception, match=r"1 of 2 rows:\n1: AssertionError"):
        check()

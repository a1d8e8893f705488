"""CONTRIBUTING shows the layers that the import contract holds."""

import pytest

from pictures.layers import PAGE, drawn, layers, purpose


def test_the_picture_shows_the_contract() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert drawn(page) == page, "run `make generate` and commit CONTRIBUTING.md"


def test_every_room_says_in_one_sentence_what_it_is_for() -> None:
    assert {room for layer in layers() for room in layer if not purpose(room).endswith(".")} == set()


def test_a_page_without_the_marks_is_named() -> None:
    with pytest.raises(ValueError, match=r"CONTRIBUTING\.md: the marks"):
        drawn("# Contributing")

"""Cells and code of Markdown read as they were written, whatever stands in them."""

import pytest
from markdown_it import MarkdownIt

from kvgate.cli.reports.markdown import cell, code
from support.tables import table

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def read(text: str) -> list[tuple[str, str]]:
    """(type, content) of what a page shows of one line; comments inside are none of it."""
    shown: list[tuple[str, str]] = []
    for child in MARKDOWN.parseInline(text)[0].children or []:
        if child.content == "<!-- -->":
            continue
        if shown and shown[-1][0] == child.type == "text":
            shown[-1] = ("text", shown[-1][1] + child.content)
        else:
            shown.append((child.type, child.content))
    return shown


@table(
    "text",
    [
        "a | b", "*x* _y_ ~~z~~", "[a](b) ![c](d)", "<b>&lt;</b> &#64;x", "@one #2 a@b.c", "https://x www.y", "a\\*b",
        "GH-1 !2 %3 $4 &5 ~label", "é@one x/y#2 a@0123abc",
    ],
)  # fmt: skip
def test_a_cell_reads_as_it_was_written(text: str) -> None:
    assert read(cell(text)) == [("text", text)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1 `2` 3", [("text", "1 "), ("code_inline", "2"), ("text", " 3")]),
        ("one ` alone", [("text", "one ' alone")]),
        ("`a``b`", [("text", "'a''b'")]),
        ("``a```@b`", [("text", "''a'" + "''@b'")]),
    ],
)
def test_only_pairs_of_single_backquotes_are_code(text: str, shown: list[tuple[str, str]]) -> None:
    assert read(cell(text)) == shown


@pytest.mark.parametrize("text", ["a.yaml:3", "`", "``a`", "a`b", "x|y", "<b>@c"])
def test_code_reads_as_it_was_written(text: str) -> None:
    assert read(code(text).replace("\\|", "|")) == [("code_inline", text)]

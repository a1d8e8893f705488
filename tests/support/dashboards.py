"""What is in a dashboard's JSON: its panels, and everything that it asks Prometheus."""

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def panels(board: Json) -> Iterator[Json]:
    """Without the headings of rows."""
    return (panel for panel in board["panels"] if panel["type"] != "row")


def target_expressions(board: Json) -> Iterator[str]:
    """Of every query of every panel."""
    return (target["expr"] for panel in panels(board) for target in panel["targets"])


def variable_queries(board: Json) -> Iterator[str]:
    """Of the variables whose values Prometheus knows."""
    return (variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query")


def expressions(board: Json) -> Iterator[str]:
    """All of them."""
    yield from target_expressions(board)
    yield from variable_queries(board)

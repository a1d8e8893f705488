"""Draw the layers of CONTRIBUTING.md from the import contract in pyproject.toml and the docstrings of the rooms."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- layers: drawn by `make generate` -->\n", "<!-- layers: end -->\n"


def layers() -> list[list[str]]:
    """Rooms of the import contract, the doors first; the rooms of one layer do not import each other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["type"] == "layers" and each["containers"] == ["kvgate"])
    return [re.split(r"\s*[|:]\s*", layer) for layer in contract["layers"]]


def purpose(room: str) -> str:
    """First sentence of the docstring of a room."""
    package = ROOT / "operator" / "kvgate" / room
    file = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def picture() -> str:
    """A box for each layer, as text: a room may import from the boxes below its own, and from no room beside it."""
    lines = list(_boxes())
    return "```\n" + "\n".join(lines) + "\n```\n"


def _boxes() -> Iterator[str]:
    width = max(len(room) for layer in layers() for room in layer)
    for number, layer in enumerate(layers()):
        if number:
            yield "─" * 4
        for room in layer:
            yield f"{room:{width}}  {purpose(room)}"


def drawn(page: str) -> str:
    """The page with the picture of now between the two marks; ValueError where a mark is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name}: the marks {BEGIN.strip()} and {END.strip()} are missing")
    return before + begin + picture() + end + after


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.name, file=sys.stderr)

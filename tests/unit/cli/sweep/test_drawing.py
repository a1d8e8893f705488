"""One picture, two writers: the SVG has every shape in its order, the PNG has numbers over all cells."""

import io
import xml.etree.ElementTree as ET

import pytest

from kvgate.cli.sweep.drawing import Box, Caption, Line, Look, Picture, png, svg_text
from support.pictures import require_matplotlib

SVG = "{http://www.w3.org/2000/svg}"
LOOKS = {
    "page": Look(fill="#ffffff"),
    "cell low": Look(fill="#aadfb9"),
    "cell high": Look(fill="#f4b0a8", hatch="xx", stroke="#00000030"),
    "number": Look(fill="#000000", text_size=40, is_bold=True, anchor="middle"),
    "edge": Look(stroke="#0000ff", width=4, dashes=(2, 2)),
}
PICTURE = Picture(
    name="two",
    title="A & B",
    width=200,
    height=100,
    shapes=(
        (Box(x=0.5, y=0, width=100, height=100, look="cell low", data=(("column", 0),), tip=("37%", "<b>")),),
        (Caption(x=50, y=64, text="##", look="number"),),
        (Box(x=100, y=0, width=100, height=100, look="cell high"), Caption(x=150, y=64, text="##", look="number")),
        (Line(strokes=((100, 0, 0, 100), (0, 100, 200, 0)), look="edge"),),
    ),
    style="",
    hatches={},
)


def test_an_svg_has_the_shapes_in_their_order() -> None:
    drawn = ET.fromstring(svg_text(PICTURE))
    assert [(each.tag.removeprefix(SVG), each.get("class")) for each in drawn][1:] == [
        ("rect", "page"), ("rect", "cell low"), ("text", "number"), ("rect", "cell high"), ("text", "number"), ("path", "edge"),
    ]  # fmt: skip
    assert drawn.findtext(f"{SVG}title") == "A & B"
    cell = drawn.find(f"{SVG}rect[@data-column='0']")
    assert cell is not None
    assert (cell.get("x"), cell.findtext(f"{SVG}title")) == ("0.5", "37%\n<b>")
    assert drawn[-1].get("d") == "M100 0v100M0 100h200"


def test_a_png_has_numbers_over_all_cells(pytestconfig: pytest.Config) -> None:
    require_matplotlib(pytestconfig)
    from PIL import Image

    with Image.open(io.BytesIO(png(PICTURE, LOOKS))) as image:
        assert image.size == (400, 200)
        halves = [image.convert("RGB").crop((left, 0, left + 190, 190)) for left in (0, 210)]
    for half in halves:
        black = sum(count for count, colour in half.getcolors(1 << 16) or [] if max(colour) < 10)
        assert black > 500

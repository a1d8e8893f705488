"""The HTML page of `kvgate sweep` in a real browser: tooltips, the boundary where the engine says, silence on console and network."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgate.budget.answers.solver import largest_max_num_seqs
from kvgate.budget.engine.request import Guarantee
from kvgate.budget.ground.units import format_gib
from kvgate.cli.sweep.heatmap import svg
from kvgate.cli.sweep.page import page as page_of
from kvgate.cli.sweep.report import edge_of
from kvgate.judgement.what_if import read_request
from kvgate.planning.sweep import Sweep, judge_pairs
from kvgate.planning.sweep_axes import parse_axis
from support.browser import Page, browsing
from support.pictures import require_browser

VALUES = {"model": "Qwen/Qwen3-32B-FP8", "gpu": "H100-SXM-80GB", "vllm_version": "0.33.0"}
LENGTHS, SEQUENCES = "max_model_len=2048..49152+2048", "max_num_seqs=1..40+1"
CONTRAST = """(() => {
  const light = (text) => { const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => {
    const c = part / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]; };
  const style = (selector) => getComputedStyle(document.querySelector(selector));
  const text = light(style("td.fits").color);
  return ["body", ".fits", ".may", ".no", ".refused"].map((selector) => {
    const other = light(style(selector).backgroundColor);
    return (Math.max(text, other) + 0.05) / (Math.min(text, other) + 0.05); });
})()"""


@pytest.fixture(scope="module")
def swept() -> Sweep:
    """24 lengths, two of them above the model's, × 40."""
    return judge_pairs(VALUES, parse_axis(LENGTHS), parse_axis(SEQUENCES), guarantee=Guarantee.FULL_CONTEXT, at=(7, 9))


@pytest.fixture(scope="module")
def page(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, swept: Sweep) -> Iterator[Page]:
    program, tmp_path = require_browser(pytestconfig), tmp_path_factory.mktemp("page")
    file = tmp_path / "sweep.html"
    file.write_text(page_of(swept), encoding="utf-8")
    with browsing(program, tmp_path / "profile") as opened:
        opened.ask("Emulation.setDeviceMetricsOverride", width=1000, height=900, deviceScaleFactor=1, mobile=False)
        opened.open(file)
        yield opened


def middle_of(page: Page, column: int, row: int) -> tuple[float, float]:
    box = page.value(
        f'(() => {{ const b = document.querySelector(\'[data-column="{column}"][data-row="{row}"]\').getBoundingClientRect();'
        " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    return box[0], box[1]


def tip(page: Page) -> str | None:
    return page.value("(() => { const t = document.getElementById('tip'); return t.hidden ? null : t.textContent; })()")


def test_a_tooltip_has_the_numbers_of_the_cell_under_the_pointer(page: Page, swept: Sweep) -> None:
    assert tip(page) is None
    page.move(*middle_of(page, 3, 20))
    cell = swept.rows[20][3]
    assert cell.demand_bytes is not None
    assert cell.available is not None
    told = tip(page) or ""
    assert told.startswith(f"max_model_len {swept.x.values[3]}, max_num_seqs {swept.y.values[20]}")
    assert cell.verdict.value in told
    for amount in (cell.demand_bytes, cell.available.low, cell.available.expected, cell.available.high):
        assert format_gib(amount) in told
    page.move(2, 2)
    assert tip(page) is None


def test_arrow_keys_reach_the_same_numbers(page: Page) -> None:
    page.value("document.querySelector('table').focus()")
    for key in ("ArrowUp", "ArrowUp", "ArrowRight"):
        page.press(key)
    assert (tip(page) or "").startswith("max_model_len 4096, max_num_seqs 2\n")
    page.press("Escape")
    assert tip(page) is None


def test_the_boundary_is_drawn_where_the_engine_says(page: Page, swept: Sweep) -> None:
    """The solid line has a level piece in a column exactly above the last number of sequences that fits."""
    lines = page.value(
        "[...document.querySelectorAll('td[data-row]')].filter((cell) => { const s = getComputedStyle(cell);"
        " return s.borderBottomStyle === 'solid' && s.borderBottomWidth === '3px'; })"
        ".map((cell) => [+cell.dataset.column, +cell.dataset.row])"
    )
    request, _ = read_request(VALUES, guarantee=Guarantee.FULL_CONTEXT)
    assert request is not None
    drawn = 0
    for column, length in enumerate(swept.x.values):
        fits = largest_max_num_seqs(request.with_settings(max_model_len=length), at_most=40)
        level = [row for other, row in lines if other == column]
        if fits == 40 or length > 40960:
            assert level == []
            continue
        assert level == [fits]  # the lower side of the first cell that does not fit: rows begin with 1 sequence
        drawn += 1
    assert drawn > 10


def test_colours_follow_the_verdicts_and_hatching_backs_them(page: Page, swept: Sweep) -> None:
    looks = page.value(
        "[...document.querySelectorAll('td[data-row]')].map((cell) => { const s = getComputedStyle(cell);"
        " return [+cell.dataset.row, +cell.dataset.column, s.backgroundColor, s.backgroundImage]; })"
    )
    assert len(looks) == len(swept.x.values) * len(swept.y.values)
    found: dict[str, set[tuple[str, str]]] = {}
    for row, column, colour, hatching in looks:
        cell = swept.rows[row][column]
        found.setdefault("refused" if cell.refusal else cell.verdict.value, set()).add((colour, hatching))
    assert {name for name, styles in found.items() if len(styles) != 1} == set()
    assert {
        name for name, [(_, hatching)] in ((name, [*each]) for name, each in found.items()) if hatching == "none"
    } == {"Fits"}
    assert len({style for styles in found.values() for style in styles}) == len(found) == 4


def test_values_and_edges_stand_beside_their_rows_and_over_their_columns(page: Page, swept: Sweep) -> None:
    """Of 40 and 24, all; whatever the width of the window is, the page itself does not scroll sideways."""
    columns = page.value("[...document.querySelectorAll('thead th + th')].map((cell) => cell.textContent)")
    rows = page.value("[...document.querySelectorAll('tbody th')].map((cell) => cell.textContent)")
    assert (columns, rows[::-1]) == ([*swept.x.labels], [*swept.y.labels])
    edges = page.value(
        "[...document.querySelectorAll('tfoot tr')].map((row) => [...row.cells].map((c) => c.textContent))"
    )
    assert [row[0] for row in edges] == ["fits up to", "may fit up to"]
    assert edges[0][1:] == [edge_of(swept, column)[0] for column in range(len(columns))]
    assert page.value("document.documentElement.scrollWidth <= innerWidth")


def test_the_chosen_point_is_marked(page: Page, swept: Sweep) -> None:
    chosen = page.value(
        "(() => { const c = document.querySelector('td.ring').dataset; return [+c.column, +c.row]; })()"
    )
    assert chosen == [7, 9]
    told = page.value("document.querySelector('ul').textContent")
    assert f"chosen: max_model_len {swept.x.values[7]}, max_num_seqs {swept.y.values[9]}" in told


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_on_every_ground(page: Page, scheme: str) -> None:
    """WCAG AA asks for 4.5."""
    page.prefer(scheme)
    assert min(page.value(CONTRAST)) >= 4.5
    page.prefer("light")


def test_nothing_is_said_on_the_console_and_nothing_is_loaded(page: Page) -> None:
    page.move(*middle_of(page, 1, 1))
    page.press("ArrowUp")
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == [page.value("location.href")]


def test_the_svg_alone_opens_as_a_document(pytestconfig: pytest.Config, tmp_path: Path, swept: Sweep) -> None:
    file = tmp_path / "sweep.svg"
    file.write_text(svg(swept), encoding="utf-8")
    with browsing(require_browser(pytestconfig), tmp_path / "profile") as opened:
        opened.open(file)
        assert opened.value("document.documentElement.tagName") == "svg"
        assert opened.value("document.querySelectorAll('rect[data-row] > title').length") == 24 * 40
        inverted = "getComputedStyle(document.getElementById('figure_1')).filter"
        assert opened.value(inverted) == "none"
        opened.prefer("dark")
        assert opened.value(inverted) == "invert(1) hue-rotate(180deg)"
        assert opened.complaints == []


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("gpu=L4,RTX-PRO-6000-Server-96GB,A100-80GB-MIG-3g.40gb,RTX-4070-Laptop-8GB", "max_num_seqs=1,2"),
        ("gpu_memory_bytes=20G..80G+5G", "max_num_seqs=1,2"),
        ("max_model_len=4K,8K", "model=Qwen/Qwen3-8B,nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4"),
    ],
)
def test_no_text_leaves_the_picture_or_covers_another(
    pytestconfig: pytest.Config, tmp_path: Path, x: str, y: str
) -> None:
    """Slanted names are told by their ends, which no box around them does."""
    axes = parse_axis(x), parse_axis(y)
    fixed = {**VALUES, "max_num_batched_tokens": 4096, "gpu_memory_utilization": "0.85", "max_num_seqs": 8}
    values = {key: value for key, value in fixed.items() if key not in (axes[0].name, axes[1].name)}
    file = tmp_path / "sweep.svg"
    file.write_text(svg(judge_pairs(values, *axes, guarantee=Guarantee.FULL_CONTEXT, at=(1, 1))), encoding="utf-8")
    with browsing(require_browser(pytestconfig), tmp_path / "profile") as opened:
        opened.open(file)
        page, *texts = opened.value(
            "[document.documentElement, ...document.querySelectorAll('text')].map("
            "(t) => { const b = t.getBoundingClientRect();"
            " return [b.left, b.right, b.top, b.bottom, /rotate\\((?!-?0 )/.test(t.getAttribute('transform'))]; })"
        )
    assert all(left >= page[0] and right <= page[1] for left, right, *_ in texts)
    level = [box for box in texts if not box[4]]
    for number, (left, right, top, bottom, _) in enumerate(level):
        for other in level[:number]:
            apart = left >= other[1] or right <= other[0] or top >= other[3] - 4 or bottom <= other[2] + 4
            assert apart

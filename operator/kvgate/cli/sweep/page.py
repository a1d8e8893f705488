"""A sweep as one HTML page that loads nothing: a table with the boundary, the numbers of a cell for pointer and arrow keys."""

from html import escape
from pathlib import Path
from string import Template

from kvgate.cli.sweep.report import (
    BOUNDARIES,
    boundary,
    cell_lines,
    edge_rows,
    legend,
    share_text,
    state,
    subtitle,
    title,
)
from kvgate.planning.sweep import Sweep
from kvgate.text.inert import inert

_TEMPLATE = Path(__file__).parents[1] / "data" / "sweep.html"
_MANY = 24
"""Values of an axis, above which cells are small and without numbers."""


def page(swept: Sweep) -> str:
    """Write the text of the page."""
    sides = {
        (column, row, f"{sign}-{'left' if is_vertical else 'below'}")
        for sign in BOUNDARIES
        for column, row, is_vertical in boundary(swept, sign)
    }
    looks = [f"{sign}-{side}" for sign in BOUNDARIES for side in ("left", "below")]
    rows = []
    for row, cells in reversed([*enumerate(swept.rows)]):  # the large values are on top
        rows.append(f'<tr><th scope="row">{escaped(swept.y.labels[row])}</th>')
        for column, cell in enumerate(cells):
            look = [state(cell), *(look for look in looks if (column, row, look) in sides)]
            look += ["ring"] if swept.at == (column, row) else []
            tip = "\n".join(map(escaped, cell_lines(swept, column, row)))
            place = f'data-column="{column}" data-row="{row}" data-tip="{tip}"'
            rows.append(f'<td class="{" ".join(look)}" {place}>{share_text(cell)}</td>')
        rows.append("</tr>")
    edges = ["".join([f"<tr><th>{name}</th>", *(f"<td>{edge}</td>" for edge in row), "</tr>"])
             for name, *row in edge_rows(swept)]  # fmt: skip
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escaped(title(swept)),
        subtitle=escaped(subtitle(swept)),
        x=escaped(swept.x.name),
        y=escaped(swept.y.name),
        many=' class="many"' if max(len(swept.x.values), len(swept.y.values)) > _MANY else "",
        head="".join(f'<th scope="col">{escaped(label)}</th>' for label in swept.x.labels),
        rows="\n".join(rows),
        edges="\n".join(edges),
        legend="\n".join(f'<li><i class="{look}"></i>{escaped(meaning)}</li>' for look, meaning in legend(swept)),
    )


def escaped(text: str) -> str:
    """Return one line for HTML and SVG, inert and without markup."""
    return escape(inert(text))

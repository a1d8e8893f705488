"""A sweep as one HTML page that loads nothing: the picture, the numbers of a cell for pointer and arrow keys, the exact edge."""

import json

from msgspec.structs import replace

from kvgate.cli.sweep.drawing import escaped, svg_text
from kvgate.cli.sweep.heatmap import STYLE, heat_map
from kvgate.cli.sweep.report import cell_lines, edge_of, subtitle, title
from kvgate.planning.sweep import Sweep
from kvgate.text.inert import inert

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_STYLE = """
  :root { color-scheme: light dark; } body { margin: 0 auto; max-width: 1000px; padding: 12px; font: 14px system-ui, sans-serif;
    background: #ffffff; color: #1f2328; }
  svg.heatmap { width: 100%; height: auto; display: block; } svg.heatmap:focus { outline: 2px solid #0969da; outline-offset: 2px; }
  .heatmap .cell.current { stroke: #0969da; stroke-width: 3; }
  #tip { position: fixed; z-index: 1; max-width: 420px; padding: 8px 10px; border: 1px solid #59636e; border-radius: 6px;
    background: #ffffff; color: #1f2328; white-space: pre-line; pointer-events: none; box-shadow: 0 2px 8px #0004; }
  #tip[hidden] { display: none; } table { border-collapse: collapse; } th, td { padding: 2px 12px; text-align: right; }
  details { margin: 12px 4px; }
  @media (prefers-color-scheme: dark) {
    body, #tip { background: #0d1117; color: #f0f6fc; } #tip { border-color: #9198a1; } .heatmap .cell.current { stroke: #4493f8; }
  }
"""
_SCRIPT = """
"use strict";
const cells = JSON.parse(document.getElementById("cells").textContent);
const tip = document.getElementById("tip");
const picture = document.querySelector("svg.heatmap");
let current = null;
function show(cell, x, y) {
  if (current) { current.classList.remove("current"); }
  current = cell;
  cell.classList.add("current");
  tip.textContent = cells[cell.dataset.row][cell.dataset.column];
  tip.hidden = false;
  const width = tip.offsetWidth, height = tip.offsetHeight;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - width - 4)) + "px";
  tip.style.top = (y + 14 + height > innerHeight ? Math.max(4, y - height - 14) : y + 14) + "px";
}
function hide() {
  if (current) { current.classList.remove("current"); }
  current = null;
  tip.hidden = true;
}
function at(column, row) {
  return picture.querySelector(`[data-column="${column}"][data-row="${row}"]`);
}
picture.addEventListener("pointermove", (event) => {
  const cell = event.target.closest("[data-row]");
  if (cell) { show(cell, event.clientX, event.clientY); } else { hide(); }
});
picture.addEventListener("pointerleave", hide);
picture.addEventListener("blur", hide);
const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
picture.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { hide(); return; }
  const move = moves[event.key];
  if (!move) { return; }
  event.preventDefault();
  const [column, row] = current ? [+current.dataset.column + move[0], +current.dataset.row + move[1]] : [0, 0];
  const next = at(column, row) || current;
  if (next) { const box = next.getBoundingClientRect(); show(next, box.right, box.bottom); }
});
"""


def page(swept: Sweep) -> str:
    """Write the text of the page."""
    picture = svg_text(replace(heat_map(swept, has_tips=False), style=""))
    texts = [
        ["\n".join(map(inert, cell_lines(swept, column, row))) for column in range(len(swept.x.values))]
        for row in range(len(swept.y.values))
    ]
    # No end tag can hide in a name.
    cells = json.dumps(texts, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    boundary = []
    if swept.edges is not None:
        x, y = escaped(swept.x.name), escaped(swept.y.name)
        boundary += [
            f"<details><summary>The boundary in numbers: {escaped(subtitle(swept))}</summary><table>",
            f"<tr><th>{x}</th><th>{y} fits up to</th><th>may fit up to</th></tr>",
        ]
        for column, text in enumerate(swept.x.labels):
            fits, may_fit = edge_of(swept, column)
            boundary.append(f"<tr><td>{escaped(text)}</td><td>{fits}</td><td>{may_fit}</td></tr>")
        boundary.append("</table></details>")
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width">',
        '<link rel="icon" href="data:,">',
        f"<title>{escaped(title(swept))}</title>",
        f"<style>{STYLE}{_STYLE}</style>",
        picture.replace('role="img"', 'role="application" tabindex="0" aria-describedby="tip"', 1),
        '<div id="tip" role="status" aria-live="polite" hidden></div>',
        *boundary,
        f'<script type="application/json" id="cells">{cells}</script>',
        f"<script>{_SCRIPT}</script>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"

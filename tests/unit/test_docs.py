"""The pages of docs show what really happens: commands are run, pictures are drawn again, links lead somewhere."""

import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kvgate.budget.units import GIB
from kvgate.judge.what_if import assess_request
from pictures.ledger import QUESTION, TARGET, picture
from pictures.planning import TARGET as PLAN
from pictures.planning import command, question
from pictures.planning import picture as plan

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SCOPE.md", "CHANGELOG.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
SHOWN = [
    (page.name, *block)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.name != "models.md"  # its commands need a hub: tests/unit/test_models_page.py
    for block in re.findall(
        r"^```console\n\$ (kvgate [^\n]+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
]


@pytest.mark.parametrize(("page", "command", "output"), SHOWN, ids=[f"{page} {command}" for page, command, _ in SHOWN])
def test_a_command_of_the_docs_prints_what_they_show(page: str, command: str, output: str) -> None:
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [Path(sys.executable).parent / program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout + done.stderr).rstrip() == output.rstrip()


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_a_link_within_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_picture_is_that_of_todays_answer() -> None:
    assert TARGET.read_text(encoding="utf-8") == picture(), "run `make generate` and commit"


def test_the_picture_of_planning_is_that_of_todays_answer_to_the_command_beside_it() -> None:
    assert PLAN.read_text(encoding="utf-8") == plan(), "run `make generate` and commit"
    assert f"```\n{command()}\n```" in PLAN.with_suffix(".md").read_text(encoding="utf-8")


def test_the_picture_of_planning_shows_all_three_verdicts_and_the_exact_edge() -> None:
    swept, drawn = question(), ET.fromstring(plan())
    classes = {bar.get("class") for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")}
    assert {"cell fits", "cell may", "cell no", "ring"} <= classes
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    fits = words[words.index("may fit up to") + 1 :][: 2 * len(swept.edges or ()) : 2]
    assert [text.removeprefix("≥") for text in fits if text] == [str(edge.fits) for edge in swept.edges or ()]


def test_the_picture_shows_the_figures_of_the_ledger_on_one_scale() -> None:
    budget = assess_request(QUESTION).budget
    assert budget is not None
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    drawn = ET.fromstring(picture())
    words = {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    for line in budget.tightest.ledger.lines:
        assert f"{line.amount.expected / GIB:.2f} GiB" in words
    bars = {bar.get("class"): float(bar.get("width", "0")) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")}
    weights = budget.tightest.ledger.weights.expected
    assert bars["weights"] / bars["cache"] == pytest.approx(weights / budget.tightest.available.expected, rel=0.01)

"""The pages of docs show what really happens: commands are run, pictures are drawn again, links lead somewhere."""

import re
import shlex
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kvgate import INSTALL
from kvgate.budget.ground.units import GIB
from kvgate.judgement.what_if import assess_request
from pictures.ledger import QUESTION, TARGET, picture
from pictures.planning import TARGET as PLAN
from pictures.planning import command, question
from pictures.planning import picture as plan
from support.tables import table

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


@table("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_a_link_within_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def sections(page: Path) -> set[str]:
    """Return the names by which links reach the headings and the anchors of a page, as GitHub makes them."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    names = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return names | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@table("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_a_link_to_a_section_finds_it(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    pages = [(page.parent / target if target else page, name) for target, name in links if "://" not in target]
    assert [name for target, name in pages if target.suffix == ".md" and name not in sections(target)] == []


BY_NAME = re.compile(
    r"\b(?:(?:pip3?|uv\s+pip)\s+install|(?:pipx|uv\s+tool)\s+(?:install|run|upgrade)|(?:uv|poetry|pdm)\s+add|uvx)"
    r"(?:\s+-[-\w=]+)*\s+['\"]?kvgate(?![\w./-])"
    r"|(?<![\w./])kvgate\[[a-z,]+\]",
    re.IGNORECASE,
)
"""An install of kvgate by its name, which whoever takes the name on PyPI answers; also a requirement such as `kvgate[extra]`."""
FOLDERS = (".github", "benchmarks", "charts", "crds", "deploy", "docs", "operator", "requirements", "tools")
TEXTS = [
    path
    for path in (*ROOT.iterdir(), *(each for folder in FOLDERS for each in (ROOT / folder).rglob("*")))
    if path.is_file() and path.suffix not in (".pyc", ".png", ".so")
]


def test_no_text_installs_kvgate_by_a_name_that_is_not_ours() -> None:
    assert len(TEXTS) > 500
    found = {path: BY_NAME.findall(path.read_text(encoding="utf-8", errors="replace")) for path in TEXTS}
    assert {path: each for path, each in found.items() if each} == {}


@table(
    ("text", "is_by_name"),
    [
        ("pip install kvgate", True),
        ("python -m pip install -U 'kvgate==0.1.0'", True),
        ("pip install\n    kvgate", True),
        ("pipx install kvgate", True),
        ("uvx kvgate check .", True),
        ("uv tool install --upgrade kvgate", True),
        ("needs the extra kvgate[plot]", True),
        ("pip install '.[operator]' in a checkout of kvgate", False),
        ("pip install git+https://git.example.org/team/kvgate", False),
        ("pip install ./kvgate", False),
        ("the repository that pip installed kvgate from", False),
        ("helm install kvgate charts/kvgate", False),
        ("uv run kvgate check .", False),
    ],
)
def test_what_counts_as_an_install_by_name(text: str, *, is_by_name: bool) -> None:
    assert bool(BY_NAME.search(text)) is is_by_name


def test_pages_say_how_to_install_in_the_words_of_the_package() -> None:
    """Every line of pip that pages show for a checkout is the one that messages print, with extras that exist."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    line = re.compile(re.escape(INSTALL).replace(re.escape("{extras}"), "([a-z,]+)"))
    shown = [
        (page.name, line.match(text, found.start()))
        for page in PAGES
        for text in [" ".join(page.read_text(encoding="utf-8").replace("`", "").split())]
        for found in re.finditer(r"pip install '\.", text)
    ]
    assert len(shown) >= 3
    assert [page for page, found in shown if not (found and set(found[1].split(",")) <= set(known))] == []


def test_the_picture_is_that_of_todays_answer() -> None:
    assert TARGET.read_text(encoding="utf-8") == picture(), "run `make generate` and commit"


@pytest.mark.slow
def test_the_picture_of_planning_is_that_of_todays_answer_to_the_command_beside_it() -> None:
    assert PLAN.read_text(encoding="utf-8") == plan(), "run `make generate` and commit"
    assert f"```\n{command()}\n```" in PLAN.with_suffix(".md").read_text(encoding="utf-8")


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.slow
def test_the_picture_of_planning_shows_all_three_verdicts_and_the_exact_edge() -> None:
    swept, drawn = question(), ET.fromstring(plan())
    classes = {bar.get("class") for bar in drawn.iter(f"{SVG}rect")}
    assert {"cell fits", "cell may", "cell no"} <= classes
    assert {"fits", "may", "no", "edge-low", "edge-high", "ring"} <= {
        group.get("id") for group in drawn.iter(f"{SVG}g")
    }
    words = [text.text for text in drawn.iter(f"{SVG}text")]
    edges = [str(edge) for each in swept.edges or () for edge in (each.fits, each.may_fit)]
    shown = [(text or "").removeprefix("≥") for text in words]
    assert edges in [shown[start : start + len(edges)] for start in range(len(shown))]
    assert words.index("fits up to") + 1 == words.index("may fit up to")


def widths(drawn: ET.Element) -> dict[str, float]:
    """Return the width of each bar by the name of its part."""
    found = {}
    for group in drawn.iter(f"{SVG}g"):
        for path in group.findall(f"{SVG}path"):
            across = [float(x) for x in re.findall(r"[ML] (-?[\d.]+) ", path.get("d", ""))]
            found[group.get("id", "")] = max(across) - min(across)
    return found


def test_the_picture_shows_the_figures_of_the_ledger_on_one_scale() -> None:
    budget = assess_request(QUESTION).budget
    assert budget is not None
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    drawn = ET.fromstring(picture())
    words = {text.text for text in drawn.iter(f"{SVG}text")}
    for line in budget.tightest.ledger.lines:
        assert f"{line.amount.expected / GIB:.2f} GiB" in words
    bars, weights = widths(drawn), budget.tightest.ledger.weights.expected
    assert bars["weights"] / bars["cache"] == pytest.approx(weights / budget.tightest.available.expected, rel=0.01)

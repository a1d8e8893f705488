"""The site: every page is found from its menu, links lead somewhere, and a page outside of docs/ is led to where it is."""

import fnmatch
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import docs_site.__main__ as docs_site
from docs_site.__main__ import CONFIG, PROJECT, ROOT, stage, staged_path, staged_text

MENU = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]


def entries(menu: Any) -> Iterator[str]:
    for item in menu:
        if isinstance(item, str):
            yield item
        else:
            for value in item.values():
                yield from entries(value) if isinstance(value, list) else [value]


def test_every_page_stands_in_the_menu_once_and_every_entry_is_a_page() -> None:
    pages = [staged_path(path) for path in (*(ROOT / "docs").rglob("*.md"), *(ROOT / f"{page}.md" for page in PROJECT))]
    names, listed = sorted(str(page) for page in pages), list(entries(MENU))
    missing = [name for name in names if sum(fnmatch.fnmatch(name, entry) for entry in listed) != 1]
    dead = [entry for entry in listed if not fnmatch.filter(names, entry)]
    assert (missing, dead) == ([], [])


def test_the_site_builds_strictly_and_its_search_knows_what_people_paste(tmp_path: Path) -> None:
    """A link to a page or a section that is not there ends the build."""
    stage(tmp_path)
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run([program, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    found = json.dumps(json.loads((site / "search.json").read_text(encoding="utf-8")))
    for words in ("KVCacheTooSmall", "To serve at least one request", "maxModelLen", "kvgate_kv_cache_headroom_ratio"):
        assert words in found, words
    first = (site / "index.html").read_text(encoding="utf-8")
    assert "Five questions" in first
    assert all(command in first for command in ("why", "check", "explain", "size"))
    shutil.rmtree(site)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(docs_site, "ROOT", tmp_path)
    for name in ("docs/a.md", "docs/concepts/b.md", "README.md", "crds/c.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path / "docs/a.md"


@pytest.mark.parametrize(
    ("address", "written", "expected"),
    [
        ("", "[b](concepts/b.md#x)", "[b](concepts/b.md#x)"),
        ("", "[front](../README.md)", "[front](project/readme.md)"),
        ("", "[the CRD](../crds/c.yaml)", "the CRD"),
        ("https://git.example.org/kvgate", "[the CRD](../crds/c.yaml)", "[the CRD](https://git.example.org/kvgate/crds/c.yaml)"),
        ("", "[`kvgate check` and `diff`](concepts/b.md)", "[`kvgate check` and `diff`](concepts/b.md)"),
        ("", "[vLLM](https://docs.vllm.ai) [here](#section)", "[vLLM](https://docs.vllm.ai) [here](#section)"),
        ("", "```md\n[x](nowhere.md)\n```", "```md\n[x](nowhere.md)\n```"),
    ],
)  # fmt: skip
def test_a_link_leads_to_the_place_on_the_site(
    page: Path, monkeypatch: pytest.MonkeyPatch, address: str, written: str, expected: str
) -> None:
    monkeypatch.setattr(docs_site, "REPOSITORY_URL", address)
    page.write_text(written, encoding="utf-8")
    assert staged_text(page) == expected


def test_a_link_that_leads_nowhere_is_named(page: Path) -> None:
    page.write_text("[x](nowhere.md)", encoding="utf-8")
    with pytest.raises(ValueError, match=r"docs/a.md: nowhere.md leads nowhere"):
        staged_text(page)

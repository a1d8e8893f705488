"""Build the documentation as a site: `make site` writes it to build/site, and fails on a link that leads nowhere.

Pages are read on a code host as well, so they are staged first: those that stand outside of docs/ become pages of the section "Project",
and a link to any other file leads to the repository where `REPOSITORY_URL` says where that is, else it becomes plain text.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from kvgate import REPOSITORY_URL

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
CONFIG = Path(__file__).with_name("zensical.toml")
PROJECT = (
    "README",
    "CONTRIBUTING",
    "SCOPE",
    "SECURITY",
    "CHANGELOG",
    "charts/kvgate/README",
    "deploy/kind/README",
    "tests/README",
)
"""Pages outside of docs/, without `.md`."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_BLOCK = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def staged_path(source: Path) -> Path | None:
    """Return the place of a file among the pages of the site; None where it is no part of it."""
    name = source.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        return Path(name.removeprefix("docs/"))
    page = name.removesuffix(".md")
    if name.endswith(".md") and page in PROJECT:
        return Path("project") / (page.removesuffix("/README").replace("/", "-").lower() + ".md")
    return None


def staged_text(source: Path) -> str:
    """Return a page with its links as they are on the site. Raises ValueError for a link to a file that does not exist."""
    here = staged_path(source) or source

    def link(found: re.Match[str]) -> str:
        mark, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = (source.parent / target).resolve()
        if not path.exists():
            raise ValueError(f"{source.relative_to(ROOT)}: {target} leads nowhere")
        if (place := staged_path(path)) is not None and not path.is_dir():
            return f"{mark}[{text}]({os.path.relpath(place, here.parent)}{anchor})"
        return f"[{text}]({REPOSITORY_URL}/{path.relative_to(ROOT)}{anchor})" if REPOSITORY_URL else text

    parts = _BLOCK.split(source.read_text(encoding="utf-8"))
    return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))


def stage(folder: Path) -> None:
    """Write all pages, pictures and examples, with the configuration beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    sources = [path for path in (ROOT / "docs").rglob("*") if path.is_file()]
    for source in (*sources, *(ROOT / f"{page}.md" for page in PROJECT)):
        target = folder / "pages" / (staged_path(source) or source.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(staged_text(source), encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    shutil.copyfile(CONFIG, folder / "zensical.toml")


def main() -> None:
    work = BUILD / "site-source"
    stage(work)
    subprocess.run([Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"], cwd=work, check=True)
    site = BUILD / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(work / tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["site_dir"], site)
    print(f"{site.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()

"""publishing.toml, and the texts that follow it: each says one thing until an address is published, and another one from then on."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "publishing.toml"
NOT_YET = "not yet published"


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A text of a file that is written by hand."""

    path: str
    follows: str
    """The address that must be published for `then`, in which {address} stands for it."""
    until: str
    then: str


SENTENCES = (
    Sentence(
        path="operator/kvgate/__init__.py",
        follows="docs",
        until='DOCS_URL = ""\n',
        then='DOCS_URL = "{address}"\n',
    ),
    Sentence(
        path="operator/kvgate/__init__.py",
        follows="repository",
        until='REPOSITORY_URL = ""\n',
        then='REPOSITORY_URL = "{address}/blob/main"\n',
    ),
    Sentence(
        path="pyproject.toml",
        follows="repository",
        until="# [project.urls] is written here once publishing.toml has the repository\n",
        then='[project.urls]\nRepository = "{address}"\nIssues = "{address}/issues"\nChangelog = "{address}/blob/main/CHANGELOG.md"\n',
    ),
    Sentence(
        path="README.md",
        follows="image",
        until="an image that you build from\n[deploy/Dockerfile](deploy/Dockerfile); no image is published yet.",
        then="the image\n`{address}`.",
    ),
    Sentence(
        path="charts/kvgate/README.md",
        follows="image",
        until="No image is published yet. Build one with `deploy/Dockerfile`, and push it to a registry that your nodes can pull from:",
        then="The image is `{address}`:",
    ),
    Sentence(
        path="charts/kvgate/Chart.yaml",
        follows="repository",
        until="# home and sources are written here once publishing.toml has the repository\n",
        then="home: {address}\nsources: [{address}]\n",
    ),
    Sentence(
        path="charts/kvgate/Chart.yaml",
        follows="image",
        until="  # artifacthub.io/images is written here once publishing.toml has the image\n",
        then="  artifacthub.io/images: |\n    - name: kvgate\n      image: {address}:0.1.0\n",
    ),
)


def addresses(table: Path = TABLE) -> dict[str, str]:
    """Return the addresses by their names; one that is not published is NOT_YET."""
    found: dict[str, str] = tomllib.loads(table.read_text(encoding="utf-8"))["addresses"]
    return found


def base_image(table: Path = TABLE) -> str:
    """Return the image that ours is built from, by digest. Raises ValueError while there is none."""
    base = str(tomllib.loads(table.read_text(encoding="utf-8"))["image"]["base"])
    if "@sha256:" not in base:
        raise ValueError(f"publishing.toml: [image] base is {base!r}; a release needs it by digest")
    return base


def written(path: str, known: Mapping[str, str] | None = None, text: str | None = None) -> str:
    """Return a file with the sentences that its addresses give, whichever it had. Raises ValueError where it has neither."""
    known = addresses() if known is None else known
    text = (ROOT / path).read_text(encoding="utf-8") if text is None else text
    for sentence in (each for each in SENTENCES if each.path == path):
        before, after = sentence.then.split("{address}")[0], sentence.then.rpartition("{address}")[2]
        address = known[sentence.follows]
        new = sentence.until if address == NOT_YET else sentence.then.replace("{address}", address)
        if sentence.until in text:
            text = text.replace(sentence.until, new)
        elif before in text:
            start = text.index(before)
            text = text[:start] + new + text[text.index(after, start + len(before)) + len(after) :]
        else:
            raise ValueError(f"{path}: neither {sentence.until!r} nor {before!r} is there")
    return text


FILES = tuple(dict.fromkeys(sentence.path for sentence in SENTENCES))

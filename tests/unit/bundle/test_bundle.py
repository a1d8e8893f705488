"""The data of kvgate, and a bundle in their place."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvgate import bundle
from kvgate.bundle import FILES, INDEX, SCHEMA, BadBundle

OWN = {name: bundle.own(name) for name in FILES}
Index = dict[str, Any]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    bundle._opened.cache_clear()


def index_of(files: Mapping[str, bytes]) -> Index:
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return {"schema": SCHEMA, "version": "2027.1", "sha256": sums}


def written(path: Path, files: Mapping[str, bytes], index: object) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {INDEX: json.dumps(index).encode(), **files}.items():
            archive.writestr(name, content)
    return path


def test_without_a_bundle_the_data_are_those_of_kvgate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(bundle.VARIABLE, raising=False)
    assert bundle.version() == ""
    assert {name: bundle.read(name) for name in FILES} == OWN


def test_a_bundle_takes_the_place_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = OWN | {"advisories.csv": OWN["advisories.csv"] + b"# newer\n"}
    monkeypatch.setenv(bundle.VARIABLE, str(written(tmp_path / "data.zip", newer, index_of(newer))))
    assert bundle.version() == "2027.1"
    assert {name: bundle.read(name) for name in FILES} == newer


def _other_schema(index: Index, _: dict[str, bytes]) -> None:
    index["schema"] = SCHEMA + 1


def _changed(_: Index, files: dict[str, bytes]) -> None:
    files["models.jsonl"] += b" "


def _lacking(_: Index, files: dict[str, bytes]) -> None:
    del files["options.json"]


def _without_sums(index: Index, _: dict[str, bytes]) -> None:
    index["sha256"] = None


def _huge(_: Index, files: dict[str, bytes]) -> None:
    files["more"] = b" " * (bundle.MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_other_schema, f"its schema is {SCHEMA + 1}, and this release of kvgate reads {SCHEMA}"),
        (_changed, "models.jsonl differ from the SHA-256"),
        (_lacking, "it is no bundle of kvgate's data"),
        (_without_sums, "it is no bundle of kvgate's data"),
        (_huge, "it unpacks to more than 64 MiB"),
    ],
)
def test_what_does_not_match_is_refused_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Index, dict[str, bytes]], None], said: str
) -> None:
    index, files = index_of(OWN), dict(OWN)
    damage(index, files)
    monkeypatch.setenv(bundle.VARIABLE, str(written(tmp_path / "data.zip", files, index)))
    for _ in range(2):
        with pytest.raises(BadBundle, match=said):
            bundle.read("prices.yaml")


def kvgate(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-m", "kvgate", *arguments], {**os.environ, bundle.VARIABLE: str(place)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_verdict_follows_the_bundle(tmp_path: Path) -> None:
    """A model that only the bundle knows is judged."""
    line = next(line for line in OWN["models.jsonl"].splitlines() if b'"Qwen/Qwen3-8B"' in line)
    newer = OWN | {"models.jsonl": line.replace(b"Qwen/Qwen3-8B", b"example/newer-8b") + b"\n" + OWN["models.jsonl"]}
    place = written(tmp_path / "data.zip", newer, index_of(newer))
    done = kvgate(place, "explain", "--model", "example/newer-8b", "--gpu", "H100-SXM-80GB", "--max-num-seqs", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Fits: ")


def test_a_bundle_that_is_none_ends_every_command_with_2_before_anything_is_judged(tmp_path: Path) -> None:
    (tmp_path / "data.zip").write_text("PK")
    done = kvgate(tmp_path / "data.zip", "models")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"kvgate: KVGATE_DATA={tmp_path}/data.zip: it is no bundle of kvgate's data")

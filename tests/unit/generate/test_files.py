"""Every generated file that is committed is what its source says today."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from generate.files import GENERATED

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> str:
    """What the program prints, as `make generate` starts it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    command = [sys.executable, "-m", "generate", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_generate_writes_every_file_below_its_root(tmp_path: Path) -> None:
    run("--root", str(tmp_path))
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {name for name, _ in GENERATED}


@pytest.mark.slow
def test_listing_writes_nothing(tmp_path: Path) -> None:
    listed = run("--list", "--root", str(tmp_path)).split()
    assert listed == [str(tmp_path / name) for name, _ in GENERATED]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "text"), GENERATED, ids=[name for name, _ in GENERATED])
def test_a_committed_file_is_up_to_date(name: str, text: object) -> None:
    assert callable(text)
    assert (ROOT / name).read_text(encoding="utf-8") == text(), "run `make generate` and commit"


def test_the_crd_is_one_document_of_its_kind() -> None:
    crd = yaml.safe_load((ROOT / "crds" / "kvgate.io_inferencedeployments.yaml").read_text(encoding="utf-8"))
    assert crd["kind"] == "CustomResourceDefinition"

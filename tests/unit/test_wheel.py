"""The wheel as a user installs it: what it holds, and that it works far from the repository."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

from support.chart import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the files of the wheel, as in site-packages."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    folder = tmp_path_factory.mktemp("site-packages")
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-m", "kvgate", *arguments]
    return subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=False)


def test_no_tool_of_developers_is_in_it_and_no_data_that_only_they_edit(installed: Path) -> None:
    top = {path.name.partition("-")[0] for path in installed.iterdir()}
    files = [path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()]
    assert top == {"kvgate"}
    assert [name for name in files if "generate" in name] == []
    assert [name for name in files if name.endswith("accelerators.yaml") or "/data/models/" in name] == []
    assert "kvgate/catalogue/data/accelerators.json" in files
    assert "kvgate/py.typed" in files


def test_every_module_of_it_can_be_imported(installed: Path) -> None:
    names = [path.relative_to(installed).with_suffix("").parts for path in (installed / "kvgate").rglob("*.py")]
    modules = sorted({".".join(parts).removesuffix(".__init__") for parts in names} - {"kvgate.__main__"})
    program = f"from importlib import import_module\nfor name in {modules!r}: import_module(name)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_it_answers_without_the_repository(installed: Path) -> None:
    where = "import kvgate; print(kvgate.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run([sys.executable, "-P", "-c", where], env=environment, capture_output=True, text=True)
    assert Path(found.stdout.strip()).is_relative_to(installed), "the editable installation must not answer"
    answer = run(installed, "size", "--model", "Qwen/Qwen3-8B", "--gpus", "L4", "--max-num-seqs", "1")
    assert answer.returncode == 0, answer.stderr
    assert "L4-24GB" in answer.stdout
    assert run(installed, "rules", "Oversubscribed").returncode == 0
    assert "no such command" in run(installed, "generate").stderr.lower()

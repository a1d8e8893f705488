"""Readers that installed packages add by an entry point: found, named where they fail, and never taken from a checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from support.json_schemas import checked_report

READER = """\
from kvgate.manifests.platforms.reader import Reader
from kvgate.manifests.pods.engine_found import FoundEngine


def read_toy(given):
    spec = given.root.get("spec")
    yield FoundEngine(
        platform="toy", document=given.document, root=given.root, name=given.name, path=spec.path, model=spec.get("model")
    )


READER = Reader(
    platform="toy",
    what="`ToyServer` (toy.example.com)",
    reads=("model",),
    words=("toy.example.com",),
    kinds=("ToyServer.toy.example.com",),
    read=read_toy,
)
"""
SERVER = "apiVersion: toy.example.com/v1\nkind: ToyServer\nmetadata: {name: one}\nspec: {model: Qwen/Qwen3-8B}\n"
CHECK = ("-m", "kvgate", "check", "input.yaml", "-o", "json", "--accelerator", "L4", "--vllm-version", "0.33.0")


def put(folder: Path, name: str, module: str, *points: str) -> None:
    """Write a package with entry points as an installer does."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{name}.py").write_text(module, encoding="utf-8")
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text("\n".join(("[kvgate.readers]", *points, "")), encoding="utf-8")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder of the packages of a new environment, which sees those of this one too."""
    place = tmp_path / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    here = sysconfig.get_path("purelib")
    (packages / "these.pth").write_text(f"import site; site.addsitedir({here!r})\n", encoding="utf-8")
    return packages


def check(python: Path | str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "input.yaml").write_text(SERVER, encoding="utf-8")
    environment = {**os.environ, **variables}
    return subprocess.run(
        [str(python), *CHECK], capture_output=True, text=True, cwd=folder, env=environment, timeout=60
    )


def test_an_installed_package_adds_a_reader_and_a_broken_one_costs_one_line(tmp_path: Path, installed: Path) -> None:
    put(installed, "toy", READER, "toy = toy:READER")
    put(installed, "broken", "import sys\nsys.exit('no\\nway')\n", "broken = broken:READER")
    put(installed, "other", "READER = 'text'\n", "text = other:READER")
    done = check(installed.parents[2] / "bin" / "python", tmp_path / "checkout")
    (engine,) = checked_report(done.stdout)["documents"]
    assert (engine["platform"], engine["name"], engine["verdict"]) == ("toy", "one", "DoesNotFit")
    assert done.stderr.splitlines() == [
        "kvgate: the reader broken of broken-1.0 is left out, it is no Reader but SystemExit: no\\nway",
        "kvgate: the reader text of other-1.0 is left out, it is no Reader but str: text",
    ]


def test_a_checkout_adds_no_reader(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    put(checkout, "toy", f"from pathlib import Path\nPath('loaded').touch()\n{READER}", "toy = toy:READER")
    done = check(sys.executable, checkout, PYTHONPATH=str(checkout))
    assert (checked_report(done.stdout)["documents"], done.stderr) == ([], "")
    assert not (checkout / "loaded").exists()

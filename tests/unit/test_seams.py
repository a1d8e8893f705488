"""Two parts that others import: the engine without YAML and Kubernetes, and the readers of manifests without Kubernetes and a hub."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "operator" / "kvgate"
SEAMS = {
    "engine": (
        ("text", "findings", "budget", "hf_config", "checkpoint", "calibration"),
        (
            "yaml",
            "ruamel",
            "kubernetes",
            "pydantic",
            "click",
            "aiohttp",
            "httpx2",
            "huggingface_hub",
            "prometheus_client",
        ),
    ),
    "readers": (
        ("documents", "shell", "manifests"),
        ("kubernetes", "click", "aiohttp", "httpx2", "huggingface_hub", "prometheus_client"),
    ),
}
"""Part → its rooms, and the packages that they do without."""
PROGRAM = """
import importlib, sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"no module {{name}}", name=name)

sys.meta_path.insert(0, Missing())
for module in {modules!r}:
    importlib.import_module(module)
"""


def modules_of(rooms: tuple[str, ...]) -> list[str]:
    """Every module of some rooms."""
    paths = (path for room in rooms for path in sorted((PACKAGE / room).rglob("*.py")) if path.name != "__init__.py")
    return [".".join(("kvgate", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths]


@pytest.mark.parametrize("seam", SEAMS)
def test_a_part_is_imported_where_the_packages_of_the_others_are_missing(seam: str) -> None:
    rooms, missing = SEAMS[seam]
    modules = modules_of(rooms)
    assert len(modules) > 50
    program = PROGRAM.format(missing=frozenset(missing), modules=modules)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]


def test_a_missing_package_is_noticed() -> None:
    program = PROGRAM.format(missing=frozenset({"yaml"}), modules=["yaml"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "no module yaml" in done.stderr

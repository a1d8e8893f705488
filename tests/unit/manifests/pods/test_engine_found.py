"""YAML in a field of YAML: its lines are those of the file, and nothing that it holds is a traceback."""

from pathlib import Path

import pytest

from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.pods.engine_found import FoundEngine

HEAD = """\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: x}
spec:
"""
VALUES = "servingEngineSpec: {modelSpec: [{name: a, repository: vllm/vllm-openai, modelURL: Qwen/Qwen3-8B}]}"


def engines(folder: Path, text: str) -> list[FoundEngine]:
    (folder / "x.yaml").write_text(f"{HEAD}{text}", encoding="utf-8")
    return find_engines(read_manifests([str(folder)])).engines


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (f"  source:\n    helm:\n      values: |\n        {VALUES}\n", (8, 1)),
        (f"  source:\n    helm:\n      values: |-\n\n\n        {VALUES}\n", (10, 1)),
        (f"  source:\n    helm:\n      values: >\n        {VALUES}\n", (7, 15)),
        (f"  source:\n    helm:\n      values: '{VALUES}'\n", (7, 15)),
        (f"  sources:\n    - ref: x\n    - helm:\n        values: |\n          {VALUES}\n", (9, 1)),
    ],
)
def test_a_text_has_the_lines_of_the_file(tmp_path: Path, text: str, position: tuple[int, int]) -> None:
    (engine,) = engines(tmp_path, text)
    assert engine.path.endswith(".helm.values.servingEngineSpec.modelSpec[0]")
    place = engine.document.position_of(engine.path)
    assert (place.line, place.column) == position


@pytest.mark.parametrize(
    "text",
    [
        "servingEngineSpec: {vllm",
        "vllm",
        "[vllm]",
        "a: vllm\na: vllm",
        "&a {vllm: *a}",
        "",
        "a: vllm\n---\nb: 1",
    ],
)
def test_a_text_that_is_no_values_stays_one(tmp_path: Path, text: str) -> None:
    lines = "\n".join(f"        {line}" for line in text.split("\n"))
    assert not engines(tmp_path, f"  source:\n    helm:\n      values: |\n{lines}\n")


def test_a_text_that_many_aliases_lead_to_is_read_once(tmp_path: Path) -> None:
    aliases = ", ".join(["*a"] * 50)
    found = engines(tmp_path, f"  common: &a\n    helm:\n      values: |\n        {VALUES}\n  sources: [{aliases}]\n")
    assert len({id(engine.document) for engine in found}) == 1
    sources = found[0].root.get("spec", "sources").items()
    assert len({id(source.get("helm", "values").value) for source in sources}) == 1
    assert len(found) == 50


def test_texts_whose_aliases_stand_for_too_much_together_stay_texts(tmp_path: Path) -> None:
    many = f"a: &a [{'1, ' * 100}]\n          b: [{'*a, ' * 600}]\n          {VALUES}"
    source = f"    - helm:\n        values: |\n          {many}\n"
    assert len(engines(tmp_path, f"  sources:\n{source}")) == 1
    assert not engines(tmp_path, f"  sources:\n{source}{source}")

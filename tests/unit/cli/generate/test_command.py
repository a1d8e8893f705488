"""Every generated file that is committed is what its source says today."""

from pathlib import Path

import pytest
import yaml

from kvgate.cli.generate.command import GENERATED
from support.command_line import invoked

ROOT = Path(__file__).parents[4]


def test_generate_writes_every_file_below_its_root(tmp_path: Path) -> None:
    result = invoked("generate", "--root", str(tmp_path))
    assert result.exit_code == 0, result.output
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {name for name, _ in GENERATED}


def test_listing_writes_nothing(tmp_path: Path) -> None:
    result = invoked("generate", "--list", "--root", str(tmp_path))
    assert len(result.output.split()) == len(GENERATED)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "text"), GENERATED, ids=[name for name, _ in GENERATED])
def test_a_committed_file_is_up_to_date(name: str, text: object) -> None:
    assert callable(text)
    assert (ROOT / name).read_text(encoding="utf-8") == text(), "run `make generate` and commit"


def test_the_crd_is_one_document_of_its_kind() -> None:
    crd = yaml.safe_load((ROOT / "crds" / "kvgate.io_inferencedeployments.yaml").read_text(encoding="utf-8"))
    assert crd["kind"] == "CustomResourceDefinition"

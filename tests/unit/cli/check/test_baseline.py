"""A baseline: what was there does not count, what is new does, whatever moved."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from support.command_line import MISTAKEN_POD, invoked


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pod.yaml").write_text(MISTAKEN_POD)
    (tmp_path / "broken.yaml").write_text("vllm: [")
    return tmp_path


def run(*arguments: str) -> Result:
    return invoked("check", ".", *arguments)


def test_writing_one_makes_the_next_run_pass(folder: Path) -> None:
    assert run().exit_code == 1
    assert run("--write-baseline", "known.json").exit_code == 0
    result = run("--baseline", "known.json")
    assert result.exit_code == 0
    assert "1 engine: 1 ignored; " in result.stdout
    assert "; 3 findings ignored" in result.stdout


def test_it_holds_when_lines_move_and_numbers_change(folder: Path) -> None:
    run("--write-baseline", "known.json")
    (folder / "pod.yaml").write_text("# moved\n\n---\n" + MISTAKEN_POD.replace("40960", "36864"))
    assert run("--baseline", "known.json").exit_code == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    - --no-such-option\n", "    - --no-such-option\n    - --nor-this\n"),
        ("gpu: 1", "gpu: 2"),
        ("name: engine", "name: another"),
    ],
)
def test_what_is_new_counts(folder: Path, before: str, after: str) -> None:
    run("--write-baseline", "known.json")
    (folder / "pod.yaml").write_text(MISTAKEN_POD.replace(before, after))
    assert run("--baseline", "known.json", "--fail-on", "warning").exit_code == 1


def test_what_is_mended_is_told_as_no_longer_needed(folder: Path) -> None:
    run("--write-baseline", "known.json")
    (folder / "pod.yaml").write_text(MISTAKEN_POD.replace("    - --no-such-option\n", ""))
    assert "1 entry of the baseline is no longer needed" in run("--baseline", "known.json").stdout


def test_it_is_written_one_finding_a_line_in_a_stable_order(folder: Path) -> None:
    run("--write-baseline", "known.json")
    first = (folder / "known.json").read_text()
    run("--baseline", "known.json", "--write-baseline", "known.json")
    assert (folder / "known.json").read_text() == first
    lines = first.splitlines()
    assert [json.loads(line.rstrip(","))["rule"] for line in lines[1:-1]] == [
        "InvalidYaml",
        "KVCacheTooSmall",
        "OptionUnknown",
    ]


def test_findings_that_somebody_answers_for_are_not_written(folder: Path) -> None:
    (folder / "pod.yaml").write_text("# kvgate:ignore OptionUnknown ours\n" + MISTAKEN_POD)
    run("--write-baseline", "known.json")
    assert "OptionUnknown" not in (folder / "known.json").read_text()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2, "findings": []}', '{"version": 1, "findings": [1]}', "[" * 100_000]
)
def test_what_is_no_baseline_is_told(folder: Path, text: str) -> None:
    (folder / "known.json").write_text(text)
    result = run("--baseline", "known.json")
    assert result.exit_code == 2
    assert "known.json" in result.stderr


def test_a_place_that_cannot_be_written_is_misuse(folder: Path) -> None:
    result = run("--write-baseline", "nowhere/known.json")
    assert result.exit_code == 2
    assert "--write-baseline nowhere/known.json cannot be written: No such file or directory" in result.stderr

"""`kvgate check --root`, and the files that a document names: nothing of a checkout leads out of it."""

import json
import os
from pathlib import Path

import pytest
from click.testing import Result

from support.command_line import MISTAKEN_POD, invoked

POD = MISTAKEN_POD.replace("    - --no-such-option\n", "")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one manifest; the process is elsewhere, beside a file that is none of its business."""
    folder = tmp_path / "checkout"
    (folder / ".git").mkdir(parents=True)
    (folder / "pod.yaml").write_text(POD)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "outside.json").write_text('{"secret": "s3cr3t"}')
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


def check(folder: Path, *arguments: str) -> Result:
    return invoked("check", "--root", str(folder), *arguments)


def test_paths_and_places_are_those_below_the_root(checkout: Path) -> None:
    here = Path.cwd()
    assert "file=pod.yaml,line=11" in check(checkout, "-o", "github", ".").stdout
    assert "file=pod.yaml,line=11" in check(checkout, "-o", "github", "pod.yaml").stdout
    assert Path.cwd() == here


def test_a_path_that_leads_out_through_a_link_is_refused(checkout: Path) -> None:
    (checkout / "folder").symlink_to("..")
    (checkout / "x.yaml").symlink_to("../outside.json")
    for path in ("folder", "x.yaml", "folder/outside.json"):
        result = check(checkout, path)
        assert result.exit_code == 2
        assert "out" in result.stdout
        assert "s3cr3t" not in result.output


def test_a_path_outside_that_somebody_writes_is_read(checkout: Path) -> None:
    (checkout.parent / "elsewhere" / "pod.yaml").write_text(POD)
    assert check(checkout, "../elsewhere/pod.yaml").exit_code == 1


@pytest.mark.parametrize("option", ["--baseline", "--model-config", "--calibration", "--config"])
@pytest.mark.parametrize("target", ["../outside.json", "/dev/zero"])
def test_a_file_of_an_option_must_not_be_a_link_that_leads_out(checkout: Path, option: str, target: str) -> None:
    (checkout / "given").symlink_to(target)
    result = check(checkout, option, "given", ".")
    assert result.exit_code == 2
    assert "given cannot be read: it is outside of" in result.stderr
    assert "s3cr3t" not in result.output


@pytest.mark.parametrize("arguments", [("--write-baseline", "x"), ("-o", "json=x")])
def test_nothing_is_written_through_a_link_that_leads_out(checkout: Path, arguments: tuple[str, str]) -> None:
    (checkout / "x").symlink_to("../outside.json")
    result = check(checkout, *arguments, ".")
    assert result.exit_code == 2
    assert "cannot be written: it is outside of" in result.stderr
    assert "s3cr3t" in (checkout.parent / "outside.json").read_text()


@pytest.mark.parametrize("field", ["modelConfig", "calibration"])
@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("../outside.json", "it is outside of"),
        ("link", "it is outside of"),
        ("/etc/hostname", "it is outside of"),
        ("/dev/zero", "it is outside of"),
        ("pipe", "it is a pipe"),
        (".git", "it is one of Git's own files"),
        ("deploy", "it is a folder"),
        ("big", "the limit for such a file"),
    ],
)
def test_what_a_configuration_names_is_a_plain_file_of_the_repository(
    checkout: Path, field: str, named: str, words: str
) -> None:
    """Without --root, as people run it: the repository is the limit."""
    (checkout / "link").symlink_to("../outside.json")
    os.mkfifo(checkout / "pipe")
    (checkout / "deploy").mkdir()
    with (checkout / "big").open("wb") as file:
        file.truncate(1 << 30)
    (checkout / ".kvgate.yaml").write_text(f"{field}: {named}\n")
    result = invoked("check", str(checkout / "pod.yaml"))
    assert result.exit_code == 2
    assert words in result.stderr
    assert "s3cr3t" not in result.output


def test_a_configuration_may_name_a_file_elsewhere_in_its_repository(checkout: Path) -> None:
    (checkout / "deploy").mkdir()
    (checkout / "starts.jsonl").write_text("")
    (checkout / "deploy" / ".kvgate.yaml").write_text("calibration: ../starts.jsonl\n")
    (checkout / "deploy" / "pod.yaml").write_text(POD)
    assert invoked("check", str(checkout / "deploy")).exit_code == 1
    assert check(checkout, "deploy").exit_code == 1
    assert "outside of" in check(checkout / "deploy", "pod.yaml").stderr


def test_the_configuration_itself_is_no_link_that_leads_out_and_lies_in_the_repository(checkout: Path) -> None:
    (checkout.parent / ".kvgate.yaml").write_text("accelerator: H200-SXM-141GB\n")
    json_of = json.loads(invoked("check", str(checkout), "-o", "json").stdout)
    assert json_of["documents"][0]["engine"]["accelerator"] == "L4-24GB"
    assert json_of["documents"][0]["verdict"] == "DoesNotFit"
    (checkout / ".kvgate.yaml").symlink_to("../outside.json")
    result = invoked("check", str(checkout))
    assert result.exit_code == 2
    assert ".kvgate.yaml cannot be read: it is outside of" in result.stderr


def test_a_configuration_above_the_repository_is_not_its_own(checkout: Path) -> None:
    (checkout.parent / ".kvgate.yaml").write_text("no such field: 1\n")
    assert invoked("check", str(checkout)).exit_code == 1
    (checkout / ".kvgate.yaml").write_text("no such field: 1\n")
    assert invoked("check", str(checkout)).exit_code == 2


def test_a_configuration_has_a_limit(checkout: Path) -> None:
    (checkout / ".kvgate.yaml").write_text("#" * 300_000)
    result = invoked("check", str(checkout))
    assert result.exit_code == 2
    assert "more than 262144 bytes" in result.stderr


def test_variables_of_compose_are_read_below_its_folder_only(checkout: Path) -> None:
    (checkout / "pod.yaml").unlink()
    (checkout.parent / "outside.env").write_text("MODEL=s3cr3t\n")
    (checkout / ".env").symlink_to("../outside.env")
    (checkout / ".git" / "config").write_text("MODEL=s3cr3t\n")
    os.mkfifo(checkout / "pipe")
    service = "{image: 'vllm/vllm-openai:v0.32.0', command: '--model=$MODEL', env_file: ['.git/config', pipe, ../outside.env]}"
    (checkout / "compose.yaml").write_text(f"services: {{a: {service}}}\n")
    result = check(checkout, ".")
    assert result.exit_code == 2
    assert "s3cr3t" not in result.output


def test_several_reports_of_one_run(checkout: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    result = check(checkout, "-o", "github", "-o", f"markdown={summary}", ".")
    assert result.stdout.startswith("::error file=pod.yaml")
    assert "### kvgate" in summary.read_text()
    assert "only one can go to standard output" in check(checkout, "-o", "github", "-o", "json", ".").stderr
    assert "is not a format. Use any one of: text, json" in check(checkout, "-o", "jsn", ".").stderr
    assert "is not a format. Use any one of: text, json" in check(checkout, "-o", "json=", ".").stderr


@pytest.mark.parametrize("output", ["sarif", "junit", "gitlab"])
def test_what_was_skipped_is_told_beside_a_report_for_programs(checkout: Path, output: str) -> None:
    (checkout / "Chart.yaml").write_text("name: x\n")
    (checkout / "templates").mkdir()
    (checkout / "templates" / "a.yaml").write_text("{{ a }}\n")
    result = check(checkout, "-o", output, ".")
    assert result.stderr == "skipped: 1 chart template (render the chart: helm template CHART | kvgate check -)\n"

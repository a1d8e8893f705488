"""What publication needs is there, runs dry, and is as the tools that judge it want it."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from readme_renderer import markdown

from release import steps
from release.__main__ import dry_run
from release.publishing import FILES, NOT_YET, SENTENCES, TABLE, addresses, base_image, written
from support.assets import require_assets
from support.chart import ROOT
from support.processes import place

pytestmark = pytest.mark.slow

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PUBLISHED = {
    "repository": "https://git.example/team/kvgate", "docs": "https://docs.example/kvgate", "image": "registry.example/kvgate",
    "chart": "oci://registry.example/charts/kvgate", "package": "https://packages.example/kvgate",
}  # fmt: skip


# ── workflows ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_actionlint_has_nothing_to_say(pytestconfig: pytest.Config) -> None:
    program = require_assets(pytestconfig, "actionlint") / "actionlint"
    done = subprocess.run([program, *WORKFLOWS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_zizmor_has_nothing_to_say() -> None:
    program = Path(sys.executable).parent / "zizmor"
    command = [program, "--offline", "--pedantic", "--no-progress", ROOT / ".github", ROOT / "action.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_command_of_a_workflow_is_one_that_people_have(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = workflow.read_text(encoding="utf-8")
    assert set(re.findall(r"run: make ([\w./-]+)", text)) <= targets
    assert set(re.findall(r"-m release ([a-z-]+)", text)) <= steps.STEPS.keys()
    assert all((ROOT / path).is_file() for path in re.findall(r"run: (\.ci/\w+)", text))


# ── one file says what is published ───────────────────────────────────────────────────────────────────────────────


def files_of(known: Mapping[str, str]) -> dict[str, str]:
    return {path: written(path, known) for path in FILES}


def test_every_text_follows_publishing_toml_and_back() -> None:
    nothing = dict.fromkeys(PUBLISHED, NOT_YET)
    before, after = files_of(nothing), files_of(PUBLISHED)
    for sentence in SENTENCES:
        assert sentence.until in before[sentence.path]
        assert sentence.until not in after[sentence.path]
        assert sentence.then.replace("{address}", PUBLISHED[sentence.follows]) in after[sentence.path]
    assert {path: written(path, nothing, text) for path, text in after.items()} == before
    other = PUBLISHED | {"image": "elsewhere.example/kvgate", "repository": "https://git.example/other/kvgate"}
    assert {path: written(path, other, text) for path, text in after.items()} == files_of(other)


def test_what_is_written_where_all_is_published_can_be_read() -> None:
    after = files_of(PUBLISHED)
    urls = tomllib.loads(after["pyproject.toml"])["project"]["urls"]
    assert urls["Repository"] == PUBLISHED["repository"]
    chart = yaml.safe_load(after["charts/kvgate/Chart.yaml"])
    assert chart["home"] == PUBLISHED["repository"]
    (image,) = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert image["image"] == f"{PUBLISHED['image']}:{chart['version']}"


def test_a_text_that_says_neither_is_told() -> None:
    with pytest.raises(ValueError, match=r"README\.md: neither 'an image"):
        written("README.md", PUBLISHED, "# kvgate\n")


def test_the_names_to_reserve_are_listed_and_no_address_is_empty() -> None:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    assert all(entry["name"] and entry["at"] for entry in table["reserve"])
    assert addresses().keys() == PUBLISHED.keys()
    assert all(address == NOT_YET or "://" in address or "/" in address for address in addresses().values())


def test_an_image_needs_a_base_by_digest(tmp_path: Path) -> None:
    table = tmp_path / "publishing.toml"
    table.write_text(f'[image]\nbase = "python:3.13-slim@sha256:{"0" * 64}"\n', encoding="utf-8")
    assert base_image(table).startswith("python:3.13-slim@sha256:")
    table.write_text('[image]\nbase = "python:3.13-slim"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="a release needs it by digest"):
        base_image(table)


# ── the release ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def dist(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_assets(pytestconfig, "helm")
    folder = tmp_path_factory.mktemp("release") / "dist"
    dry_run(folder)
    return folder


def test_a_dry_run_makes_everything_that_a_release_publishes(dist: Path) -> None:
    version = steps.__version__
    assert {path.name for path in dist.iterdir()} == {
        "SHA256SUMS", "crds.yaml", "install.yaml", "notes.md", "kvgate.krew.yaml",
        f"kubectl-kvgate-{version}.tar.gz", f"kvgate-{version}-py3-none-any.whl", f"kvgate-{version}.tar.gz",
        f"kvgate-{version}.tgz", f"kvgate-data-{version}.zip", f"kvgate-cli-{version}.cdx.json", f"kvgate-operator-{version}.cdx.json",
    }  # fmt: skip
    done = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dist, check=False)
    assert done.returncode == 0
    assert len(list(yaml.safe_load_all((dist / "crds.yaml").read_text(encoding="utf-8")))) == len(
        list((ROOT / "crds").glob("*.yaml"))
    )


def test_the_plugin_of_krew_is_the_same_each_time_and_starts(dist: Path, tmp_path: Path) -> None:
    manifest = yaml.safe_load((dist / "kvgate.krew.yaml").read_text(encoding="utf-8"))
    (platform,) = manifest["spec"]["platforms"]
    archive = dist / platform["uri"].rpartition("/")[2]
    before = archive.read_bytes()
    steps.krew(dist)
    assert archive.read_bytes() == before
    with tarfile.open(archive) as members:
        members.extractall(tmp_path, filter="data")
    environment = tmp_path / ".kvgate-environment"
    place(environment / "bin" / "python", f'exec {sys.executable} "$@"')
    state = f"{sys.version}\n{(tmp_path / 'requirements/cli.txt').read_text(encoding='utf-8')}"
    (environment / "made-of").write_text(state, encoding="utf-8")
    command = [tmp_path / platform["bin"], "--help"]
    variables = {"PATH": os.environ["PATH"], "KVGATE_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: kubectl kvgate"), done.stderr


def test_all_files_that_state_the_version_state_the_same_one() -> None:
    steps.check(Path(), f"v{steps.__version__}")
    with pytest.raises(steps.NotReady, match=r"versions differ: .*, tag 9\.9\.9"):
        steps.check(Path(), "v9.9.9")


def test_a_version_without_a_section_in_the_changelog_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "__version__", "9.9.9")
    with pytest.raises(steps.NotReady, match=r"no section \[9\.9\.9\]"):
        steps.notes(tmp_path)


def test_the_readme_renders_as_pypi_shows_it() -> None:
    rendered = markdown.render((ROOT / "README.md").read_text(encoding="utf-8"))
    assert rendered
    assert "<h1" in rendered
    assert "<table>" in rendered or "<pre" in rendered


def test_every_ecosystem_of_the_repository_is_updated() -> None:
    found = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text(encoding="utf-8"))["updates"]
    assert {each["package-ecosystem"] for each in found} == {"pip", "gomod", "github-actions", "docker"}
    for each in found:
        for folder in each.get("directories", [each.get("directory")]):
            assert list((ROOT / folder.strip("/")).parent.glob(folder.rpartition("/")[2] or "*")), folder

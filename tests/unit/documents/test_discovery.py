"""What is read in a folder: what Git itself would say, charts, packages, and links that lead elsewhere."""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from kvgate.documents.discovery import MAX_IGNORE_RULES, OtherRevision, PassedOver, Why, files_below, root_of
from kvgate.manifests import Broken, Document, read_documents


def put(folder: Path, *names: str, text: str = "a: 1\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def found(folder: Path, root: Path | None = None) -> list[str]:
    files = files_below(folder, root or folder)
    return [path.relative_to(folder).as_posix() for path in files if isinstance(path, Path)]


def skipped(folder: Path) -> list[PassedOver]:
    return [item for item in files_below(folder, folder) if isinstance(item, PassedOver)]


def passed(folder: Path) -> dict[Why, int]:
    told: dict[Why, int] = {}
    for item in files_below(folder, folder):
        if isinstance(item, PassedOver):
            told[item.why] = told.get(item.why, 0) + item.count
    return told


def test_templates_of_a_chart_are_counted_and_its_values_are_read(tmp_path: Path) -> None:
    put(
        tmp_path,
        "c/Chart.yaml",
        "c/values.yaml",
        "c/crds/x.yaml",
        "c/templates/a.yaml",
        "c/templates/tests/b.yml",
        "c/templates/x.tpl",
    )
    put(tmp_path, "c/charts/sub/Chart.yaml", "c/charts/sub/templates/c.yaml", "templates/d.yaml")
    assert found(tmp_path) == [
        "c/Chart.yaml", "c/values.yaml", "c/charts/sub/Chart.yaml", "c/crds/x.yaml", "templates/d.yaml",
    ]  # fmt: skip
    assert passed(tmp_path) == {Why.CHART_TEMPLATE: 3}


def test_templates_that_somebody_names_are_read(tmp_path: Path) -> None:
    put(tmp_path, "c/Chart.yaml", "c/templates/a.yaml")
    assert found(tmp_path / "c" / "templates") == ["a.yaml"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from ray.serve.llm import LLMConfig, build_openai_app\napp = build_openai_app({})\n", 1),
        ("import ray.serve.llm as llm\nconfig = llm.LLMConfig(model_loading_config={})\n", 1),
        ("from ray.serve.llm import LLMServer\n", 0),
        ("from ray import serve\nbuild_openai_app()\n", 0),
    ],
)
def test_programs_of_ray_serve_are_counted_and_not_read(tmp_path: Path, text: str, count: int) -> None:
    put(tmp_path, "a.yaml", "b/serve.py", "b/out/serve.py", text=text)
    (tmp_path / ".gitignore").write_text("out/\n")
    assert found(tmp_path) == ["a.yaml"]
    assert passed(tmp_path).get(Why.PYTHON, 0) == count


@pytest.mark.timeout(2)
def test_programs_that_are_no_plain_files_are_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "link.py").symlink_to("/dev/zero")
    (tmp_path / "nowhere.py").symlink_to("missing")
    assert not passed(tmp_path)


def test_packages_of_other_programs_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "web/node_modules/x/package.json", "env/lib/data.yaml", "a.yaml")
    put(tmp_path, "env/pyvenv.cfg", text="home = /usr/bin\n")
    assert found(tmp_path) == ["a.yaml"]
    assert passed(tmp_path) == {Why.PACKAGES: 2}
    named = [str(each.path.relative_to(tmp_path)) for each in skipped(tmp_path) if each.path]
    assert named == ["env", "web/node_modules"]


@pytest.mark.parametrize("text", ["", "\n", "home\n", "home =\n", "version = 3.11\n"])
def test_a_file_that_names_no_interpreter_makes_no_environment_of_a_folder(tmp_path: Path, text: str) -> None:
    put(tmp_path, "deploy/a.yaml")
    put(tmp_path, "deploy/pyvenv.cfg", text=text)
    assert found(tmp_path) == ["deploy/a.yaml"]
    assert not passed(tmp_path)


def test_a_path_that_is_ignored_is_named_with_the_rule(tmp_path: Path) -> None:
    put(tmp_path, "a.yaml", "deep/b.yaml", "out/c.yaml")
    put(tmp_path, ".kvgateignore", text="# ours\nout/\n*.yaml\n!a.yaml\n")
    told = {str(each.path.relative_to(tmp_path)): each.by for each in skipped(tmp_path) if each.path}
    rules = tmp_path / ".kvgateignore"
    assert told == {"deep/b.yaml": f"{rules}:3", "out": f"{rules}:2"}


def test_the_rules_of_another_revision_count_instead(tmp_path: Path) -> None:
    checkout, copy = tmp_path / "checkout", tmp_path / "copy"
    put(checkout, "a.yaml", "b.yaml", "sub/c.yaml")
    put(checkout, ".kvgateignore", text="a.yaml\n")
    put(copy, ".kvgateignore", text="b.yaml\n")
    put(copy, "sub/.kvgateignore", text="*.yaml\n")
    other = OtherRevision(name="main", top=checkout, copy=copy)
    listed = list(files_below(checkout, checkout, other))
    assert [path.name for path in listed if isinstance(path, Path)] == ["a.yaml"]
    assert [each.by for each in listed if isinstance(each, PassedOver)] == [
        "main:.kvgateignore:1",
        "main:sub/.kvgateignore:1",
    ]


def test_gitignore_counts_from_the_top_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    put(
        tmp_path,
        "deploy/a.yaml",
        "deploy/out/b.yaml",
        "deploy/c.local.yaml",
        "deploy/kept.local.yaml",
        "deploy/sub/d.yaml",
    )
    put(tmp_path, ".gitignore", text="*.local.yaml\nout/\n")
    put(tmp_path, "deploy/.gitignore", text="!kept.local.yaml\n/sub/d.yaml\n")
    assert root_of(tmp_path / "deploy") == tmp_path
    assert found(tmp_path / "deploy", tmp_path) == ["a.yaml", "kept.local.yaml"]
    assert passed(tmp_path) == {Why.IGNORED: 3}


def test_an_ignored_folder_that_somebody_names_is_read(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    put(tmp_path, "out/deep/a.yaml")
    put(tmp_path, ".gitignore", text="out/\n*.yaml\n")
    assert found(tmp_path / "out" / "deep", tmp_path) == ["a.yaml"]


RULES = (
    "a", "b/", "/a", "a/b", "/a/b/", "*.yaml", "!*.yaml", "!a.yaml", "**/a", "a/**", "a/**/b", "**/a/**/b.yaml", "*a*", "?.yaml",
    "[ab].yaml", "[!a].yaml", "[^a].yaml", r"\!a", r"\#a", "#a", r"a\ ", "a ", "", "/", "*", "!b/", "!/a/b", "b/*", "**", r"\*.yaml",
    "a**b", "/**", "b/**/", "!a/", "c/../a",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_git_ignores_the_same_files(tmp_path: Path, seed: int) -> None:
    """Git itself is asked, with random rules and names."""
    chance = random.Random(seed)
    names = ["a", "b", "ab", "c", "!a", "#a", "a ", "*"]
    files = {
        "/".join([*(chance.choice(names) for _ in range(chance.randrange(4))), f"{chance.choice(names)}.yaml"])
        for _ in range(60)
    }
    put(tmp_path, *files)
    put(tmp_path, ".gitignore", text="\n".join(chance.choices(RULES, k=6)) + "\n")
    put(tmp_path, "a/.gitignore", text="\n".join(chance.choices(RULES, k=3)) + "\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, env=environment, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=tmp_path, env=environment, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    expected = sorted(name for name in listed.split("\0") if name.endswith(".yaml"))
    assert sorted(found(tmp_path)) == expected


def test_no_gitignore_takes_long(tmp_path: Path) -> None:
    deep = "x/" * 60
    put(tmp_path, f"{deep}{'a' * 200}.yaml")
    put(tmp_path, ".gitignore", text=f"{'**/x/' * 100}b\n{'*a' * 100}b\n" * (MAX_IGNORE_RULES // 8))
    started = time.process_time()
    assert len(found(tmp_path)) == 1
    assert time.process_time() - started < 2


def test_rules_beyond_the_limit_and_rules_that_cannot_be_read_hide_nothing(tmp_path: Path) -> None:
    put(tmp_path, "a.yaml", "b.yaml")
    put(tmp_path, ".gitignore", text="x\n" * MAX_IGNORE_RULES + "a.yaml\n")
    assert found(tmp_path) == ["a.yaml", "b.yaml"]
    (tmp_path / ".gitignore").write_bytes(b"*.yaml\n\xff\n")
    assert found(tmp_path) == ["a.yaml", "b.yaml"]
    (tmp_path / ".gitignore").unlink()
    (tmp_path / ".gitignore").symlink_to("/dev/zero")
    assert found(tmp_path) == ["a.yaml", "b.yaml"]


@pytest.mark.parametrize(
    ("target", "words"),
    [("/etc/passwd", "outside"), ("/dev/zero", "outside"), (".git/config", "Git's own"), ("x.yaml", "cannot be read")],
)
def test_a_link_in_a_folder_leads_nowhere_else(tmp_path: Path, target: str, words: str) -> None:
    put(tmp_path, ".git/config")
    (tmp_path / "x.yaml").symlink_to(target)
    (item,) = read_documents([str(tmp_path)])
    assert isinstance(item, Broken)
    assert words in item.finding.message


def test_a_link_within_the_repository_and_a_file_that_is_named_are_read(tmp_path: Path) -> None:
    (tmp_path / "r" / ".git").mkdir(parents=True)
    put(tmp_path, "r/shared/a.yaml", "elsewhere.yaml")
    (tmp_path / "r" / "deploy").mkdir()
    (tmp_path / "r" / "deploy" / "a.yaml").symlink_to("../shared/a.yaml")
    (tmp_path / "r" / "deploy" / "b.txt").symlink_to("../../elsewhere.yaml")
    assert [type(item) for item in read_documents([str(tmp_path / "r" / "deploy")])] == [Document]
    assert [type(item) for item in read_documents([str(tmp_path / "r" / "deploy" / "b.txt")])] == [Document]


def test_a_kvgateignore_adds_to_what_git_ignores_and_may_take_back(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml", "deep/c.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x: 1\n")
    (tmp_path / ".gitignore").write_text("a.yaml\n")
    (tmp_path / ".kvgateignore").write_text("!a.yaml\n/b.yaml\ndeep/\n")
    found = list(files_below(tmp_path, tmp_path))
    assert [path.name for path in found if isinstance(path, Path)] == ["a.yaml"]
    assert [item.why for item in found if isinstance(item, PassedOver)] == [Why.IGNORED, Why.IGNORED]

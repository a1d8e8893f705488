"""Revisions of a repository are compared without a checkout, and no program that the repository names runs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli.diff import revisions
from support.builders import new_document
from support.command_line import invoked
from support.repositories import Sandbox

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: llama}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.32.0
    args: [--model=Qwen/Qwen3-8B, --max-model-len=8192, --max-num-seqs=16]
    resources: {limits: {nvidia.com/gpu: 1}}
"""
FP8 = POD.replace("--max-num-seqs=16", "--max-num-seqs=16, --kv-cache-dtype=fp8")


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    return Sandbox(tmp_path)


def compared(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = invoked("diff", *arguments, "-o", "json")
    assert result.exit_code == code, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def changes(report: dict[str, Any]) -> dict[str, str]:
    return {engine["file"]: engine["change"] for engine in report["engines"]}


def test_three_dots_compare_with_the_place_where_the_branch_began(sandbox: Sandbox) -> None:
    sandbox.commit(deploy__a=POD, deploy__b=POD.replace("llama", "other"))
    sandbox.git("checkout", "-q", "-b", "feature")
    sandbox.commit(deploy__a=FP8)
    sandbox.git("checkout", "-q", "main")
    sandbox.commit(deploy__b=FP8.replace("llama", "other"))
    sandbox.git("checkout", "-q", "feature")
    report = compared("main...HEAD")
    assert changes(report) == {"deploy/a.yaml": "changed", "deploy/b.yaml": "unchanged"}
    (effect,) = report["engines"][0]["effects"]
    assert (effect["setting"], effect["before"], effect["after"]) == ("kv_cache_dtype", "auto", "fp8")
    assert effect["change_tokens"] == effect["tokens"] - report["engines"][0]["before"]["kv_cache"]["tokens"]
    assert changes(compared("main..HEAD")) == {"deploy/a.yaml": "changed", "deploy/b.yaml": "changed"}
    assert changes(compared("main...")) == changes(report)


def test_one_revision_is_compared_with_the_files_on_disk(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.commit(deploy__a=POD, other__b=POD.replace("llama", "other"))
    (sandbox.folder / "deploy" / "a.yaml").write_text(FP8)
    assert changes(compared("HEAD")) == {"deploy/a.yaml": "changed", "other/b.yaml": "unchanged"}
    assert changes(compared("HEAD", "deploy")) == {"deploy/a.yaml": "changed"}
    monkeypatch.chdir(sandbox.folder / "deploy")
    assert changes(compared("HEAD", "a.yaml")) == {"deploy/a.yaml": "changed"}


def test_a_file_that_is_new_gone_or_renamed_is_told(sandbox: Sandbox) -> None:
    values = "servingEngineSpec:\n  modelSpec:\n  - {name: x, modelURL: Qwen/Qwen3-8B, tag: v0.11.0, requestGPU: 1}\n"
    new = yaml.safe_dump(new_document())
    sandbox.commit(gone=POD, old__values=values, same=POD.replace("llama", "other"))
    sandbox.commit(gone=None, new=new, old__values=None, fresh__renamed=values + "# more\n")
    assert changes(compared("HEAD~1..HEAD", "--accelerator", "L4-24GB", code=0)) == {
        "fresh/renamed.yaml": "unchanged", "gone.yaml": "removed", "new.yaml": "new", "same.yaml": "unchanged",
    }  # fmt: skip


def test_each_side_has_its_own_configuration(sandbox: Sandbox) -> None:
    unplaced = POD.replace("  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}\n", "")
    (sandbox.folder / ".kvgate.yaml").write_text("accelerator: L4-24GB\n")
    sandbox.commit(deploy__a=unplaced)
    (sandbox.folder / ".kvgate.yaml").write_text("accelerator: H100-SXM-80GB\n")
    sandbox.commit(deploy__a=unplaced)
    (engine,) = compared("HEAD~1..HEAD", "deploy/a.yaml")["engines"]
    assert [engine[side]["engine"]["accelerator"] for side in ("before", "after")] == ["L4-24GB", "H100-SXM-80GB"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nobody...HEAD",), "nobody is neither a file nor a revision of"),
        (("--", "-x"), "-x is neither a file nor a revision of"),
        (("HEAD", "../elsewhere"), "../elsewhere is outside of the repository"),
        (("HEAD", "missing"), "missing is on neither side of HEAD"),
        (("HEAD...unrelated",), "the two have no commit in common"),
    ],
)
def test_what_cannot_be_compared_is_told(sandbox: Sandbox, arguments: tuple[str, ...], words: str) -> None:
    sandbox.commit(a=POD)
    sandbox.git("checkout", "-q", "--orphan", "unrelated")
    sandbox.commit(b=POD)
    sandbox.git("checkout", "-q", "main")
    result = invoked("diff", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_folder_without_a_repository_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    result = invoked("diff", "main...HEAD")
    assert result.exit_code == 2
    assert "is in no repository that Git can read" in result.stderr
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "revisions need git" in invoked("diff", "main...HEAD").stderr


def test_nothing_of_the_repository_runs_and_no_link_is_followed(sandbox: Sandbox) -> None:
    program, ran = sandbox.folder / "program.sh", sandbox.folder / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    (sandbox.folder / ".gitattributes").write_text("*.yaml diff=own\n")
    first = sandbox.commit(a=POD)
    (sandbox.folder / "link.yaml").symlink_to("/etc/passwd")
    second = sandbox.commit(a=FP8)
    (sandbox.folder / ".gitattributes").write_text("*.yaml diff=own filter=own\n")
    for name in ("filter.own.smudge", "filter.own.clean", "diff.own.textconv", "diff.own.command", "diff.external", "core.pager",
                 "core.fsmonitor"):  # fmt: skip
        sandbox.git("config", name, str(program))
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        (sandbox.folder / ".git" / "hooks" / hook).write_text(program.read_text())
        (sandbox.folder / ".git" / "hooks" / hook).chmod(0o755)
    ran.unlink(missing_ok=True)
    assert changes(compared(f"{first}..{second}")) == {"a.yaml": "changed"}
    assert changes(compared(first, "a.yaml")) == {"a.yaml": "changed"}
    assert not ran.exists()


def cloned(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, *options: str) -> Path:
    """Clone the repository over Git's own transport, which leaves out what the options say, and go there."""
    sandbox.git("config", "uploadpack.allowFilter", "true")
    clone = sandbox.folder / "clone"
    sandbox.git("clone", "-q", *options, sandbox.folder.as_uri(), str(clone))
    monkeypatch.chdir(clone)
    return clone


@pytest.mark.parametrize("left_out", ["blob:none", "tree:0"])
@pytest.mark.parametrize("allowed", ["user", "always"])
def test_a_partial_clone_is_told_what_to_do_and_fetches_nothing(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, left_out: str, allowed: str
) -> None:
    sandbox.commit(deploy__a=POD)
    sandbox.commit(deploy__a=FP8)
    clone = Sandbox(cloned(sandbox, monkeypatch, f"--filter={left_out}"))
    clone.git("config", "protocol.file.allow", allowed)
    before = objects_of(clone)
    for arguments in (("HEAD~1..HEAD",), ("HEAD~1", "deploy"), ("HEAD~1...HEAD",)):
        result = invoked("diff", *arguments)
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert "this clone is partial (git clone --filter), and kvgate fetches nothing" in result.stderr
    assert objects_of(clone) == before
    clone.git("fetch", "-q", "--refetch", "--no-filter")
    assert changes(compared("HEAD~1..HEAD")) == {"deploy/a.yaml": "changed"}


def objects_of(clone: Sandbox) -> str:
    return clone.git("cat-file", "--batch-all-objects", "--batch-check")


def test_a_git_that_fetches_what_it_lacks_is_allowed_no_protocol(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git before 2.45 does not know GIT_NO_LAZY_FETCH."""
    sandbox.commit(deploy__a=POD)
    sandbox.commit(deploy__a=FP8)
    clone = Sandbox(cloned(sandbox, monkeypatch, "--filter=blob:none"))
    clone.git("config", "protocol.file.allow", "always")
    before = objects_of(clone)
    monkeypatch.delitem(revisions._ENVIRONMENT, "GIT_NO_LAZY_FETCH")
    assert "this clone is partial" in invoked("diff", "HEAD~1..HEAD").stderr
    assert objects_of(clone) == before


def test_a_partial_clone_that_lacks_no_manifest_is_compared(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter by size leaves out files that nobody reads here; a file that was moved unchanged is followed all the same."""
    moved = POD.replace("llama", "moved")
    (sandbox.folder / "weights.bin").write_bytes(os.urandom(1 << 17))
    sandbox.commit(deploy__a=POD, deploy__old=moved)
    (sandbox.folder / "weights.bin").rename(sandbox.folder / "larger.bin")
    (sandbox.folder / "larger.bin").write_bytes(os.urandom(1 << 17))
    sandbox.commit(deploy__a=FP8, deploy__old=None, deploy__new=moved)
    (sandbox.folder / "larger.bin").unlink()
    sandbox.commit(deploy__a=FP8)
    cloned(sandbox, monkeypatch, "--filter=blob:limit=64k")
    sides = compared("HEAD~2..HEAD~1")
    assert changes(sides) == {"deploy/a.yaml": "changed", "deploy/new.yaml": "unchanged"}


def test_a_shallow_clone_is_told_what_to_do(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.commit(deploy__a=POD)
    sandbox.commit(deploy__a=FP8)
    clone = Sandbox(cloned(sandbox, monkeypatch, "--depth=1"))
    for arguments in (("HEAD~1..HEAD",), ("HEAD~1", "deploy/a.yaml"), ("HEAD~1...HEAD",), ("v1...HEAD",)):
        result = invoked("diff", *arguments)
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert "this clone is shallow: git fetch --unshallow" in result.stderr
    clone.git("fetch", "-q", "--unshallow")
    assert changes(compared("HEAD~1..HEAD")) == {"deploy/a.yaml": "changed"}
    assert "is shallow" not in invoked("diff", "v1...HEAD").stderr

"""`kvgate diff`: engines are found again, capacity before and after, and the exit code is that of what gets worse."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from support.builders import new_document
from support.command_line import invoked

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
ON_L4 = POD.replace("NVIDIA-H100-80GB-HBM3", "NVIDIA-L4")
TOO_LONG = ON_L4.replace("8192", "40960")
OTHER = POD.replace("name: llama", "name: qwen")


def ours(**spec: Any) -> str:
    return yaml.safe_dump(new_document(**spec))


def run(*arguments: str) -> Result:
    return invoked("diff", *arguments)


def compared(folder: Path, old: dict[str, str], new: dict[str, str]) -> Any:
    for name, files in (("old", old), ("new", new)):
        for path, text in files.items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)
    return json.loads(run(str(folder / "old"), str(folder / "new"), "-o", "json").stdout)


@pytest.mark.parametrize(
    ("old", "new", "changes", "code"),
    [
        (POD, POD, ["unchanged"], 0),
        (POD, f"# moved\n---\n{POD}", ["unchanged"], 0),
        (POD, ON_L4, ["changed"], 0),
        (POD, TOO_LONG, ["changed"], 1),
        (TOO_LONG, POD, ["changed"], 0),
        (TOO_LONG, TOO_LONG.replace("40960", "36864"), ["changed"], 0),
        (POD, f"{POD}---\n{OTHER}", ["unchanged", "new"], 0),
        (POD, f"{POD}---\n{TOO_LONG.replace('llama', 'new')}", ["unchanged", "new"], 1),
        (f"{POD}---\n{OTHER}", OTHER, ["unchanged", "removed"], 0),
        (POD, f"{POD}---\nvllm: [\n", ["unchanged"], 1),
        (f"{POD}---\nvllm: [\n", f"{POD}---\nvllm: [\n", ["unchanged"], 0),
        ("kind: Service\n", "kind: Service\n", [], 2),
    ],
)
def test_the_exit_code_is_that_of_what_gets_worse(
    tmp_path: Path, old: str, new: str, changes: list[str], code: int
) -> None:
    answer = compared(tmp_path, {"x.yaml": old}, {"x.yaml": new})
    assert [engine["change"] for engine in answer["engines"]] == changes
    assert answer["summary"]["exit_code"] == code
    assert run(str(tmp_path / "old"), str(tmp_path / "new")).exit_code == code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a.yaml": POD}, {"b/c.yaml": POD}),
        ({"a.yaml": POD}, {"a.yaml": POD.replace("name: llama", "name: renamed")}),
        ({"a.yaml": POD}, {"a.yaml": POD.replace("- name: vllm", "- {name: sidecar, image: nginx}\n  - name: vllm")}),
        ({"a.yaml": POD}, {"a.yaml": POD.replace("name: llama", "name: llama, namespace: serving")}),
        ({"a.yaml": f"{POD}---\n{OTHER}"}, {"a.yaml": OTHER, "b.yaml": POD}),
        ({"eu/a.yaml": POD, "us/a.yaml": POD}, {"us/a.yaml": POD, "eu/a.yaml": POD}),
    ],
)
def test_an_engine_is_found_again_when_files_and_names_change(
    tmp_path: Path, old: dict[str, str], new: dict[str, str]
) -> None:
    answer = compared(tmp_path, old, new)
    assert {engine["change"] for engine in answer["engines"]} == {"unchanged"}


def test_both_sides_carry_their_capacity(tmp_path: Path) -> None:
    (engine,) = compared(tmp_path, {"x.yaml": POD}, {"x.yaml": ON_L4})["engines"]
    before, after = engine["before"], engine["after"]
    held, left = before["kv_cache"], after["kv_cache"]
    assert held["tokens"] == held["blocks"] * 16
    assert held["requests"] == pytest.approx(held["blocks"] / 512, rel=0.01)
    assert held["tokens"] > 5 * left["tokens"] > 0
    assert held["headroom_bytes"] > left["headroom_bytes"]
    assert (before["engine"]["accelerator"], after["engine"]["accelerator"]) == ("H100-SXM-80GB", "L4-24GB")


def test_the_table_shows_before_and_after(tmp_path: Path) -> None:
    compared(tmp_path, {"x.yaml": f"{POD}---\n{OTHER}"}, {"x.yaml": f"{TOO_LONG}---\n{OTHER}"})
    text = run(str(tmp_path / "old"), str(tmp_path / "new"), "-o", "markdown").stdout
    (row,) = re.findall(r"^\| pod llama.*$", text, re.MULTILINE)
    assert "Fits: starts → DoesNotFit: does not start" in row
    assert re.search(r"[\d,]+ → [\d,]+ \(-\d\d %\)", row)
    assert re.search(r"GiB \(\d+ %\) → -?[\d.]+ GiB", row)
    assert "2 engines: 1 changed, 1 unchanged; 1 got worse: it would not start, or would be refused" in text
    assert "- ❌ `x.yaml:9` **KVCacheTooSmall** " in text
    assert "qwen" not in text


def test_two_files_may_have_different_names_and_one_may_be_a_stream(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POD)
    (tmp_path / "b.yaml").write_text(ON_L4)
    result = run(str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert result.exit_code == 0
    assert "1 engine: 1 changed" in result.stdout
    piped = invoked("diff", str(tmp_path / "a.yaml"), "-", stdin=POD)
    assert "1 engine: 1 unchanged" in piped.stdout


def test_a_policy_that_adjusts_shows_what_is_rendered(tmp_path: Path) -> None:
    vllm = {"maxModelLen": 32768, "maxNumSeqs": 64}
    old, new = (ours(vllm=vllm, admission={"policy": policy}) for policy in ("Adjust", "Reject"))
    answer = compared(tmp_path, {"x.yaml": old}, {"x.yaml": new})
    (engine,) = answer["engines"]
    assert (engine["before"]["refused"], engine["after"]["refused"]) == (False, True)
    assert engine["before"]["kv_cache"]["headroom_bytes"] >= 0 > engine["after"]["kv_cache"]["headroom_bytes"]
    assert answer["summary"]["worse"] == 1


def with_release(version: str, manifest: str = POD) -> str:
    return manifest.replace("v0.32.0", version)


def test_another_release_brings_its_defaults(tmp_path: Path) -> None:
    old, new = with_release("v0.19.1"), with_release("v0.20.0")
    (engine,) = compared(tmp_path, {"x.yaml": old}, {"x.yaml": new})["engines"]
    assert engine["change"] == "changed"
    assert [engine[side]["engine"]["vllm_version"] for side in ("before", "after")] == ["0.19.1", "0.20.0"]
    assert {"option": "--gpu-memory-utilization", "before": 0.9, "after": 0.92} in engine["changed_defaults"]
    told = "vLLM 0.19.1 → 0.20.0 changes the defaults of options that are not set:"
    text = run(str(tmp_path / "old"), str(tmp_path / "new")).stdout
    assert re.search(rf"{told}\n    --gpu-memory-utilization +0\.9 → 0\.92\n", text)
    markdown = run(str(tmp_path / "old"), str(tmp_path / "new"), "-o", "markdown").stdout
    assert f"- pod llama on H100-SXM-80GB: {told} `--gpu-memory-utilization` 0.9 → 0.92" in markdown


def test_what_is_assumed_is_said_of_both_sides(tmp_path: Path) -> None:
    answer = compared(tmp_path, {"x.yaml": with_release("v0.19.1")}, {"x.yaml": with_release("latest")})
    (engine,) = answer["engines"]
    (fact,) = engine["after"]["assumed"]
    assert engine["before"]["assumed"] == []
    assert "the tag latest moves" in fact["why"]
    assumed = f"vLLM {fact['value']}: {fact['why']}"
    text = run(str(tmp_path / "old"), str(tmp_path / "new")).stdout
    assert re.search(rf"\n  assumed +nothing → {assumed}\n", text)
    markdown = run(str(tmp_path / "old"), str(tmp_path / "new"), "-o", "markdown").stdout
    assert f"- pod llama on H100-SXM-80GB: assumed nothing → {assumed}\n" in markdown


@pytest.mark.parametrize("option", ["--gpu-memory-utilization=0.85", "--gpu_memory_utilization=$(SHARE)"])
def test_a_default_is_not_told_where_the_option_is_set(tmp_path: Path, option: str) -> None:
    pod = POD.replace("--max-num-seqs=16", f"--max-num-seqs=16, {option}")
    old, new = with_release("v0.20.0", pod), with_release("v0.19.1")
    for files in ((old, with_release("v0.19.1", pod)), (old, new), (new, old)):
        (engine,) = compared(tmp_path, {"x.yaml": files[0]}, {"x.yaml": files[1]})["engines"]
        assert "--gpu-memory-utilization" not in {each["option"] for each in engine["changed_defaults"]}


def test_a_default_of_no_consequence_for_capacity_is_a_change_too(tmp_path: Path) -> None:
    (engine,) = compared(tmp_path, {"x.yaml": POD}, {"x.yaml": with_release("v0.33.0")})["engines"]
    assert engine["changed_defaults"] == [{"option": "--tool-strict-level", "before": "auto", "after": None}]
    assert engine["before"]["kv_cache"] == engine["after"]["kv_cache"]
    assert engine["change"] == "changed"
    assert "--tool-strict-level  auto → unset" in run(str(tmp_path / "old"), str(tmp_path / "new")).stdout


@pytest.mark.parametrize("tag", [f"@sha256:{'0' * 64}", ":v7.3.0"])
def test_defaults_are_compared_only_where_both_releases_are_known(tmp_path: Path, tag: str) -> None:
    new = POD.replace(":v0.32.0", tag)
    (engine,) = compared(tmp_path, {"x.yaml": with_release("v0.19.1")}, {"x.yaml": new})["engines"]
    assert engine["changed_defaults"] == []


def test_options_that_the_input_does_not_hold_may_be_set(tmp_path: Path) -> None:
    pod = POD.replace("--max-num-seqs=16", "--max-num-seqs=16, $(MORE)")
    old, new = with_release("v0.19.1", pod), with_release("v0.20.0", pod)
    (engine,) = compared(tmp_path, {"x.yaml": old}, {"x.yaml": new})["engines"]
    assert engine["changed_defaults"] == []


def test_our_own_object_brings_defaults_with_its_version(tmp_path: Path) -> None:
    vllm = {
        "maxModelLen": 8192,
        "gpuMemoryUtilization": "0.9",
        "extraArgs": ["--safetensors-load-strategy=$(STRATEGY)"],
    }
    old, new = (ours(vllm={**vllm, "version": version}) for version in ("0.14.1", "0.20.0"))
    (engine,) = compared(tmp_path, {"x.yaml": old}, {"x.yaml": new})["engines"]
    told = {each["option"] for each in engine["changed_defaults"]}
    assert "--disable-cascade-attn" in told
    assert not told & {"--gpu-memory-utilization", "--safetensors-load-strategy", "--max-num-seqs", "--model"}


def test_what_could_not_be_read_is_told_of_either_tree_and_once_where_it_is_so_in_both(tmp_path: Path) -> None:
    broken = "vllm: [\n"
    told = compared(tmp_path, {"a.yaml": POD, "b.yaml": broken, "c.yaml": broken}, {"a.yaml": POD, "b.yaml": broken})
    files = [Path(placed["file"]).relative_to(tmp_path).as_posix() for placed in told["unreadable"]]
    assert files == ["old/c.yaml", "new/b.yaml"]
    result = run(str(tmp_path / "nowhere"), str(tmp_path / "new" / "a.yaml"))
    assert "nowhere:1:1: error Unreadable cannot be read: No such file" in result.stdout
    assert result.stdout.endswith("1 engine: 1 new; 1 document could not be read\n")


def test_standard_input_can_be_one_side_only() -> None:
    result = run("-", "-")
    assert result.exit_code == 2
    assert "only one of OLD and NEW" in result.stderr


ON_ANY = POD.replace("  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}\n", "")
LONGER = ON_ANY.replace("8192", "40960")


def test_two_sides_that_name_no_gpu_are_compared_on_one(tmp_path: Path) -> None:
    (engine,) = compared(tmp_path, {"x.yaml": ON_ANY}, {"x.yaml": LONGER})["engines"]
    before, after = engine["before"], engine["after"]
    assert engine["compared_on"] == before["engine"]["judged_on"] == after["engine"]["judged_on"]
    assert before["kv_cache"]["tokens"] == after["kv_cache"]["tokens"]
    assert [each["setting"] for each in engine["effects"]] == ["max_model_len"]
    was, now = (set(engine["starts_on"][side]) for side in ("before", "after"))
    assert engine["compared_on"] in now < was
    assert "L4-24GB" in was - now
    text = run(str(tmp_path / "old"), str(tmp_path / "new")).stdout
    assert re.search(r"\n  starts on +was L4-24GB and larger, now \S+ and larger", text)
    assert f"figures on        {engine['compared_on']}\n" in text
    markdown = run(str(tmp_path / "old"), str(tmp_path / "new"), "-o", "markdown").stdout
    assert "- pod llama: starts on was L4-24GB and larger, now " in markdown


def test_a_smaller_gpu_that_would_do_is_a_change_and_not_worse(tmp_path: Path) -> None:
    answer = compared(tmp_path, {"x.yaml": LONGER}, {"x.yaml": ON_ANY})
    (engine,) = answer["engines"]
    assert (engine["compared_on"], engine["change"], answer["summary"]["worse"]) == ("L4-24GB", "changed", 0)
    assert engine["before"]["kv_cache"]["headroom_bytes"] < 0 < engine["after"]["kv_cache"]["headroom_bytes"]


@pytest.mark.parametrize(("old", "new", "gpu"), [(ON_ANY, ON_L4, "L4-24GB"), (POD, ON_ANY, "H100-SXM-80GB")])
def test_the_gpu_that_one_side_names_is_that_of_both(tmp_path: Path, old: str, new: str, gpu: str) -> None:
    (engine,) = compared(tmp_path, {"x.yaml": old}, {"x.yaml": new})["engines"]
    assert (engine["compared_on"], engine["starts_on"], engine["change"]) == (gpu, None, "unchanged")
    assert engine["before"]["kv_cache"] == engine["after"]["kv_cache"]


def test_two_gpus_that_are_named_stay(tmp_path: Path) -> None:
    (engine,) = compared(tmp_path, {"x.yaml": POD}, {"x.yaml": ON_L4})["engines"]
    assert (engine["compared_on"], engine["starts_on"]) == (None, None)


def test_the_pools_of_the_repository_are_the_gpus_that_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = "pools: {small: [L4-24GB], large: [H100-SXM-80GB]}\n"
    (tmp_path / ".kvgate.yaml").write_text(pools)
    monkeypatch.chdir(tmp_path)
    (engine,) = compared(tmp_path, {"x.yaml": ON_ANY}, {"x.yaml": LONGER})["engines"]
    assert engine["compared_on"] == "H100-SXM-80GB"
    assert engine["starts_on"] == {"before": ["L4-24GB", "H100-SXM-80GB"], "after": ["H100-SXM-80GB"]}
    text = run(str(tmp_path / "old"), str(tmp_path / "new")).stdout
    assert re.search(r"starts on +was L4-24GB, H100-SXM-80GB, now H100-SXM-80GB\n", text)

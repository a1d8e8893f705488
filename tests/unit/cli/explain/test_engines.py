"""`kvgate explain FILE[#NAME]`: the ledger of an engine in a manifest, with the verdict and the words of `kvgate check`."""

import json
from pathlib import Path

import pytest

from support.command_line import MISTAKEN_POD, invoked

ONE = MISTAKEN_POD.replace("    - --no-such-option\n", "").replace("40960", "8192").replace("name: engine", "name: one")
TWO = ONE.replace("name: one", "name: two").replace("Qwen3-8B", "Qwen3-0.6B")
ELSEWHERE = ONE.replace("{name: one}", "{name: one, namespace: prod}").replace("8192", "4096")
UNNAMED = ONE.replace("  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}\n", "")


@pytest.fixture(autouse=True)
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("all.yaml").write_text(f"{ONE}---\n{TWO}---\n{ELSEWHERE}", encoding="utf-8")
    Path("unnamed.yaml").write_text(UNNAMED, encoding="utf-8")
    Path("a#b.yaml").write_text(TWO, encoding="utf-8")


def test_a_name_selects_engines_and_without_one_all_are_shown() -> None:
    for target, heads in (
        ("all.yaml#two", ["all.yaml:20: pod two on L4-24GB"]),
        ("all.yaml#one", ["all.yaml:7: pod one on L4-24GB", "all.yaml:33: pod prod/one on L4-24GB"]),
        ("all.yaml#prod/one", ["all.yaml:33: pod prod/one on L4-24GB"]),
        ("all.yaml", ["all.yaml:7: pod one on L4-24GB", "all.yaml:20: pod two on L4-24GB", "all.yaml:33: pod prod/one on L4-24GB"]),
        ("a#b.yaml", ["a#b.yaml:7: pod two on L4-24GB"]),
    ):  # fmt: skip
        lines = invoked("explain", target).stdout.splitlines()
        assert [line.partition(": Fits: starts; holds ")[0] for line in lines if ": pod " in line] == heads
        assert sum(line.startswith("  = for the KV cache") for line in lines) == len(heads)


def test_the_verdict_is_that_of_check_in_the_same_words() -> None:
    (told,) = [line for line in invoked("check", "a#b.yaml").stdout.splitlines() if "Fits: " in line]
    assert told == invoked("explain", "a#b.yaml").stdout.splitlines()[0]
    shown = invoked("explain", "unnamed.yaml").stdout
    assert ", judged on " in shown.splitlines()[0]
    assert "Fits: starts on " in shown
    refused = invoked("explain", "unnamed.yaml", "--gpu", "T4-16GB")
    assert "DoesNotFit: does not start" in refused.stdout
    assert refused.exit_code == 1
    assert invoked("explain", "unnamed.yaml", "--accelerator", "T4-16GB").stdout == refused.stdout


def test_programs_get_the_answers_with_places_and_the_views() -> None:
    answers = json.loads(invoked("explain", "all.yaml", "-o", "json", "--why", "weights").stdout)
    places = [(each["id"], each["namespace"], each["line"]) for each in answers]
    assert places == [
        ("one", "default", 7),
        ("two", "default", 20),
        ("one", "prod", 33),
    ]
    for each in answers:
        assert each["verdict"] == "Fits"
        assert each["why"]["expected"] == each["ledger"]["weights_bytes"]
        assert each["kv_cache"]["num_tokens"] > 0
    lines = invoked("explain", "all.yaml", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["one", "two", "one"]


def test_the_guarantee_is_judged_for_the_engine_of_a_manifest_too() -> None:
    result = invoked("explain", "all.yaml#two", "--guarantee", "FullContext")
    assert "does not hold full context (256 requests of 8192 tokens)" in result.stdout
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("all.yaml#three",),
            "all.yaml has no engine with the name 'three'; it has default/one, default/two, prod/one",
        ),
        (("none.yaml#one",), "none.yaml cannot be read: No such file or directory"),
        (("all.yaml", "--max-model-len", "8k"), "FILE states the settings of its engines; leave out --max-model-len"),
        (
            ("--model", "Qwen/Qwen3-8B", "--gpu", "L4-24GB", "--config", "a#b.yaml"),
            "--config is about the engines in a manifest",
        ),
    ],
)
def test_mistakes_name_what_is_there(arguments: tuple[str, ...], told: str) -> None:
    result = invoked("explain", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


def test_a_file_without_an_engine_says_so() -> None:
    Path("service.yaml").write_text("kind: Service\n", encoding="utf-8")
    assert "service.yaml has no vLLM engine" in invoked("explain", "service.yaml").stderr

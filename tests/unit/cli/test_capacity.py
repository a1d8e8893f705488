"""`--capacity Pinned` in every command that takes it, and a pinned InferenceDeployment in `kvgate check`."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.builders import new_document
from support.command_line import invoked

QUESTION = ("--model", "Qwen/Qwen3-8B", "--vllm-version", "0.33.0", "--max-model-len", "8192")
SWEPT = (*QUESTION[:4], "--gpu", "H100-SXM-80GB")
ON_H100 = (*QUESTION, "--gpu", "H100-SXM-80GB")


def explained(*options: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(invoked("explain", *ON_H100, *options, "-o", "json").stdout)
    return answer


def test_explain_answers_with_what_is_pinned_and_what_it_costs() -> None:
    profiled, pinned = explained(), explained("--capacity", "Pinned")
    told, before = pinned["kv_cache"]["pinned"], profiled["ledger"]["available_kv_cache_bytes"]
    assert told["option"] == ["kv_cache_memory_bytes", told["num_blocks"] * pinned["kv_cache"]["bytes_per_block"]]
    assert told["profiled_kv_cache_bytes"] == before
    assert told["kv_cache_bytes"] <= before["low"] - told["safety_bytes"]
    assert pinned["ledger"]["available_kv_cache_bytes"] == dict.fromkeys(before, told["kv_cache_bytes"])
    assert (pinned["kv_cache"]["num_blocks"], pinned["kv_cache"]["num_tokens"]) == (
        told["num_blocks"],
        told["num_tokens"],
    )
    assert told["forgone_tokens"] == profiled["kv_cache"]["num_tokens"] - told["num_tokens"]
    assert (
        told["forgone_bytes"]
        == (profiled["kv_cache"]["num_blocks"] - told["num_blocks"]) * pinned["kv_cache"]["bytes_per_block"]
    )
    assert "pinned" not in profiled["kv_cache"]


def test_explain_shows_the_pinned_size_below_the_prediction() -> None:
    lines = invoked("explain", *ON_H100, "--capacity", "pinned").stdout.splitlines()
    (predicted,) = [number for number, line in enumerate(lines) if line.startswith("  = for the KV cache")]
    (pinned,) = [number for number, line in enumerate(lines) if line.startswith("  pinned ")]
    assert predicted < pinned < lines.index("", predicted)
    assert lines[pinned].endswith("less than expected")
    assert any("info CapacityPinned: --capacity Pinned gives the KV cache" in line for line in lines)


def test_why_says_how_the_pinned_size_is_found() -> None:
    told = explained("--capacity", "Pinned", "--why", "available")["why"]
    inputs = told["inputs"]
    room = inputs["low_bytes"] - inputs["safety_bytes"]
    assert told["low"] == told["high"] == room // inputs["bytes_per_block"] * inputs["bytes_per_block"]


def test_a_request_of_many_is_pinned_by_its_own_key(tmp_path: Path) -> None:
    request = {"model": "Qwen/Qwen3-8B", "gpu": "H100-SXM-80GB", "vllm_version": "0.33.0", "max_model_len": 8192}
    file = tmp_path / "requests.jsonl"
    file.write_text(
        "\n".join(json.dumps({**request, "capacity": each}) for each in ("Profiled", "Pinned", "Both")),
        encoding="utf-8",
    )
    answers = [json.loads(line) for line in invoked("explain", "--requests", str(file)).stdout.splitlines()]
    assert "pinned" not in answers[0]["kv_cache"]
    assert answers[1]["kv_cache"]["pinned"] == explained("--capacity", "Pinned")["kv_cache"]["pinned"]
    assert answers[2]["error"] == "capacity is 'Both'; it must be one of Profiled, Pinned"


def test_size_holds_the_guarantee_with_what_is_pinned_and_gives_the_option() -> None:
    options = ("size", *QUESTION, "--max-num-seqs", "8", "--gpus", "H100-SXM-80GB", "--capacity", "Pinned")
    text = invoked(*options).stdout
    assert ", capacity Pinned" in text.splitlines()[0]
    assert "--kv-cache-memory-bytes " in text
    answer = json.loads(invoked(*options, "-o", "json").stdout)
    assert answer["question"]["capacity"] == "Pinned"
    for candidate in answer["candidates"]:
        assert candidate["verdict"] in ("Fits", "DoesNotFit")
        assert len(set(candidate["available_kv_cache_bytes"].values())) == 1
        assert candidate["pinned_blocks"] > 0
    rows = list(csv.DictReader(io.StringIO(invoked(*options, "-o", "csv").stdout)))
    assert rows[0]["pinned_blocks"] == str(answer["candidates"][0]["pinned_blocks"])


def test_a_sweep_has_no_cells_that_may_fit_and_can_compare_both() -> None:
    axes = ("--x", "max_model_len=8192,32768", "--y", "max_num_seqs=1,64", "-o", "json")
    swept = json.loads(invoked("sweep", *SWEPT, "--capacity", "Pinned", *axes).stdout)
    assert {cell["verdict"] for row in swept["cells"] for cell in row} <= {"Fits", "DoesNotFit"}
    assert all(edge["fits"] == edge["may_fit"] for edge in swept["edges"])
    both = invoked("sweep", *ON_H100, "--x", "capacity=Profiled,Pinned", "--y", "max_num_seqs=1,64", "-o", "json")
    profiled, pinned = json.loads(both.stdout)["edges"]
    assert pinned["fits"] <= profiled["fits"] <= profiled["may_fit"]
    assert "capacity Pinned" in invoked("sweep", *SWEPT, "--capacity", "Pinned", *axes[:4]).stdout


@pytest.mark.parametrize("command", ["explain", "size", "sweep"])
def test_an_unknown_word_is_named_with_the_words_that_exist(command: str) -> None:
    done = invoked(command, *(QUESTION if command == "size" else ON_H100), "--capacity", "Reserved")
    assert done.exit_code == 2
    assert "capacity is 'Reserved'; it must be one of Profiled, Pinned" in done.stderr


def test_check_tells_what_would_be_rendered(tmp_path: Path) -> None:
    file = tmp_path / "pinned.yaml"
    file.write_text(
        yaml.safe_dump(new_document(vllm={"maxNumSeqs": 4}, admission={"capacity": "Pinned"})), encoding="utf-8"
    )
    (document,) = json.loads(invoked("check", str(file), "-o", "json").stdout)["documents"]
    assert (document["admission"]["decision"], document["verdict"]) == ("Admit", "Fits")
    assert document["admission"]["effective"]["kv_cache_memory_bytes"] > 0
    assert document["admission"]["effective"]["num_gpu_blocks_override"] is None
    assert "pinned at" in document["admission"]["message"]

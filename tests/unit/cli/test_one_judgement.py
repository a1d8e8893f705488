"""The same question gets the same answer from explain, size, sweep, a line of --requests and an InferenceDeployment."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli.explain.requests import answers
from kvgate.cli.reports.records import CacheRecord, DocumentRecord, EngineRecord
from support.command_line import invoked
from support.tables import table

QWEN, LLAMA, ASSUMED = "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "my-org/Llama-3.3-70B-Instruct"
L40S, L4, T4, H100 = "L40S-48GB", "L4-24GB", "T4-16GB", "H100-SXM-80GB"
LOAD = {"peak_concurrency": 8, "prompt_tokens": 6000, "output_tokens": 500}
MORE = {**LOAD, "peak_concurrency": 64}
QUESTIONS: dict[str, tuple[str, str, dict[str, Any], str, int]] = {
    # model, GPU, settings and load, (verdict, exit code)
    "held": (QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 4}, "Fits", 0),
    "not held": (QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 16}, "DoesNotFit", 1),
    "not held, start alone asked": (QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 16, "guarantee": "Startup"}, "Fits", 0),
    "does not start": (QWEN, L4, {"max_model_len": 40960, "max_num_seqs": 1}, "DoesNotFit", 1),
    "weights too large": (LLAMA, T4, {"max_model_len": 8192, "max_num_seqs": 2}, "DoesNotFit", 1),
    "workload held": (QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 16, **LOAD}, "Fits", 0),
    "workload not held": (QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 64, **MORE}, "DoesNotFit", 1),
    "workload given, start alone asked": (
        QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 64, **MORE, "guarantee": "Startup"}, "Fits", 0,
    ),
    "workload held, full context asked": (
        QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 16, **LOAD, "guarantee": "FullContext"}, "DoesNotFit", 1,
    ),
    "fp8 cache": (QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 8, "kv_cache_dtype": "fp8"}, "Fits", 0),
    "pinned": (QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 4, "capacity": "Pinned"}, "Fits", 0),
    "an assumed model that fits": ("my-org/Qwen3-8B", H100, {"max_model_len": 8192, "max_num_seqs": 8}, "Fits", 0),
    "an assumed model that does not": (ASSUMED, T4, {"max_model_len": 8192, "max_num_seqs": 2}, "DoesNotFit", 0),
}  # fmt: skip
_FIELDS = {
    "max_model_len": "maxModelLen", "max_num_seqs": "maxNumSeqs", "kv_cache_dtype": "kvCacheDtype",
    "peak_concurrency": "peakConcurrency", "prompt_tokens": "promptTokens", "output_tokens": "outputTokens",
}  # fmt: skip


def flags(values: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def by_flags(model: str, gpu: str, values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    result = invoked("explain", "--model", model, "--gpu", gpu, "--vllm-version=0.19.1", "-o", "json", *flags(values))
    return json.loads(result.stdout), result.exit_code


def by_manifest(model: str, gpu: str, values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    known = dict(values)
    admission = {name: known.pop(name) for name in ("guarantee", "capacity") if name in known}
    parts: dict[str, dict[str, Any]] = {"workload": {}, "vllm": {"version": "0.19.1"}}
    for name, value in known.items():
        parts["workload" if name in LOAD else "vllm"][_FIELDS[name]] = value
    spec = {"model": {"name": model}, "accelerator": {"type": gpu}, "admission": {"policy": "Reject", **admission}}
    spec |= {name: part for name, part in parts.items() if part}
    head = {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "a"}}
    result = invoked("check", "-", "-o", "json", stdin=json.dumps({**head, "spec": spec}))
    (document,) = json.loads(result.stdout)["documents"]
    return document, result.exit_code


def by_size(model: str, gpu: str, values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    asked = {"kv_cache_dtype": "auto", **values}
    about = ("--gpus", f"1x{gpu}", "--vllm-version=0.19.1", "--all", "-o", "json")
    result = invoked("size", "--model", model, *about, *flags(asked))
    found = json.loads(result.stdout)["candidates"]
    return next((each for each in found if each["num_gpus"] == 1), {}), result.exit_code


def by_line(model: str, gpu: str, values: dict[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in values.items() if name not in LOAD}
    load = {name: value for name, value in values.items() if name in LOAD}
    line = {"model": model, "gpu": gpu, "vllm_version": "0.19.1", **settings, **({"workload": load} if load else {})}
    if not load and "guarantee" not in line:
        line["guarantee"] = "FullContext"
    (answer,) = answers(io.BytesIO(json.dumps(line).encode()))
    found: dict[str, Any] = json.loads(answer)
    return found


@table("name", QUESTIONS)
def test_every_door_gives_the_same_verdict_headroom_and_exit_code(name: str) -> None:
    model, gpu, values, verdict, code = QUESTIONS[name]
    explained, explain_code = by_flags(model, gpu, values)
    document, check_code = by_manifest(model, gpu, values)
    sized, size_code = by_size(model, gpu, values)
    line = by_line(model, gpu, values)
    keys = ("verdict", "decides", "starts", "holds", "confidence")
    assert [explained[key] for key in keys] == [document[key] for key in keys] == [line[key] for key in keys]
    assert explained["verdict"] == verdict
    assert (explain_code, check_code, size_code) == (code, code, code)
    headroom = document["kv_cache"]["headroom_ratio"]
    assert explained["kv_cache"]["headroom_ratio"] == line["kv_cache"]["headroom_ratio"] == headroom
    assert explained[explained["decides"]]["headroom_ratio"] == headroom
    # where one engine does not hold a load, size divides it: no candidate of one GPU asks the same question
    if sized and sized["max_num_seqs"] == values["max_num_seqs"] and verdict == "Fits":
        assert [sized[key] for key in keys] == [document[key] for key in keys]
        assert sized["headroom_ratio"] == headroom
    assert not sized or verdict == "Fits" or sized["verdict"] != "Fits"


def test_a_length_alone_and_sequences_alone_promise_nothing() -> None:
    for typed in ({"max_model_len": 32768}, {"max_num_seqs": 16}, {"max_model_len": "auto", "max_num_seqs": 16}):
        explained, code = by_flags(QWEN, L40S, typed)
        assert (explained["verdict"], explained["decides"], explained["holds"]["verdict"], code) == (
            "Fits",
            "starts",
            None,
            0,
        )
        assert explained["holds"]["requests"] > 0
    assert by_flags(QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 16})[0]["decides"] == "holds"


def test_auto_says_its_length_and_what_is_lost_and_the_start_alone_decides() -> None:
    shown = invoked("explain", "--model", LLAMA, "--gpu", L4, "--max-model-len=auto", "--guarantee=FullContext").stdout
    head = shown.splitlines()[0]
    assert head.startswith("Fits: starts; max_model_len auto is ")
    assert " of the model's 131072 tokens, " in head
    assert head.endswith("; no load is promised")
    whole = invoked("explain", "--model", QWEN, "--gpu", H100, "--max-model-len=auto").stdout
    assert "max_model_len auto is 40960 tokens, all of the model's" in whole.splitlines()[0]
    given = invoked("explain", "--model", LLAMA, "--gpu", L4, "--max-model-len=16384").stdout
    assert "auto" not in given.splitlines()[0]


def test_a_line_of_requests_promises_by_its_own_keys_only() -> None:
    asked = {"model": QWEN, "gpu": L40S, "max_model_len": 32768, "max_num_seqs": 16, "vllm_version": "0.19.1"}
    wrong: dict[str, dict[str, Any]] = {
        "guarantee is 'Full'; write Startup, Workload, FullContext": {"guarantee": "Full"},
        "guarantee Workload needs the key workload": {"guarantee": "Workload"},
        "workload is [1]; write an object with peak_concurrency": {"workload": [1]},
        "workload has the key 'prompt'; its keys are": {"workload": {**LOAD, "prompt": 1}},
        "workload: peak_concurrency is 0; it must be": {"workload": {**LOAD, "peak_concurrency": 0}},
        "a workload also needs output_tokens": {"workload": {"peak_concurrency": 1, "prompt_tokens": 10}},
    }
    lines = [json.dumps({**asked, **each}).encode() for each in ({}, {"workload": LOAD}, *wrong.values())]
    plain, loaded, *refused = map(json.loads, answers(io.BytesIO(b"\n".join(lines))))
    assert (plain["decides"], loaded["decides"], loaded["holds"]["guarantee"]) == ("starts", "holds", "Workload")
    assert not any(each["rule"] == "SettingNotUnderstood" for each in loaded["findings"])
    for told, answer in zip(wrong, refused, strict=True):
        assert told in answer["error"]


@pytest.mark.parametrize("num_gpus", [1, 4, 8])
def test_a_candidate_that_does_not_fit_under_an_assumption_is_never_offered(num_gpus: int) -> None:
    for names in ((ASSUMED, 0), ("meta-llama/Llama-3.3-70B-Instruct", 1)):
        model, code = names
        question = ("size", "--model", model, "--gpus", T4, f"--max-gpus={num_gpus}", "--max-model-len=8192")
        result = invoked(*question, "--all", "-o", "json")
        found = json.loads(result.stdout)["candidates"]
        assert {each["verdict"] for each in found} == {"DoesNotFit"}
        assert {each["starts"]["verdict"] for each in found} == {"DoesNotFit"}
        assert result.exit_code == code
        shown = invoked(*question).stdout
        assert "may be enough" not in shown
        assert "Fewest GPUs" not in shown
        assert invoked(*question, "--as", "vllm-serve").exit_code == 2
    fits = invoked("size", "--model", ASSUMED, "--gpus", H100, "--max-model-len=8192")
    assert "Fits: starts; holds " in fits.stdout
    assert fits.exit_code == 0


def test_a_length_that_does_not_start_is_no_row_and_all_names_the_one_that_would() -> None:
    question = ("size", "--model", QWEN, "--gpus", L4, "--max-gpus=1", "--max-model-len=40960", "--kv-cache-dtype=auto")
    for more in ((), ("--all",)):
        result = invoked(*question, *more)
        assert result.exit_code == 1
        assert "VERDICT" not in result.stdout
        assert "tokens start" in result.stdout
    assert invoked(*question, "--as", "vllm-serve").exit_code == 2


def test_a_point_of_a_sweep_has_both_answers_and_the_exit_code_of_the_one_that_decides() -> None:
    about = ("sweep", "--model", QWEN, "--gpu", L40S, "--vllm-version=0.19.1", "-o", "json")
    swept = invoked(*about, "--x=max_model_len=32768", "--y=max_num_seqs=4,16", "--at=32768,16")
    (held,), (not_held,) = json.loads(swept.stdout)["cells"]
    assert swept.exit_code == 1
    for cell, sequences in ((held, 4), (not_held, 16)):
        document, _ = by_manifest(QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": sequences})
        keys = ("verdict", "decides", "starts", "holds", "confidence")
        assert [cell[key] for key in keys] == [document[key] for key in keys]
        assert cell["headroom_ratio"] == document["kv_cache"]["headroom_ratio"]
    alone = invoked(*about, "--x=gpu_memory_utilization=0.9", "--y=max_num_seqs=16", "--at=0.9,16")
    assert json.loads(alone.stdout)["cells"][0][0]["decides"] == "starts"
    assert alone.exit_code == 0
    assumed = ("sweep", "--model", ASSUMED, "--gpu", T4, "--x=max_model_len=8192", "--y=max_num_seqs=2", "--at=8192,2")
    assert invoked(*assumed).exit_code == 0


def test_the_answer_for_flags_and_for_a_file_has_the_keys_of_check() -> None:
    of_place = {
        "file",
        "line",
        "path",
        "rendered_by",
        "rendered_line",
        "platform",
        "kind",
        "namespace",
        "name",
        "ignored",
        "admission",
    }
    explained, _ = by_flags(QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 4})
    assert set(DocumentRecord.__struct_fields__) - of_place <= set(explained)
    assert set(EngineRecord.__struct_fields__) == set(explained["engine"])
    assert set(CacheRecord.__struct_fields__) - {"pinned", "auto_max_model_len"} <= set(explained["kv_cache"])
    document, _ = by_manifest(QWEN, L40S, {"max_model_len": 32768, "max_num_seqs": 4})
    assert explained["kv_cache"].items() >= document["kv_cache"].items()
    assert explained["engine"] == document["engine"]
    assert explained["provenance"] == document["provenance"]
    terms = explained["ledger"]["terms"]
    for name in ("weights", "peak_activation", "non_torch", "cuda_graph"):
        assert terms[name]["expected"] == explained["ledger"][f"{name}_bytes"]
        assert terms[name]["low"] <= terms[name]["expected"] <= terms[name]["high"]


def test_the_answer_for_a_file_is_the_record_of_check_with_the_ledger(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    head = {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "a"}}
    spec = {
        "model": {"name": QWEN},
        "accelerator": {"type": L4},
        "vllm": {"version": "0.19.1", "maxModelLen": 40960, "maxNumSeqs": 4},
    }
    file.write_text(json.dumps({**head, "spec": {**spec, "admission": {"policy": "Adjust"}}}))
    (explained,) = json.loads(invoked("explain", str(file), "-o", "json").stdout)
    (document,) = json.loads(invoked("check", str(file), "-o", "json").stdout)["documents"]
    for name, value in document.items():
        if name in ("ledger", "kv_cache"):
            assert explained[name].items() >= value.items()
        else:
            assert explained[name] == value
    assert explained["kv_cache"]["num_blocks"] == document["kv_cache"]["blocks"]
    assert explained["ledger"]["terms"]

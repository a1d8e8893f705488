"""`kvgate size`: what it is asked, what people and programs get, and when it says that it cannot."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from kvgate.cli.terminal import progress_of
from kvgate.judgement.what_if import assess_request
from support.builders import new_llama_config
from support.command_line import invoked
from support.tables import table

QWEN = ("--model", "Qwen/Qwen3-32B-FP8", "--vllm-version", "0.33.0")
RAG = ("--peak-concurrency", "64", "--prompt-tokens", "6k", "--output-tokens", "500")
FEW = ("--gpus", "H100-SXM-80GB,H200-SXM-141GB,T4")


def run(*arguments: str) -> Result:
    return invoked("size", *arguments)


def answer(*arguments: str) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(run(*arguments, "-o", "json").stdout)
    return answered


def test_people_see_the_cheapest_first_with_cost_gpus_and_settings() -> None:
    output = run(*QWEN, *RAG, *FEW).output
    assert "64 requests of 6000 + 500 tokens at the same time" in output
    rows = [line.split() for line in output.splitlines() if " tp" in line]
    assert [float(row[1]) for row in rows] == sorted(float(row[1]) for row in rows)
    assert [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    assert rows[0][1:4] == ["3.99", "1", "H200-SXM-141GB"]
    assert (
        "Cheapest: 1 × H200-SXM-141GB: --tensor-parallel-size 1 --max-model-len 6500 --max-num-seqs 64 --kv-cache-dtype fp8"
        in output
    )
    assert "list prices of" in output


def test_programs_get_the_same_with_every_number() -> None:
    answered = answer(*QWEN, *RAG, *FEW)
    assert answered["question"] == {
        "model": "Qwen/Qwen3-32B-FP8", "vllm_version": "0.33.0", "guarantee": "Workload", "concurrency": 64, "max_gpus": 64,
        "kv_cache_dtypes": ["auto", "fp8"], "capacity": "Profiled",
        "workload": {"peak_concurrency": 64, "prompt_tokens": 6000, "output_tokens": 500, "shared_prefix_tokens": 0},
    }  # fmt: skip
    best = answered["candidates"][0]
    assert (best["accelerator"], best["verdict"], best["num_gpus"], best["cost_per_hour"]) == (
        "H200-SXM-141GB",
        "Fits",
        1,
        3.99,
    )
    assert best["demand_bytes"] <= best["available_kv_cache_bytes"]["low"]
    assert best["headroom_bytes"]["low"] >= 0
    rows = list(csv.DictReader(io.StringIO(run(*QWEN, *RAG, *FEW, "-o", "csv").stdout)))
    assert [row["accelerator"] for row in rows] == [each["accelerator"] for each in answered["candidates"]]
    assert rows[0]["headroom_bytes_low"] == str(best["headroom_bytes"]["low"])


def test_facts_that_contradict_each_other_are_the_reason_where_no_byte_lacks(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(new_llama_config()), encoding="utf-8")
    load = ("--max-model-len", "8192", "--max-num-seqs", "4", "--max-gpus", "1", "--all")
    (found, *_) = answer("--model=Qwen/Qwen3-8B", f"--model-config={config}", "--gpus=H100-SXM-80GB", *load)[
        "candidates"
    ]
    assert found["verdict"] == "MayNotFit"
    assert "too small" not in found["reason"]
    assert "contradict" in found["reason"]


def test_the_columns_are_the_same_where_nothing_is_known() -> None:
    speculative = ("--speculative-config", '{"method":"eagle3","model":"nobody/eagle3","num_speculative_tokens":3}')
    known, unknown = (
        list(csv.DictReader(io.StringIO(run(*QWEN, "--gpus", "H100-SXM-80GB,H200", *more, "-o", "csv").stdout)))
        for more in ((), speculative)
    )
    assert known[0].keys() == unknown[0].keys()
    assert {row["available_kv_cache_bytes_low"] for row in unknown} == {""}


def test_explain_confirms_what_size_chose() -> None:
    """For the start condition, which both judge."""
    for best in answer("--model", "Qwen/Qwen3-8B", "--vllm-version", "0.33.0")["candidates"][:20]:
        keys = ("tensor_parallel_size", "pipeline_parallel_size", "kv_cache_dtype", "max_model_len")
        asked = {
            "model": "Qwen/Qwen3-8B",
            "vllm_version": "0.33.0",
            "gpu": best["accelerator"],
            **{key: best[key] for key in keys},
        }
        assert assess_request(asked).verdict.value == best["verdict"]


def test_without_a_workload_every_accelerator_tells_what_it_holds() -> None:
    asked = ("--model", "Qwen/Qwen3-8B", "--vllm-version", "0.33.0", "--max-gpus", "1")
    answered = answer(*asked)
    assert answered["question"]["guarantee"] == "Startup"
    assert not [each for each in answered["candidates"] if "MIG" in each["accelerator"]]
    answered["candidates"] += answer(*asked, "--gpus", "mig")["candidates"]
    by_name = {each["accelerator"]: each for each in answered["candidates"] if each["verdict"] != "MayNotFit"}
    assert len(by_name) > 60
    assert by_name["H100-SXM-80GB"]["full_requests_per_replica"] > by_name["L40S-48GB"]["full_requests_per_replica"] > 1
    assert by_name["H100-SXM-80GB"]["max_model_len_that_surely_fits"] == 40960
    assert by_name["A100-40GB-MIG-1g.5gb"]["max_model_len_that_surely_fits"] == 0
    assert "weights too large" in by_name["A100-40GB-MIG-1g.5gb"]["reason"]


def test_named_accelerators_are_told_why_not_and_host_memory_is_never_counted() -> None:
    output = run(*QWEN, *RAG, "--gpus", "V100-SXM-32GB,T4,H100-SXM-80GB", "--max-gpus", "4").output
    assert "28 × T4-16GB: needs 28 GPUs, more than the 4 allowed" in output
    assert "fp8 weights need compute capability 7.5 and V100-SXM-32GB has 7.0" in output
    assert "--cpu-offload-gb moves weights there" in output
    assert "--kv-offloading-size" in output


def test_all_tells_every_candidate() -> None:
    few, every = answer(*QWEN, *RAG, *FEW)["candidates"], answer(*QWEN, *RAG, *FEW, "--all")["candidates"]
    assert len(every) > len(few)
    assert {
        (each["tensor_parallel_size"], each["kv_cache_dtype"])
        for each in every
        if each["accelerator"].startswith("H100")
    } >= {(tensor, dtype) for tensor in (1, 2, 4, 8) for dtype in ("auto", "fp8")}
    assert "Why not:" in run(*QWEN, *RAG, "--gpus", "amd", "--all").output


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("H100-SXM-80GB", {"H100-SXM-80GB"}),
        ("l4", {"L4-24GB"}),
        ("GH200", {"GH200-120GB", "GH200-480GB", "GH200-144GB"}),
        ("intel", {"Arc-Pro-B60-24GB", "Arc-Pro-B70-32GB", "Gaudi2-96GB", "Gaudi3-128GB"}),
        ("T4,Gaudi3", {"T4-16GB", "Gaudi3-128GB"}),
    ],
)
def test_accelerators_are_chosen_by_name_part_or_vendor(wanted: str, names: set[str]) -> None:
    answered = answer("--model", "Qwen/Qwen3-8B", "--gpus", wanted)
    assert {each["accelerator"] for each in answered["candidates"]} == names


# ── what engines hold, and how fast memory lets them decode ───────────────────────────────────────────────────────

TOKENS = ("--prompt-tokens", "6k", "--output-tokens", "500")


def test_without_a_number_of_requests_the_answer_is_how_many_the_gpus_hold() -> None:
    answered = answer(*QWEN, *TOKENS, "--gpus", "8xH100-SXM-80GB,2xL40S")
    assert (answered["question"]["concurrency"], answered["question"]["guarantee"]) == (None, "Workload")
    fits = [each for each in answered["candidates"] if each["verdict"] == "Fits"]
    assert {each["num_gpus"] for each in fits if each["accelerator"] == "H100-SXM-80GB"} == {8}
    assert {each["num_gpus"] for each in fits if each["accelerator"] == "L40S-48GB"} == {2}
    for each in fits:
        gpus_of_one = each["num_gpus"] // each["replicas"]
        assert (
            each["engines_within_max_gpus"]
            == each["replicas"]
            == (8 if "H100" in each["accelerator"] else 2) // gpus_of_one
        )
        assert (
            each["requests_that_one_engine_holds"] == each["max_num_seqs"] == each["requests_that_surely_fit_a_replica"]
        )
    costs = [each["cost_per_hour"] / (each["replicas"] * each["max_num_seqs"]) for each in fits]
    assert costs == sorted(costs)
    sizes = {each["tensor_parallel_size"] for each in fits if each["accelerator"] == "H100-SXM-80GB"}
    assert sizes == {1, 2, 4, 8}, "few GPUs are compared by every size"


def test_one_request_more_than_an_engine_holds_does_not_surely_fit() -> None:
    best = answer(*QWEN, *TOKENS, "--gpus", "1xH200-SXM-141GB")["candidates"][0]
    held = best["requests_that_one_engine_holds"]
    for requests, verdicts in ((held, {"Fits"}), (held + 1, {"MayNotFit", "DoesNotFit"})):
        asked = (*QWEN, *TOKENS, "--peak-concurrency", str(requests), "--gpus", "H200-SXM-141GB", "--max-gpus", "1")
        found = answer(*asked, "--kv-cache-dtype", best["kv_cache_dtype"])["candidates"]
        assert {each["verdict"] for each in found} <= verdicts


def test_the_answer_says_what_engines_hold_and_that_it_counts_memory() -> None:
    output = run(*QWEN, *RAG, "--gpus", "H200-SXM-141GB", "--max-gpus", "4").output
    assert "One engine (tp1) holds " in output
    held = int(output.partition("One engine (tp1) holds ")[2].split()[0])
    assert f"requests of 6000 + 500 tokens at the same time (--max-num-seqs {held})" in output
    assert f"4 engines on 4 GPUs hold {4 * held}" in output
    assert "These numbers count memory, not throughput." in output
    assert "The decode speed of one engine has an upper bound, which is no prediction:" in output
    assert "the memory bandwidth, 4800 GB/s of a GPU, ÷ the bytes that the GPU reads for a step" in output
    assert "Each sequence has 6250 tokens in the cache." in output
    assert [line.split()[0] for line in output.splitlines() if "≤" in line] == ["1", "8", "32", str(held)]


def test_the_bound_is_bandwidth_by_bytes() -> None:
    answered = answer(*QWEN, *RAG, "--gpus", "H200-SXM-141GB")
    assert "memory, not throughput" in answered["counts"]
    best = answered["candidates"][0]
    for bound in best["decode_bounds"]:
        read = bound["weights_bytes"] + bound["kv_cache_bytes"]
        assert bound["tokens_per_second"] == pytest.approx(bound["batch"] * 4.8e12 / read, abs=1)
        assert bound["sequence_tokens"] == 6250
    assert best["decode_tokens_per_second_at_most"] == best["decode_bounds"][-1]["tokens_per_second"]


def test_an_unknown_bandwidth_is_said() -> None:
    output = run(*QWEN, *RAG, "--gpus", "RTX-6000D").output
    assert "no bound of the decode speed: the memory bandwidth of RTX-6000D-84GB is not known" in output


def test_slices_and_many_engines_are_left_out_and_counted() -> None:
    asked = (
        "--model",
        "Qwen/Qwen3-8B",
        "--vllm-version",
        "0.33.0",
        *TOKENS,
        "--max-gpus",
        "32",
        "--kv-cache-dtype",
        "auto",
    )
    few = answer(*asked, "--gpus", "mig,H200-SXM", "--peak-concurrency", "200")
    assert few["left_out"] == {"slices": 0, "candidates_of_many_engines": few["left_out"]["candidates_of_many_engines"]}
    assert few["left_out"]["candidates_of_many_engines"] > 0
    fits = [each for each in few["candidates"] if each["verdict"] == "Fits"]
    assert max(each["replicas"] for each in fits) <= 8
    every = answer(*asked, "--gpus", "mig,H200-SXM", "--peak-concurrency", "200", "--all")
    assert max(each["replicas"] for each in every["candidates"] if each["verdict"] == "Fits") > 8
    assert every["left_out"] == {"slices": 0, "candidates_of_many_engines": 0}
    output = run(*asked, "--gpus", "mig,H200-SXM", "--peak-concurrency", "200").output
    assert (
        f"left out: {few['left_out']['candidates_of_many_engines']} of more than 8 engines; --all shows them" in output
    )
    assert "slices of GPUs (MIG); --all shows them" in run(*QWEN, *RAG).output


def test_many_engines_are_an_answer_where_no_others_fit() -> None:
    asked = ("--model", "Qwen/Qwen3-8B", *TOKENS, "--peak-concurrency", "400", "--gpus", "A100-40GB-MIG-7g.40gb")
    (best, *_) = answer(*asked)["candidates"]
    assert (best["verdict"], best["replicas"] > 8) == ("Fits", True)


@pytest.mark.parametrize("row", [1, 2])
def test_a_chosen_row_is_explained(row: int) -> None:
    rows = [line.split() for line in run(*QWEN, *RAG, *FEW).stdout.splitlines() if " tp" in line and "Fits" in line]
    output = run(*QWEN, *RAG, *FEW, "--choose", str(row)).output
    assert f"Row {row}: {rows[row - 1][2]} × {rows[row - 1][3]}: " in output


def test_prices_of_the_user_replace_ours(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("currency: EUR\nH100-SXM-80GB: 0.5\nT4: 9\n")
    answered = answer(*QWEN, *RAG, *FEW, "--prices", str(file))
    assert answered["prices"] == {"currency": "EUR", "remark": "prices of prices.yaml"}
    assert answered["candidates"][0]["accelerator"] == "H100-SXM-80GB"
    assert answered["candidates"][0]["cost_per_hour"] == 1.0
    assert (
        next(each for each in answered["candidates"] if each["accelerator"].startswith("H200"))["cost_per_hour"] is None
    )


def test_a_config_file_stands_in_for_the_catalogue(tmp_path: Path) -> None:
    from kvgate import catalogue

    entry = catalogue.find_model("Qwen/Qwen3-8B")
    assert entry is not None
    file = tmp_path / "config.json"
    file.write_text(json.dumps(dict(entry.config)))
    ours = answer("--model-config", str(file), "--gpus", "L40S")["candidates"][0]
    assert ours == answer("--model", "Qwen/Qwen3-8B", "--gpus", "L40S")["candidates"][0]


def test_an_architecture_that_is_not_modelled_has_no_length(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"architectures": ["NobodyForCausalLM"], "hidden_size": 4096}')
    result = run("--model-config", str(file), "--gpus", "L4")
    assert result.exit_code == 2
    assert "max_model_len unknown" in result.output


def test_only_what_is_unknown_is_told() -> None:
    result = run("--model", "nobody/nothing")
    assert result.stderr.startswith("UnknownModel: model nobody/nothing is not in the catalogue")
    assert "VersionAssumed" not in result.stderr


@table(
    ("arguments", "code"),
    [
        ((*QWEN, *RAG), 0),
        ((*QWEN, "--max-num-seqs", "8", "--max-model-len", "32k", "--gpus", "H100-SXM-80GB"), 0),
        ((*QWEN, *RAG, "--guarantee", "startup", "--gpus", "H100-SXM-80GB"), 0),
        ((*QWEN, "--gpus", "T4", "--max-gpus", "1"), 1),
        (("--model", "Qwen/Qwen3-8B", "--max-model-len", "50000", "--gpus", "H100"), 1),
        (("--model", "nobody/nothing"), 2),
        (("--model", "Qwen/Qwen3-8B", "--vllm-version", "0.1"), 2),
        (("--model", "Qwen/Qwen3-8B", "--speculative-config", '{"model":"a/eagle3","num_speculative_tokens":3}', "--gpus", "L40S"), 2),
        ((), 2),
    ],
)  # fmt: skip
def test_the_exit_code_says_whether_something_fits(arguments: tuple[str, ...], code: int) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output


@table(
    ("arguments", "words"),
    [
        (("--gpus", "H999"), "--gpu names 'H999', which is neither an accelerator nor a vendor"),
        (("--gpus", ""), "neither an accelerator nor a vendor"),
        (("--gpus", "0xL4"), "--gpu says '0xL4'; write at least one GPU, such as 8xL4"),
        (("--gpus", "4xH999"), "--gpu names 'H999', which is neither an accelerator nor a vendor"),
        (("--peak-concurrency", "8"), "a workload also needs --prompt-tokens"),
        (
            ("--peak-concurrency", "x", "--prompt-tokens", "1", "--output-tokens", "1"),
            "--peak-concurrency is 'x'; it must be a whole",
        ),
        (("--guarantee", "Workload"), "guarantee Workload needs --prompt-tokens"),
        (("--guarantee", "FullContext"), "guarantee FullContext needs --max-num-seqs"),
        (("--max-model-len", "long"), "--max-model-len is 'long'"),
        (
            (
                "--peak-concurrency",
                "1",
                "--prompt-tokens",
                "10",
                "--output-tokens",
                "1",
                "--shared-prefix-tokens",
                "11",
            ),
            "--shared-prefix-tokens is 11, above --prompt-tokens 10; the prefix is a part of the prompt",
        ),
    ],
)
def test_a_question_that_cannot_be_asked_is_named(arguments: tuple[str, ...], words: str) -> None:
    result = run("--model", "Qwen/Qwen3-8B", *arguments)
    assert words in result.output
    assert result.exit_code == 2


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("L4: -1\nT4: 2 EUR\n")
    workload = ("--peak-concurrency", "x", "--prompt-tokens", "y")
    result = run("--gpus", "H999,foo", "--max-model-len", "long", *workload, "--prices", str(file))
    assert result.exit_code == 2
    told = ("names 'H999'", "names 'foo'", "--max-model-len is 'long'", "--peak-concurrency is 'x'", "--prompt-tokens is 'y'",
            "L4 has the price -1", "T4 has the price '2 EUR'")  # fmt: skip
    assert [words for words in told if words not in result.output] == []


def test_a_bad_price_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("H999: 1")
    result = run(*QWEN, "--prices", str(file))
    assert result.exit_code == 2
    assert "--prices prices.yaml: H999 is not in the catalogue" in result.output


def test_progress_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    progress_of("accelerators")(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    show = progress_of("accelerators")
    show(1, 2)
    show(2, 2)
    assert capsys.readouterr().err == "\r1 of 2 accelerators\r2 of 2 accelerators\r\033[K"


def test_the_cache_that_the_promise_needs_is_an_option_with_which_it_still_holds() -> None:
    (row,) = [c for c in answer(*QWEN, *RAG, "--gpus", "H200-SXM-141GB")["candidates"] if c["verdict"] == "Fits"]
    needed, left = row["kv_cache_memory_bytes_needed"], row["gpu_memory_left_bytes"]
    assert needed >= row["demand_bytes"]
    assert 0 < left["low"] < left["expected"] < left["high"]
    told = run(*QWEN, *RAG, "--gpus", "H200-SXM-141GB").output
    assert f"No more than this promise: --kv-cache-memory-bytes {needed}" in told
    assert "for neighbours" in told
    assert "No more than this promise" not in run(*QWEN, "--gpus", "H200-SXM-141GB").output


def test_the_tiers_are_told_in_tokens_and_a_shared_prefix_in_what_it_saves() -> None:
    """Qwen3-8B: 144 KiB a token on all ranks together, so 7281 tokens a GiB; 1008 tokens are 63 blocks of 16."""
    asked = ("--model", "Qwen/Qwen3-8B", "--gpus", "L4", "--users", "20", "--prompt-tokens", "1000", "--output-tokens", "8",
             "--kv-cache-dtype", "auto")  # fmt: skip
    told = run(*asked).output
    assert "A request of 1008 tokens takes 63 blocks" in told
    assert "(--kv-offloading-size) or disk 7281 more" in told
    assert "held once" not in told
    # 500 tokens are 31 whole blocks, held once by 20 requests: 19 × 31 blocks of 16 × 144 KiB, on one GPU
    saved = 19 * 31 * 16 * 144 / 1024**2
    shared = run(*asked, "--shared-prefix-tokens", "500").output
    assert (
        f"which saves {saved:.2f} GiB of each GPU" in shared or f"which saves {saved / 2:.2f} GiB of each GPU" in shared
    )

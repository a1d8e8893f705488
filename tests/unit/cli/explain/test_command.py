"""`kvgate explain` for people, and the catalogues."""

import json
import re
from pathlib import Path

import pytest
from click.testing import Result

from kvgate.vllm.settings import WHAT_IFS
from support.command_line import invoked
from support.tables import table

QWEN = ("--model", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB")


def run(*arguments: str) -> Result:
    return invoked(*arguments)


def test_the_ledger_adds_up() -> None:
    ledger = json.loads(run("explain", *QWEN, "-o", "json").output)["ledger"]
    spent = sum(ledger[f"{term}_bytes"] for term in ("weights", "peak_activation", "non_torch", "cuda_graph"))
    assert ledger["requested_bytes"] - spent == ledger["available_kv_cache_bytes"]["expected"]


def test_people_see_every_line_of_it() -> None:
    output = run("explain", *QWEN).output
    for word in (
        "GPU memory",
        "requested",
        "weights",
        "peak activation",
        "non-torch",
        "CUDA graphs",
        "for the KV cache",
        "Fits",
    ):
        assert word in output


@table(
    ("arguments", "code"),
    [
        (QWEN, 0),
        ((*QWEN, "--max-model-len", "50000"), 1),
        ((*QWEN, "--enforce-eager", "-tp", "2", "--max-model-len=32k", "--no-enable-prefix-caching"), 0),
        (("--model", "Qwen/Qwen3-8", "--gpu", "L4"), 2),
        (("--model", "Qwen/Qwen3-8B", "--gpu", "L4", "--max-model-len", "25000"), 0),
        ((*QWEN, "--tensor-parallel-size", "two"), 2),
        ((*QWEN, "--gpu-memory-utilization", "0,9"), 2),
        (("--gpu", "L4"), 2),
        ((), 2),
        (("--requests", "-", "--model", "x"), 2),
        (("--requests", "none.jsonl"), 2),
    ],
)
def test_the_exit_code_follows_the_verdict(arguments: tuple[str, ...], code: int) -> None:
    result = run("explain", *arguments)
    assert result.exit_code == code, result.output


def test_a_refusal_says_what_would_fit() -> None:
    output = run("explain", "--model", "Qwen/Qwen3-8B", "--gpu", "L4", "--vllm-version", "0.32.0").output
    assert "would fit: any one of: --max-model-len" in " ".join(output.split())
    assert "RTX-5090-32GB" in output


def test_nothing_is_offered_where_a_setting_is_refused_and_not_the_bytes() -> None:
    output = run("explain", "--model", "Qwen/Qwen3-8B", "--gpu", "L4", "-tp", "3").output
    assert "not divisible by 3" in output
    assert "would fit" not in output


def test_a_config_file_stands_in_for_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[]")
    result = run("explain", "--model-config", str(path), "--gpu", "L4")
    assert result.exit_code == 2
    assert "JSON of type list" in result.output


def test_every_setting_is_a_flag_in_vllms_spelling() -> None:
    output = run("explain", "--help-all").output
    assert [setting.name for setting in WHAT_IFS if setting.flag not in output] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["gpus", "models"])
def test_a_catalogue_is_a_table_or_json(command: str) -> None:
    rows = json.loads(run(command, "-o", "json").output)
    assert len(run(command).output.splitlines()) == len(rows) + 1
    assert len({row["name"] for row in rows}) == len(rows)


@pytest.mark.slow
def test_models_say_what_their_files_hold_and_in_which_order_people_look() -> None:
    rows = json.loads(run("models", "gpt-oss", "-o", "json").output)
    assert [row["safetensors_bytes"] for row in rows if row["name"] == "openai/gpt-oss-120b"] == [65_248_815_744]
    assert {row["architecture"] for row in rows} == {"GptOssForCausalLM"}
    names = [line.split()[0] for line in run("models").output.splitlines()[1:]]
    assert names == sorted(names, key=str.lower)


def test_what_has_no_formula_is_named_once_per_model() -> None:
    from kvgate.cli.listings import _model_cells

    row = {"name": "m", "num_layers": 2, "max_model_len": 0, "parameters": None, "attention": ["full attention", "x"]}
    assert _model_cells({**row, "unmodelled": ["x"]}) == ("m", "full attention", "2", "-", "-", "unknown: x")


def test_a_catalogue_is_filtered_ignoring_case() -> None:
    assert {row["name"] for row in json.loads(run("gpus", "h100-nvl", "-o", "json").output)} >= {"H100-NVL-94GB"}
    assert run("models", "no-such-model").exit_code == 2


def test_the_help_imports_no_command_and_names_them_all() -> None:
    output = run("--help").output
    assert [word for word in ("check", "explain", "gpus", "models", "controller") if word not in output] == []


@pytest.mark.parametrize("name", ["chek", "exec"])
def test_an_unknown_command_is_bad_usage(name: str) -> None:
    assert run(name).exit_code == 2


def test_every_line_says_what_its_formula_is_made_of() -> None:
    output = run("explain", *QWEN, "--max-num-seqs", "64").output
    for words in (
        "tensors as loaded: tp 1, 36 layers",
        "profile run: T 8192, S 64, V 151936, H 4096",
        "total × gpu_memory_utilization",
    ):
        assert words in output


def test_a_group_of_the_cache_is_a_row_with_its_pages_and_blocks() -> None:
    output = run("explain", *QWEN, "--max-model-len", "32768").output
    assert re.search(r"full attention +36 +16 +65536 +2048\n", output)
    assert "textbook" not in output


def test_memory_that_is_given_is_shown_beside_the_ledger() -> None:
    output = run("explain", *QWEN, "--kv-cache-memory-bytes", "9G").output
    assert re.search(r"given instead +9\.00 GiB", output)


def test_the_textbook_is_told_where_it_is_wrong() -> None:
    output = run("explain", "--model", "deepseek-ai/DeepSeek-V3", "--gpu", "H200", "-tp", "8").output
    assert "The textbook's 2 × 61 layers × 128 KV heads × 192" in output
    assert "MLA keeps one vector of 1152 bytes per token and layer, whole on every rank" in output


def test_why_shows_one_figure_with_its_formula_and_nothing_else() -> None:
    output = run("explain", *QWEN, "--why", "weights").output
    assert "Σ tensors of the rank" in output
    assert re.search(r"feed-forward +10\.12 GiB", output)
    assert "peak activation" not in output


def test_why_and_paging_are_in_the_answer_only_where_they_are_asked_for() -> None:
    plain = json.loads(run("explain", *QWEN, "-o", "json").output)
    asked = json.loads(run("explain", *QWEN, "-o", "json", "--why", "num_blocks", "--paging", "2049").output)
    assert {key: asked[key] for key in plain} == plain
    assert set(asked) - set(plain) == {"why", "paging"}
    assert asked["why"]["expected"] == plain["kv_cache"]["num_blocks"]
    assert asked["paging"]["block_sizes"][0]["requests"][0]["wasted_tokens"] == 15


def test_paging_compares_static_slots_with_blocks_on_demand() -> None:
    arguments = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100-SXM-80GB", "--vllm-version", "0.28.0")
    pool = ("--kv-cache-memory-bytes", "64G", "--max-model-len", "32768", "--max-num-seqs", "100")
    output = run("explain", *arguments, *pool, "--paging", "2049,4096").output
    assert "Paging: 32768 blocks of 16 tokens; a static slot reserves max_model_len 32768 tokens, 4.00 GiB" in output
    assert "static slots: 16 (vLLM prints 16.00x)" in output
    assert re.search(r"256 +9 +255 +31\.88 +12\.4 % +227\n", output)
    assert re.search(r"16\* +256 +0 +0\.00 +0\.0 % +128\n", output)
    assert "block 256: 127.5 tokens, 15.94 MiB wasted per request" in output
    assert (
        "max_num_seqs lets 100 requests run at the same time, fewer than the blocks hold of 2049, 4096 tokens" in output
    )


def test_paging_takes_lengths_of_its_own_where_none_are_named() -> None:
    output = run("explain", "--paging", *QWEN, "--max-model-len", "32768").output
    assert [int(found) for found in re.findall(r"requests of (\d+) tokens:", output)] == [2048, 2049, 8192, 32_768]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--why", "weight"), "name one of total, requested, parameter, weights, peak_activation"),
        (("--paging", "2048,many"), "a whole number such as 32768"),
        (("--paging", "0"), "from 1 to"),
        (("--paging", "50000"), "longer than max_model_len 40960"),
        (("--requests", "-", "--paging", "16"), "leave out the other options"),
        (("--requests", "-", "--why", "weights"), "leave out the other options"),
    ],
)
def test_a_view_that_does_not_exist_is_bad_usage(arguments: tuple[str, ...], words: str) -> None:
    given = () if "--requests" in arguments else QWEN
    result = run("explain", *given, *arguments)
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")


def test_views_of_what_is_not_known_say_so() -> None:
    result = run("explain", "--model", "nobody/nothing", "--gpu", "L4", "--why", "weights", "--paging", "16")
    assert result.exit_code == 2
    assert "weights: not known" in result.output
    assert "no KV cache to divide" in result.output
    answer = json.loads(
        run("explain", "--model", "nobody/nothing", "--why", "weights", "--paging", "16", "-o", "json").output
    )
    assert (answer["why"], answer["paging"]) == (None, None)


def test_several_gpus_have_a_ledger_each_and_the_worst_decides() -> None:
    asked = (
        "explain",
        "--model",
        "Qwen/Qwen3-14B",
        "--gpu",
        "L4, L40S",
        "--max-model-len=8192",
        "--vllm-version=0.32.0",
    )
    text = run(*asked)
    assert text.exit_code == 1
    assert [line for line in text.stdout.splitlines() if line.startswith("Qwen/Qwen3-14B on ")] == [
        "Qwen/Qwen3-14B on L4-24GB, vLLM 0.32.0",
        "Qwen/Qwen3-14B on L40S-48GB, vLLM 0.32.0",
    ]
    assert [each["verdict"] for each in json.loads(run(*asked, "-o", "json").stdout)] == ["DoesNotFit", "Fits"]
    assert len(run(*asked, "-o", "jsonl").stdout.splitlines()) == 2


def test_what_a_user_keeps_is_in_no_proposal_and_the_safe_share_is_named() -> None:
    asked = ("explain", "--model", "Qwen/Qwen3-32B-AWQ", "--gpu", "RTX-4090-24GB", "--vllm-version", "0.33.0")
    output = " ".join(run(*asked).output.split())
    assert "together: --kv-cache-dtype fp8, --enforce-eager, --max-num-seqs 64, --gpu-memory-utilization 0.94" in output
    assert "--gpu-memory-utilization is safe up to 0.94, where nothing else uses the GPU" in output
    kept = run(*asked, "--keep", "kv-cache-dtype,gpu_memory_utilization").output
    assert "--kv-cache-dtype" not in kept.partition("would fit")[2]
    assert "--gpu-memory-utilization" not in kept.partition("would fit")[2]


def test_a_setting_that_is_never_changed_cannot_be_kept() -> None:
    refused = run("explain", "--model", "Qwen/Qwen3-8B", "--gpu", "L4", "--keep", "dtype")
    assert refused.exit_code == 2
    assert "--keep names dtype; the settings that are ever changed are accelerator, " in refused.output


def test_wishes_are_about_flags_and_not_about_a_file() -> None:
    for wish in (["--keep", "model"], ["--maximize", "users"]):
        assert "leave out --" in run("explain", "deploy/samples/too-long.yaml", *wish).output


@pytest.mark.parametrize(("what", "unit"), [("context", "tokens"), ("users", "requests")])
def test_the_most_is_found_and_is_in_json_too(what: str, unit: str) -> None:
    asked = ("explain", "--model", "Qwen/Qwen3-8B", "--gpu", "L4", "--max-model-len", "8192", "--maximize", what)
    found = json.loads(run(*asked, "-o", "json").output)["maximized"]
    assert found["value"] > found["as_it_is"]
    assert {each["field"] for each in found["changes"]} <= {"kv_cache_dtype", "enforce_eager", "gpu_memory_utilization",
                                                           "max_num_batched_tokens", "max_num_seqs"}  # fmt: skip
    assert f"most {what}: {found['value']} {unit} with --" in run(*asked).output

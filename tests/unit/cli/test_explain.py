"""`kvgate explain` for people, and the catalogues."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvgate.cli.main import main
from kvgate.cli.settings import SETTINGS

QWEN = ("--model", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB")


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


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


@pytest.mark.parametrize(
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
    assert "would fit: maxModelLen" in output
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
    output = run("explain", "--help").output
    assert [s.name for s in SETTINGS if f"--{s.name.replace('_', '-')}" not in output] == []


@pytest.mark.parametrize("command", ["gpus", "models"])
def test_a_catalogue_is_a_table_or_json(command: str) -> None:
    rows = json.loads(run(command, "-o", "json").output)
    assert len(run(command).output.splitlines()) == len(rows) + 1
    assert len({row["name"] for row in rows}) == len(rows)


def test_models_say_what_their_files_hold_and_in_which_order_people_look() -> None:
    rows = json.loads(run("models", "gpt-oss", "-o", "json").output)
    assert [row["safetensors_bytes"] for row in rows if row["name"] == "openai/gpt-oss-120b"] == [65_248_815_744]
    assert {row["architecture"] for row in rows} == {"GptOssForCausalLM"}
    names = [line.split()[0] for line in run("models").output.splitlines()[1:]]
    assert names == sorted(names, key=str.lower)


def test_what_has_no_formula_is_named_once_per_model() -> None:
    from kvgate.cli.catalogues import _model_cells

    row = {"name": "m", "num_layers": 2, "max_model_len": 0, "parameters": None, "attention": ["full attention", "x"]}
    assert _model_cells({**row, "unmodelled": ["x"]}) == ("m", "full attention", "2", "-", "-", "unknown: x")


def test_a_catalogue_is_filtered_ignoring_case() -> None:
    assert {row["name"] for row in json.loads(run("gpus", "h100-nvl", "-o", "json").output)} >= {"H100-NVL-94GB"}
    assert run("models", "no-such-model").exit_code == 2


def test_the_help_imports_no_command_and_names_them_all() -> None:
    output = run("--help").output
    assert [word for word in ("check", "explain", "gpus", "models", "controller") if word not in output] == []
    assert "generate" not in output


@pytest.mark.parametrize("name", ["chek", "exec"])
def test_an_unknown_command_is_bad_usage(name: str) -> None:
    assert run(name).exit_code == 2

"""The machine contract: one object in, one out, in order; what is wrong with a line is said in its answer."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from kvgate.budget.ground.units import GIB
from kvgate.cli.explain.requests import MAX_LINE_BYTES, answers
from support.command_line import invoked
from support.tables import table

QWEN = {
    "id": "q",
    "model": "Qwen/Qwen3-8B",
    "gpu": "NVIDIA H100 80GB HBM3",
    "vllm_version": "0.32.0",
    "max_model_len": 32768,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 32000,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048,
}  # fmt: skip


def ask(*requests: Any) -> list[dict[str, Any]]:
    """Read as strictly as any reader may."""
    lines = [request if isinstance(request, bytes) else json.dumps(request).encode() for request in requests]
    told = [answer.encode("ascii") for answer in answers(BytesIO(b"\n".join(lines)))]
    return [json.loads(answer, parse_constant=pytest.fail) for answer in told]


def ask_one(**changes: Any) -> dict[str, Any]:
    return ask({**QWEN, **changes})[0]


def rules(answer: dict[str, Any]) -> list[str]:
    return [finding["rule"] for finding in answer["findings"]]


def test_an_answer_has_every_key_of_the_contract() -> None:
    answer = ask_one()
    both = {"decides", "starts", "holds", "confidence", "decision"}
    assert set(answer) == {"id", "verdict", "findings", "ledger", "kv_cache", "error"} | both
    assert set(answer["starts"]) == set(answer["holds"]) == {"guarantee", "verdict", "requests", "headroom_ratio"}
    assert set(answer["ledger"]) == {
        "total_bytes", "requested_bytes", "weights_bytes", "parameter_bytes", "peak_activation_bytes", "non_torch_bytes", "circumstances",
        "cuda_graph_bytes", "available_kv_cache_bytes",
    }  # fmt: skip
    assert set(answer["ledger"]["available_kv_cache_bytes"]) == {"low", "expected", "high"}
    assert set(answer["kv_cache"]) == {
        "groups", "bytes_per_block", "num_blocks", "num_tokens", "max_concurrency", "request_blocks", "request_bytes",
        "max_model_len_that_fits", "headroom_ratio",
    }  # fmt: skip
    assert set(answer["kv_cache"]["groups"][0]) == {"kind", "num_layers", "block_size", "page_size_bytes"}
    assert (answer["id"], answer["verdict"], answer["error"], answer["findings"]) == ("q", "Fits", None, [])


def test_given_kv_cache_memory_gives_exact_blocks() -> None:
    kv_cache = ask_one(kv_cache_memory_bytes=9 * GIB)["kv_cache"]
    assert kv_cache["bytes_per_block"] == 36 * 16 * 2 * 8 * 128 * 2
    assert (kv_cache["num_blocks"], kv_cache["num_tokens"], kv_cache["max_concurrency"]) == (4096, 65536, 2.0)
    assert (kv_cache["request_blocks"], kv_cache["max_model_len_that_fits"]) == (2048, 32768)


def test_a_length_that_does_not_fit_is_answered_with_the_longest_that_does() -> None:
    answer = ask_one(kv_cache_memory_bytes=GIB)
    assert answer["verdict"] == "DoesNotFit"
    assert answer["kv_cache"]["max_model_len_that_fits"] == (455 - 1) * 16


@pytest.mark.parametrize("length", [-1, "auto", "-1"])
def test_auto_takes_the_longest_that_fits(length: object) -> None:
    answer = ask_one(max_model_len=length, kv_cache_memory_bytes=GIB)
    assert (answer["verdict"], answer["kv_cache"]["max_model_len_that_fits"]) == ("Fits", (455 - 1) * 16)


@pytest.mark.parametrize(("length", "blocks"), [("32k", 2000), ("32K", 2048), ("32.768k", 2048), (32768, 2048)])
def test_lengths_may_have_units_as_in_vllm(length: object, blocks: int) -> None:
    assert ask_one(max_model_len=length)["kv_cache"]["request_blocks"] == blocks


def test_null_means_that_nobody_set_it() -> None:
    nothing = dict.fromkeys(
        ("kv_cache_dtype", "max_num_seqs", "speculative_config", "block_size", "quantization", "strange_key")
    )
    assert ask_one(**nothing) == ask_one()


def test_the_memory_of_a_request_wins_over_the_catalogue_and_is_exact() -> None:
    by_name, stated = ask_one(), ask_one(gpu_memory_bytes=60 * GIB)
    assert stated["ledger"]["total_bytes"] == 60 * GIB < by_name["ledger"]["total_bytes"]


def test_a_gpu_that_is_not_listed_is_judged_by_its_memory() -> None:
    answer = ask_one(gpu="Gaudi 9", gpu_memory_bytes=80 * GIB)
    assert (answer["verdict"], rules(answer)) == ("Fits", ["AcceleratorNotListed"])


def test_a_gpu_without_a_name_has_what_all_gpus_of_its_size_have_in_common() -> None:
    """Only the RTX 2080 Ti has 10.57 GiB, and V0 runs on it; a named GPU that nobody knows is like none."""
    asked = {"gpu_memory_bytes": int(10.57 * GIB), "vllm_version": "0.8.5", "weights_bytes": GIB, "max_model_len": 2048}
    unnamed, named = ask_one(gpu=None, **asked), ask_one(gpu="Nobody 9", **asked)
    assert unnamed["ledger"]["circumstances"]["engine"] == ["V0"]
    assert named["ledger"]["circumstances"] == {"sampler": ["pytorch", "flashinfer"], "engine": ["V1", "V0"]}


def test_where_no_gpu_is_named_it_fits_on_the_smallest_on_which_it_starts() -> None:
    answer = ask_one(gpu=None)
    assert (answer["verdict"], rules(answer)) == ("Fits", [])
    named = ask_one(gpu=answer["judged_on"])
    assert (answer["ledger"], answer["kv_cache"]) == (named["ledger"], named["kv_cache"])
    assert "judged_on" not in named


def test_without_a_known_gpu_or_its_memory_nothing_is_decided() -> None:
    answer = ask_one(gpu="Gaudi 9")
    assert (answer["verdict"], rules(answer), answer["ledger"], answer["kv_cache"]) == (
        "Unknown",
        ["UnknownAccelerator"],
        None,
        None,
    )


def test_an_unknown_model_names_the_nearest() -> None:
    answer = ask_one(model="Qwen/Qwen3-8")
    assert (answer["verdict"], rules(answer)) == ("Unknown", ["UnknownModel"])
    assert "Qwen/Qwen3-8B" in answer["findings"][0]["remediation"]


def test_a_config_wins_over_the_catalogue() -> None:
    assert ask_one(model_config=LLAMA, max_model_len=2048)["kv_cache"]["groups"][0]["num_layers"] == 22
    assert ask({"model_config": LLAMA, "gpu": "L4"})[0]["verdict"] == "Fits"


def test_a_config_that_is_none_is_a_finding_for_every_problem() -> None:
    answer = ask_one(model_config={"architectures": ["LlamaForCausalLM"], "vocab_size": -1})
    assert answer["verdict"] == "Unknown"
    assert len(answer["findings"]) > 3


def test_a_version_that_nobody_gave_is_assumed_and_said() -> None:
    answer = ask_one(vllm_version=None)
    assert (answer["verdict"], rules(answer)) == ("Fits", ["VersionAssumed"])


@pytest.mark.parametrize("version", ["latest", "0.5.4", "9" * 400])
def test_a_version_without_accounting_is_not_guessed(version: str) -> None:
    answer = ask_one(vllm_version=version)
    assert (answer["verdict"], rules(answer)[-1], answer["ledger"]) == ("Unknown", "UnknownVersion", None)


def test_keys_that_are_not_understood_are_named_and_move_nothing() -> None:
    answer = ask_one(seed=7, trust_remote_code=True)
    assert [f["field"] for f in answer["findings"]] == ["seed", "trust_remote_code"]
    assert {f["severity"] for f in answer["findings"]} == {"info"}
    assert answer["ledger"] == ask_one()["ledger"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, "drafts by layers"),
        ({"lora_config": {"max_loras": 2}}, "LoRA"),
        ({"worker_cls": "corp.Worker"}, "worker of its own"),
    ],
)
def test_features_without_a_formula_are_unknown_and_still_have_blocks_where_the_memory_is_given(
    changes: dict[str, Any], words: str
) -> None:
    answer = ask_one(**changes)
    assert (answer["verdict"], answer["ledger"]) == ("Unknown", None)
    assert words in answer["findings"][0]["message"]
    assert ask_one(**changes, kv_cache_memory_bytes=9 * GIB)["kv_cache"]["num_blocks"] == 4096


def test_features_that_are_switched_off_are_not_used() -> None:
    assert ask_one(cpu_offload_gb=0, enable_lora=False, load_format="auto", lora_config={})["verdict"] == "Fits"


@table(
    ("changes", "words"),
    [
        ({"tensor_parallel_size": 3}, "not divisible"),
        ({"pipeline_parallel_size": 37}, "37 stages"),
        ({"pipeline_parallel_size": 1024}, "1024 stages"),
        ({"max_model_len": 50000}, "above the 40960 tokens"),
        ({"gpu": "T4", "kv_cache_dtype": "fp8"}, "compute capability"),
        ({"kv_cache_dtype": "fp7"}, "kv_cache_dtype is 'fp7'; vLLM does not start"),
        ({"vllm_version": "0.9.0", "kv_cache_dtype": "int8_per_token_head"}, "kv_cache_dtype is 'int8_per_token_head'"),
        ({"dtype": "int8"}, "dtype is 'int8'; vLLM does not start"),
    ],
)
def test_what_vllm_refuses_does_not_fit(changes: dict[str, Any], words: str) -> None:
    answer = ask_one(**changes)
    assert (answer["verdict"], answer["error"]) == ("DoesNotFit", None)
    assert any(words in finding["message"] for finding in answer["findings"])


@table(
    ("key", "value"),
    [
        ("model", 3), ("model_config", "text"), ("gpu", ""), ("gpu_memory_bytes", -1), ("gpu_memory_bytes", 1.5),
        ("tensor_parallel_size", 0), ("tensor_parallel_size", True), ("tensor_parallel_size", "2.5"), ("pipeline_parallel_size", 10**9),
        ("gpu_memory_utilization", 0), ("gpu_memory_utilization", 1.5), ("gpu_memory_utilization", "0,9"), ("gpu_memory_utilization", True),
        ("max_model_len", 0), ("max_model_len", -2), ("max_model_len", "32kk"), ("max_model_len", "1.5K"), ("max_model_len", "9" * 5000),
        ("max_num_seqs", "4k"), ("enforce_eager", "yes"), ("enable_prefix_caching", 1), ("kv_cache_dtype", 8), ("block_size", []),
        ("weights_bytes", {}), ("vllm_version", 0.33),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_an_error_that_names_key_value_and_what_to_do(key: str, value: object) -> None:
    answer = ask_one(**{key: value})
    assert answer["error"].startswith(f"{key} is ")
    assert "must be" in answer["error"]
    assert (answer["id"], answer["verdict"]) == ("q", "Unknown")


def test_all_problems_are_told_at_once() -> None:
    error = ask_one(model=3, block_size="x", enforce_eager=1)["error"]
    assert [key in error for key in ("model is", "block_size is", "enforce_eager is")] == [True] * 3


@table(
    ("line", "identifier"),
    [
        (b'{"id": "x", "model": ', "x"),
        (b'{"model": NaN, "id": 7}', 7),
        (b"[1]", None),
        (b"null", None),
        (b"\xff\xfe{}", None),
        (b"[" * 100_000, None),
        (b'{"id": "y"}', "y"),
        (b"not json", None),
        (b'{"id": "a\tb", "model": "x"}', "a\tb"),
        (b'{"id": "a\\qb", "model": "x"}', None),
        (b'{"id": 8, "model": "\\q"}', 8),
        (b'{"id": 8, "model": "raw\ttab"}', 8),
        (b'{"model_config": {"id": 1}, "gpu": "\\"id\\": 2", "id": 3, "model": \x00', 3),
        (b'{"model_config": {"id": 1', None),
        (b'{"id": "x", "max_model_len": 1e999, "model": "Qwen/Qwen3-8B"}', "x"),
        (b'{"id": "x", "max_model_len": Infinity, "model": "Qwen/Qwen3-8B"}', "x"),
        (b'{"id": "x", "gpu_memory_utilization": NaN, "model": "Qwen/Qwen3-8B"}', "x"),
        (b'{"id": "x", "model": "Qwen/Qwen3-8B", "max_num_seqs": ' + b"7" * 5000 + b"}", "x"),
        (b'{"id": ' + b"7" * 5000 + b', "model": 3}', "7" * 5000),
        (b'{"id": 1e999, "model": }', "1e999"),
        (b'{"id": "\\ud800", "model": 3}', "\\ud800"),
        (b'{"id": 4, "model_config": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b', "gpu": 3}', 4),
    ],
)
def test_a_broken_line_is_answered_in_its_place(line: bytes, identifier: object) -> None:
    before, broken, after = ask(QWEN, line, QWEN)
    assert before == after
    assert before["verdict"] == "Fits"
    assert broken["error"]
    assert broken["id"] == identifier


@table(
    ("written", "echoed"),
    [
        (b"7" * 5000, "7" * 5000), (b"-1e999", "-1e999"), (b"NaN", "NaN"), (b'"\\ud800"', "\\ud800"), (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"a\\n\\u001b"', "a\n\x1b"), (b"1.50", 1.5), (b'[1, {"a": null}]', [1, {"a": None}]), (b"true", True), (b"0", 0), (b'""', ""),
    ],
)  # fmt: skip
def test_an_id_comes_back_so_that_every_reader_can_read_it(written: bytes, echoed: object) -> None:
    (answer,) = ask(json.dumps(QWEN).encode().replace(b'"q"', written))
    assert (answer["id"], answer["verdict"], answer["error"]) == (echoed, "Fits", None)


@pytest.mark.parametrize(
    "limit", ["[0.0, Infinity]", "[-Infinity, NaN]", '[0.0, {"__float__": "Infinity"}]', "[0, 1e999]"]
)
def test_a_config_is_read_as_python_reads_it_in_a_line_and_from_a_file(tmp_path: Path, limit: str) -> None:
    config = json.dumps({**LLAMA, "time_step_limit": "LIMIT"}).replace('"LIMIT"', limit)
    (plain,) = ask({"id": 1, "model_config": LLAMA, "gpu": "L4-24GB"})
    (answer,) = ask(f'{{"id": 1, "model_config": {config}, "gpu": "L4-24GB"}}'.encode())
    assert answer == plain
    assert answer["verdict"] == "Fits"
    file = tmp_path / "config.json"
    file.write_text(f"\ufeff{config}")
    by_file = invoked("explain", "--model-config", str(file), "--gpu", "L4-24GB", "-o", "json")
    assert json.loads(by_file.stdout)["kv_cache"].items() >= answer["kv_cache"].items()


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e999", '{"__float__": "NaN"}'])
def test_a_number_that_counts_and_is_none_is_a_finding_that_names_its_key(value: str) -> None:
    config = json.dumps({**LLAMA, "hidden_size": "VALUE"}).replace('"VALUE"', value)
    (answer,) = ask(f'{{"id": 1, "model_config": {config}, "gpu": "L4-24GB"}}'.encode())
    assert (answer["id"], answer["verdict"], answer["error"]) == (1, "Unknown", None)
    (finding,) = (finding for finding in answer["findings"] if finding["rule"] == "InvalidModelConfig")
    assert "hidden_size is " in finding["message"]


def test_a_defect_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgate.judgement.assess.judge", lambda *_, **__: 1 // 0)
    assert [answer["error"][:36] for answer in ask(QWEN, QWEN)] == ["kvgate failed: ZeroDivisionError: in"] * 2


def test_the_command_answers_files_and_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(f"{json.dumps(QWEN)}\n\nbroken\n")
    by_file = invoked("explain", "--requests", str(path), "-o", "jsonl")
    by_stdin = invoked("explain", "--requests", "-", stdin=path.read_text())
    assert by_file.exit_code == by_stdin.exit_code == 0
    assert by_file.output == by_stdin.output
    assert len(by_file.output.splitlines()) == 3


class Endless:
    """One line of 300 MB between two requests, of which no more than the limit is ever asked for at once."""

    def __init__(self) -> None:
        self.lines = [f"{json.dumps(QWEN)}\n".encode(), None, f"{json.dumps(QWEN)}\n".encode()]
        self.left = 300_000_000

    def readline(self, size: int) -> bytes:
        assert 0 < size <= MAX_LINE_BYTES + 1
        if not self.lines:
            return b""
        if (line := self.lines[0]) is not None:
            return self.lines.pop(0) or line
        self.left -= size
        if self.left > 0:
            return b"a" * size
        self.lines.pop(0)
        return b"a\n"


def test_a_line_that_is_too_long_has_an_answer_and_those_around_it_have_theirs() -> None:
    first, long, last = (json.loads(answer) for answer in answers(Endless()))  # type: ignore[arg-type]
    assert first["verdict"] == last["verdict"] == "Fits"
    assert long["id"] is None
    assert long["error"] == "line 2 has more than 5242880 bytes; write a request of fewer, and one per line"


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_may_have_as_many_bytes_as_the_limit(end: bytes) -> None:
    line = json.dumps(QWEN).encode()
    whole = line + b" " * (MAX_LINE_BYTES - len(line) - len(end)) + end
    assert [json.loads(answer)["error"] for answer in answers(BytesIO(whole))] == [None]
    assert "line 1 has more" in next(answers(BytesIO(b" " + whole)))


def test_the_memory_of_the_host_is_told_where_the_request_is_about_it() -> None:
    answer = ask_one(host_memory_limit_bytes="16Gi", kv_offloading_size=200)
    assert (answer["verdict"], rules(answer)) == ("DoesNotFit", ["KnownDefect", "HostMemoryTooSmall"])
    host = answer["host_memory"]
    assert set(host) == {"needs_bytes", "shared_memory_bytes", "terms", "page_cache_bytes"}
    assert host["needs_bytes"]["low"] == sum(term["low"] for term in host["terms"].values())
    assert "host_memory" not in ask_one()


@table(
    ("values", "words"),
    [
        ({"host_memory_limit_bytes": 0}, "host_memory_limit_bytes is 0; it must be a number of bytes from 1"),
        ({"host_memory_limit_bytes": -1}, "it must be a number of bytes from 1"),
        ({"host_memory_limit_bytes": "16 GiB"}, "such as 64Gi"),
        ({"shm_bytes": "1e99Gi"}, "shm_bytes is '1e99Gi'; it must be"),
        ({"node_memory_bytes": []}, "node_memory_bytes is []"),
        ({"kv_offloading_size": -5}, "kv_offloading_size is -5; it must be a number of GiB"),
        ({"kv_offloading_size": "10Gi"}, "it must be a number of GiB, such as 10 or 2.5"),
        ({"kv_transfer_config": "nixl"}, "kv_transfer_config is 'nixl'; it must be an object"),
        ({"kv_transfer_config": {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": "80 GB"}}},
         "cpu_bytes_to_use must be a number from 1"),
    ],
)  # fmt: skip
def test_sizes_of_the_host_that_are_none_are_errors(values: dict[str, Any], words: str) -> None:
    assert words in ask_one(**values)["error"]


@pytest.mark.parametrize("limit", [17179869184, "17179869184", "16Gi", "16G"])
def test_a_limit_may_be_written_in_three_ways(limit: Any) -> None:
    assert rules(ask_one(host_memory_limit_bytes=limit, kv_offloading_size=16)) == ["KnownDefect", "HostMemoryTooSmall"]


def test_a_buffer_of_nothing_is_refused() -> None:
    assert rules(ask_one(kv_offloading_size=0)) == ["OffloadRefused"]

"""Command lines as vLLM's own parser reads them."""

import shlex
from typing import Any

import pytest

from kvgate.findings.finding import Severity
from kvgate.vllm.arguments import Argument, option_name
from kvgate.vllm.option_findings import repetitions
from kvgate.vllm.parser import CommandLine, parse_arguments
from support.tables import table


def parsed(line: str, release: tuple[int, int, int] = (0, 33, 0)) -> CommandLine:
    words = [Argument(text=text, path=f"args[{index}]") for index, text in enumerate(shlex.split(line))]
    return parse_arguments(words, release)


def values(line: CommandLine) -> dict[str, Any]:
    return {name: setting.value for name, setting in line.given.items()}


@table(
    ("line", "expected"),
    [
        ("--max-model-len 32k", {"max_model_len": 32_000}),
        ("--max-model-len 32K", {"max_model_len": 32_768}),
        ("--max-model-len=1.5k", {"max_model_len": 1500}),
        ("--max-model-len auto", {"max_model_len": -1}),
        ("--max-model-len -1", {"max_model_len": -1}),
        ("--gpu_memory_utilization=0.9", {"gpu_memory_utilization": 0.9}),
        ("-tp 2", {"tensor_parallel_size": 2}),
        ("-tp=2", {"tensor_parallel_size": 2}),
        ("-t 2", {"tensor_parallel_size": 2}),
        ("--mm-processor-device cuda", {"mm_processor_device": "cuda"}),
        ("--moe-backend FlashInfer-CUTLASS", {"moe_backend": "flashinfer_cutlass"}),
        ("--sparse-indexer-topk-backend Per-Row", {"sparse_indexer_topk_backend": "per_row"}),
        ("--enforce-eager", {"enforce_eager": True}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--max-num-batched-token=8192", {"max_num_batched_tokens": 8192}),
        ("--compilation-config.mode 3 --compilation-config.level 1", {"compilation_config": {"mode": 3, "level": 1}}),
        ("-O3", {"optimization_level": "3"}),
        ("-qfp8", {"quantization": "fp8"}),
        ("-O 2", {"optimization_level": "2"}),
        ("""--speculative-config '{"method": "mtp"}'""", {"speculative_config": {"method": "mtp"}}),
        ("--quantization None", {"quantization": None}),
        ("--lora-modules a=b c=d --seed 1", {"lora_modules": ["a=b", "c=d"], "seed": 1}),
        ("--max-model-len AUTO", {"max_model_len": -1}),
        ("--middleware a.b --middleware c.d", {"middleware": ["a.b", "c.d"]}),
        ("--max-num-batched-tokens 8_192", {"max_num_batched_tokens": 8192}),
        ("--pooler-config.a.b+ x,y --pooler-config.a.b+=z", {"pooler_config": {"a": {"b": ["x", "y", "z"]}}}),
        ("--hf-overrides.a -x", {"hf_overrides": {"a": "-x"}}),
        ("--additional-config 16", {"additional_config": "16"}),
        ("--collect-detailed-traces model worker", {"collect_detailed_traces": ["model", "worker"]}),
    ],
)  # fmt: skip
def test_an_option_is_read(line: str, expected: dict[str, Any]) -> None:
    read = parsed(line)
    assert read.problems == []
    assert read.repeated == {}
    assert values(read) == expected


def test_the_last_duplicate_counts_and_the_first_is_told() -> None:
    read = parsed("--max-model-len 1 --max-model-len 2")
    assert values(read) == {"max_model_len": 2}
    assert [(setting.value, setting.path) for setting in read.repeated.values()] == [(1, "args[1]")]


def test_a_whole_object_replaces_another_one() -> None:
    read = parsed("""--compilation-config '{"mode": 3}' --compilation-config '{"cudagraph_mode": "NONE"}'""")
    assert values(read) == {"compilation_config": {"cudagraph_mode": "NONE"}}
    assert list(read.repeated) == ["compilation_config"]


@pytest.mark.parametrize("line", ["{whole} {keys}", "{keys} {whole}"])
def test_keys_that_stand_apart_replace_a_whole_object_wherever_they_stand(line: str) -> None:
    keys, whole = "-cc.mode 3 -cc.level 1", """--compilation-config '{"cudagraph_mode": "NONE"}'"""
    read = parsed(line.format(keys=keys, whole=whole))
    assert values(read) == {"compilation_config": {"mode": 3, "level": 1}}
    (told,) = repetitions(read)
    assert "key by key" in told.finding.message


def test_the_model_may_be_the_first_word() -> None:
    read = parsed("Qwen/Qwen3-8B --enforce-eager")
    assert [word.text for word in read.positionals] == ["Qwen/Qwen3-8B"]


@table(
    ("line", "release", "rule", "hint"),
    [
        ("--max-modle-len 3", (0, 33, 0), "OptionUnknown", "--max-model-len"),
        ("--swap-space 4", (0, 18, 0), "OptionRemoved", "leave --swap-space out"),
        ("--cuda-graph-sizes 1 2", (0, 13, 0), "OptionRemoved", "--cudagraph-capture-sizes"),
        ("--kv-cache-memory-bytes 1", (0, 9, 2), "OptionNotYet", "or newer"),
        ("--disable-log-requests", (0, 11, 0), "OptionDeprecated", "--no-enable-log-requests"),
        ("--max-model-len lots", (0, 33, 0), "OptionValue", "32k"),
        ("--tensor-parallel-size two", (0, 33, 0), "OptionValue", "whole number"),
        ("--enforce-eager=true", (0, 33, 0), "OptionValue", "write --enforce-eager alone"),
        ("--no-enable-prefix-caching=true", (0, 33, 0), "OptionValue", "write --no-enable-prefix-caching alone"),
        ("--max-model-len", (0, 33, 0), "OptionValue", "give it a whole number such as 32768"),
        ("--seed", (0, 33, 0), "OptionValue", "give it a whole number"),
        ("--revision", (0, 33, 0), "OptionValue", "give it a text"),
        ("--lora-modules", (0, 33, 0), "OptionValue", "give it one or more values"),
        ("--speculative-config", (0, 33, 0), "OptionValue", "give it JSON"),
        ("--kv-cache-dtype", (0, 12, 0), "OptionValue", "give it one of auto, "),
        ("--kv-cache-dtype fp9", (0, 12, 0), "OptionValue", "fp8_e5m2"),
        ("--speculative-config {", (0, 33, 0), "OptionValue", "JSON"),
        ("--hf-overrides {a}", (0, 33, 0), "OptionValue", "JSON"),
        ("--collect-detailed-traces model all,model", (0, 33, 0), "OptionValue", "worker"),
        ("--max-num 3", (0, 33, 0), "OptionAmbiguous", "--max-num-seqs"),
        ("--shm-size=16G", (0, 33, 0), "OptionUnknown", "give it to docker"),
        ("--device=cpu", (0, 33, 0), "OptionRemoved", "leave --device out"),
        ("--max-num-partial-prefills=4", (0, 11, 0), "InvalidSetting", "leave --max-num-partial-prefills out"),
        ("--max-long-partial-prefills=2", (0, 26, 0), "InvalidSetting", "leave --max-long-partial-prefills out"),
        ("--max-num-partial-prefills=4", (0, 27, 1), "OptionRemoved", "leave --max-num-partial-prefills out"),
        ("-tp2", (0, 33, 0), "OptionUnknown", "did you mean -tp 2?"),
    ],
)
def test_what_the_parser_refuses_is_a_problem_at_its_word(
    line: str, release: tuple[int, int, int], rule: str, hint: str
) -> None:
    (problem,) = parsed(line, release).problems
    assert problem.rule.id == rule
    assert problem.path == "args[0]"
    assert hint in problem.remedy.worded(option_name)


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("--max-num-partial-prefills=1", (0, 26, 0)),
        ("--max-num-partial-prefills=4 --max-long-partial-prefills=2", (0, 10, 2)),
    ],
)
def test_partial_prefills_that_the_engine_has(line: str, release: tuple[int, int, int]) -> None:
    assert parsed(line, release).problems == []


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("true", "leave it out: switches take no value"),
        ("False", "any one of: leave it out, and its switch with it; write --no-…"),
    ],
)
def test_a_switch_that_is_followed_by_a_value_is_not_turned_on_by_leaving_out_false(word: str, hint: str) -> None:
    (problem,) = parsed(f"model --enable-prefix-caching {word}").problems
    assert (problem.rule.id, problem.path) == ("UnexpectedWord", "args[2]")
    assert hint in problem.remedy.worded(option_name)


def test_a_space_before_an_option_is_one_mistake_and_the_option_is_read_as_it_is_meant() -> None:
    words = ("model", " --max-model-len", "4096", " --enforce-eager")
    line = parse_arguments([Argument(text=text, path=f"args[{index}]") for index, text in enumerate(words)], (0, 23, 0))
    (problem,) = line.problems
    assert (problem.rule.id, problem.path, problem.is_sure) == ("UnexpectedWord", "args[1]", True)
    assert set(line.given) == {"max_model_len", "enforce_eager"}


@pytest.mark.parametrize(("release", "problems"), [((0, 17, 1), 0), ((0, 17, 5), 0), ((0, 18, 0), 1)])
def test_nothing_is_said_between_a_release_with_an_option_and_one_without(
    release: tuple[int, int, int], problems: int
) -> None:
    assert len(parsed("--swap-space 4", release).problems) == problems


@table(
    ("line", "release", "expected"),
    [
        ("--reasoning-parser minimax_m2", (0, 11, 2), {"reasoning_parser": "minimax_m2"}),  # read without in 0.11.0
        ("--guided-decoding-backend outlines", (0, 10, 3), {"guided_decoding_backend": "outlines"}),
        ("--max-model-len auto", (0, 14, 0), {"max_model_len": -1}),
        ("--max-num-batched-tokens 8k", (0, 9, 0), {"max_num_batched_tokens": 8000}),
        ("--no-enable-auto-tool-choice", (0, 10, 1), {"enable_auto_tool_choice": False}),
        ("--no-enable-chunked-prefill", (0, 7, 3), {"enable_chunked_prefill": False}),
        ("--enable-chunked-prefill False", (0, 7, 3), {"enable_chunked_prefill": False}),
        ("--limit-mm-per-prompt image=4", (0, 7, 3), {"limit_mm_per_prompt": {"image": 4}}),
        ("""--limit-mm-per-prompt '{"image": 4}'""", (0, 7, 3), {"limit_mm_per_prompt": {"image": 4}}),
        ("-ep", (0, 14, 0), {"enable_expert_parallel": True}),
        ("-cc.mode 3 -O.level 1", (0, 11, 2), {"compilation_config": {"mode": 3, "level": 1}}),
        ("-O3", (0, 11, 2), {"compilation_config": 3}),
        ("""'-O{"level": 3}'""", (0, 9, 1), {"compilation_config": {"level": 3}}),
    ],
)  # fmt: skip
def test_between_two_releases_what_either_takes_is_taken(
    line: str, release: tuple[int, int, int], expected: dict[str, Any]
) -> None:
    read = parsed(line, release)
    assert read.problems == []
    assert values(read) == expected


@pytest.mark.parametrize(
    ("line", "release", "is_doubted"),
    [
        ("--load-format fastsafetensors", (0, 7, 3), True),
        ("--load-format safetensors", (0, 7, 3), False),
        ("--load-format fastsafetensors", (0, 8, 5), False),
        ("--reasoning-parser minimax_m2", (0, 11, 2), False),
    ],
)
def test_a_value_that_one_of_two_releases_lacks_may_be_refused_between_them(
    line: str, release: tuple[int, int, int], *, is_doubted: bool
) -> None:
    """It is taken, and a warning says so; a parser may come from a plug-in."""
    read = parsed(line, release)
    assert [(each.rule.id, each.severity) for each in read.problems] == [("OptionValue", Severity.WARNING)] * is_doubted
    assert len(values(read)) == 1


@pytest.mark.parametrize(
    ("line", "release"), [("--max-model-len auto", (0, 13, 0)), ("--max-model-len lots", (0, 14, 0))]
)
def test_what_neither_takes_is_a_problem(line: str, release: tuple[int, int, int]) -> None:
    assert [problem.rule.id for problem in parsed(line, release).problems] == ["OptionValue"]


@pytest.mark.parametrize("release", [(0, 6, 6), (0, 8, 5), (0, 9, 2), (0, 10, 1)])
def test_limits_as_pairs_are_taken_until_they_went(release: tuple[int, int, int]) -> None:
    assert values(parsed("m --limit-mm-per-prompt image=4,video=1", release)) == {
        "limit_mm_per_prompt": {"image": 4, "video": 1}
    }
    assert parsed("m --limit-mm-per-prompt image=4", (0, 10, 2)).problems

"""Names of reasoning and tool-call parsers, as the API server of each release looks them up."""

import shlex

import pytest

from kvgate.vllm.arguments import Argument, option_name
from kvgate.vllm.options import options, releases_read
from kvgate.vllm.parser import parse_arguments
from kvgate.vllm.parser_problems import ArgumentProblem, parser_names
from support.tables import table

TOOLS = "--enable-auto-tool-choice --tool-call-parser"


def problems(line: str, release: tuple[int, int, int]) -> list[ArgumentProblem]:
    words = [Argument(text=text, path=f"args[{index}]") for index, text in enumerate(shlex.split(line))]
    return parse_arguments(words, release).problems


@table(
    ("line", "release", "message", "hint"),
    [
        (f"{TOOLS} hermess", (0, 33, 0), "is none of vLLM's parsers", "did you mean hermes?"),
        (f"{TOOLS} deepseek-v3", (0, 32, 0), "is none of vLLM's parsers", "did you mean deepseek_v3?"),
        (f"{TOOLS} qwen3", (0, 26, 0), "is none of vLLM's parsers", "use qwen3_coder or qwen3_xml"),
        (f"{TOOLS} gpt-oss", (0, 12, 0), "is none of vLLM's parsers", "--tool-parser-plugin"),
        (f"{TOOLS} deepseek_v4", (0, 19, 1), "came with 0.20.0; vLLM 0.19.1 does not start", "0.20.0 or newer"),
        (f"{TOOLS} minimax", (0, 24, 0), "gone since 0.24.0 (last in 0.22.1)", "0.22.1"),
        ("--reasoning-parser qwen", (0, 12, 0), "is none of vLLM's parsers", "did you mean qwen3?"),
        ("--reasoning-parser glm47", (0, 22, 1), "came with 0.24.0", "0.24.0 or newer"),
    ],
)
def test_a_parser_that_the_release_lacks_is_a_problem_at_its_name(
    line: str, release: tuple[int, int, int], message: str, hint: str
) -> None:
    (problem,) = problems(line, release)
    assert (problem.rule.id, problem.path) == ("ParserUnknown", f"args[{len(shlex.split(line)) - 1}]")
    assert message in problem.message
    assert hint in problem.remedy.worded(option_name)


@table(
    ("line", "release"),
    [
        (f"{TOOLS} hermes --reasoning-parser qwen3", (0, 33, 0)),
        ("--tool-call-parser hermess", (0, 33, 0)),  # looked up only where tools are chosen automatically
        (f"{TOOLS} mine --tool-parser-plugin /plugins/mine.py", (0, 33, 0)),
        (f"{TOOLS} mine --tool-parser-plugin $(PLUGIN)", (0, 33, 0)),
        ("--reasoning-parser mine --reasoning-parser-plugin /plugins/mine.py", (0, 33, 0)),
        (f"{TOOLS} mine $(MORE)", (0, 33, 0)),
        (f"{TOOLS} mine --config /etc/vllm.yaml", (0, 33, 0)),
        (f"{TOOLS} $(PARSER)", (0, 33, 0)),
        ("--reasoning-parser ''", (0, 33, 0)),
        (f"{TOOLS} mine --headless", (0, 33, 0)),
        (f"{TOOLS} glm47", (0, 14, 0)),  # read without in 0.13.0 and with in 0.14.1
        (f"{TOOLS} minimax", (0, 23, 0)),  # read with in 0.22.1 and without in 0.24.0
        ("--reasoning-parser minimax_m2", (0, 11, 2)),
    ],
)
def test_what_a_release_has_or_may_have_is_no_problem(line: str, release: tuple[int, int, int]) -> None:
    assert problems(line, release) == []


@pytest.mark.parametrize("release", ["0.8.5", "0.9.2", "0.10.2", "0.11.0"])
def test_where_the_option_has_choices_the_names_are_the_same(release: str) -> None:
    """Two tables that were read apart."""
    patch = tuple(map(int, release.split(".")))
    names = {name for name, life in parser_names()["--reasoning-parser"].items() if life.may_be_in(patch)}  # type: ignore[arg-type]
    assert names == set(options()["--reasoning-parser"].choices_in(patch))  # type: ignore[arg-type]


def test_the_table_is_about_options_and_releases_that_were_read() -> None:
    assert set(parser_names()) == {"--reasoning-parser", "--tool-call-parser"}
    lives = [life for names in parser_names().values() for life in names.values()]
    assert {life.since for life in lives} | {life.removed_in for life in lives} <= {"", *releases_read()}

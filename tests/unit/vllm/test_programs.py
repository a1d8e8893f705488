"""Words beside options, and options of programs around vLLM: each program treats them in its own way, and the way changes with releases."""

import shlex

import pytest
from msgspec.structs import replace

from kvgate.findings.finding import Severity
from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import Kind, Program, own_options, parse_patch, releases_read, spellings
from kvgate.vllm.parser import CommandLine, parse_arguments
from support.tables import table

SERVE, MODULE, IMAGE = (Program(kind=kind) for kind in (Kind.SERVE, Kind.API_SERVER, Kind.OWN_IMAGE))


def words_of(line: str) -> list[Argument]:
    return [Argument(text=text, path=f"args[{index}]") for index, text in enumerate(shlex.split(line))]


def parsed(line: str, release: str, program: Program) -> CommandLine:
    return parse_arguments(words_of(line), parse_patch(release), program=program)


@table(
    ("program", "line", "release", "refused", "ignored"),
    [
        (SERVE, "x", "0.33.0", [], []),
        (SERVE, "x y", "0.33.0", ["args[1]"], []),
        (SERVE, "--model x y", "0.33.0", ["args[2]"], []),
        (SERVE, "--model=x y", "0.11.0", [], []),
        (SERVE, "x --enforce-eager true", "0.10.2", ["args[2]"], []),
        (MODULE, "x", "0.9.2", ["args[0]"], []),
        (MODULE, "--model x true", "0.9.2", ["args[2]"], []),
        (MODULE, "--model x", "0.9.2", [], []),
        (MODULE, "--model x true", "0.10.0", [], ["args[2]"]),
        (MODULE, "--model x --enforce-eager true --seed 1", "0.33.0", [], ["args[3]"]),
        (MODULE, "x", "0.33.0", [], ["args[0]"]),
        (MODULE, "--model x true false", "0.33.0", ["args[3]"], []),
        (MODULE, "--model x '--seed 1'", "0.33.0", [], ["args[2]"]),
        (MODULE, "--model x '--seed 1' y", "0.33.0", ["args[3]"], []),
        (MODULE, "--model x '--gpu-memory-utilization 0.9'", "0.33.0", ["args[2]"], []),
        (SERVE, "x '--seed 1'", "0.33.0", ["args[1]"], []),
        (IMAGE, "x", "0.9.2", ["args[0]"], []),
        (IMAGE, "--model x true", "0.11.0", [], ["args[2]"]),
        (IMAGE, "--model x true", "0.12.0", ["args[2]"], []),
        (IMAGE, "x", "0.12.0", [], []),
        (IMAGE, "--model x true", "0.11.1", [], ["args[2]"]),
        (Program(), "--model x true", "0.33.0", [], ["args[2]"]),
        (Program(), "x y", "0.33.0", ["args[1]"], []),
    ],
)
def test_a_word_beside_options_is_taken_refused_or_ignored(
    program: Program, line: str, release: str, refused: list[str], ignored: list[str]
) -> None:
    problems = parsed(line, release, program).problems
    assert [each.path for each in problems if each.severity is None] == refused
    assert [each.path for each in problems if each.severity is Severity.WARNING] == ignored


@table(
    ("program", "line", "release", "is_refused"),
    [
        (SERVE, "--model x", "0.8.5", True),
        (SERVE, "--port 1 --model x", "0.11.0", True),
        (SERVE, "--model=x", "0.11.0", False),
        (SERVE, "--model x", "0.12.0", False),
        (SERVE, "--model x", "0.11.2", False),
        (MODULE, "--model x", "0.11.0", False),
        (IMAGE, "--model x", "0.11.0", False),
        (IMAGE, "--model x", "0.12.0", False),
        (Program(), "--model x", "0.11.0", False),
    ],
)
def test_some_releases_refuse_the_option_of_the_model(
    *, program: Program, line: str, release: str, is_refused: bool
) -> None:
    for is_unchanged, severity in ((True, None), (False, Severity.WARNING)):
        problems = parsed(line, release, replace(program, is_unchanged=is_unchanged)).problems
        assert all("refuses --model" in problem.message for problem in problems)
        assert [problem.severity for problem in problems] == [severity] * is_refused


@pytest.mark.parametrize(
    ("repeated", "line", "release", "is_refused"),
    [
        ("serve", "x", "0.33.0", True),
        ("serve", "--model x", "0.33.0", True),
        ("serve", "--model x", "0.11.0", False),
        ("serve", "x", "0.11.0", True),
        ("serve", "--model x", "0.9.2", True),
        ("vllm serve", "--model x", "0.11.0", True),
        ("bash -c", "x", "0.33.0", True),
    ],
)
def test_a_program_that_is_named_behind_the_entrypoint_becomes_an_argument(
    *, repeated: str, line: str, release: str, is_refused: bool
) -> None:
    program = Program(kind=Kind.OWN_IMAGE, repeated=tuple(words_of(repeated)))
    problems = [each for each in parsed(line, release, program).problems if each.severity is None]
    assert bool(problems) is is_refused
    assert all("already" in problem.message and problem.path == "args[0]" for problem in problems)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("dynamo", "--model x --is-prefill-worker --enable-multimodal --connector none kvbm --dyn-structural-tag --seed 1"),
        ("dynamo", "--model x --no-route-to-encoder --endpoint=dyn://a.b.c --dyn-tool-call-parser hermes --omni"),
        ("kaito", "--kaito-config-file=/c.yaml --kaito-max-probe-steps 6 --kaito-disable-rate-limit --model x"),
        ("vllm-omni", "x --omni --stage-configs-path /s.yaml --usp 2 --lora-path a b --no-async-chunk -oma h"),
    ],
)  # fmt: skip
def test_own_options_of_a_program_are_no_business_of_vllm(program: str, line: str) -> None:
    read = parsed(line, releases_read()[-1], Program(own_options=program))
    assert read.problems == []
    assert set(read.given) <= {"model", "seed"}
    assert [word.text for word in read.positionals] == (["x"] if line.startswith("x") else [])


def test_an_option_that_vllm_has_too_is_read_as_vllms() -> None:
    read = parsed("x --omni --enable-sleep-mode", "0.33.0", Program(own_options="vllm-omni"))
    assert list(read.given) == ["enable_sleep_mode"]


def test_the_table_of_own_options_is_well_formed() -> None:
    newest = spellings(parse_patch(releases_read()[-1]))
    for options in own_options().values():
        assert set(options.values()) <= {"0", "1", "?", "*"}
        assert all(name.startswith("-") and name == name.lower() for name in options)
        assert sum(name in newest for name in options) < 3

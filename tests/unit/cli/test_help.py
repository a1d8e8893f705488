"""Help of every command: a paragraph, groups of options, examples that run; it wraps at the width of the terminal."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvgate.cli.examples import EXAMPLES
from kvgate.cli.exits import EXITS, Exit
from kvgate.cli.help import OTHER, continued, grouped
from kvgate.cli.main import main
from support.chart import ROOT
from support.command_line import invoked
from support.hub_server import safetensors
from support.tables import table

BIN = Path(sys.executable).parent
SILENT = ("calibrate", "calibrate logs", "calibrate pin", "calibrate drop", "calibrate freeze", "calibrate thaw")
HELM = """\
#!/bin/sh
cat values.yaml
"""
"""A stand-in for helm, which renders nothing."""


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """(path, command, context) of every command, the root left out."""
    root = click.Context(main, info_name="kvgate", **main.context_settings)
    for name in main.list_commands(root):
        command = main.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root)
        yield name, command, context
        if isinstance(command, click.Group):
            for inner_name in command.list_commands(context):
                inner = command.get_command(context, inner_name)
                assert inner is not None
                yield f"{name} {inner_name}", inner, click.Context(inner, info_name=inner_name, parent=context)


COMMANDS = {path: (command, context) for path, command, context in commands()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "deploy" / "samples", folder / "deploy")
    shutil.copytree(ROOT / "deploy" / "samples", folder / "changed")
    (folder / "charts" / "vllm").mkdir(parents=True)
    shutil.copy(
        ROOT / "tests" / "manifests" / "production-stack" / "minimal-values" / "input.yaml", folder / "values.yaml"
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "helm").write_text(HELM)
    (folder / "bin" / "helm").chmod(0o755)
    (folder / "questions.jsonl").write_text(json.dumps({"model": "Qwen/Qwen3-8B", "gpu": "L4-24GB"}))
    shutil.copy(ROOT / "docs" / "examples" / "serve.log", folder / "start.log")
    shutil.copy(ROOT / "docs" / "examples" / "calibration.jsonl", folder / "calibration.jsonl")
    (folder / "my-model").mkdir()
    (folder / "my-model" / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    weights = safetensors({"model.layers.0.q.weight": ("BF16", (8, 8))})
    (folder / "my-model" / "model.safetensors").write_bytes(bytes(weights).ljust(weights.size, b"\0"))
    for line in ("init -q -b main", "add deploy", "-c user.name=a -c user.email=a@b commit -q -m x", "tag v1.2"):
        subprocess.run(["git", *line.split()], cwd=folder, check=True, timeout=60)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "line"), [(path, line) for path, examples in EXAMPLES.items() for _, line in examples]
)
def test_an_example_runs(path: str, line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that needs a shell runs in one, with the program; any other in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}")
    if re.search(r"[|&]|\*\.", line):
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        code, told, trouble = done.returncode, done.stdout, done.stderr
    else:
        result = invoked(*shlex.split(line)[1:])
        code, told, trouble = result.exit_code, result.stdout, result.output
    assert code in (0, 1), trouble
    assert told or path in (*SILENT, "sweep", "models fetch", "models lock")
    assert f"kvgate {path}" in line


@table("path", COMMANDS)
def test_every_command_has_a_paragraph_and_examples(path: str) -> None:
    command, _ = COMMANDS[path]
    shown = CliRunner().invoke(main, [*path.split(), "--help-all"], prog_name="kvgate").output
    assert command.help
    assert command.help.partition("\n")[0].strip().endswith((".", ":", ","))
    assert len(EXAMPLES[path]) >= 3
    for says, line in EXAMPLES[path]:
        assert says.endswith(".")
        assert " ".join(line.split()[:3]) in " ".join(shown.split())


@table("path", COMMANDS)
def test_help_fits_a_screen_and_says_how_to_see_the_rest(path: str) -> None:
    short = CliRunner().invoke(main, [*path.split(), "--help"], terminal_width=80, prog_name="kvgate").output
    whole = CliRunner().invoke(main, [*path.split(), "--help-all"], terminal_width=80, prog_name="kvgate").output
    assert len(short.splitlines()) <= 40
    assert "--help-all" in short
    assert short.count(f"    kvgate {path}") + short.count(f"| kvgate {path}") >= 3
    command, context = COMMANDS[path]
    words = set(re.findall(r"--[\w-]+", whole))
    every = {name for each in command.get_params(context) for name in each.opts if name.startswith("--")}
    assert every <= words
    assert set(re.findall(r"^  (--[\w-]+)", short, re.MULTILINE)) <= every


@table("path", COMMANDS)
def test_help_names_the_exit_codes_of_its_command(path: str) -> None:
    shown = " ".join(CliRunner().invoke(main, [*path.split(), "--help"], terminal_width=80).output.split())
    assert Exit.UNDECIDED in EXITS[path]
    assert all(f"{code.value} {meaning}" in shown for code, meaning in EXITS[path].items())
    assert "or the command was misused" in shown


def test_no_example_and_no_exit_code_is_of_a_command_that_is_gone() -> None:
    assert EXAMPLES.keys() == EXITS.keys() == COMMANDS.keys()


@table("path", COMMANDS)
def test_every_option_is_in_one_group(path: str) -> None:
    command, context = COMMANDS[path]
    groups = dict(grouped(command, context))
    shown = [option for group in groups.values() for option in group]
    assert len(shown) == len({id(option) for option in shown})
    options = [each for each in command.get_params(context) if isinstance(each, click.Option) and not each.hidden]
    assert {id(option) for option in shown} == {id(option) for option in options}
    assert len(groups[OTHER]) <= 4, "give options a group of their own in cli/help.py"
    if len(options) > 12:
        assert len(groups) > 3


@table("columns", [60, 80, 200])
@table("path", ["", *COMMANDS])
@table("option", ["--help", "--help-all"])
def test_no_line_of_help_is_wider_than_the_terminal(option: str, path: str, columns: int) -> None:
    result = CliRunner().invoke(main, [*path.split(), option], terminal_width=min(columns, 110))
    assert result.exit_code == 0
    wide = [line for line in result.output.splitlines() if len(line) > min(columns, 110)]
    assert [line for line in wide if len(line.split()) > 1] == []
    assert not re.search(r"\w-$", result.output, re.MULTILINE), "no name is broken at a hyphen"
    assert result.output.count("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") == ("--estimates-graphs" in result.output)


def test_a_long_example_is_continued_as_a_shell_reads_it() -> None:
    line = (
        'kvgate explain --model Qwen/Qwen3-8B --speculative-config \'{"method": "ngram"}\' --gpu L4 --max-model-len 16k'
    )
    parts = continued(line, 40)
    assert len(parts) > 1
    assert all(len(part) <= 42 for part in parts if "'" not in part)
    joined = "\n".join(parts)
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {joined}"], capture_output=True, text=True, check=True).stdout
    assert words.splitlines()[4:6] == ["--speculative-config", '{"method": "ngram"}']


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("chek",), "No such command 'chek'. Did you mean check?"),
        (("controler",), "Did you mean controller?"),
        (("xyzzy",), "No such command 'xyzzy'. kvgate --help lists the commands."),
        (("size", "--modle", "x"), "Did you mean one of: '--max-model-len', '--model'"),
        (("check", "--acelerator", "x", "."), "--accelerator"),
    ],
)
def test_a_mistyped_word_is_answered_with_what_was_meant(typed: tuple[str, ...], words: str) -> None:
    result = invoked(*typed)
    assert result.exit_code == 2
    assert words in result.output

"""TAB in a shell: click's protocol as bash, zsh and fish speak it, and a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
BASH = shutil.which("bash")


def ran(*command: str, **variables: str) -> str:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def offered(line: str) -> list[str]:
    """What bash gets for a line that ends where TAB is pressed."""
    words = line.split(" ")
    answer = ran("kvgate", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), _KVGATE_COMPLETE="bash_complete")
    return [each.partition(",")[2] for each in answer.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kvgate si", ["size"]),
        ("kvgate con", ["controller"]),
        ("kvgate explain --gpu h200", ["H200-SXM-141GB", "H200-NVL-141GB"]),
        ("kvgate size --gpus L4-", ["L4-24GB"]),
        ("kvgate size --gpus H200,8xT4", ["H200,8xT4-16GB", "H200,8xT4G-16GB"]),
        ("kvgate size --gpus H200-MIG-1", ["H200-MIG-1g.18gb", "H200-MIG-1g.35gb"]),
        ("kvgate check --accelerator h100-nvl-9", ["H100-NVL-94GB"]),
        ("kvgate explain --model Qwen/Qwen3-32B-A", ["Qwen/Qwen3-32B-AWQ"]),
        ("kvgate explain --model qwen3-32b-a", ["Qwen/Qwen3-32B-AWQ"]),
        ("kvgate rules oversub", ["Oversubscribed"]),
        ("kvgate gpus gaudi3", ["Gaudi3-128GB"]),
        ("kvgate size --guarantee w", ["workload"]),
        ("kvgate size --peak-c", ["--peak-concurrency"]),
        ("kvgate check dep", ["dep"]),
    ],
)
def test_a_shell_is_offered_what_goes_on(line: str, words: list[str]) -> None:
    assert offered(line) == words


def test_slices_are_not_offered_where_nobody_asks_for_them() -> None:
    assert [name for name in offered("kvgate gpus A100") if "MIG" in name] == []


def test_a_file_is_the_shells_to_complete() -> None:
    answer = ran("kvgate", COMP_WORDS="kvgate check dep", COMP_CWORD="2", _KVGATE_COMPLETE="bash_complete")
    assert answer == "file,dep\n"


def test_zsh_and_fish_get_the_memory_of_a_gpu_beside_its_name() -> None:
    line = "kvgate explain --gpu L4-"
    zsh = ran("kvgate", COMP_WORDS=line, COMP_CWORD="3", _KVGATE_COMPLETE="zsh_complete")
    assert zsh.split("\n")[:3] == ["plain", "L4-24GB", "22.04 GiB"]
    fish = ran("kvgate", COMP_WORDS=line, COMP_CWORD="L4-", _KVGATE_COMPLETE="fish_complete")
    assert fish.startswith("plain,L4-24GB")


def test_fish_is_not_offered_half_of_a_list() -> None:
    line = "kvgate size --gpus H200,L4-"
    assert ran("kvgate", COMP_WORDS=line, COMP_CWORD="H200,L4-", _KVGATE_COMPLETE="fish_complete").strip() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_function(shell: str) -> None:
    source = ran("kvgate", _KVGATE_COMPLETE=f"{shell}_source")
    assert f"_KVGATE_COMPLETE={shell}_complete" in source


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (("kvgate", "size", "--gpus", "L4-"), "L4-24GB"),
        (("kvgate", "swe"), "sweep"),
        (("kvgate", "explain", "--model", "Qwen/Qwen3-32B-A"), "Qwen/Qwen3-32B-AWQ"),
    ],
)
def test_a_real_bash_completes_with_it(words: tuple[str, ...], reply: str) -> None:
    program = f"""
    eval "$(_KVGATE_COMPLETE=bash_source kvgate)"
    complete -p kvgate >&2
    COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
    _kvgate_completion kvgate "{words[-1]}" "{words[-2]}"
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert ran(str(BASH), "--norc", "-c", program).splitlines() == [reply]

"""The functions of Python answer what the commands answer, under the published schema, and load nothing before they are called."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import kvgate
from kvgate.cli.main import main
from support.chart import ROOT
from support.command_line import invoked
from support.json_schemas import checked_report

SAMPLES = str(ROOT / "deploy" / "samples")
ASKED = {"model": "Qwen/Qwen3-8B", "gpu": "L4-24GB", "vllm_version": "0.19.1"}
FLAGS = ("--model", "Qwen/Qwen3-8B", "--gpu", "L4-24GB", "--vllm-version", "0.19.1")


def of_schema(report: Any) -> Any:
    return checked_report(json.dumps(report))


def command(*arguments: str) -> Any:
    return json.loads(invoked(*arguments, "-o", "json").stdout)


def test_a_request_is_judged_as_a_line_of_requests_is(tmp_path: Path) -> None:
    line = {**ASKED, "id": 7, "max_model_len": "16k", "guarantee": "FullContext", "max_num_seqs": 4}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    assert of_schema(kvgate.judge(**line)) == json.loads(
        invoked("explain", "--requests", str(tmp_path / "a.jsonl")).stdout
    )
    assert of_schema(kvgate.judge(model="nobody/knows", gpu="L4"))["verdict"] == "Unknown"


def test_the_others_return_the_json_of_their_command() -> None:
    load = ("--prompt-tokens", "2k", "--output-tokens", "500", "--peak-concurrency", "8", "--all")
    sized = kvgate.size(
        model="Qwen/Qwen3-8B", gpus="L4", prompt_tokens="2k", output_tokens=500, peak_concurrency=8, all=True
    )
    assert of_schema(sized) == command("size", "--model", "Qwen/Qwen3-8B", "--gpus", "L4", *load)
    axes = {"x": "max_model_len=4096,40960", "y": "max_num_seqs=1,64"}
    swept = kvgate.sweep(**ASKED, **axes)
    assert of_schema(swept) == command("sweep", *FLAGS, "--x", axes["x"], "--y", axes["y"])
    assert of_schema(kvgate.check(SAMPLES, gpu="L4")) == command("check", SAMPLES, "--gpu", "L4")
    text = "vllm serve Qwen/Qwen3-32B --max-model-len 32k"
    assert of_schema(kvgate.why(text, gpu="L4")) == command("why", text, "--gpu", "L4")


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    kvgate.check(Path(SAMPLES))
    kvgate.sweep(**ASKED)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: kvgate.judge(model=3, max_model_len="x"), ("model is 3", "max_model_len is 'x'")),
        (lambda: kvgate.judge(**ASKED, guarantee="Workload"), ("needs the key workload",)),
        (lambda: kvgate.size(modle="x"), ("--modle", "--model")),
        (lambda: kvgate.size(model="Qwen/Qwen3-8B", max_gpus=0), ("max-gpus",)),
        (lambda: kvgate.sweep(model="nobody/knows", gpu="L4"), ("nobody/knows is not in the catalogue",)),
        (lambda: kvgate.check(SAMPLES, config="missing.yaml"), ("missing.yaml",)),
        (lambda: kvgate.check(SAMPLES, config_from="main"), ("config_from",)),
        (lambda: kvgate.why("missing.log"), ("there is no such file",)),
    ],
)
def test_what_cannot_be_used_is_one_exception_that_names_it_all(ask: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(kvgate.BadInput) as raised:
        ask()
    assert [word for word in words if word not in str(raised.value)] == []


def test_every_name_says_what_it_takes_and_what_it_raises() -> None:
    assert 1 < len(kvgate.__all__) <= 10
    for name in kvgate.__all__:
        each = getattr(kvgate, name)
        assert each.__doc__
        assert not inspect.isfunction(each) or "Raises BadInput" in each.__doc__
    with pytest.raises(AttributeError, match="no attribute 'xyzzy'"):
        kvgate.xyzzy  # noqa: B018 - the look-up is what is tested


def test_importing_kvgate_loads_nothing_and_using_it_no_operator() -> None:
    program = (
        "import sys; before = set(sys.modules); import kvgate; assert set(sys.modules) - before == {'kvgate'}, sys.modules\n"
        f"kvgate.check({SAMPLES!r}); assert not {{'kubernetes', 'aiohttp'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_signatures_name_every_key_and_types_are_known_without_an_import() -> None:
    """mypy reads the stub beside `__init__.py`; a key of no command is an error of it."""
    assert {"gpu", "max_model_len", "guarantee", "workload", "lock"} <= set(inspect.signature(kvgate.judge).parameters)
    assert {"gpus", "prompt_tokens", "all"} <= set(inspect.signature(kvgate.size).parameters)
    assert list(inspect.signature(kvgate.check).parameters)[:2] == ["paths", "accelerator"]
    stub = (ROOT / "operator/kvgate/__init__.pyi").read_text()
    assert [name for name in kvgate.__all__ if f"import {name} as {name}" not in stub] == []
    declared = {line.partition(":")[0] for line in stub.splitlines() if re.match(r"[A-Z_]+:|__version__:", line)}
    assert declared == {name for name in vars(kvgate) if name.isupper()} | {"__version__"}


def test_every_key_of_a_signature_is_taken() -> None:
    for name in ("check", "why", "size", "sweep"):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        flags = {flag for parameter in command.params for flag in parameter.opts}
        keys = [
            key
            for key, each in inspect.signature(getattr(kvgate, name)).parameters.items()
            if each.kind is each.KEYWORD_ONLY
        ]
        assert [key for key in keys if f"--{key.replace('_', '-')}" not in flags] == []

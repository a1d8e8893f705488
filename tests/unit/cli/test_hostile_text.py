"""Whatever somebody writes into a manifest, a name of a file or a request: no format passes it on to whoever prints the report.

A writer that is added is found by the names of the formats; a place in a manifest that is printed belongs into `tests/hostile`.
"""

import ast
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from kvgate.cli.check import command as check
from kvgate.cli.diff import command as diff
from kvgate.cli.main import main
from support.command_line import invoked
from support.hostile import FOLDER, TEXTS, filled, write_tree

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CLI = HERE.parents[2] / "operator" / "kvgate" / "cli"
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 32000, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048,
}  # fmt: skip
OBEYED = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)
"""What a log of CI obeys."""
CALLS = re.compile(r"(?:^|[^A-Za-z0-9_])@\w|#\d|\bGH-\d|https?://|ftp://|\bwww\.|\w@\w+\.\w")
HARMLESS_MARKUP = {
    "text", "code_inline", "strong_open", "strong_close", "html_inline", "softbreak", "inline", "heading_open", "heading_close",
    "paragraph_open", "paragraph_close", "bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close", "table_open",
    "table_close", "thead_open", "thead_close", "tbody_open", "tbody_close", "tr_open", "tr_close", "th_open", "th_close", "td_open",
    "td_close",
}  # fmt: skip
hostile = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


def assert_printable(text: str) -> None:
    """Only ends of lines move a cursor, and no sign is unseen."""
    assert [ascii(line) for line in text.split("\n") if not line.isprintable()] == []


def assert_inert(text: str) -> None:
    assert_printable(text)
    assert OBEYED.findall(text) == []


def assert_inert_lines(text: str) -> None:
    """Besides, no text began a line of its own."""
    assert_inert(text)
    assert "\nMARKER" not in text


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON value, keys too."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for child in value:
            yield from texts_in(child)
    elif isinstance(value, str):
        yield value


def assert_inert_json(text: str) -> Any:
    assert_inert(text)
    value = json.loads(text, parse_constant=refuse)
    for each in texts_in(value):
        assert_inert(each)
    return value


@cache
def sarif_schema() -> Callable[[Any], Any]:
    schema = json.loads((HERE / "check" / "data" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
    schema.pop("$schema")
    valid: Callable[[Any], Any] = fastjsonschema.compile(schema)
    return valid


def assert_inert_sarif(text: str) -> None:
    value = json.loads(text, parse_constant=refuse)
    sarif_schema()(value)
    (run,) = value["runs"]
    assert_inert_json(json.dumps(run["results"]))
    assert_inert(text)


def assert_inert_xml(text: str) -> None:
    assert_inert(text)
    for element in ET.fromstring(text).iter():
        for each in (*element.attrib.values(), element.text or ""):
            assert_inert(each)


def assert_inert_commands(text: str) -> None:
    """One command a line, with the properties that kvgate writes, and the sum."""
    *commands, total = text.rstrip("\n").split("\n")
    assert_printable(text)
    assert_inert(total)
    for command in commands:
        matched = re.fullmatch(r"::(?:error|warning|notice) file=([^,:]+),line=\d+,col=\d+,title=\w+::(.*)", command)
        assert matched, command
        assert_inert(matched[1])
        assert "##[" not in command
        assert not re.search(r"%(?!25|3A|2C)", command)


def assert_inert_markdown(text: str) -> None:
    assert_inert(text)
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        assert token.type in HARMLESS_MARKUP, token
        for child in token.children or ():
            assert child.type in HARMLESS_MARKUP, child
            assert child.type != "html_inline" or child.content == "<!-- -->"
            assert child.type != "text" or not CALLS.search(child.content), child.content


ASSERTIONS = {
    "text": assert_inert_lines,
    "json": assert_inert_json,
    "sarif": assert_inert_sarif,
    "junit": assert_inert_xml,
    "github": assert_inert_commands,
    "gitlab": assert_inert_json,
    "markdown": assert_inert_markdown,
}


def test_every_format_is_held() -> None:
    assert set(check.FORMATS) | set(diff.DIFFERENCE_FORMATS) == set(ASSERTIONS)


@hostile
def test_no_report_of_check_passes_it_on(tmp_path: Path, text: str) -> None:
    root = write_tree(tmp_path, text)
    outputs = [f"--output={name}={tmp_path / name}" for name in ASSERTIONS if name != "text"]
    answered = invoked("check", str(root), "-o", "text", *outputs)
    assert answered.exit_code == 1
    assert_inert_lines(answered.output)
    assert "kvgate failed" not in answered.output
    for name in ASSERTIONS.keys() - {"text"}:
        content = (tmp_path / name).read_bytes().decode()
        assert len(content) > 5_000, "there was nothing to print"
        ASSERTIONS[name](content)


@hostile
def test_a_terminal_sees_no_other_colours_than_kvgates(tmp_path: Path, text: str) -> None:
    root = write_tree(tmp_path, text)
    shown = CliRunner().invoke(main, ["check", str(root)], color=True).output
    assert "\x1b[31m" in shown
    assert_inert(re.sub(r"(?:\x1b\[(?:1|3[1-6])m)+([a-zA-Z ,]+)\x1b\[0m", r"\1", shown))


@hostile
@pytest.mark.parametrize("config", ["fine", "wrong"])
def test_a_configuration_brings_nothing_in(tmp_path: Path, text: str, config: str) -> None:
    written = tmp_path / ".kvgate.yaml"
    written.write_text(
        filled((FOLDER / "configs" / f"{config}.yaml").read_text(encoding="utf-8"), text), encoding="utf-8"
    )
    root = write_tree(tmp_path, text)
    answered = invoked("check", str(root), "--config", str(written))
    assert answered.exit_code == (1 if config == "fine" else 2), answered.output
    assert_inert(answered.output)
    assert_inert_markdown(invoked("check", str(root), "--config", str(written), "-o", "markdown").stdout)


@hostile
def test_no_report_of_diff_passes_it_on(tmp_path: Path, text: str) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
        write_tree(folder, text)
    for file in after.glob("*/*workloads.yaml"):
        file.write_text(file.read_text().replace("8192", "262144"))
    for name in diff.DIFFERENCE_FORMATS:
        answered = invoked("diff", str(before), str(after), "-o", name)
        assert_inert(answered.stderr)
        ASSERTIONS[name](answered.stdout)
    assert_inert_markdown(invoked("diff", str(tmp_path / "nowhere"), str(after), "-o", "markdown").stdout)


@hostile
def test_a_model_of_that_name_is_explained_sized_and_drawn_without_it(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA, "architectures": ["LlamaForCausalLM"]}))
    model = ["--model", text, "--model-config", str(config)]
    explained = ["explain", *model, "--gpu", "L4-24GB"]
    for arguments in (
        explained,
        [*explained, "--why", "weights"],
        [*explained, "--paging"],
        ["size", *model, "--gpus=L4"],
    ):
        assert_inert(invoked(*arguments).output)
        assert_inert_json(invoked(*arguments, "-o", "json").stdout)
    swept = [
        "sweep",
        *model,
        "--gpu",
        "L4-24GB",
        "--x=max_model_len=1024..2048",
        "--y=max_num_seqs=1..2",
        "--at=2048,2",
    ]
    for output in ("text", "csv", "html", "svg"):
        assert_inert(invoked(*swept, "-o", output).output)
    assert_inert_json(invoked(*swept, "-o", "json").stdout)
    page = invoked(*swept, "-o", "html").stdout
    assert page.count("<script") == page.count("</script") == 1
    assert "<img" not in page
    ET.fromstring(invoked(*swept, "-o", "svg").stdout)


def test_a_name_with_signs_of_tex_is_drawn_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA, "architectures": ["LlamaForCausalLM"]}))
    named = ["sweep", "--model", TEXTS["formulas of TeX"], "--model-config", str(config), "--gpu", "L4-24GB"]
    axes = ["--x=max_model_len=1024..2048", "--y=max_num_seqs=1..2", "--file", str(tmp_path / "x.png")]
    assert invoked(*named, *axes).exit_code == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@hostile
def test_an_architecture_and_a_request_of_that_name_are_answered_without_it(tmp_path: Path, text: str) -> None:
    config = {**LLAMA, "architectures": [text], "quantization_config": {"quant_method": text}, "torch_dtype": text}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert_inert(invoked("explain", "--model-config", str(file), "--gpu", text).output)
    requests = [
        {"id": 1, "model_config": config, "gpu": text, text: 1},
        {"id": 2, "model": text, "dtype": text, "vllm_version": text, "max_model_len": text},
        {"id": 3, "model": "Qwen/Qwen3-8B", "gpu": "L4-24GB", "quantization": text, "kv_cache_dtype": text},
    ]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    answers = invoked("explain", "--requests", "-", stdin=lines).stdout.splitlines()
    assert [assert_inert_json(answer)["id"] for answer in answers] == [1, 2, 3]
    (echoed,) = invoked("explain", "--requests", "-", stdin=json.dumps({"id": text})).stdout.splitlines()
    assert_inert(echoed)
    assert json.loads(echoed)["id"] == text


@pytest.mark.parametrize("kind", ["colours a terminal", "begins a line with a command", "is a command", "is not seen"])
@pytest.mark.parametrize(
    "command",
    [
        ("check", "NAME"), ("check", ".", "--accelerator", "NAME"), ("check", ".", "--config", "NAME"), ("check", ".", "-o", "NAME"),
        ("check", ".", "--baseline", "NAME"), ("diff", "NAME", "NAME"), ("explain", "--model", "NAME"), ("explain", "NAME"), ("NAME",),
        ("explain", "--NAME"), ("explain", "--model=Qwen/Qwen3-8B", "--gpu=L4-24GB", "--why", "NAME"), ("explain", "--requests", "NAME"),
        ("explain", "--model=x", "--calibration", "NAME"), ("size", "--model", "NAME"), ("size", "--model=Qwen/Qwen3-8B", "--gpus=NAME"),
        ("sweep", "--model", "NAME"), ("sweep", "--model=Qwen/Qwen3-8B", "--gpu=L4-24GB", "--x", "NAME"), ("calibrate", "NAME"),
        ("calibrate", "NAME", "--into", "/dev/null/NAME"), ("gpus", "NAME"), ("models", "NAME"), ("rules", "NAME"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_is_wrong_with_a_command_is_told_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answered = invoked(*(word.replace("NAME", TEXTS[kind]) for word in command))
    assert answered.exit_code in (0, 2)
    assert_inert(answered.output)


def test_a_name_that_is_no_unicode_is_in_every_report(tmp_path: Path) -> None:
    name = bytes(tmp_path) + b"/\xff\xfe.yaml"
    with open(name, "wb") as file:  # noqa: PTH123 - its name is bytes
        file.write((FOLDER / "tree" / "workloads.yaml").read_bytes())
    for output, holds in ASSERTIONS.items():
        answered = invoked("check", str(tmp_path), "-o", output)
        holds(answered.stdout)
        assert ("%FF%FE.yaml" if output == "sarif" else "udcff") in answered.stdout


OWN_JSON = {
    "check/ignoring.py": "a baseline, a file for people to review, in their own signs; its texts are inert",
    "reports/wording.py": "defaults of vLLM, from kvgate's own table",
    "known_models.py": "a config.json with the files beside it, which is parsed again",
    "kubectl.py": "handed to kvgate check and to kvgate why",
    "in_python.py": "the value of an option, which the command reads again",
}
"""Modules that write JSON by themselves, and why that reaches no terminal."""


def test_nothing_else_in_cli_prints() -> None:
    """`terminal.py` is the door, for reports and for the line that counts the steps of a long search."""
    found = []
    for path in sorted(CLI.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found.append((path.relative_to(CLI).as_posix(), f"{node.value.id}.{node.attr}"))
            elif isinstance(node, ast.Name) and node.id == "print":
                found.append((path.relative_to(CLI).as_posix(), "print"))
    prints = {"print", "click.echo", "click.secho", "click.style", "sys.stdout", "sys.stderr"}
    assert {name for name, what in found if what in prints} == {"terminal.py"}
    assert {name for name, what in found if what == "json.dumps"} <= OWN_JSON.keys()

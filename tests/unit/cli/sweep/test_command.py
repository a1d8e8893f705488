"""`kvgate sweep`: tables, data and pictures of the same cells."""

import csv
import io
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from kvgate import INSTALL
from support.command_line import invoked
from support.pictures import require_matplotlib

QWEN = ("--model", "Qwen/Qwen3-32B-FP8", "--gpu", "H100-SXM-80GB", "--vllm-version", "0.33.0")
SMALL = ("--x", "max_model_len=4096,16384,65536", "--y", "max_num_seqs=1,8,64")
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments: str) -> Result:
    return invoked("sweep", *arguments)


def answer(*arguments: str) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(run(*arguments, "-o", "json").stdout)
    return answered


def test_people_see_shares_marks_and_the_exact_edge() -> None:
    output = run(*QWEN, *SMALL).output
    lines = [line.split() for line in output.splitlines()]
    assert "demand as a share of the KV cache that is expected; ! does not fit; x refused by vLLM" in output
    assert lines[4] == ["max_num_seqs", "↓", "max_model_len", "→", "4096", "16384", "65536"]
    assert [line[0] for line in lines[5:8]] == ["64", "8", "1"]
    assert lines[5][2:] == ["!658%", "x"]
    assert lines[8][:3] == ["fits", "up", "to"]
    assert lines[8][4:] == ["9", "-"]


@pytest.mark.parametrize("output", ["text", "svg", "html"])
def test_a_model_that_is_assumed_is_said_to_be(output: str) -> None:
    shown = run("--model", "my-org/Qwen3-8B-AWQ", "--gpu", "H100-SXM-80GB", "-o", output).output
    assert "assumed from Qwen/Qwen3-8B-AWQ, quantised as AWQ by its name" in shown


def test_the_chosen_point_is_marked_told_and_decides_the_exit_code() -> None:
    result = run(*QWEN, *SMALL, "--at", "32768,4")
    assert result.exit_code == 0
    assert "[82%]" in result.output
    assert (
        "max_model_len 32768, max_num_seqs 4\nFits: holds full context (4 requests of 32768 tokens); 4.8 requests"
        in result.output
    )
    assert run(*QWEN, *SMALL, "--at", "32768,5").exit_code == 1
    assert answer(*QWEN, *SMALL, "--at", "32768,5")["at"] == {"x": 2, "y": 1, "verdict": "DoesNotFit"}


def test_refusals_are_told_once_each() -> None:
    lines = run(*QWEN, *SMALL, "--at", "65536,8").output.splitlines()
    reason = "--max-model-len 65536 is above the 40960 tokens of Qwen/Qwen3-32B-FP8; vLLM refuses it"
    assert lines[10:] == ["", f"  x {reason}", "", "max_model_len 65536, max_num_seqs 8", f"DoesNotFit: {reason}"]
    many = run(*QWEN, "--x", "max_model_len=50000..90000+10000", "--y", "max_num_seqs=1").output
    assert "x 2 more reasons; --at max_model_len,max_num_seqs shows the reason at one point" in many


def test_csv_has_a_row_for_every_pair_and_json_the_same_cells() -> None:
    rows = list(csv.DictReader(io.StringIO(run(*QWEN, *SMALL, "-o", "csv").stdout)))
    answered = answer(*QWEN, *SMALL)
    cells = [cell for row in answered["cells"] for cell in row]
    assert len(rows) == len(cells) == 9
    assert [row["verdict"] for row in rows] == [cell["verdict"] for cell in cells]
    assert [int(row["demand_bytes"]) for row in rows] == [cell["demand_bytes"] for cell in cells]
    assert rows[0]["max_model_len"] == "4096"
    assert "above the 40960 tokens" in rows[2]["refusal"]
    assert answered["guarantee"] == "FullContext"
    assert [edge["fits"] for edge in answered["edges"]][:2] == [38, 9]


def test_without_axes_lengths_double_up_to_the_models_own() -> None:
    answered = answer(*QWEN)
    assert answered["x"] == {"name": "max_model_len", "values": [1024, 2048, 4096, 8192, 16384, 32768, 40960]}
    assert answered["y"]["values"][-1] == 256


def test_any_two_settings_can_be_swept() -> None:
    answered = answer(
        *QWEN[:2], *QWEN[4:], "--x", "gpu=L4,H200-SXM-141GB", "--y", "tensor_parallel_size=1,3", "--max-num-seqs", "4"
    )
    assert [[cell["verdict"] for cell in row] for row in answered["cells"]] == [
        ["DoesNotFit", "Fits"],
        ["DoesNotFit", "DoesNotFit"],
    ]
    assert "64 attention heads are not divisible by 3" in answered["cells"][1][1]["refusal"]
    assert answered["edges"] is None


def test_the_picture_has_every_cell_once_and_says_its_numbers(pytestconfig: pytest.Config) -> None:
    require_matplotlib(pytestconfig)
    drawn = ET.fromstring(run(*QWEN, *SMALL, "--at", "4096,8", "-o", "svg").stdout)
    cells = {(c.get("data-column"), c.get("data-row")): c for c in drawn.iter(f"{SVG}rect") if c.get("data-row")}
    assert len(cells) == 9
    title = cells["1", "1"].find(f"{SVG}title")
    assert title is not None
    assert title.text is not None
    assert title.text.startswith(
        "max_model_len 16384, max_num_seqs 8\nFits: holds full context (8 requests of 16384 tokens); "
    )
    assert "\ndemand 32.00 GiB" in title.text
    classes = [(cells[str(c), str(r)].get("class") or "").split()[1] for r in range(3) for c in range(3)]
    assert classes == ["fits", "fits", "refused", "fits", "fits", "refused", "no", "no", "refused"]
    assert {"edge-low", "ring", "fits", "no", "refused"} <= {each.get("id") for each in drawn.iter(f"{SVG}g")}


def test_a_page_loads_nothing_and_lets_no_name_out_of_its_place(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    from kvgate import catalogue

    entry = catalogue.find_model("Qwen/Qwen3-8B")
    assert entry is not None
    config.write_text(json.dumps(dict(entry.config)))
    nasty = "</script><script>alert(1)</script>"
    page = run("--model", nasty, "--model-config", str(config), "--gpu", "L4", "-o", "html").stdout
    assert nasty not in page
    assert page.count("<script") == 1
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.svg", b"<svg "), ("a.html", b"<!DOCTYPE html>"), ("a.csv", b"max_model_len,"), ("a.txt", b"Qwen")],
)
def test_the_name_of_the_file_chooses_the_output(tmp_path: Path, name: str, start: bytes) -> None:
    result = run(*QWEN, *SMALL, "--file", str(tmp_path / name))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    result = run(*QWEN, *SMALL, "--file", str(tmp_path / "none" / "a.svg"))
    assert result.exit_code == 2
    assert "a.svg cannot be written: No such file or directory" in result.output


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG\r\n"), ("svg", b"<svg ")])
def test_a_picture_is_drawn_by_matplotlib_and_always_the_same(
    pytestconfig: pytest.Config, tmp_path: Path, suffix: str, start: bytes
) -> None:
    require_matplotlib(pytestconfig)
    files = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for file in files:
        assert run(*QWEN, *SMALL, "--at", "16384,9", "--file", str(file)).exit_code == 0
    assert files[0].read_bytes().startswith(start)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_png_has_numbers_over_all_cells_the_boundary_and_the_chosen_point(pytestconfig: pytest.Config) -> None:
    require_matplotlib(pytestconfig)
    from PIL import Image

    with Image.open(io.BytesIO(run(*QWEN, *SMALL, "--at", "4096,8", "-o", "png").stdout_bytes)) as image:
        drawn = image.convert("RGB")
    fits, no, refused, ring = (170, 223, 185), (244, 176, 168), (209, 217, 224), (9, 105, 218)
    counts = {colour: count for count, colour in drawn.getcolors(1 << 20) or []}
    assert min(counts.get(colour, 0) for colour in (fits, no, refused, ring)) > 500
    width, height = drawn.size
    cells = drawn.crop((width // 4, height // 4, width // 2, height // 2)).getcolors(1 << 20) or []
    assert sum(count for count, colour in cells if max(colour) < 60) > 500


@pytest.mark.parametrize("output", ["png", "svg"])
def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    for module in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    result = run(*QWEN, *SMALL, "-o", output)
    assert result.exit_code == 2
    assert INSTALL.format(extras="plot") in result.output
    assert run(*QWEN, *SMALL, "-o", "html").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--x", "context=1"), "not a setting that can be swept"),
        (("--x", "max_num_seqs=1"), "both axes are max_num_seqs"),
        (("--max-num-seqs", "4"), "max_num_seqs is an axis; leave out --max-num-seqs"),
        (("--at", "4096"), "write two values"),
        (("--at", "4096,x"), "max_num_seqs is 'x'"),
        (("--gpu-memory-utilization", "2"), "--gpu-memory-utilization is '2'"),
    ],
)
def test_a_question_that_cannot_be_asked_is_named(arguments: tuple[str, ...], words: str) -> None:
    result = run(*QWEN, *arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_everything_that_is_wrong_is_told_at_once() -> None:
    axes = ("--x", "max_model_len=a,4K,b", "--y", "max_num_seqs=1,c")
    result = run(*QWEN, *axes, "--at", "x", "--gpu-memory-utilization", "2")
    assert result.exit_code == 2
    told = (
        "max_model_len is 'a'",
        "max_model_len is 'b'",
        "max_num_seqs is 'c'",
        "--at is 'x'",
        "--gpu-memory-utilization is '2'",
    )
    assert [words for words in told if words not in result.output] == []
    result = run(*QWEN, "--at", "a,b")
    assert "max_model_len is 'a'" in result.output
    assert "max_num_seqs is 'b'" in result.output


@pytest.mark.parametrize(
    "arguments", [("--model", "nobody/nothing", "--gpu", "L4"), ("--model", "Qwen/Qwen3-8B", "--gpu", "L9")]
)
def test_what_is_unknown_is_not_drawn(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "is not in the catalogue" in result.output


def test_an_unknown_kind_is_drawn_as_unknown() -> None:
    output = run(
        *QWEN, *SMALL, "--speculative-config", '{"method":"eagle3","model":"nobody/eagle3","num_speculative_tokens":3}'
    ).output
    assert "? unknown" in output

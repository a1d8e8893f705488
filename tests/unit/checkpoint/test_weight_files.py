"""Which files of a repository vLLM loads, and what their indexes say."""

import json
from typing import Any

import pytest

from kvgate.checkpoint.tensors import CheckpointError
from kvgate.checkpoint.weight_files import (
    INDEX,
    WeightFiles,
    index_of,
    is_plain_name,
    read_index,
    weight_files,
    with_index,
)
from support.tables import table

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
MISTRAL = [
    *SHARDS,
    "consolidated.safetensors",
    "params.json",
    INDEX,
    "original/consolidated.00.pth",
    "adapter/x.safetensors",
]


def index(weight_map: Any, **metadata: Any) -> bytes:
    return json.dumps({"metadata": metadata, "weight_map": weight_map}).encode()


def names(found: WeightFiles | None) -> tuple[str, ...]:
    return found.names if found else ()


def test_mistral_files_come_first_since_0_12() -> None:
    assert names(weight_files(MISTRAL)) == ("consolidated.safetensors",)
    assert names(weight_files([*SHARDS, INDEX, "params.json", "adapter/x.safetensors"])) == SHARDS


def test_the_index_leaves_out_the_second_copy() -> None:
    files = weight_files([*SHARDS, INDEX, "model-copy.safetensors"])
    assert files is not None
    assert index_of(files) == INDEX
    read = read_index(index(dict(zip("ab", SHARDS, strict=True)), total_size=14_483_464_192))
    assert with_index(files, read).names == SHARDS
    assert (read.total_bytes, read.num_tensors) == (14_483_464_192, 2)


def test_without_an_index_all_files_are_loaded() -> None:
    files = weight_files([*SHARDS, INDEX, "model-copy.safetensors"])
    assert files is not None
    assert with_index(files, None) == files


def test_files_that_the_index_names_and_nobody_has_are_reported() -> None:
    files = with_index(
        WeightFiles(kind="safetensors", names=SHARDS[:1]), read_index(index(dict(zip("ab", SHARDS, strict=True))))
    )
    assert files.missing == SHARDS[1:]


def test_pickles_count_where_nothing_better_is_there() -> None:
    found = weight_files(["pytorch_model.bin", "training_args.bin", "optimizer.bin", "x.pt"])
    assert found == WeightFiles(kind="bin", names=("pytorch_model.bin",))
    assert index_of(found) == "pytorch_model.bin.index.json"
    assert with_index(found, None) == found
    assert weight_files(["x.pt"]) == WeightFiles(kind="pt", names=("x.pt",))
    assert index_of(WeightFiles(kind="pt", names=("x.pt",))) is None
    assert weight_files(["README.md", "onnx/model.onnx"]) is None


@table("name", ["../x.safetensors", "/etc/passwd", "a/b.bin", "", "a\nb", "a\\b", ".hidden", "a..b", "x" * 300, "é"])
def test_names_that_leave_the_folder_are_no_files(name: str) -> None:
    assert not is_plain_name(name)
    assert weight_files([name]) is None


@table(
    ("data", "problem"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "weight_map is missing"),
        (index({"a": 1}), "weight_map is missing"),
        (index([]), "weight_map is missing"),
        (index({"a": "../../etc/passwd"}), "names '../../etc/passwd', which is no file of this folder"),
        (index({str(i): f"{i}.bin" for i in range(2001)}), "too many files"),
        (b" " * 64_000_001, "an index has at most"),
    ],
)  # fmt: skip
def test_a_damaged_index_is_an_error(data: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read_index(data)


@table(
    ("stated", "total"),
    [(5, 5), (5.0, 5), ("5", 5), ("5.5e3", 0), (-1, 0), (True, 0), (10**16, 0), (None, 0), ("9" * 5000, 0), ([], 0)],
)
def test_a_total_is_read_as_tools_write_it(stated: object, total: int) -> None:
    assert read_index(index({"a": "x.bin"}, total_size=stated)).total_bytes == total

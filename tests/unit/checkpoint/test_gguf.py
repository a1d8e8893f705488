"""Headers of GGUF files, and every way in which they can be wrong."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.checkpoint.gguf import GgufFile, Truncated, joined, read_gguf, split_names
from kvgate.checkpoint.tensors import CheckpointError, StoredTensor
from support.checkpoints import gguf_bytes, qwen3_gguf
from support.tables import table

SMALL = {"general.architecture": "llama", "llama.block_count": 2, "flag": True, "list": [1, 2, 3], "texts": ["a", "b"]}
TENSORS = [("token_embd.weight", "Q4_K", (4, 256)), ("output_norm.weight", "F32", (256,))]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_header_is_read_in_either_byte_order(order: str, version: int) -> None:
    data, size = gguf_bytes(SMALL, TENSORS, order=order, version=version)
    file = read_gguf(data + bytes(1000), file_bytes=size)
    assert file.metadata == {**SMALL, "list": (1, 2, 3), "texts": ("a", "b")}
    assert file.header_bytes == len(data)
    assert file.tensors == tuple(StoredTensor(name=name, dtype=dtype, shape=shape) for name, dtype, shape in TENSORS)
    assert file.architecture == "llama"


def test_long_lists_and_texts_are_counted_and_dropped() -> None:
    metadata, entries = qwen3_gguf()
    file = read_gguf(gguf_bytes({**metadata, "numbers": list(range(5000))}, entries)[0])
    assert file.lengths == {"tokenizer.ggml.tokens": 5120, "numbers": 5000}
    assert "tokenizer.chat_template" not in file.metadata


def test_a_header_cut_at_any_byte_asks_for_more() -> None:
    data, _ = gguf_bytes(SMALL, TENSORS)
    for length in range(len(data)):
        with pytest.raises(Truncated, match=f"ends after {length} bytes"):
            read_gguf(data[:length])


def word(form: str, *values: object) -> bytes:
    return struct.pack(f"<{form}", *values)


HEAD = b"GGUF" + word("I", 3)
KEY = word("Q", 1) + b"k"
ONE_KEY = HEAD + word("QQ", 0, 1) + KEY


def tensor(name: bytes = b"t", sizes: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    dimensions = word(f"I{len(sizes)}Q", len(sizes), *sizes)
    return HEAD + word("QQ", 1, 0) + word("Q", len(name)) + name + dimensions + word("IQ", kind, offset)


@table(
    ("data", "problem"),
    [
        (b"\x93NUMPY" + bytes(40), "does not begin with GGUF"),
        (b"GGUF" + word("I", 1) + bytes(40), "version 1"),
        (b"GGUF" + word("I", 77) + bytes(40), "version 77"),
        (HEAD + word("QQ", 1 << 63, 0), "states 9223372036854775808 tensors"),
        (HEAD + word("QQ", 0, 1 << 63), "9223372036854775808 keys"),
        (HEAD + word("QQ", 0, 1) + word("Q", 1 << 60), "more than 64000000 bytes"),
        (ONE_KEY + word("I", 99), "a value of type 99"),
        (ONE_KEY + word("IIQ", 9, 9, 1), "a list of lists"),
        (ONE_KEY + word("IIQ", 9, 4, 1 << 60), "of 1152921504606846976 entries"),
        (ONE_KEY + word("IIQ", 9, 99, 1) + bytes(8), "a value of type 99"),
        (ONE_KEY + word("IQ", 8, 2) + b"\xff\xff", "not Unicode"),
        (HEAD + word("QQ", 0, 1) + word("Q", 2) + b"\n\x1b", "a key before byte"),
        (HEAD + word("QQ", 0, 1) + word("Q", 600) + b"k" * 600, "a key before byte"),
        (HEAD + word("QQ", 0, 2) + (KEY + word("IB", 7, 1)) * 2, "stands twice"),
        (tensor(name=b"x" * 600), "whose name is too long"),
        (tensor(name=b"a{}b"), "signs that no name has"),
        (tensor(sizes=(1,) * 5), "has 5 dimensions"),
        (tensor(kind=99), "the ggml type 99"),
        (tensor(kind=4), "the ggml type 4"),
        (tensor(kind=12, sizes=(100,)), "rows of 100 elements, which Q4_K cannot store"),
        (tensor(sizes=(1 << 50,)), "rows of 1125899906842624 elements"),
        (tensor(offset=5), "begins at byte 5"),
        (gguf_bytes({"general.alignment": 7}, [])[0], "general.alignment is 7"),
        (gguf_bytes({"general.alignment": "x" * 100}, [])[0], "general.alignment is x"),
        (gguf_bytes({"general.alignment": True}, [])[0], "general.alignment is True"),
    ],
)
def test_a_damaged_header_names_what_is_wrong(data: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as error:
        read_gguf(data)
    assert not isinstance(error.value, Truncated)


def test_tensors_that_overlap_are_an_error() -> None:
    data = gguf_bytes({}, TENSORS)[0]
    with pytest.raises(CheckpointError, match="begins at byte 0, in the one before it"):
        read_gguf(data[:-8] + word("Q", 0))


def test_a_truncated_file_is_an_error() -> None:
    data, size = gguf_bytes({}, TENSORS)
    read_gguf(data, file_bytes=size)
    with pytest.raises(CheckpointError, match="it is truncated"):
        read_gguf(data, file_bytes=size - 500)


@settings(max_examples=300)
@given(st.binary(max_size=40), st.integers(0, 300))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int) -> None:
    data, _ = gguf_bytes(SMALL, TENSORS)
    with suppress(CheckpointError):
        read_gguf(data[:at] + noise + data[at + len(noise) :])


def test_the_files_of_a_split_are_named() -> None:
    assert split_names("UD/m-Q4-00002-of-00003.gguf") == tuple(f"UD/m-Q4-0000{i}-of-00003.gguf" for i in (1, 2, 3))
    assert split_names("m-01-of-02.gguf") == ("m-01-of-02.gguf", "m-02-of-02.gguf")
    assert split_names("m.gguf") == ("m.gguf",)
    assert split_names("m-1-of-99999999.gguf") == ("m-1-of-99999999.gguf",)


def part(number: int, **metadata: object) -> GgufFile:
    return read_gguf(gguf_bytes({"split.no": number, "split.count": 2, **metadata}, [(f"t{number}", "F32", (4,))])[0])


def test_the_files_of_a_split_become_one() -> None:
    first = part(0, **{"general.architecture": "llama", "split.tensors.count": 2})
    whole = joined([first, part(1)])
    assert [each.name for each in whole.tensors] == ["t0", "t1"]
    assert whole.architecture == "llama"
    with pytest.raises(CheckpointError, match="one of 2 files with 2 tensors, and 1 with 1 are here"):
        joined([first])

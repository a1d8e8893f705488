"""Headers of safetensors files: what they say, and every way in which they can be wrong."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.checkpoint.tensors import MAX_HEADER_BYTES, CheckpointError, header_bytes, read_header
from support.checkpoints import awq, header_of, new_tensors
from support.tables import table

TENSORS = new_tensors([*awq("model.layers.0.mlp.up_proj", 256, 128), ("scalar", "F32", ()), ("empty", "BF16", (0, 4))])


def entry(begin: object = 0, end: object = 4, dtype: object = "F32", shape: object = (1,)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_header_gives_names_dtypes_and_shapes() -> None:
    header, size = header_of(TENSORS, metadata={"format": "pt"})
    assert sorted(read_header(header, file_bytes=size), key=str) == sorted(TENSORS, key=str)
    assert header_bytes(len(header).to_bytes(8, "little") + header[:3]) == len(header)


def test_a_header_may_be_padded_with_spaces() -> None:
    header, size = header_of(TENSORS)
    assert len(read_header(header + b"   ", file_bytes=size + 3)) == len(TENSORS)


def test_the_bytes_are_those_of_the_package_that_writes_them() -> None:
    """`safetensors.numpy.save({"b": float16[2, 3], "a": int8[4]})` of safetensors 0.8, up to the data."""
    written = b'{"b":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},"a":{"dtype":"I8","shape":[4],"data_offsets":[12,16]}}'
    assert [(each.name, each.size_bytes) for each in read_header(written, file_bytes=8 + len(written) + 16)] == [
        ("b", 12),
        ("a", 4),
    ]


@pytest.mark.parametrize("length", [0, 1, MAX_HEADER_BYTES + 1, 2**64 - 1])
def test_a_length_that_no_file_has_is_an_error(length: int) -> None:
    with pytest.raises(CheckpointError, match=f"a header of {length} bytes"):
        header_bytes(length.to_bytes(8, "little"))


@pytest.mark.parametrize("beginning", [b"", b"1234567"])
def test_a_file_without_a_length_is_an_error(beginning: bytes) -> None:
    with pytest.raises(CheckpointError, match=f"it has {len(beginning)} bytes"):
        header_bytes(beginning)


@table(
    ("header", "problem"),
    [
        (b"[]", "no JSON object"),
        (b"null", "no JSON object"),
        (b"", "no JSON object"),
        (b"\xff\xfe{}", "no JSON object"),
        (b'{"\\ud800": 1}', "no JSON object"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "no JSON object"),
        (b'{"a": {"x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}}", "no JSON object"),
        (json.dumps({"a": 1}).encode(), "'a' has no dtype, shape and data_offsets"),
        (json.dumps({"a": entry(shape=[1.5])}).encode(), "'a' has no dtype"),
        (json.dumps({"a": entry(0, 1 << 200)}).encode(), "no JSON object|'a' has no dtype|takes the bytes"),
        (json.dumps({"a": entry(-4, 0)}).encode(), "takes the bytes -4 to 0"),
        (json.dumps({"a": entry(4, 0)}).encode(), "takes the bytes 4 to 0"),
        (json.dumps({"a": entry(0, 8)}).encode(), r"F32 of shape \[1\] does not"),
        (json.dumps({"a": entry(shape=[-1])}).encode(), "a shape that no tensor has"),
        (json.dumps({"a": entry(shape=[1] * 20)}).encode(), "a shape that no tensor has"),
        (json.dumps({"a": entry(shape=[1 << 60, 1 << 60])}).encode(), "a shape that no tensor has"),
        (json.dumps({"a": entry(dtype="F3")}).encode(), "the dtype 'F3'"),
        (json.dumps({"a": entry(dtype="Q4_K")}).encode(), "the dtype 'Q4_K'"),
        (json.dumps({"a" * 600: entry()}).encode(), "a name of 600 characters"),
        (json.dumps({"a\n\x1b[31m": entry()}).encode(), "signs that no name has"),
        (json.dumps({"a": entry(), "b": entry()}).encode(), "begins at byte 0 and overlaps"),
        (json.dumps({"a": entry(), "b": entry(8, 12)}).encode(), "begins at byte 8 and leaves a gap"),
        (json.dumps({"b": entry(4, 8)}).encode(), "begins at byte 4 and leaves a gap"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', "twice"),
        (b'{"a":0,' * 4_000_000 + b'"b":0}', "more than 400000 tensors"),
    ],
)  # fmt: skip
def test_a_damaged_header_names_what_is_wrong(header: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read_header(header)


def test_problems_are_reported_together_but_not_by_the_thousand() -> None:
    header = json.dumps({f"t{i}": entry(dtype="F3") for i in range(1000)}).encode()
    with pytest.raises(CheckpointError) as error:
        read_header(header)
    assert len(error.value.problems) == 6
    assert error.value.problems[-1] == "995 more problems"


@pytest.mark.parametrize("difference", [-1, 1, -100, 10**9])
def test_a_file_of_another_size_is_an_error(difference: int) -> None:
    header, size = header_of(TENSORS)
    with pytest.raises(CheckpointError, match="it is truncated, or has a tail"):
        read_header(header, file_bytes=size + difference)


def test_a_header_cut_at_any_byte_is_an_error() -> None:
    header, _ = header_of(TENSORS)
    for length in range(len(header)):
        with pytest.raises(CheckpointError):
            read_header(header[:length])


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 400))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int) -> None:
    header, _ = header_of(TENSORS)
    damaged = header[:at] + noise + header[at + len(noise) :]
    with suppress(CheckpointError):
        read_header(damaged)

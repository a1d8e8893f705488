"""Tensors are folded into groups, and nothing is lost."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvgate.checkpoint.tensors import (
    DTYPES,
    MAX_GROUPS,
    CheckpointError,
    StoredTensor,
    TensorGroup,
    bytes_of,
    check_summary,
    summarize,
)
from support.checkpoints import deepseek_v3, llama, new_tensors
from support.tables import table


def names_of(groups: tuple[TensorGroup, ...]) -> list[str]:
    names = []
    for group in groups:
        found = [group.name]
        for index in range(len(group.numbers)):
            found = [name.replace("{}", str(number), 1) for name in found for number in group.at(index)]
        names += found
    return sorted(names)


@pytest.mark.slow
def test_deepseek_v3_takes_six_kilobytes_and_keeps_every_byte() -> None:
    tensors = deepseek_v3()
    groups = summarize(tensors)
    assert len(tensors) == 91_991
    assert len(msgspec.json.encode(groups)) < 6_000
    assert sum(group.count for group in groups) == len(tensors)
    # `metadata.total_size` of the published index is 688,586,727,753: these and the routers' scalars, counted by the tool that wrote it
    assert sum(group.size_bytes for group in groups) == sum(tensor.size_bytes for tensor in tensors) == 688_574_839_360
    assert names_of(groups) == sorted(tensor.name for tensor in tensors)


def test_a_dense_model_takes_two_kilobytes() -> None:
    assert len(msgspec.json.encode(llama())) < 2_000


def test_layers_that_differ_become_groups_of_their_own() -> None:
    groups = summarize(new_tensors([(f"layers.{i}.w", "BF16" if i in (0, 1, 5) else "F32", (2, 2)) for i in range(8)]))
    assert [(group.dtype, group.numbers, group.count, group.size_bytes) for group in groups] == [
        ("BF16", ("0-1,5",), 3, 24),
        ("F32", ("2-4,6-7",), 5, 80),
    ]


def test_names_are_folded_as_products() -> None:
    at = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)]
    groups = summarize(new_tensors([(f"layers.{i}.experts.{j}.w", "U8", (1,)) for i, j in at]))
    assert [group.numbers for group in groups] == [("0-1", "0-1"), ("2", "1")]


@given(
    st.sets(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["w", "b", "007", "-1", "1.5"])), max_size=60
    )
)
def test_no_name_is_lost_and_none_is_added(found: set[tuple[int, int, str]]) -> None:
    tensors = new_tensors([(f"a.{i}.b.{j}.{end}", "BF16", (4,)) for i, j, end in found])
    groups = summarize(tensors)
    assert names_of(groups) == sorted(tensor.name for tensor in tensors)
    check_summary(groups)


def test_a_name_that_stands_twice_is_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"'a\.1\.w' stands twice"):
        summarize(new_tensors([("a.1.w", "U8", (1,)), ("a.1.w", "U8", (2,))]))


def test_names_that_cannot_be_folded_are_an_error() -> None:
    with pytest.raises(CheckpointError, match="more than 2048 kinds"):
        summarize(StoredTensor(name=f"w{i}", dtype="U8", shape=(1,)) for i in range(MAX_GROUPS + 1))


def test_sizes_of_blocks() -> None:
    assert bytes_of("F4", (128, 64)) == 4096
    assert bytes_of("Q4_K", (2, 256)) == 288
    assert bytes_of("BF16", ()) == 2
    assert all(elements >= 1 and size >= 1 for elements, size in DTYPES.values())


GROUP = summarize(new_tensors([("layers.0.w", "BF16", (2, 2)), ("layers.1.w", "BF16", (2, 2))]))[0]


@table(
    ("change", "problem"),
    [
        ({"name": "layers.w"}, "needs numbers for each of its {}"),
        ({"numbers": ()}, "needs numbers for each of its {}"),
        ({"name": "x" * 600, "numbers": ()}, "needs numbers"),
        ({"dtype": "F3"}, "has the dtype 'F3'"),
        ({"shape": (-1, 2)}, "has a shape that no tensor has"),
        ({"shape": (1,) * 9}, "has a shape that no tensor has"),
        ({"numbers": ("1-0",)}, "has the numbers '1-0'"),
        ({"numbers": ("0-99999999999",)}, "has the numbers"),
        ({"numbers": ("0,0",)}, "has the numbers"),
        ({"numbers": ("0-1," * 20_000,)}, "has the numbers"),
        ({"numbers": ("٣",)}, "has the numbers"),
        ({"count": 3}, "count or size that its numbers and its shape do not give"),
        ({"size_bytes": 1}, "count or size that its numbers and its shape do not give"),
    ],
)
def test_an_edited_summary_is_an_error(change: dict[str, object], problem: str) -> None:
    check_summary((GROUP,))
    with pytest.raises(CheckpointError, match=problem):
        check_summary((replace(GROUP, **change),))


def test_a_summary_has_an_end() -> None:
    with pytest.raises(CheckpointError, match="the limit is 2048"):
        check_summary((GROUP,) * (MAX_GROUPS + 1))
    huge = summarize(new_tensors([(f"a.{i}.w", "U8", (1,)) for i in range(1000)]))[0]
    with pytest.raises(CheckpointError, match="more than 400000 tensors"):
        check_summary((huge,) * 401)

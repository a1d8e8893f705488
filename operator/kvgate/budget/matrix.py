"""Weights as vLLM's model classes declare them: matrices and vectors, and how ranks share them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from math import gcd
from typing import Literal

from kvgate.budget.units import cdiv
from kvgate.record import record

FormatName = Literal[
    "fp8-block", "fp8-tensor", "fp8-channel", "mxfp8", "nvfp4", "nvfp4-weights", "mxfp4",
    "int4-awq", "int4-gptq", "int8-gptq", "int4-packed", "int8-packed", "int8-channel", "nf4",
]  # fmt: skip
MX_GROUP = 32
"""Input features that share an e8m0 exponent of one byte in MXFP4 and MXFP8."""
NF4_GROUP, NF4_GROUPS_PER_SCALE = 64, 256
"""Elements of a bitsandbytes block, and blocks whose scales share a second scale (double quantisation)."""


@record
class WeightFormat:
    """The storage of quantised linear layers; everything else keeps the model dtype."""

    method: str
    """vLLM's name: `fp8`, `awq`, `gptq`, `compressed-tensors`, `modelopt` …"""
    format: FormatName
    group_size: int = 0
    """Input features that share a scale; 0: one scale for all of them."""
    block: tuple[int, int] = (0, 0)
    """Rows and columns of an fp8 block."""
    scale_bytes: int = 4
    """Bytes of an fp8 block's scale: 1 where the checkpoint keeps exponents only (DeepSeek-V4)."""
    static_activation_scale: bool = False
    has_zero_points: bool = False
    double_quantized: bool = False
    """The scales of nf4 blocks are quantised too."""
    converts_while_loading: bool = False
    """The checkpoint is plain: the matrix is built in the model dtype, and converted when it is loaded."""


@record
class LocalMatrix:
    """A matrix as one rank holds it."""

    parts: tuple[int, ...]
    """Output features of each logical matrix fused into it (q, k and v)."""
    columns: int
    """Input features."""
    element_bytes: int
    """Bytes of an element that is not quantised."""
    expert_width: int = 0
    """Inner width of an expert on this rank; 0: not an expert."""

    @property
    def rows(self) -> int:
        return sum(self.parts)


def stored_tensors(matrix: LocalMatrix, weight_format: WeightFormat | None, *, loaded: bool = True) -> Iterator[int]:
    """Bytes of each tensor that stores the matrix, scales and zero points included: as it was built, or once it is loaded."""
    if weight_format is None or (weight_format.converts_while_loading and not loaded):
        yield matrix.rows * matrix.columns * matrix.element_bytes
    else:
        yield from _TENSORS[weight_format.format](matrix, weight_format)


def mxfp4_multiples(compute_capability: tuple[int, int] | None, *, loaded: bool) -> tuple[int, int]:
    """To what a GPU's kernel rounds the (outer, inner) width of MXFP4 experts.

    vLLM 0.32, `mxfp4_round_up_hidden_size_and_intermediate_size`: Marlin pads both before it loads; Triton (9.x) only the
    inner one, and its swizzled rows come out wider.
    """
    if compute_capability is not None and compute_capability[0] == 9:
        return (256 if loaded else MX_GROUP), 64
    return 256, 128


def _fp8_block(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    rows, columns = stored.block
    if matrix.expert_width % rows or matrix.expert_width % columns:  # experts cut through their blocks get finer ones
        rows, columns = gcd(matrix.expert_width, rows), gcd(matrix.expert_width, columns)
    yield matrix.rows * matrix.columns
    yield stored.scale_bytes * cdiv(matrix.rows, rows) * cdiv(matrix.columns, columns)


def _fp8_tensor(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """One scale per fused part; the experts' activations share one where there are several."""
    yield matrix.rows * matrix.columns
    yield 4 * len(matrix.parts)
    if stored.static_activation_scale:
        yield 4 * (1 if matrix.expert_width else len(matrix.parts))


def _per_channel(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """8-bit elements, one scale per output channel."""
    yield matrix.rows * matrix.columns
    yield 4 * matrix.rows
    if stored.static_activation_scale:
        yield 4 * len(matrix.parts)


def _mxfp8(matrix: LocalMatrix, _: WeightFormat) -> Iterator[int]:
    yield matrix.rows * matrix.columns
    yield matrix.rows * cdiv(matrix.columns, MX_GROUP)


def _mxfp4(matrix: LocalMatrix, _: WeightFormat) -> Iterator[int]:
    yield matrix.rows * matrix.columns // 2
    yield matrix.rows * cdiv(matrix.columns, MX_GROUP)


def _nvfp4(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """fp8 scales of groups under one float32 scale per fused part; the same number of scales for the activations."""
    parts = len(matrix.parts)
    yield matrix.rows * matrix.columns // 2
    yield matrix.rows * cdiv(matrix.columns, stored.group_size)
    yield 4 * parts
    yield (2 if stored.format == "nvfp4-weights" else 4) * parts


def _awq(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    groups = _groups(matrix, stored)
    yield matrix.rows * matrix.columns // 2
    yield groups * matrix.rows // 2
    yield 2 * groups * matrix.rows


def _gptq(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    bits, groups = _bits(stored), _groups(matrix, stored)
    yield matrix.rows * matrix.columns * bits // 8
    yield groups * matrix.rows * bits // 8
    yield 2 * groups * matrix.rows
    yield 4 * matrix.columns


def _packed(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """compressed-tensors: the shape of the unpacked matrix is kept beside it, an expert's in the model dtype."""
    bits, groups = _bits(stored), _groups(matrix, stored)
    yield matrix.rows * matrix.columns * bits // 8
    yield 2 * groups * matrix.rows
    yield 4 if matrix.expert_width else 16
    if stored.has_zero_points:
        yield groups * matrix.rows * bits // 8


def _nf4(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    elements = matrix.rows * matrix.columns
    blocks = cdiv(elements, NF4_GROUP)
    yield elements // 2
    yield blocks if stored.double_quantized else 4 * blocks
    if stored.double_quantized:
        yield 4 * cdiv(blocks, NF4_GROUPS_PER_SCALE)


def _bits(stored: WeightFormat) -> int:
    return 4 if stored.format.startswith("int4") else 8


def _groups(matrix: LocalMatrix, stored: WeightFormat) -> int:
    return cdiv(matrix.columns, stored.group_size) if stored.group_size else 1


_TENSORS: dict[FormatName, Callable[[LocalMatrix, WeightFormat], Iterator[int]]] = {
    "fp8-block": _fp8_block,
    "fp8-tensor": _fp8_tensor,
    "fp8-channel": _per_channel,
    "mxfp8": _mxfp8,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "nvfp4-weights": _nvfp4,
    "int4-awq": _awq,
    "int4-gptq": _gptq,
    "int8-gptq": _gptq,
    "int4-packed": _packed,
    "int8-packed": _packed,
    "int8-channel": _per_channel,
    "nf4": _nf4,
}
"""Shapes of vLLM 0.32's `create_weights` for each method."""


class Cut(StrEnum):
    """The way in which tensor parallelism cuts a matrix, in the words of vLLM's linear layers."""

    WHOLE = "replicated"
    """Every rank holds all of it (`ReplicatedLinear`, norms, routers)."""
    ROWS = "column parallel"
    """Output features are dealt out (`ColumnParallelLinear`, `QKVParallelLinear`): rows of the weight as it is stored."""
    COLUMNS = "row parallel"
    """Input features are dealt out (`RowParallelLinear`); a bias stays whole."""


@record
class Units:
    """`count` heads, groups or channels of `width` elements; a rank holds its share of them, and never less than `least`."""

    count: int
    width: int = 1
    least: int = 1
    """Least number on a rank; fewer are padded up where a kernel needs that."""

    @property
    def elements(self) -> int:
        """All of them."""
        return self.count * self.width

    def on_rank(self, tensor: int) -> int:
        """Elements on one of `tensor` ranks; fewer units than ranks are replicated (vLLM 0.32, `QKVParallelLinear`)."""
        return max(self.least, self.count // tensor) * self.width


@record
class Matrix:
    """One weight before it is cut; a vector is a matrix of one column."""

    name: str
    """vLLM's name of the module (`qkv_proj`), by which a checkpoint's list of exceptions finds it."""
    rows: tuple[Units, ...]
    """Output features; several where logical matrices are fused into one (q, k and v)."""
    columns: int = 1
    """Input features."""
    cut: Cut = Cut.WHOLE
    experts: int = 0
    """Experts stacked into one tensor: cut like others, or dealt out whole under expert parallelism; 0: not an expert."""
    least_width: int = 0
    """Least width of an expert on a rank: tensor parallelism pads it instead of making it narrower (Kimi)."""
    bias: bool = False
    computes_in_float32: bool = False
    """Kept in float32 on GPUs without a kernel that multiplies bfloat16 into it (routers of Nemotron 3)."""
    element_bytes: int | None = None
    """Its own precision where that is not the model's (float32 routers and states)."""
    format: WeightFormat | None = None
    """Format in which a quantised checkpoint stores it; None: plain elements."""


def whole(matrix: Matrix) -> Matrix:
    """The same on every rank, whatever tensor parallelism does to others (`disable_tp`)."""
    return replace(matrix, cut=Cut.WHOLE)

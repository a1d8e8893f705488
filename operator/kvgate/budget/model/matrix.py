"""Weights as vLLM's model classes declare them, how ranks share them, and the formats in which checkpoints store them."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from math import gcd
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.ground.units import cdiv

FormatName = Literal[
    "fp8-block", "fp8-tensor", "fp8-channel", "mxfp8", "mxfp6", "mxfp4", "nvfp4", "nvfp4-weights",
    "int4-awq", "int8-awq", "int2-gptq", "int3-gptq", "int4-gptq", "int5-gptq", "int6-gptq", "int7-gptq", "int8-gptq",
    "int2-packed", "int3-packed", "int4-packed", "int5-packed", "int6-packed", "int7-packed", "int8-packed",
    "int4-fp8", "int4-bytes", "int8-channel", "int8-tensor", "nf4", "as-stored",
]  # fmt: skip
GGUF_METHOD = "gguf"
"""vLLM's name for the quantisation of GGUF files."""
MX_GROUP = 32
"""Input features that share an e8m0 exponent of one byte in MXFP4 and MXFP8."""
NF4_GROUP, NF4_GROUPS_PER_SCALE = 64, 256
"""Elements of a bitsandbytes block, and blocks whose scales share a second scale (double quantisation)."""


class WeightFormat(Struct, frozen=True, kw_only=True):
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
    """True where the scales of nf4 blocks are quantised too."""
    stored_bytes: int = 0
    """Bytes of the tensors that store the whole matrix, where no formula gives them but their sizes are known (`as-stored`)."""
    stored_elements: int = 1
    """Elements that those bytes store."""
    converts_while_loading: bool = False
    """True for a plain checkpoint: vLLM builds the matrix in the model dtype, and converts it while it loads."""

    @property
    def has_formula(self) -> bool:
        """False where nothing but the bytes is known; of a GGUF file vLLM keeps the blocks as they are (0.22, `GGUFLinearMethod`)."""
        return self.format != "as-stored" or self.method == GGUF_METHOD


class Cut(StrEnum):
    """The way in which tensor parallelism cuts a matrix, in the words of vLLM's linear layers."""

    WHOLE = "replicated"
    """Every rank holds all of it (`ReplicatedLinear`, norms, routers)."""
    ROWS = "column parallel"
    """Each rank holds some output features (`ColumnParallelLinear`, `QKVParallelLinear`): rows of the weight as it is stored."""
    COLUMNS = "row parallel"
    """Each rank holds some input features (`RowParallelLinear`); a bias stays whole."""


class Units(Struct, frozen=True, kw_only=True):
    """`count` heads, groups or channels of `width` elements; a rank holds its share of them, and never less than `least`."""

    count: int
    width: int = 1
    least: int = 1
    """Least number on a rank; fewer are padded where a kernel needs that."""

    @property
    def elements(self) -> int:
        return self.count * self.width

    def on_rank(self, tensor: int) -> int:
        """Elements on one of `tensor` ranks; units are replicated if there are fewer than ranks (vLLM 0.32, `QKVParallelLinear`)."""
        return max(self.least, self.count // tensor) * self.width


class Matrix(Struct, frozen=True, kw_only=True):
    """One weight before it is cut; a vector is a matrix of one column."""

    name: str
    """vLLM's name of the module (`qkv_proj`), by which a checkpoint's list of exceptions finds it."""
    rows: tuple[Units, ...]
    """Output features; several entries where logical matrices are fused into one (q, k and v)."""
    columns: int = 1
    """Input features."""
    cut: Cut = Cut.WHOLE
    experts: int = 0
    """Experts stacked into one tensor; expert parallelism gives each rank whole experts instead of cutting them; 0: not an expert."""
    least_width: int = 0
    """Least width of an expert on a rank: tensor parallelism pads it instead of making it narrower (Kimi)."""
    suits_trtllm: bool = True
    """False for an expert whose activation or routing FlashInfer's TRT-LLM kernels lack, so that other kernels take it unpadded."""
    bias: bool = False
    computes_in_float32: bool = False
    """True for a weight in float32 on GPUs without a kernel that multiplies bfloat16 into it (routers of Nemotron 3)."""
    element_bytes: int | None = None
    """Bytes of an element where they are not the model dtype's (float32 routers and states)."""
    format: WeightFormat | None = None
    """Format in which a quantised checkpoint stores it; None: plain elements."""


def whole(matrix: Matrix) -> Matrix:
    """Return the matrix that every rank holds whole, although tensor parallelism cuts others (`disable_tp`)."""
    return replace(matrix, cut=Cut.WHOLE)


class LocalMatrix(Struct, frozen=True, kw_only=True):
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
    """Bytes of each tensor that stores the matrix, with scales and zero points: after loading, or as the model class builds it."""
    if weight_format is None or (weight_format.converts_while_loading and not loaded):
        yield matrix.rows * matrix.columns * matrix.element_bytes
    elif weight_format.format.endswith("gptq"):
        yield from _with_zero_points(matrix, weight_format)
        if matrix.expert_width and not loaded:
            # a bias of experts that may have one (vLLM 0.32, `AutoGPTQMoEMethod`)
            yield 2 * matrix.rows
    elif weight_format.format == "int4-fp8" and loaded:
        # 4-bit integers that Hopper multiplies with fp8: a scale becomes eight of fp8, and each channel gets one of
        # float32. Source: vLLM 0.32, `CutlassW4A8LinearKernel.process_weights_after_loading`.
        yield matrix.rows * matrix.columns // 2
        yield 8 * _groups(matrix, weight_format) * matrix.rows
        yield 4 * matrix.rows
        yield 4 if matrix.expert_width else 16
    else:
        yield from _TENSORS[weight_format.format](matrix, weight_format)


def mxfp4_multiples(compute_capability: tuple[int, int] | None, *, loaded: bool) -> tuple[int, int]:
    """Return the multiples to which a GPU's kernel rounds the (outer, inner) width of MXFP4 experts.

    vLLM 0.32, `mxfp4_round_up_hidden_size_and_intermediate_size`: Marlin pads both before it loads. Triton (9.x) pads only the
    inner one, and its swizzled rows come out wider.
    """
    if compute_capability is not None and compute_capability[0] == 9:
        return (256 if loaded else MX_GROUP), 64
    return 256, 128


def _fp8_block(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    rows, columns = stored.block
    if (
        matrix.expert_width % rows or matrix.expert_width % columns
    ):  # experts that a cut leaves with part of a block get finer ones
        rows, columns = gcd(matrix.expert_width, rows), gcd(matrix.expert_width, columns)
    yield matrix.rows * matrix.columns
    yield stored.scale_bytes * cdiv(matrix.rows, rows) * cdiv(matrix.columns, columns)


def _fp8_tensor(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """8-bit elements and one scale per fused part; several parts of an expert share one scale of the activations."""
    yield matrix.rows * matrix.columns
    yield 4 * len(matrix.parts)
    if stored.static_activation_scale:
        yield 4 * (1 if matrix.expert_width else len(matrix.parts))


def _per_channel(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """8-bit elements and one scale per output channel; Quark keeps a zero point beside each scale."""
    yield matrix.rows * matrix.columns
    yield 4 * matrix.rows
    if stored.static_activation_scale:
        yield 4 * (len(matrix.parts) if stored.format == "fp8-channel" else 1)
    if stored.method == "fbgemm_fp8":
        yield 4  # the upper bound of the activations
    if stored.has_zero_points:
        yield matrix.rows + (len(matrix.parts) if matrix.expert_width else 0)


def _int8_tensor(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """8-bit integers with one scale per fused part, and one of the activations; Quark keeps zero points beside all of them."""
    parts = len(matrix.parts)
    yield matrix.rows * matrix.columns
    yield 4 * parts
    if stored.static_activation_scale:
        yield 4
    if stored.has_zero_points:
        yield parts + (parts if matrix.expert_width else 1)


def _mx(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """Elements of 4, 6 or 8 bits and one exponent per group; a float32 scale per fused part where activations are scaled statically."""
    yield matrix.rows * matrix.columns * _bits(stored) // 8
    yield matrix.rows * cdiv(matrix.columns, MX_GROUP)
    if stored.static_activation_scale:
        yield 4 * (1 if matrix.expert_width else len(matrix.parts))
    if stored.method == "fp_quant":
        yield from _rotated(stored)


def _rotated(stored: WeightFormat) -> Iterator[int]:
    """FP-Quant: a scale of the weights, one of the activations, and the Hadamard matrix of a block in bfloat16."""
    yield 8
    yield 2 * stored.block[0] * stored.block[1]


def _nvfp4(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """4-bit elements, fp8 scales of groups, and per fused part a float32 scale of the weights and as many of the activations."""
    parts = len(matrix.parts)
    yield matrix.rows * matrix.columns // 2
    yield matrix.rows * cdiv(matrix.columns, stored.group_size)
    if stored.method == "fp_quant":
        yield from _rotated(stored)
        return
    yield 4 * parts
    if stored.format == "nvfp4" or matrix.expert_width:
        yield 4 * parts
    elif stored.method == "modelopt":
        yield 2 * parts


def _with_zero_points(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """AWQ and GPTQ: elements, zero points and scales of groups.

    Widths without a kernel of their own (Humming) also keep the group of each input feature and a counter.
    """
    bits, groups = _bits(stored), _groups(matrix, stored)
    yield matrix.rows * matrix.columns * bits // 8
    yield groups * matrix.rows * bits // 8
    yield 2 * groups * matrix.rows
    if bits not in (4, 8):
        yield 4 * matrix.columns + 8


def _bytes(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """Integers of 4 bits in a byte each, and scales in the model dtype."""
    yield matrix.rows * matrix.columns
    yield 2 * _groups(matrix, stored) * matrix.rows


def _packed(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """compressed-tensors: the shape of the unpacked matrix is kept beside it, an expert's shape in the model dtype."""
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


def _as_stored(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """The rank's share of the bytes that the checkpoint has for the whole matrix."""
    yield cdiv(matrix.rows * matrix.columns * stored.stored_bytes, stored.stored_elements)


def _bits(stored: WeightFormat) -> int:
    """Return the bits of an element, which stand in the name of the format."""
    return int(stored.format.removeprefix("int").removeprefix("mxfp")[0])


def _groups(matrix: LocalMatrix, stored: WeightFormat) -> int:
    return cdiv(matrix.columns, stored.group_size) if stored.group_size else 1


_TENSORS: dict[FormatName, Callable[[LocalMatrix, WeightFormat], Iterator[int]]] = {
    "fp8-block": _fp8_block,
    "fp8-tensor": _fp8_tensor,
    "fp8-channel": _per_channel,
    "mxfp8": _mx,
    "mxfp6": _mx,
    "mxfp4": _mx,
    "nvfp4": _nvfp4,
    "nvfp4-weights": _nvfp4,
    "int4-awq": _with_zero_points,
    "int8-awq": _with_zero_points,
    "int2-packed": _packed,
    "int3-packed": _packed,
    "int4-packed": _packed,
    "int5-packed": _packed,
    "int6-packed": _packed,
    "int7-packed": _packed,
    "int8-packed": _packed,
    "int4-fp8": _packed,
    "int4-bytes": _bytes,
    "int8-channel": _per_channel,
    "int8-tensor": _int8_tensor,
    "nf4": _nf4,
    "as-stored": _as_stored,
}
"""Shapes of vLLM 0.32's `create_weights` for each method; GPTQ's are in `_gptq`."""

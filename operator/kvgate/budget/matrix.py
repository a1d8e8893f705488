"""Weights as vLLM's model classes declare them: matrices and vectors, and how ranks share them."""

from dataclasses import replace
from enum import StrEnum

from kvgate.budget.weight_format import WeightFormat
from kvgate.record import record


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

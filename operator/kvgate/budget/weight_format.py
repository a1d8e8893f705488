"""How a quantised checkpoint stores a matrix: the tensors of each format."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvgate.budget.units import cdiv


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFormat:
    """The storage of quantised linear layers; everything else keeps the model dtype."""

    method: str
    """vLLM's name: `fp8`, `awq`, `gptq`, `compressed-tensors`, `modelopt` …"""
    format: Literal["fp8-block", "fp8-tensor", "fp8-channel", "int4-awq", "int4-gptq", "int4-packed", "int8-gptq"]
    group_size: int = 0
    """Input features that share a scale; 0: one scale for all of them."""
    block: tuple[int, int] = (0, 0)
    """Rows and columns of an fp8 block."""
    static_activation_scale: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalMatrix:
    """A matrix as one rank holds it."""

    parts: tuple[int, ...]
    """Output features of each logical matrix fused into it (q, k and v)."""
    columns: int
    """Input features."""
    element_bytes: int
    """Of an element that is not quantised."""

    @property
    def rows(self) -> int:
        return sum(self.parts)


def stored_tensors(matrix: LocalMatrix, weight_format: WeightFormat | None) -> Iterator[int]:
    """Bytes of each tensor that stores the matrix: weight, scales, zero points."""
    if weight_format is None:
        yield matrix.rows * matrix.columns * matrix.element_bytes
    else:
        yield from _packed_tensors(matrix, weight_format)


def _packed_tensors(matrix: LocalMatrix, stored: WeightFormat) -> Iterator[int]:
    """Shapes of vLLM 0.32's `create_weights` for each method."""
    rows, columns = matrix.rows, matrix.columns
    groups = cdiv(columns, stored.group_size) if stored.group_size else 1
    match stored.format:
        case "fp8-block":
            yield rows * columns
            yield 4 * cdiv(rows, stored.block[0]) * cdiv(columns, stored.block[1])
        case "fp8-tensor":
            yield rows * columns
            yield 4 * len(matrix.parts) * (2 if stored.static_activation_scale else 1)
        case "fp8-channel":
            yield rows * columns
            yield 4 * rows
        case "int4-awq":
            yield rows * columns // 2
            yield groups * rows // 2
            yield 2 * groups * rows
        case "int4-gptq" | "int8-gptq":
            bits = 4 if stored.format == "int4-gptq" else 8
            yield rows * columns * bits // 8
            yield groups * rows * bits // 8
            yield 2 * groups * rows
            yield 4 * columns
        case "int4-packed":
            yield rows * columns // 2
            yield 2 * groups * rows

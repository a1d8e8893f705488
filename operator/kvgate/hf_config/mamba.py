"""Mamba mixers: their weights as vLLM 0.32 declares them (`MambaMixer`, `MambaMixer2`), and what they cache."""

from collections.abc import Iterator

from kvgate.budget.matrix import Cut, Matrix, Units
from kvgate.budget.model_shape import RecurrentState
from kvgate.hf_config.blocks import column_parallel, cut_vector, row_parallel, vector
from kvgate.hf_config.mixed import Part
from kvgate.record import record


@record
class Mamba1:
    """Dimensions of a Mamba1 mixer."""

    inner_size: int
    state_size: int
    dt_rank: int
    conv_kernel: int
    conv_bias: bool
    bias: bool
    norms: bool = False
    """Learned norms of the step size and of B and C (Jamba)."""


def mamba1(dims: Mamba1, hidden_size: int) -> Part:
    """A state of `state_size` numbers per channel."""
    channels = Units(count=dims.inner_size)
    mixer = RecurrentState(
        kind="Mamba1",
        conv=(channels,),
        conv_taps=dims.conv_kernel - 1,
        state=Units(count=dims.inner_size, width=dims.state_size),
    )
    return mixer, tuple(_mamba1_matrices(dims, channels, hidden_size))


def _mamba1_matrices(dims: Mamba1, channels: Units, hidden_size: int) -> Iterator[Matrix]:
    yield column_parallel("in_proj", channels, channels, columns=hidden_size, bias=dims.bias)
    yield column_parallel("conv1d", channels, columns=dims.conv_kernel, bias=dims.conv_bias)
    yield row_parallel("x_proj", dims.dt_rank + 2 * dims.state_size, columns=dims.inner_size)
    yield column_parallel("dt_proj", channels, columns=dims.dt_rank, bias=True)
    yield Matrix(name="A", rows=(channels,), columns=dims.state_size, cut=Cut.ROWS, element_bytes=4)
    yield cut_vector("D", channels)
    if dims.norms:
        yield vector("mixer_norms", dims.dt_rank + 2 * dims.state_size)
    yield row_parallel("out_proj", hidden_size, columns=dims.inner_size, bias=dims.bias)


@record
class Mamba2:
    """Dimensions of a Mamba2 mixer."""

    num_heads: int
    head_dim: int
    n_groups: int
    state_size: int
    conv_kernel: int
    conv_bias: bool
    bias: bool
    has_norm: bool = True
    """A gated norm before the output projection."""
    state_dtype: str | None = None


def mamba2(dims: Mamba2, hidden_size: int) -> Part:
    """A state of head_dim × state_size numbers per head; B and C are shared by the heads of a group."""
    inner = Units(count=dims.num_heads, width=dims.head_dim)
    groups = Units(count=dims.n_groups, width=dims.state_size)
    mixer = RecurrentState(
        kind="Mamba2",
        conv=(inner, groups, groups),
        conv_taps=dims.conv_kernel - 1,
        state=Units(count=dims.num_heads, width=dims.head_dim * dims.state_size),
        state_dtype=dims.state_dtype,
        keeps_checkpoint=True,
    )
    return mixer, tuple(_mamba2_matrices(dims, inner, groups, hidden_size))


def _mamba2_matrices(dims: Mamba2, inner: Units, groups: Units, hidden_size: int) -> Iterator[Matrix]:
    heads = Units(count=dims.num_heads)
    yield column_parallel("in_proj", inner, inner, groups, groups, heads, columns=hidden_size, bias=dims.bias)
    yield column_parallel("conv1d", inner, groups, groups, columns=dims.conv_kernel, bias=dims.conv_bias)
    yield cut_vector("A", heads, element_bytes=4)
    yield cut_vector("D", heads)
    yield cut_vector("dt_bias", heads)
    if dims.has_norm:
        yield cut_vector("mixer_norm", inner)
    yield row_parallel("out_proj", hidden_size, columns=inner.elements, bias=dims.bias)

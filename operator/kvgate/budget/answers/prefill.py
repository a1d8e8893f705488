"""A lower bound of the time to the first token: a prompt's tokens are multiplied with the weights, and the GPUs cannot do that faster.

seconds ≥ 2 × parameters that a token meets × tokens of the prompt ÷ (peak FLOPS of a GPU × GPUs that share the request).
Two operations per parameter and token: Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1. Attention between the
tokens, the output head, encoders, transfers between GPUs and waiting are left out: they only make an engine slower.
"""

from msgspec import Struct

from kvgate.budget.answers.answer import Budget
from kvgate.budget.model.matrix import Matrix
from kvgate.budget.model.shape import LayerShape, SparseMlp, distinct_layers

_IN_16_BITS = ("-awq", "-gptq", "-packed", "-bytes", "nf4", "nvfp4-weights")
"""Ends of the names of formats whose elements become 16 bits before they are multiplied."""


class PrefillBound(Struct, frozen=True, kw_only=True):
    """The least time for a prompt that is not in the cache; a real engine stays above it."""

    prompt_tokens: int
    parameters: int
    """Parameters that each token meets: all of the layers, and of the experts those that one token takes."""
    peak_flops: int
    """Peak of one GPU, in the format that the weights are multiplied in."""
    num_gpus: int
    """GPUs that share the request."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens that the engine may compute in a second, at most."""
        return self.peak_flops * self.num_gpus / (2 * self.parameters)

    @property
    def seconds(self) -> float:
        return self.prompt_tokens / self.tokens_per_second


def prefill_bound(budget: Budget, prompt_tokens: int) -> PrefillBound | None:
    """Return the bound; None where the peak of the GPU, a formula of the model, or the format of the arithmetic is not known."""
    request = budget.request
    peak, shape = _peak_flops(budget), request.shape
    if peak is None or budget.unmodelled or not budget.stages:
        return None
    layers = distinct_layers(shape, 0, len(shape.layers))
    parameters = sum(count * _parameters(layer) for layer, count in layers)
    if not parameters:
        return None
    gpus = request.settings.parallelism.num_gpus  # data-parallel ranks too: the experts lie on all of them
    return PrefillBound(prompt_tokens=prompt_tokens, parameters=parameters, peak_flops=peak, num_gpus=gpus)


def _parameters(layer: LayerShape) -> int:
    """Parameters of a layer that are multiplied with each token; vectors are left out."""
    mlp = next((mlp for mlp in layer.mlps if isinstance(mlp, SparseMlp)), None)
    taken = mlp.num_experts_per_token if mlp else 0
    return sum(_elements(each) * (taken if each.experts else 1) for each in layer.matrices if each.columns > 1)


def _elements(matrix: Matrix) -> int:
    return sum(part.elements for part in matrix.rows) * matrix.columns


def _peak_flops(budget: Budget) -> int | None:
    """Return the peak of the fastest format that a matrix is multiplied in; a board without fp8 turns it into 16 bits."""
    accelerator, shape = budget.request.accelerator, budget.request.shape
    peaks = {accelerator.peak_bf16_flops}
    formats = {each.format.format for layer in shape.layers for each in layer.matrices if each.format}
    for name in formats:
        if name.startswith("fp8-"):
            peaks.add(accelerator.peak_fp8_flops or accelerator.peak_bf16_flops)
        elif not name.endswith(_IN_16_BITS):
            return None
    return None if None in peaks else max(filter(None, peaks))

"""The textbook's bytes of a request beside vLLM's.

Textbook: 2 × layers × KV heads × head size × bytes per element × tokens, divided by the tensor-parallel ranks.
"""

from fractions import Fraction

from kvgate.budget.model_shape import CompressedAttention, FullAttention, LatentAttention, Mixer
from kvgate.budget.plan import Budget
from kvgate.budget.textbook_reasons import reasons_against
from kvgate.budget.units import format_gib
from kvgate.record import record


@record
class Textbook:
    """The formula with a model's numbers, on one rank."""

    num_layers: int
    """Layers of the largest pipeline stage."""
    num_kv_heads: int
    head_dim: int
    bytes_per_element: Fraction
    num_tokens: int
    tensor: int
    reasons: tuple[str, ...]
    """Reasons why the formula does not hold; empty where it does, except for whole blocks."""

    @property
    def request_bytes(self) -> int:
        """Bytes of a request by the formula."""
        elements = 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.num_tokens
        return int(elements * self.bytes_per_element / self.tensor)

    @property
    def formula(self) -> str:
        """The formula with its numbers."""
        size = self.bytes_per_element
        element = "1 byte" if size == 1 else f"{float(size):g} bytes"
        heads = "1 KV head" if self.num_kv_heads == 1 else f"{self.num_kv_heads} KV heads"
        ranks = f" / {self.tensor} ranks" if self.tensor > 1 else ""
        return f"2 × {self.num_layers} layers × {heads} × {self.head_dim} × {element} × {self.num_tokens} tokens{ranks}"

    def comparison(self, request_bytes: int) -> str:
        """Both figures of one request."""
        textbook = f"the textbook's {self.formula} is {format_gib(self.request_bytes)}"
        if not self.reasons:
            return f"{textbook}; vLLM rounds it up to whole blocks"
        return f"{textbook}; vLLM takes {format_gib(request_bytes)}"


def textbook_of(budget: Budget) -> Textbook | None:
    """None for a model without attention, or without a formula."""
    heads = next(filter(None, map(_heads, budget.request.shape.mixers)), None)
    if budget.kv_cache is None or heads is None:
        return None
    stages = [stage.last - stage.first for stage in budget.stages]
    return Textbook(
        num_layers=max(stages, default=len(budget.request.shape.layers)),
        num_kv_heads=heads[0],
        head_dim=heads[1],
        bytes_per_element=budget.kv_cache.dtype.bytes_per_element,
        num_tokens=budget.settings.max_model_len,
        tensor=budget.request.settings.parallelism.tensor,
        reasons=tuple(reasons_against(budget, budget.kv_cache, heads)),
    )


def _heads(mixer: Mixer) -> tuple[int, int] | None:
    """(KV heads, head size) as the textbook takes them; MLA's are all heads at the width of their keys."""
    if isinstance(mixer, FullAttention):
        return mixer.num_kv_heads, mixer.head_dim
    if isinstance(mixer, LatentAttention):
        return mixer.num_heads, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    return (1, mixer.head_dim) if isinstance(mixer, CompressedAttention) else None

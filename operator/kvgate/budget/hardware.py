"""Parallel sizes by which a model is cut over ranks."""

from kvgate.record import record


@record
class Parallelism:
    """Sizes of the parallel groups of one engine."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False
    """Experts are dealt out whole over tensor × data ranks instead of being cut."""
    decode_context: int = 1
    """Tensor ranks that deal out a request's cache: no GPUs of their own."""
    prefill_context: int = 1
    """Ranks that share a prompt, each with GPUs of its own (vLLM 0.33, `ParallelConfig.world_size`)."""

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline * self.prefill_context * self.data

    @property
    def num_expert_ranks(self) -> int:
        """Ranks that share the experts of a layer when they are dealt out whole."""
        return self.tensor * self.data if self.expert else 1

    def num_experts_per_rank(self, num_experts: int) -> int:
        """Experts that the fullest rank holds: the first E mod ranks hold one more (vLLM 0.32, `determine_expert_map`)."""
        return -(-num_experts // self.num_expert_ranks)


SINGLE_GPU = Parallelism()
"""One rank that holds everything."""


def stage_sizes(num_layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each pipeline stage (vLLM 0.32, `get_pp_indices`).

    The remainder goes one each to stages counted from the last but one backwards: the last has the head to carry.
    """
    sizes = [num_layers // pipeline] * pipeline
    for i in range(num_layers % pipeline):
        sizes[-(2 + i) % pipeline] += 1
    return tuple(sizes)


def local_heads(num_heads: int, tensor: int) -> int:
    """KV heads of a rank; beyond the number of heads they are replicated (vLLM 0.32, `get_num_kv_heads`)."""
    return max(1, num_heads // tensor)

"""The ledger of one rank: total → requested → weights, activation, non-torch, CUDA graphs → what the KV cache gets."""

from dataclasses import dataclass

from kvgate.budget.interval import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """Bytes of one GPU; vLLM 0.32, `Worker.determine_available_memory`."""

    total_bytes: int
    requested_bytes: int
    """total × gpu_memory_utilization."""
    weights: Interval
    parameter_bytes: int | None
    """Plain sum of the rank's parameters; None where the weight bytes were given."""
    peak_activation: Interval
    non_torch: Interval
    cuda_graphs: Interval
    uncertainty_bytes: int = 0
    """Half width that no term explains: drivers, an untried release, memory shared with the CPU."""

    @property
    def terms(self) -> tuple[tuple[str, Interval], ...]:
        """What is taken away, in the order in which vLLM takes it."""
        return (
            ("weights", self.weights),
            ("peak_activation", self.peak_activation),
            ("non_torch", self.non_torch),
            ("cuda_graph", self.cuda_graphs),
        )

    @property
    def available(self) -> Interval:
        """What is left for the KV cache; negative where the budget is overdrawn."""
        terms, left = [term for _, term in self.terms], self.requested_bytes
        return Interval(
            low=left - sum(term.high for term in terms) - self.uncertainty_bytes,
            expected=left - sum(term.expected for term in terms),
            high=left - sum(term.low for term in terms) + self.uncertainty_bytes,
        )

"""The ledger of one rank: total → requested → weights, activation, non-torch, CUDA graphs → what the KV cache gets."""

from dataclasses import field
from math import isqrt

from kvgate.budget.calibration import Correction
from kvgate.budget.interval import Interval, Term
from kvgate.record import record


@record
class Ledger:
    """Bytes of one GPU; vLLM 0.32, `Worker.determine_available_memory`."""

    total_bytes: int
    requested_bytes: int
    """total × gpu_memory_utilization."""
    lines: tuple[Term, ...]
    """Terms that are subtracted, in vLLM's order: weights, peak activation, non-torch, CUDA graphs."""
    parameter_bytes: int | None
    """Plain sum of the rank's parameters; None where the weight bytes were given."""
    uncertainty_bytes: int = 0
    """Half width that no term explains: drivers, an untried release, memory shared with the CPU."""
    correction: Correction | None = None
    """Correction of the remainder by observed starts."""
    available: Interval = field(init=False)
    """Bytes that are left for the KV cache; negative where the budget is overdrawn."""

    @property
    def weights(self) -> Interval:
        """Bytes that vLLM logs as "Model loading took"."""
        return self.lines[0].amount

    @property
    def peak_activation(self) -> Interval:
        """The peak of the profile run above the weights."""
        return self.lines[1].amount

    @property
    def non_torch(self) -> Interval:
        """Bytes outside torch's allocator."""
        return self.lines[2].amount

    @property
    def cuda_graphs(self) -> Interval:
        """The reserve for CUDA graphs; 0 where the release takes none."""
        return self.lines[3].amount

    @property
    def terms(self) -> tuple[tuple[str, Interval], ...]:
        """(name, amount) of every line."""
        return tuple((line.name, line.amount) for line in self.lines)

    def __post_init__(self) -> None:
        """The terms err independently of each other, so their half widths add up in squares; ends that all add up would be met
        only where every term errs to the same side.
        """  # fmt: skip
        if self.correction is not None:
            object.__setattr__(self, "available", self.correction.available)
            return
        amounts = [line.amount for line in self.lines]
        expected = self.requested_bytes - sum(amount.expected for amount in amounts)
        below = _joint(self.uncertainty_bytes, *(amount.high - amount.expected for amount in amounts))
        above = _joint(self.uncertainty_bytes, *(amount.expected - amount.low for amount in amounts))
        available = Interval(low=expected - below, expected=expected, high=expected + above)
        object.__setattr__(self, "available", available)


def _joint(*half_widths: int) -> int:
    """Root of the sum of squares."""
    return isqrt(sum(width * width for width in half_widths))

"""One line of the ledger: how much it takes, and where the figure comes from."""

from kvgate.budget.interval import Interval
from kvgate.record import record


@record
class Term:
    """A use of GPU memory that vLLM takes out of the budget before the KV cache gets the rest."""

    name: str
    """`weights`, `peak_activation`, `non_torch` or `cuda_graph`: the words of vLLM's log."""
    amount: Interval
    formula: str
    """The formula in the symbols of `inputs`, on one line."""
    source: str
    """Source of the formula, or the starts behind its constants."""
    inputs: tuple[tuple[str, int | str], ...] = ()
    """Numbers that the formula uses, and the parts that it puts together; bytes where the name ends in `_bytes`."""

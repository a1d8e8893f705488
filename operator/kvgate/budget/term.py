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
    """In the symbols of `inputs`; one line."""
    source: str
    """Where the formula was read, or the starts behind its constants."""
    inputs: tuple[tuple[str, int | str], ...] = ()
    """What went in, and the parts that the formula puts together; bytes where the name ends in `_bytes`."""

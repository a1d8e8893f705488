"""The account of a fetch."""

import pytest

from kvgate.checkpoint.not_fetched import Reason
from kvgate.fetching.limits import CouldNotFetch, Limits, Spending


def test_bytes_are_counted_over_all_answers() -> None:
    """The limit is for all answers together."""
    spending = Spending(Limits(max_bytes=2 << 20))
    spending.take(num_bytes=1 << 20)
    spending.take(num_bytes=1 << 20)
    with pytest.raises(CouldNotFetch, match="more than 2 MiB of answers") as caught:
        spending.take(num_bytes=1)
    assert caught.value.reason is Reason.TOO_LARGE


def test_requests_are_counted() -> None:
    """A hub that leads from file to file ends somewhere."""
    spending = Spending(Limits(max_requests=1))
    spending.take(requests=1)
    with pytest.raises(CouldNotFetch, match="more than 1 requests"):
        spending.take(requests=1)


def test_time_is_over() -> None:
    """Everything that costs something looks at the clock."""
    now = [0.0]
    spending = Spending(Limits(max_seconds=60), clock=lambda: now[0])
    assert spending.left_seconds == 60
    spending.check_time()
    now[0] = 60
    for spend in (
        spending.check_time,
        lambda: spending.take(requests=1),
        lambda: spending.take(num_bytes=1),
        lambda: spending.pause(1),
    ):
        with pytest.raises(CouldNotFetch, match="not fetched within 60 seconds") as caught:
            spend()
        assert caught.value.reason is Reason.TIME_OVER

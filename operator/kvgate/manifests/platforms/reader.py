"""A reader: how one kind of document becomes engines."""

from collections.abc import Callable, Iterator

from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.manifests.pods.pod_engines import Input
from kvgate.record import record


@record
class Reader:
    """A reader that turns one kind of document into engines."""

    platform: str
    what: str
    """Words for people about the documents that it recognises."""
    reads: tuple[str, ...]
    """The fields that decide, as the platform writes them."""
    recognises: Callable[[Input], bool]
    read: Callable[[Input], Iterator[FoundEngine]]

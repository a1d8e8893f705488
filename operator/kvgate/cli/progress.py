"""Progress of a long search, on standard error and for people only."""

import sys
from collections.abc import Callable


def progress_of(what: str) -> Callable[[int, int], None]:
    """Takes what is done and what there is; on a terminal one line that counts, and is gone at the end."""
    if not sys.stderr.isatty():
        return lambda _done, _total: None

    def show(done: int, total: int) -> None:
        end = "\r\033[K" if done == total else ""
        sys.stderr.write(f"\r{done} of {total} {what}{end}")
        sys.stderr.flush()

    return show

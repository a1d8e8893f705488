"""Problems of a question, reported all at once."""

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from kvgate.vllm.values import Unusable

P = ParamSpec("P")
T = TypeVar("T")


class Problems:
    """Problems of several readings, each of which may raise Unusable."""

    def __init__(self, found: Iterable[str] = ()) -> None:
        self._found = list(found)

    def read_or(self, otherwise: T, read: Callable[P, T], *given: P.args, **options: P.kwargs) -> T:
        """Return what is read, or `otherwise`, which nobody will use, where there is a problem."""
        try:
            return read(*given, **options)
        except Unusable as error:
            self._found.append(str(error))
            return otherwise

    def check(self) -> None:
        """Raises Unusable with all of them, each once."""
        if self._found:
            raise Unusable("; ".join(dict.fromkeys(self._found)))

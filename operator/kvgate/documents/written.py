"""A value as somebody wrote it, with the path that leads to it: how readers walk through other people's documents."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct


class Written(Struct, frozen=True, kw_only=True):
    """`spec.template.containers[0]` and what stands there; None where nothing is written."""

    value: Any
    path: str = ""

    def get(self, *names: str) -> "Written":
        """Return a field below this one, through as many levels; a field that is not written has the path that it would have.

        Steps are `.image`, and `["nvidia.com/gpu"]` where the name holds a character that paths are made of.
        """
        here = self
        for name in names:
            value = here.value.get(name) if isinstance(here.value, Mapping) else None
            step = f'["{name}"]' if any(mark in name for mark in ".[]") else f".{name}" if here.path else name
            here = Written(value=value, path=f"{here.path}{step}")
        return here

    def items(self) -> list["Written"]:
        """Return the elements of a list; none where there is no list."""
        values = self.value if isinstance(self.value, list) else []
        return [Written(value=value, path=f"{self.path}[{index}]") for index, value in enumerate(values)]

    def fields(self) -> Iterator[tuple[str, "Written"]]:
        """Yield the names and values of an object."""
        for name in self.value if isinstance(self.value, Mapping) else ():
            yield str(name), self.get(str(name))

    @property
    def text(self) -> str:
        """A scalar as vLLM's command line would get it; empty where there is none."""
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        return str(self.value) if isinstance(self.value, str | int | float) else ""

    @property
    def count(self) -> int | None:
        """A whole number, also where it is written as text (`nvidia.com/gpu: "4"`)."""
        text = self.text.strip()
        return int(text) if text.isdecimal() and len(text) < 7 else None

    @property
    def is_set(self) -> bool:
        return self.value not in (None, "", [], {})


def total(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None where one of the counts is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


NOTHING = Written(value=None)

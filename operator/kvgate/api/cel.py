"""Rules over several fields, written once: CEL for the API server, and the same in Python for the command line."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CelRule:
    """One rule of an object; `rule` and `holds` say the same, and a test on a real API server holds them to it."""

    rule: str
    """CEL; `self` is the object as it is written, camelCase."""
    message: str
    """The requirement in plain words; the value is not repeated."""
    holds: Callable[[Any], bool]
    """The same on the parsed object."""
    field_path: str = ""
    """The field to blame, `.extraArgs`; empty: the object itself."""
    culprits: Callable[[Any], Iterable[str]] = lambda _: ()
    """The wrong parts by name, for the command line: CEL cannot name them."""

    def told(self, value: Any) -> str:
        """The message, with the culprits."""
        named = ", ".join(self.culprits(value))
        return f"{self.message}: {named}" if named else self.message

    def schema(self) -> dict[str, str]:
        """Return the rule as an entry of x-kubernetes-validations."""
        path = {"fieldPath": self.field_path} if self.field_path else {}
        return {"rule": self.rule, "message": self.message, **path}

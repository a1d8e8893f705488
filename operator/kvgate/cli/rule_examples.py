"""Help for each rule: its place on the reference page, and an example; read where a report or the reference shows it."""

from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from kvgate.rules import Rule

PAGE = "docs/reference/rules.md"
KINDS = ("manifest", "request", "config")
_FILE = Path(__file__).parent / "data" / "rule_examples.yaml"


class Example(Struct, frozen=True, kw_only=True):
    """An input that a rule fires on, and the change after which it stays silent; a test runs both."""

    fires: str
    kind: str
    """`manifest`, `request` (of `kvgate explain`), or `config`."""
    instead: tuple[str, str]
    """A part of the input, and what to write in its place so that the rule does not fire."""
    options: tuple[str, ...] = ()
    """Options of `kvgate check` with which it fires."""

    @property
    def silent(self) -> str:
        return self.fires.replace(*self.instead)

    def markdown(self) -> str:
        """The input that fires, and what to write instead."""
        language = "json" if self.kind == "request" else "yaml"
        before, after = (text.strip(" ,\n") for text in self.instead)
        change = f"`{after}` in place of `{before}`" if after else f"out `{before}`"
        fires = f"Fires with `{' '.join(self.options)}`" if self.options else "Fires"
        shown = f"{fires}:\n\n```{language}\n{self.fires.rstrip()}\n```\n\nDoes not, {'with' if after else 'leaving'} {change}."
        return shown.replace("\0", "␀")


def page_of(rule: Rule) -> str:
    """Return the address of the rule on the reference page."""
    return f"{PAGE}#{rule.id.lower()}"


def example_of(rule: Rule) -> Example | None:
    """None for the rules of time limits: only the webhook and the controller have those, and no input fires one for certain."""
    return _examples().get(rule.id)


@lru_cache(maxsize=1)
def _examples() -> dict[str, Example]:
    import yaml

    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(_FILE.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe loader
    kinds = {rule: next(kind for kind in KINDS if kind in entry) for rule, entry in entries.items()}
    return {
        rule: Example(
            fires=entries[rule][kind],
            kind=kind,
            instead=tuple(entries[rule]["instead"]),
            options=tuple(entries[rule].get("options", ())),
        )
        for rule, kind in kinds.items()
    }

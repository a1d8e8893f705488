"""Texts of every rule, from data/rules.yaml: for `kvgate rules`, the reference page, and the help in SARIF."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from kvgate.record import record
from kvgate.rules.finding import Severity

KINDS = ("manifest", "request", "config", "process")
PAGE = "docs/reference/rules.md"
_FILE = Path(__file__).parent / "data" / "rules.yaml"
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@record
class RuleText:
    """One rule in words, with an example that a test runs."""

    rule: str
    about: str
    """Subject of its findings: memory, settings, files …"""
    severities: tuple[Severity, ...]
    """The usual one first."""
    says: str
    example: str = ""
    """An input that it fires on."""
    kind: str = "manifest"
    """Kind of the example: `manifest`, `request` (of `kvgate explain`), or `config`; `process`: the webhook and the controller alone
    say it, and no input fires it for certain."""
    instead: tuple[str, str] = ("", "")
    """A part of the example, and what to write in its place so that it does not fire."""

    @property
    def page(self) -> str:
        """Its anchor on the reference page."""
        return f"{PAGE}#{self.rule.lower()}"

    @property
    def silent_example(self) -> str:
        return self.example.replace(*self.instead)

    def examples(self) -> str:
        """Markdown: what fires, and what to write instead."""
        language = "json" if self.kind == "request" else "yaml"
        before, after = (text.strip(" ,\n") for text in self.instead)
        change = f"`{after}` in place of `{before}`" if after else f"out `{before}`"
        shown = f"Fires:\n\n```{language}\n{self.example.rstrip()}\n```\n\nDoes not, {'with' if after else 'leaving'} {change}."
        return shown.replace("\0", "␀")


@lru_cache(maxsize=1)
def rule_texts() -> dict[str, RuleText]:
    """Return the texts by id, in the order of the file."""
    groups = yaml.load(_FILE.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a safe loader
    return {entry["id"]: _text(entry, about) for about, entries in groups.items() for entry in entries}


def _text(entry: Mapping[str, Any], about: str) -> RuleText:
    kind = next(kind for kind in KINDS if kind in entry)
    return RuleText(
        rule=entry["id"],
        about=about,
        severities=tuple(map(Severity, entry["severity"])),
        says=entry["says"],
        example=entry[kind] or "",
        kind=kind,
        instead=tuple(entry.get("instead", ("", ""))),
    )


def rule_text(rule: str) -> RuleText:
    """One that nobody described still has its name."""
    return rule_texts().get(rule) or RuleText(rule=rule, about="", severities=(Severity.ERROR,), says=rule)

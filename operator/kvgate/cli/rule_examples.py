"""Help for each rule: its place on the reference page, and an example; read where a report or the reference shows it."""

import json
import os
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kvgate import DOCS_URL
from kvgate.findings.finding import Rule

PAGE = "docs/reference/rules.md"
KINDS = ("manifest", "request", "config")
DOCS_VARIABLE = "KVGATE_DOCS_URL"
"""Environment variable with the address of docs/, which goes before DOCS_URL: a GitHub Action knows that of its own repository."""
_PACKAGE = Path(__file__).parents[1]
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
    settings: str = ""
    """The `.kvgate.yaml` with which it fires."""

    @property
    def silent(self) -> "Example":
        """The example after the change."""
        return replace(self, fires=self.fires.replace(*self.instead), settings=self.settings.replace(*self.instead))

    def markdown(self) -> str:
        """The input that fires, and what to write instead."""
        language = "json" if self.kind == "request" else "yaml"
        before, after = (text.strip(" ,\n") for text in self.instead)
        change = f"`{after}` in place of `{before}`" if after else f"out `{before}`"
        fires = f"Fires with `{' '.join(self.options)}`" if self.options else "Fires"
        shown = f"{fires}:\n\n```{language}\n{self.fires.rstrip()}\n```\n\nDoes not, {'with' if after else 'leaving'} {change}."
        settings = f"With this `.kvgate.yaml`:\n\n```yaml\n{self.settings.rstrip()}\n```\n\n" if self.settings else ""
        return settings + shown.replace("\0", "␀")


def page_of(rule: Rule) -> str:
    """Return the address of the rule on the reference page."""
    return f"{PAGE}#{rule.id.lower()}"


def address_of(page: str) -> str:
    """Return the URI of a page of docs/: published, in the repository that kvgate was installed from, or installed with kvgate.

    It is empty where there is no such page.
    """
    name = page.removeprefix("docs/")
    if base := os.environ.get(DOCS_VARIABLE) or DOCS_URL or _installed_from():
        return f"{base.rstrip('/')}/{name}"
    file, _, anchor = name.partition("#")
    places = (_PACKAGE / "docs" / file, _PACKAGE.parents[1] / "docs" / file)
    return next((f"{place.as_uri()}#{anchor}".rstrip("#") for place in places if place.is_file()), "")


@lru_cache(maxsize=1)
def _installed_from() -> str:
    """Return docs/ at the commit of a repository that pip installed kvgate from (PEP 610); empty for any other place."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin = json.loads(distribution("kvgate").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    url, commit = str(origin.get("url", "")), origin.get("vcs_info", {}).get("commit_id", "")
    return f"{url.removesuffix('.git')}/blob/{commit}/docs" if commit and url.startswith("https://") else ""


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
            settings=entries[rule].get("settings", ""),
        )
        for rule, kind in kinds.items()
    }

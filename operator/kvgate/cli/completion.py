"""Words that a shell offers after TAB: commands, GPUs, models, rules and files. The shell starts `kvgate` for that, as click describes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # only a shell that completes needs it
    import click
    from click.shell_completion import CompletionItem


def named(words: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Offer the words that begin with what is written, each with its meaning for shells that show one; case does not matter."""
    from click.shell_completion import CompletionItem

    begun = (pair for pair in words if pair[0].lower().startswith(incomplete.lower()))
    return [CompletionItem(word, help=meaning or None) for word, meaning in begun]


def a_file(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def gpus(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer accelerators for the last name of a list, which may follow a number: `H200,8xL4`; slices only after `MIG`.

    Click's function for fish cuts what it offers at a comma, so that fish gets the first name of a list only.
    """
    from kvgate import catalogue
    from kvgate.budget.ground.units import format_gib

    head, comma, last = incomplete.rpartition(",")
    if comma and os.environ.get("_KVGATE_COMPLETE", "").startswith("fish"):
        return []
    count, times, name = last.partition("x")
    name, number = (name, f"{count}x") if times and count.isdecimal() else (last, "")
    offered = (a for a in catalogue.every_accelerator() if not a.is_slice or "mig" in name.lower())
    return named(((f"{head}{comma}{number}{a.name}", format_gib(a.memory_bytes)) for a in offered), incomplete)


def a_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the models of the catalogue; where none begins with what is written, those that contain it: `qwen3-8b`."""
    from kvgate import catalogue

    names = catalogue.model_names()
    contains = (name for name in names if incomplete.lower() in name.lower())
    return named(((name, "") for name in names), incomplete) or named(((name, "") for name in contains), "")


def a_rule(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from kvgate.rules.catalogue import RULES

    return named(((rule.id, rule.title) for rule in RULES.values()), incomplete)

"""The click group: each command is imported when it is called."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from kvgate import __version__
from kvgate.cli.completion import named
from kvgate.cli.exits import failures_as_exits, inert_usage_errors
from kvgate.cli.help import WIDEST, Group
from kvgate.cli.terminal import colour_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COMMANDS = {
    "check": ("kvgate.cli.check.command", "Judge vLLM engines in manifests and Helm values."),
    "why": ("kvgate.cli.why.command", "Say why vLLM does not start, from whatever you paste."),
    "diff": ("kvgate.cli.diff.command", "Show what a change does to KV cache capacity."),
    "explain": ("kvgate.cli.explain.command", "Show the memory ledger of one GPU, line by line."),
    "size": ("kvgate.cli.size.command", "Find the GPUs for a model and its workload, cheapest first."),
    "sweep": (
        "kvgate.cli.sweep.command",
        "Draw the out-of-memory boundary over two settings, as a table or a picture.",
    ),
    "calibrate": ("kvgate.cli.calibrate.command", "Remember what starts really left for the KV cache."),
    "gpus": ("kvgate.cli.listings", "List the accelerators that are known."),
    "models": ("kvgate.cli.models.command", "List the models that are known; fetch others, and keep them in a file."),
    "rules": ("kvgate.cli.listings", "List the rules that findings come from."),
}
"""Name → module, and the line in the help; `kvgate --help` imports none of the modules."""


PROCESSES = ("controller", "webhook")
"""The processes of the operator, which start without the command line."""


class LazyGroup(Group):
    """A group that knows its commands by name and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(_COMMANDS[cmd_name][0]), cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in _COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        near = get_close_matches(name, (*_COMMANDS, *PROCESSES), n=2)
        remedy = f"Did you mean {' or '.join(near)}?" if near else "kvgate --help lists the commands."
        raise click.UsageError(f"No such command {name!r}. {remedy}", ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        words = [*((name, says) for name, (_, says) in _COMMANDS.items()), *((name, "") for name in PROCESSES)]
        return [*named(words, incomplete), *click.Command.shell_complete(self, ctx, incomplete)]

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with inert_usage_errors():
            return super().make_context(*args, **{"color": colour_of(os.environ), **kwargs})

    def invoke(self, ctx: click.Context) -> Any:
        with failures_as_exits(ctx), inert_usage_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])
            formatter.write_dl([(", ".join(PROCESSES), "The processes of the operator; see their own --help.")])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST})
@click.version_option(__version__, prog_name="kvgate", message="%(prog)s %(version)s")
def main() -> None:
    """Will this vLLM deployment fit its GPUs? A verdict with numbers before anything is scheduled."""

"""The click group: each command is imported when it is asked for."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from importlib import import_module
from signal import SIGINT
from typing import Any

import click

from kvgate import __version__
from kvgate.cli.terminal import show_error
from kvgate.text.inert import inert_line

_COMMANDS = {
    "check": ("kvgate.cli.check.command", "Judge vLLM engines in manifests and Helm values."),
    "diff": ("kvgate.cli.diff.command", "Show what a change does to KV cache capacity."),
    "explain": ("kvgate.cli.explain.command", "Show the memory ledger of one GPU, line by line."),
    "size": ("kvgate.cli.size.command", "Find the GPUs for a model and its workload, cheapest first."),
    "sweep": (
        "kvgate.cli.sweep.command",
        "Draw the out-of-memory boundary over two settings, as a table or a picture.",
    ),
    "calibrate": ("kvgate.cli.calibrate.command", "Remember what starts really left for the KV cache."),
    "gpus": ("kvgate.cli.catalogues", "List the accelerators that are known."),
    "models": ("kvgate.cli.catalogues", "List the models that are known."),
    "rules": ("kvgate.cli.catalogues", "List the rules that findings come from."),
    "generate": ("kvgate.cli.generate.command", "Rewrite every generated file."),
}
"""Name → module and the line in the help, so that showing it imports nothing. `generate` is hidden."""
HIDDEN = frozenset({"generate"})


class LazyGroup(click.Group):
    """Commands by name only; `kvgate --help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for name in _COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        gc.set_threshold(200_000, 20)  # a short life makes little garbage
        command = getattr(import_module(_COMMANDS[cmd_name][0]), cmd_name)
        return command if isinstance(command, click.Command) else None

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Report mistakes in the words of the command line like all other errors."""
        with _inert_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """A full disk and Ctrl-C are no findings, whose exit code is 1."""
        try:
            with _inert_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            show_error("interrupted")
            ctx.exit(128 + SIGINT)
        except OSError as error:
            if error.errno != ENOSPC:
                raise
            show_error(f"the output cannot be written: {error.strerror}")
            ctx.exit(2)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])
            formatter.write_dl([("controller, webhook", "The processes of the operator; see their own --help.")])


@contextmanager
def _inert_errors() -> Iterator[None]:
    """click prints its errors itself, with whatever a file or a pull request made part of a value."""
    try:
        yield
    except click.ClickException as error:
        shown = "\n".join(map(inert_line, (error.message or "").split("\n")))
        error.message = shown  # type: ignore[misc]  # it is what click prints
        raise


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="kvgate", message="%(prog)s %(version)s")
def main() -> None:
    """Will this vLLM deployment fit its GPUs? A verdict with numbers before anything is scheduled."""

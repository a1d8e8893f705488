"""`kvgate sweep`: two settings against each other, with the out-of-memory boundary, as a table, data or a picture."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from kvgate.cli.exits import Exit, exit_of
from kvgate.cli.help import Command
from kvgate.cli.known_models import ModelOptions, with_model_options
from kvgate.cli.model_names import resolved
from kvgate.cli.shared_options import given_settings, with_settings
from kvgate.cli.terminal import is_terminal, progress_of, show, show_bytes, show_error
from kvgate.cli.workload_options import BY_LOAD, with_users, with_workload
from kvgate.vllm.values import UnusableValue

_OUTPUTS = {
    "text": ("kvgate.cli.sweep.report", "text_report"),
    "csv": ("kvgate.cli.sweep.report", "csv_report"),
    "json": ("kvgate.cli.sweep.report", "json_report"),
    "html": ("kvgate.cli.sweep.page", "page"),
    "svg": ("kvgate.cli.sweep.heatmap", "svg"),
    "png": ("kvgate.cli.sweep.heatmap", "png"),
}
"""Output → module and function that write it."""
_SUFFIXES = {**{f".{name}": name for name in _OUTPUTS}, ".txt": "text", ".htm": "html"}
"""End of the name of a file → output."""


@click.command(cls=Command)
@with_settings()
@click.option(
    "--x",
    metavar="KNOB=VALUES",
    help="VALUES: a,b,c, or a..b (by doubling), or a..b+step. Default: max_model_len, by doubling.",
)
@click.option("--y", metavar="KNOB=VALUES", help="Default: max_num_seqs=1..256.")
@click.option("--at", metavar="X,Y", help="Mark this point, and add it to the axes. Its verdict decides the exit code.")
@with_workload(default=f"{BY_LOAD}; an axis counts as its option")
@click.option("-o", "--output", type=click.Choice(list(_OUTPUTS)), help="Default: from the name of --file, else text.")
@with_model_options
@click.option(
    "--file", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file; default: standard output."
)
def sweep(output: str | None, file: Path | None, **values: Any) -> None:
    """Ask the engine for every pair of two settings, and draw where memory runs out.

    KNOB is vLLM's name of a setting: max_model_len, max_num_seqs, max_num_batched_tokens, gpu_memory_utilization,
    tensor_parallel_size, kv_cache_dtype, gpu … The outputs svg and png need the extra `plot`; html needs nothing.
    """
    from kvgate.cli.gpu_names import on_one_gpu
    from kvgate.cli.sweep.question import swept
    from kvgate.judgement.what_if import UnknownFacts

    options = ModelOptions.taken_from(values)
    kind = output or (_SUFFIXES.get(file.suffix.lower(), "text") if file else "text")
    try:
        settings, models = resolved(on_one_gpu(given_settings(with_users(values))), options)
        result = swept(settings, models=models, progress=progress_of("columns"))
        module, function = _OUTPUTS[kind]
        content: str | bytes = getattr(import_module(module), function)(result)
    except UnusableValue as error:
        raise click.UsageError(str(error)) from None
    except UnknownFacts as error:
        show_error(str(error))
        sys.exit(Exit.UNDECIDED)
    if file is not None:
        try:
            file.write_bytes(content if isinstance(content, bytes) else content.rstrip("\n").encode() + b"\n")
        except OSError as error:
            raise click.UsageError(f"--file {file} cannot be written: {error.strerror or error}") from None
        show_error(str(file))
    elif isinstance(content, str):
        show(content.rstrip("\n"))
    elif is_terminal():
        raise click.UsageError("a png is not for a terminal; give --file")
    else:
        show_bytes(content)
    point = result.chosen
    sys.exit(exit_of(point.verdict, is_refusal=point.is_refusal) if point else Exit.FITS)

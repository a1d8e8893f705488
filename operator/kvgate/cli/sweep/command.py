"""`kvgate sweep`: two settings against each other, with the out-of-memory boundary, as a table, data or a picture."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from kvgate.cli.exits import Exit
from kvgate.cli.shared_options import given_settings, with_settings
from kvgate.cli.terminal import is_terminal, progress_of, show, show_bytes, show_error
from kvgate.vllm.values import Unusable

_DRAWINGS = {
    "text": ("kvgate.cli.sweep.text", "text_report"),
    "csv": ("kvgate.cli.sweep.data", "csv_report"),
    "json": ("kvgate.cli.sweep.data", "json_report"),
    "html": ("kvgate.cli.sweep.heatmap_page", "page"),
    "svg": ("kvgate.cli.sweep.heatmap", "svg"),
    "png": ("kvgate.cli.sweep.heatmap_png", "png"),
}
"""Output → module and function."""
_EXITS = {"Fits": Exit.FITS, "MayNotFit": Exit.FITS, "DoesNotFit": Exit.FINDINGS, "Unknown": Exit.UNDECIDED}


@click.command()
@with_settings()
@click.option(
    "--x", metavar="KNOB=VALUES", help="Default: max_model_len by doubling. a,b,c or a..b (doubling) or a..b+step."
)
@click.option("--y", metavar="KNOB=VALUES", help="Default: max_num_seqs=1..256.")
@click.option("--at", metavar="X,Y", help="Mark this point; it is added to the axes. The exit code is its verdict's.")
@click.option(
    "--guarantee",
    type=click.Choice(["Startup", "FullContext"], case_sensitive=False),
    help="What must fit. Default: FullContext (max_num_seqs requests of max_model_len) where max_num_seqs is set or swept.",
)
@click.option("-o", "--output", type=click.Choice(list(_DRAWINGS)), help="Default: by the name of --file, else text.")
@click.option(
    "--file", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file; default: standard output."
)
def sweep(output: str | None, file: Path | None, **values: Any) -> None:
    """Ask the engine for every pair of two settings, and draw where memory runs out.

    KNOB is any setting under vLLM's name: max_model_len, max_num_seqs, max_num_batched_tokens, gpu_memory_utilization,
    tensor_parallel_size, kv_cache_dtype, gpu … A picture as png needs the extra kvgate[plot]; svg and html need nothing.

    Exit code: 0 drawn; with --at 0 where that point fits or may fit, 1 where it does not, 2 where nothing could be decided.
    """
    from kvgate.cli.sweep.question import swept
    from kvgate.judge.what_if import UnknownFacts

    kind = _kind(output, file)
    try:
        result = swept(given_settings(values), progress=progress_of("columns"))
        content = _drawn(result, kind)
    except Unusable as error:
        raise click.UsageError(str(error)) from None
    except UnknownFacts as error:
        show_error(str(error))
        sys.exit(Exit.UNDECIDED)
    _write(content, file)
    sys.exit(_EXITS[result.chosen.verdict.value] if result.chosen else Exit.FITS)


def _kind(output: str | None, file: Path | None) -> str:
    if output is not None:
        return output
    suffix = file.suffix.lstrip(".").lower() if file else "text"
    return {"txt": "text", "htm": "html"}.get(suffix, suffix if suffix in _DRAWINGS else "text")


def _drawn(result: Any, kind: str) -> str | bytes:
    """Each kind brings its own imports."""
    module, function = _DRAWINGS[kind]
    drawing: Callable[[Any], str | bytes] = getattr(import_module(module), function)
    return drawing(result)


def _write(content: str | bytes, file: Path | None) -> None:
    if file is not None:
        _save(content if isinstance(content, bytes) else content.rstrip("\n").encode() + b"\n", file)
    elif isinstance(content, bytes):
        if is_terminal():
            raise click.UsageError("a png is not for a terminal; give --file")
        show_bytes(content)
    else:
        show(content.rstrip("\n"))


def _save(content: bytes, file: Path) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise click.UsageError(f"--file {file} cannot be written: {error.strerror or error}") from None
    show_error(str(file))

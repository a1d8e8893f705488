"""`kvgate size`: which GPUs, how many and which settings a model and its workload need, cheapest first."""

import sys
from typing import Any, BinaryIO

import click

from kvgate.cli.exits import Exit
from kvgate.cli.shared_options import given_settings, with_settings
from kvgate.cli.terminal import progress_of, show, show_error
from kvgate.vllm.values import Unusable

SEARCHED = frozenset(
    {
        "gpu", "gpu_memory_bytes", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
        "decode_context_parallel_size", "prefill_context_parallel_size", "kv_cache_dtype", "kv_cache_memory_bytes",
        "num_gpu_blocks_override", "weights_bytes",
    }
)  # fmt: skip
"""Settings that the search finds, or that hold for one GPU only."""


@click.command()
@with_settings(without=SEARCHED)
@click.option("--peak-concurrency", metavar="N", help="Workload: requests at the same time, over all replicas.")
@click.option("--prompt-tokens", metavar="N", help="Workload: tokens of a prompt: 6000, 6k, 6K.")
@click.option("--output-tokens", metavar="N", help="Workload: tokens that are generated for a request.")
@click.option("--shared-prefix-tokens", metavar="N", help="Workload: tokens at the start of all prompts, kept once.")
@click.option(
    "--guarantee",
    type=click.Choice(["Startup", "Workload", "FullContext"], case_sensitive=False),
    help="What must fit. Default: Workload where one is given, FullContext with --max-num-seqs, else Startup.",
)
@click.option(
    "--kv-cache-dtype", "dtypes", metavar="LIST", default="auto,fp8", show_default=True, help="Formats to try."
)
@click.option("--gpus", metavar="LIST", help="Only these: names, parts of names, or vendors: H100,L40S,amd.")
@click.option("--max-gpus", type=click.IntRange(1, 100_000), default=64, show_default=True, help="In all replicas.")
@click.option("--prices", type=click.File("rb"), metavar="FILE", help="YAML: accelerator: price per hour.")
@click.option("--all", "every", is_flag=True, help="Every candidate, and why those that do not fit do not.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "csv"]), default="text", help="For people or programs."
)
def size(output: str, prices: BinaryIO | None, *, every: bool, **values: Any) -> None:
    """Find the GPUs for a model and its workload: how many, which parallelism, which settings; cheapest first.

    Every candidate is judged by the engine: it fits where the low end of the prediction holds what is asked. Without a workload
    and without --max-num-seqs: every accelerator, the full-length requests it holds and the longest context it starts with.

    Exit code: 0 something fits or may fit, 1 nothing does, 2 could not be decided.
    """
    from kvgate.cli.size.answers import REPORTS
    from kvgate.cli.size.question import asked
    from kvgate.judge.what_if import UnknownFacts
    from kvgate.planning.size import size as find

    try:
        question, costs = asked(given_settings(values), prices)
    except Unusable as error:
        raise click.UsageError(str(error)) from None
    except UnknownFacts as error:
        show_error(str(error))
        sys.exit(Exit.UNDECIDED)
    candidates = find(question, every=every, progress=progress_of("accelerators"))
    show(REPORTS[output](question, candidates, costs, every=every))
    sys.exit(_exit(candidates))


def _exit(candidates: Any) -> Exit:
    verdicts = {candidate.verdict.value for candidate in candidates}
    if verdicts & {"Fits", "MayNotFit"}:
        return Exit.FITS
    return Exit.UNDECIDED if "Unknown" in verdicts else Exit.FINDINGS

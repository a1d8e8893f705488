"""`kvgate size`: the GPUs, their number and the settings that a model and its workload need, cheapest first."""

import sys
from typing import Any, BinaryIO

import click

from kvgate.budget import Verdict
from kvgate.cli.completion import gpus
from kvgate.cli.exits import Exit
from kvgate.cli.help import Command
from kvgate.cli.known_models import ModelOptions, models_of, with_model_options
from kvgate.cli.shared_options import given_settings, with_settings
from kvgate.cli.terminal import progress_of, show, show_error
from kvgate.vllm.values import UnusableValue

SEARCHED = frozenset(
    {
        "gpu", "gpu_memory_bytes", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
        "decode_context_parallel_size", "prefill_context_parallel_size", "kv_cache_dtype", "kv_cache_memory_bytes",
        "num_gpu_blocks_override", "weights_bytes", "shared_by",
    }
)  # fmt: skip
"""Settings that the search finds itself, and settings that are true for one kind of GPU only."""


@click.command(cls=Command)
@with_settings(without=SEARCHED)
@click.option("--peak-concurrency", metavar="N", help="Workload: requests at the same time, in all replicas together.")
@click.option("--prompt-tokens", metavar="N", help="Workload: tokens of a prompt, such as 6000, 6k or 6K.")
@click.option("--output-tokens", metavar="N", help="Workload: tokens that are generated for a request.")
@click.option(
    "--shared-prefix-tokens",
    metavar="N",
    help="Workload: tokens with which all prompts begin; the cache keeps them once.",
)
@click.option(
    "--guarantee",
    type=click.Choice(["Startup", "Workload", "FullContext"], case_sensitive=False),
    metavar="[Startup|Workload|FullContext]",
    help="What must fit. Default: Workload if one is given, FullContext with --max-num-seqs, else Startup.",
)
@click.option(
    "--kv-cache-dtype",
    "dtypes",
    metavar="LIST",
    default="auto,fp8",
    show_default=True,
    help="Formats of the KV cache to try.",
)
@click.option(
    "--gpus",
    metavar="LIST",
    shell_complete=gpus,
    help="Try only these accelerators: names, parts of names, or vendors, such as H100,L40S,amd; 8xH100 says how many there are.",
)
@click.option(
    "--max-gpus",
    type=click.IntRange(1, 100_000),
    help="GPUs in all replicas together. Default: 64; without --peak-concurrency 8.",
)
@click.option(
    "--prices",
    type=click.File("rb"),
    metavar="FILE",
    help="Prices per hour in YAML, one line per accelerator: `H100-SXM-80GB: 2.5`.",
)
@with_model_options
@click.option("--choose", metavar="N", type=int, help="Explain row N of the table instead of the first one that fits.")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Show every candidate, also slices of GPUs and more than eight engines, and the reason why it does not fit.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "csv", "yaml"]),
    help="text is for people, json and csv are for programs; yaml writes what starts the chosen row. Default: text; with --as: yaml.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["inferencedeployment", "production-stack", "kserve", "vllm-serve"], case_sensitive=False),
    help="What -o yaml writes: a manifest, the values of a chart, or the command line. Default: inferencedeployment.",
)
def size(
    output: str | None, form: str | None, prices: BinaryIO | None, choose: int | None, *, every: bool, **values: Any
) -> None:
    """Find the GPUs for a model and its workload: how many, which parallelism, which settings; cheapest first.

    A candidate fits if even the low end of its predicted KV cache holds what must fit. Without a workload and without
    --max-num-seqs, the table shows for every accelerator the full-length requests that it holds and the longest context that it
    starts with.

    Exit code: 0 something fits or may fit, 1 nothing does, 2 could not be decided.
    """
    from kvgate import catalogue
    from kvgate.cli.size.question import asked
    from kvgate.cli.size.report import Found, chosen, csv_report, json_report, text_report
    from kvgate.judge.what_if import UnknownFacts
    from kvgate.planning.size import find_candidates, usual

    if form and output not in (None, "yaml"):
        raise click.UsageError(f"--as writes YAML or a command line, not {output}; leave out one of the two")
    options = ModelOptions.taken_from(values)
    try:
        settings = given_settings(values)
        question, costs = asked({**settings, "every": every}, prices, models_of(settings, options))
    except UnusableValue as error:
        raise click.UsageError(str(error)) from None
    except UnknownFacts as error:
        show_error(str(error))
        sys.exit(Exit.UNDECIDED)
    candidates = find_candidates(question, every=every, progress=progress_of("accelerators"))
    kept = candidates if every else usual(candidates)
    searches_slices = every or values.get("gpus") or any(a.is_slice for a in question.accelerators)
    found = Found(
        question=question,
        candidates=kept,
        every=every,
        num_slices=0 if searches_slices else sum(a.is_slice for a in catalogue.accelerators()),
        num_many=len(candidates) - len(kept),
    )
    try:
        if form or output == "yaml":
            from kvgate.cli.size.manifests import row_of, written

            text = written(row_of(chosen(found, choose), settings), form or "inferencedeployment")
        elif output in ("csv", "json"):
            text = csv_report(found) if output == "csv" else json_report(found, costs)
        else:
            text = text_report(found, costs, choose=choose)
    except UnusableValue as error:
        raise click.UsageError(str(error)) from None
    show(text)
    verdicts = {candidate.verdict for candidate in candidates}
    if verdicts & {Verdict.FITS, Verdict.MAY_NOT_FIT}:
        sys.exit(Exit.FITS)
    sys.exit(Exit.UNDECIDED if Verdict.UNKNOWN in verdicts else Exit.FINDINGS)

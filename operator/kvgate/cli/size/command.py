"""`kvgate size`: the GPUs, their number and the settings that a model and its workload need, cheapest first."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from kvgate.budget import Verdict
from kvgate.cli.completion import gpus
from kvgate.cli.exits import Exit, exit_of
from kvgate.cli.help import Command
from kvgate.cli.known_models import ModelOptions, with_model_options
from kvgate.cli.model_names import resolved
from kvgate.cli.shared_options import GPU_NAMES, given_settings, with_settings
from kvgate.cli.terminal import progress_of, show, show_error
from kvgate.cli.workload_options import BY_LOAD, with_users, with_wishes, with_workload
from kvgate.vllm.values import UnusableValue

if TYPE_CHECKING:
    from kvgate.catalogue.prices import Prices
    from kvgate.cli.size.report import Found

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
@with_workload(default=BY_LOAD)
@click.option(
    "--kv-cache-dtype",
    "dtypes",
    metavar="LIST",
    default="auto,fp8",
    show_default=True,
    help="Formats of the KV cache to try.",
)
@click.option(
    *GPU_NAMES,
    "gpus",
    metavar="LIST",
    shell_complete=gpus,
    help="Try only these accelerators: names, machines or vendors, such as H100,g5.12xlarge,amd, or auto; 8xH100 says how many there are.",
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
@with_wishes
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
def size(output: str | None, form: str | None, choose: int | None, **values: Any) -> None:
    """Find the GPUs for a model and its workload: how many, which parallelism, which settings; cheapest first.

    A candidate fits if even the low end of its predicted KV cache holds what must fit, in all replicas together. A workload without
    --peak-concurrency asks how many requests the GPUs hold. Where no load is typed, the start alone decides, and the table shows for every
    accelerator the full-length requests that it holds and the longest context that it starts with. --max-model-len and --max-num-seqs
    together are a load: so many requests of that length at the same time.
    """
    from kvgate.cli.size.report import chosen, csv_report, json_report, text_report
    from kvgate.judgement.what_if import UnknownFacts

    if form and output not in (None, "yaml"):
        raise click.UsageError(f"--as writes YAML or a command line, not {output}; leave out one of the two")
    if choose is not None and output in ("json", "csv"):
        raise click.UsageError(f"--choose is for text and yaml, and {output} has every row; leave out one of the two")
    try:
        found, costs, settings = searched(values)
        if form or output == "yaml":
            from kvgate.cli.size.manifests import row_of, written

            show(written(row_of(chosen(found, choose), settings), form or "inferencedeployment"))
        elif output in ("csv", "json"):
            show(csv_report(found) if output == "csv" else json_report(found, costs))
        else:
            show(text_report(found, costs, choose=choose))
    except UnusableValue as error:
        raise click.UsageError(str(error)) from None
    except UnknownFacts as error:
        show_error(str(error))
        sys.exit(Exit.UNDECIDED)
    verdicts = {candidate.verdict for candidate in found.candidates}
    if verdicts & {Verdict.FITS, Verdict.MAY_NOT_FIT}:
        sys.exit(Exit.FITS)
    verdict = Verdict.UNKNOWN if Verdict.UNKNOWN in verdicts else Verdict.DOES_NOT_FIT
    sys.exit(
        exit_of(
            verdict, is_refusal=verdict is not Verdict.UNKNOWN and any(each.is_refusal for each in found.candidates)
        )
    )


def searched(values: dict[str, Any]) -> tuple[Found, Prices, dict[str, Any]]:
    """Return the candidates for the parameters of the command, the prices, and the settings. Raises UnusableValue and UnknownFacts."""
    from kvgate.cli.size.question import question_of
    from kvgate.cli.size.report import found_of
    from kvgate.planning.size import find_candidates

    given = {name: value for name, value in values.items() if name not in ("choose", "form")}
    options, wishes = ModelOptions.taken_from(given), {name: given.pop(name) for name in ("keep", "maximize")}
    prices, every = given.pop("prices"), given["every"]
    settings, models = resolved(given_settings(with_users(given)), options)
    question, costs = question_of(settings, prices, models)
    question = replace(question, **wishes)
    candidates = find_candidates(question, every=every, progress=progress_of("accelerators"))
    return found_of(question, candidates, every=every, is_named="gpus" in settings), costs, settings

"""Options about what must fit: the guarantee, and the workload that it may be about."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from msgspec.structs import replace

from kvgate.budget import Guarantee, Workload
from kvgate.cli.stated_workload import ASSUMED_OUTPUT_TOKENS, RATES, READERS, read_workload
from kvgate.vllm.values import UnusableValue, read_tokens

BY_LOAD = "Workload if one is given, FullContext with --max-model-len and --max-num-seqs together, else Startup"
"""Promise that a command line states without --guarantee."""
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def guarantee_option(default: str) -> Decorator:
    return click.option(
        "--guarantee",
        type=click.Choice([guarantee.value for guarantee in Guarantee], case_sensitive=False),
        metavar=f"[{'|'.join(guarantee.value for guarantee in Guarantee)}]",
        help=f"What must fit: one request, the workload, or max_num_seqs requests of max_model_len. Default: {default}.",
    )


def all_of(options: Sequence[Decorator]) -> Decorator:
    """Return one decorator that adds all options, in their order."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def with_workload(*, default: str) -> Decorator:
    options = (
        guarantee_option(default),
        click.option("--users", metavar="N",
                     help="Requests at the same time: --peak-concurrency of a workload; without one --max-num-seqs."),
        click.option("--peak-concurrency", metavar="N", help="Workload: requests at the same time."),
        click.option("--requests-per-second", metavar="R",
                     help="Workload: instead of --peak-concurrency, with --seconds-per-request; the peak is that of random arrivals."),
        click.option("--seconds-per-request", metavar="S", help="Workload: seconds from a request's start to its last token."),
        click.option("--prompt-tokens", metavar="N",
                     help="Workload: tokens of a prompt, such as 6000, 6k or 6K; or how they differ: mean=1500,p50=800,p95=6k,max=8k."),
        click.option("--output-tokens", metavar="N",
                     help="Workload: tokens that are generated for a request. Default: 512, at most the prompt's."),
        click.option("--request-lengths", type=click.File("rb"), metavar="FILE",
                     help="Workload: a trace (CSV with prompt_tokens and output_tokens), or the /metrics of a vLLM server that runs."),
        click.option("--shared-prefix-tokens", metavar="N",
                     help="Workload: tokens with which all prompts begin; the cache keeps them once."),
    )  # fmt: skip

    return all_of(options)


def with_users(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a command in which --users stands for one of the two options that it means."""
    left = dict(values)
    if (users := left.pop("users", None)) is None:
        return left
    has_workload = any(left.get(name) is not None for name in ("prompt_tokens", "output_tokens", "request_lengths"))
    name = "peak_concurrency" if has_workload else "max_num_seqs"
    return {**left, name: users if left.get(name) is None else left[name]}


def _read_kept(_: click.Context, __: click.Parameter, text: str | None) -> frozenset[str]:
    if not text:
        return frozenset()
    from kvgate.budget import COSTS

    names = frozenset(each.strip().lstrip("-").replace("-", "_") for each in text.split(","))
    names = frozenset("accelerator" if each == "gpu" else each for each in names)
    if unknown := sorted(names - set(COSTS)):
        raise click.UsageError(
            f"--keep names {', '.join(unknown)}; the settings that are ever changed are {', '.join(sorted(COSTS))}"
        )
    return names


KEEP_OPTION = click.option(
    "--keep",
    callback=_read_kept,
    metavar="SETTINGS",
    help="Settings that no proposal changes: max_model_len,kv_cache_dtype.",
)


def with_wishes(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about the changes that are proposed."""
    options = (
        KEEP_OPTION,
        click.option("--maximize", type=click.Choice(["context", "users"]),
                     help="Find the settings for the longest context for the stated users, or for most users at the stated length."),
    )  # fmt: skip
    return all_of(options)(command)


def taken_workload(values: dict[str, Any], *, needed: Sequence[str] = ("peak_concurrency",)) -> Workload | None:
    """Remove the options of the workload from the values of a command, and read them. Raises UnusableValue with all that is wrong.

    A prompt is always needed; an answer whose length is not said has ASSUMED_OUTPUT_TOKENS.
    """
    given = {name: text for name in READERS if (text := values.pop(name, None)) is not None}
    file, rate = values.pop("request_lengths", None), [values.pop(name, None) for name in RATES]
    if rate != [None, None]:
        from kvgate.cli.request_lengths import average_of

        average, given["peak_concurrency"] = average_of(*rate, others=given)
        workload = taken_workload(
            {**given, "request_lengths": file, "max_model_len": values.get("max_model_len")}, needed=needed
        )
        return workload and replace(workload, average_concurrency=average)
    if file or any("=" in str(given.get(name)) for name in ("prompt_tokens", "output_tokens")):
        from kvgate.cli.request_lengths import read_mixed

        return read_mixed(given, file, needed=needed, limit=values.get("max_model_len"))
    is_assumed = bool(given) and "output_tokens" not in given
    try:
        rest = int(read_tokens(values.get("max_model_len"))) - int(read_tokens(given["prompt_tokens"]))
    except (KeyError, UnusableValue):  # no length, or one that is reported where it is read
        rest = ASSUMED_OUTPUT_TOKENS
    if is_assumed:
        given["output_tokens"] = max(1, min(ASSUMED_OUTPUT_TOKENS, rest))
    workload = read_workload(given, needed=(*needed, "prompt_tokens"))
    if workload is None or not is_assumed:
        return workload
    return replace(workload, output_tokens=min(workload.output_tokens, workload.prompt_tokens), is_output_assumed=True)

"""Options about what must fit: the guarantee, and the workload that it may be about."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click
from msgspec.structs import replace

from kvgate.budget import Guarantee, Workload
from kvgate.vllm.arguments import option_name
from kvgate.vllm.values import UnusableValue, read_tokens, whole

_READERS = {
    "peak_concurrency": whole(1_000_000),
    "prompt_tokens": read_tokens,
    "output_tokens": read_tokens,
    "shared_prefix_tokens": read_tokens,
}
BY_LOAD = "Workload if one is given, FullContext with --max-model-len and --max-num-seqs together, else Startup"
"""Promise that a command line states without --guarantee."""
_NEEDED = ("peak_concurrency", "prompt_tokens", "output_tokens")
ASSUMED_OUTPUT_TOKENS = 512
"""Tokens of an answer of which nobody said how long it is, at most as many as the prompt has and as --max-model-len leaves.

Public traces of chats have fewer: 211 on average for 1155 of a prompt (AzureLLMInferenceTrace_conv, Splitwise, 2023)."""
_OF_REQUESTS = ("prompt_tokens", "output_tokens", "request_lengths")
RATES = ("requests_per_second", "seconds_per_request")
"""Options that state a peak together: requests that arrive, and the time that each is there."""
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
    has_workload = any(left.get(name) is not None for name in _OF_REQUESTS)
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


def with_wishes(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about the changes that are proposed."""
    options = (
        click.option("--keep", callback=_read_kept, metavar="SETTINGS",
                     help="Settings that no proposal changes: max_model_len,kv_cache_dtype."),
        click.option("--maximize", type=click.Choice(["context", "users"]),
                     help="Find the settings for the longest context for the stated users, or for most users at the stated length."),
    )  # fmt: skip
    return all_of(options)(command)


def taken_workload(values: dict[str, Any], *, needed: Sequence[str] = ("peak_concurrency",)) -> Workload | None:
    """Remove the options of the workload from the values of a command, and read them. Raises UnusableValue with all that is wrong.

    A prompt is always needed; an answer whose length is not said has ASSUMED_OUTPUT_TOKENS.
    """
    given = {name: text for name in _READERS if (text := values.pop(name, None)) is not None}
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


def read_workload(
    given: Mapping[str, Any], *, needed: Collection[str] = _NEEDED, naming: Callable[[str], str] = option_name
) -> Workload | None:
    """Read the parts of a workload; None where none is given. `naming` names them in the words of the door.

    Raises UnusableValue with all that is wrong or missing.
    """
    if not given:
        return None
    problems, numbers = [], dict[str, Any](peak_concurrency=1)
    for name, text in given.items():
        try:
            numbers[name] = int(_READERS[name](text))
        except UnusableValue as error:
            problems.append(f"{naming(name)} is {text!r}; {error}")
    if missing := [name for name in needed if name not in given]:
        problems.append(f"a workload also needs {', '.join(map(naming, missing))}")
    if problems:
        raise UnusableValue("; ".join(problems))
    workload = Workload(**numbers)
    if workload.shared_prefix_tokens > workload.prompt_tokens:
        raise UnusableValue(
            f"{naming('shared_prefix_tokens')} is {workload.shared_prefix_tokens}, above {naming('prompt_tokens')} "
            f"{workload.prompt_tokens}; "
            "the prefix is a part of the prompt"
        )
    return workload


def promise_of(
    named: str | None, workload: Workload | None, stated: Collection[str], *, needed: Sequence[str] = _NEEDED
) -> Guarantee:
    """Return the promise that a command line states: by --guarantee, by a workload, or by a length and a number of sequences together.

    `stated` are the names of the settings that are typed, as options or as axes. Startup where no load is promised: the start alone
    decides. Raises UnusableValue where the workload is missing.
    """
    if named is None:
        states_both = "max_model_len" in stated and "max_num_seqs" in stated
        return Guarantee.WORKLOAD if workload else Guarantee.FULL_CONTEXT if states_both else Guarantee.STARTUP
    if Guarantee(named) is Guarantee.WORKLOAD and workload is None:
        raise UnusableValue(f"guarantee Workload needs {', '.join(map(option_name, needed))}")
    return Guarantee(named)


def promise_of_request(values: dict[str, Any]) -> tuple[Guarantee, Workload | None]:
    """Remove `guarantee` and `workload` from a request of one line of JSON, and read them. Raises UnusableValue with what is wrong.

    Only they state a promise there; a length and a number of sequences are settings.
    """
    named, given = values.pop("guarantee", None), values.pop("workload", None)
    if named not in (None, *Guarantee):
        raise UnusableValue(f"guarantee is {named!r}; write {', '.join(Guarantee)}")
    if given is None:
        if named == Guarantee.WORKLOAD:
            raise UnusableValue(f"guarantee Workload needs the key workload, an object with {', '.join(_NEEDED)}")
        return Guarantee(named or Guarantee.STARTUP), None
    known = {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else {}
    if not known:
        raise UnusableValue(f"workload is {given!r}; write an object with {', '.join(_NEEDED)}")
    if unknown := [name for name in known if name not in _READERS]:
        raise UnusableValue(f"workload has the key {unknown[0]!r}; its keys are {', '.join(_READERS)}")
    if known.get("shared_prefix_tokens") == 0:
        del known["shared_prefix_tokens"]
    try:
        workload = read_workload(known, naming=str)
    except UnusableValue as error:
        raise UnusableValue(f"workload: {error}") from None
    return Guarantee(named or Guarantee.WORKLOAD), workload

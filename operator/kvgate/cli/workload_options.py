"""Options about what must fit: the guarantee, and the workload that it may be about."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click

from kvgate.budget import Guarantee, Workload
from kvgate.vllm.values import UnusableValue, read_tokens, whole

_READERS = {
    "peak_concurrency": whole(1_000_000),
    "prompt_tokens": read_tokens,
    "output_tokens": read_tokens,
    "shared_prefix_tokens": read_tokens,
}
_NEEDED = ("peak_concurrency", "prompt_tokens", "output_tokens")
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def guarantee_option(default: str) -> Decorator:
    """Return the option --guarantee, with a sentence about its default."""
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
    """Add the options of a workload, and --guarantee."""
    options = (
        guarantee_option(default),
        click.option("--peak-concurrency", metavar="N", help="Workload: requests at the same time."),
        click.option("--prompt-tokens", metavar="N", help="Workload: tokens of a prompt, such as 6000, 6k or 6K."),
        click.option("--output-tokens", metavar="N", help="Workload: tokens that are generated for a request."),
        click.option("--shared-prefix-tokens", metavar="N",
                     help="Workload: tokens with which all prompts begin; the cache keeps them once."),
    )  # fmt: skip

    return all_of(options)


def taken_workload(values: dict[str, Any]) -> Workload | None:
    """Remove the options of the workload from the values of a command, and read them. Raises UnusableValue with all that is wrong."""
    return read_workload({name: text for name in _READERS if (text := values.pop(name, None)) is not None})


def read_workload(given: Mapping[str, str], *, needed: Collection[str] = _NEEDED) -> Workload | None:
    """Read the options of a workload; None where none is given. Raises UnusableValue with all that is wrong or missing."""
    if not given:
        return None
    problems, numbers = [], {"peak_concurrency": 1}
    for name, text in given.items():
        try:
            numbers[name] = int(_READERS[name](text))
        except UnusableValue as error:
            problems.append(f"{_flag(name)} is {text!r}; {error}")
    if missing := [name for name in needed if name not in given]:
        problems.append(f"a workload also needs {', '.join(map(_flag, missing))}")
    if problems:
        raise UnusableValue("; ".join(problems))
    workload = Workload(**numbers)
    if workload.shared_prefix_tokens > workload.prompt_tokens:
        raise UnusableValue(
            f"--shared-prefix-tokens is {workload.shared_prefix_tokens}, above --prompt-tokens {workload.prompt_tokens}; "
            "the prefix is a part of the prompt"
        )
    return workload


def chosen_guarantee(named: str | None, workload: Workload | None) -> Guarantee | None:
    """Return the guarantee that is requested: by its name, or by a workload. Raises UnusableValue where the workload is missing."""
    if named is None:
        return Guarantee.WORKLOAD if workload else None
    if Guarantee(named) is Guarantee.WORKLOAD and workload is None:
        raise UnusableValue(f"guarantee Workload needs {', '.join(map(_flag, _NEEDED))}")
    return Guarantee(named)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

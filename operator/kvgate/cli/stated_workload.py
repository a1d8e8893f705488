"""The workload that is stated, and what is promised with it: texts → numbers, with all that is wrong or missing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kvgate.budget import Guarantee, Workload
from kvgate.vllm.arguments import option_name
from kvgate.vllm.values import UnusableValue, read_tokens, whole

READERS = {
    "peak_concurrency": whole(1_000_000),
    "prompt_tokens": read_tokens,
    "output_tokens": read_tokens,
    "shared_prefix_tokens": read_tokens,
}
NEEDED = ("peak_concurrency", "prompt_tokens", "output_tokens")
ASSUMED_OUTPUT_TOKENS = 512
"""Tokens of an answer of which nobody said how long it is, at most as many as the prompt has and as --max-model-len leaves.

Public traces of chats have fewer: 211 on average for 1155 of a prompt (AzureLLMInferenceTrace_conv, Splitwise, 2023)."""
RATES = ("requests_per_second", "seconds_per_request")
"""Options that state a peak together: requests that arrive, and the time that each is there."""


def read_workload(
    given: Mapping[str, Any], *, needed: Collection[str] = NEEDED, naming: Callable[[str], str] = option_name
) -> Workload | None:
    """Read the parts of a workload; None where none is given. `naming` names them in the words of the door.

    Raises UnusableValue with all that is wrong or missing.
    """
    if not given:
        return None
    problems, numbers = [], dict[str, Any](peak_concurrency=1)
    for name, text in given.items():
        try:
            numbers[name] = int(READERS[name](text))
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
    named: str | None, workload: Workload | None, stated: Collection[str], *, needed: Sequence[str] = NEEDED
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
            raise UnusableValue(f"guarantee Workload needs the key workload, an object with {', '.join(NEEDED)}")
        return Guarantee(named or Guarantee.STARTUP), None
    known = {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else {}
    if not known:
        raise UnusableValue(f"workload is {given!r}; write an object with {', '.join(NEEDED)}")
    if unknown := [name for name in known if name not in READERS]:
        raise UnusableValue(f"workload has the key {unknown[0]!r}; its keys are {', '.join(READERS)}")
    if known.get("shared_prefix_tokens") == 0:
        del known["shared_prefix_tokens"]
    try:
        workload = read_workload(known, naming=str)
    except UnusableValue as error:
        raise UnusableValue(f"workload: {error}") from None
    return Guarantee(named or Guarantee.WORKLOAD), workload

"""The options of `kvgate size` as the question that is searched."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from kvgate import catalogue
from kvgate.budget.hardware import Accelerator
from kvgate.budget.request import BudgetRequest, Guarantee, Workload
from kvgate.catalogue.prices import BadPrices, Prices, list_prices, read_prices
from kvgate.documents.bounded_files import Refused, read_all
from kvgate.judge.what_if import UnknownFacts, read_request
from kvgate.planning.size import Question
from kvgate.vllm.values import Unusable, ValueProblems, whole
from kvgate.vllm.what_if_settings import read_tokens

MAX_PRICES_BYTES = 1 << 20
"""Size of a file of prices."""
_WORKLOAD = {
    "peak_concurrency": whole(1_000_000),
    "prompt_tokens": read_tokens,
    "output_tokens": read_tokens,
    "shared_prefix_tokens": read_tokens,
}
_NEEDED = ("peak_concurrency", "prompt_tokens", "output_tokens")


def asked(values: Mapping[str, Any], prices: BinaryIO | None) -> tuple[Question, Prices]:
    """The question and the prices. Raises Unusable with everything that is wrong, and UnknownFacts."""
    values = dict(values)
    problems = ValueProblems()
    accelerators = problems.read_or(catalogue.accelerators(), _accelerators, values.pop("gpus", None))
    dtypes = tuple(dict.fromkeys(name.strip() for name in values.pop("dtypes").split(",") if name.strip()))
    max_gpus, guarantee = values.pop("max_gpus"), values.pop("guarantee", None)
    workload = problems.read_or(None, _workload, {key: values.pop(key) for key in _WORKLOAD if key in values})
    costs = problems.read_or(list_prices(), _prices, prices)
    request, findings = problems.read_or((None, ()), read_request, {**values, "gpu": accelerators[0].name})
    problems.check()
    if request is None:
        raise UnknownFacts(findings)
    question = Question(
        request=_with_guarantee(request, workload, guarantee),
        accelerators=accelerators,
        kv_cache_dtypes=dtypes or ("auto",),
        prices=costs.per_gpu_hour,
        max_gpus=max_gpus,
        findings=findings,
    )
    return question, costs


def _with_guarantee(request: BudgetRequest, workload: Workload | None, named: str | None) -> BudgetRequest:
    """A workload's requests set max_model_len where nobody does: what is asked for is that they run."""
    settings = request.settings
    usual = Guarantee.WORKLOAD if workload else Guarantee.FULL_CONTEXT if settings.max_num_seqs else Guarantee.STARTUP
    guarantee = Guarantee(named) if named else usual
    if guarantee is Guarantee.WORKLOAD and workload is None:
        raise Unusable(f"guarantee Workload needs {', '.join(map(_flag, _NEEDED))}")
    if guarantee is Guarantee.FULL_CONTEXT and not settings.max_num_seqs:
        raise Unusable(
            "guarantee FullContext needs --max-num-seqs: that many requests of --max-model-len at the same time"
        )
    if guarantee is Guarantee.WORKLOAD and workload and settings.max_model_len is None:
        request = request.with_settings(max_model_len=workload.request_tokens)
    return replace(request, guarantee=guarantee, workload=workload)


def _workload(given: Mapping[str, str]) -> Workload | None:
    if not given:
        return None
    problems = ValueProblems()
    numbers = {name: problems.read_or(0, _number, name, text) for name, text in given.items()}
    problems.read_or(None, _check_complete, given)
    problems.check()
    workload = Workload(**numbers)
    if workload.shared_prefix_tokens > workload.prompt_tokens:
        raise Unusable(
            f"--shared-prefix-tokens is {workload.shared_prefix_tokens}, above --prompt-tokens {workload.prompt_tokens}; "
            "the prefix is a part of the prompt"
        )
    return workload


def _check_complete(given: Mapping[str, str]) -> None:
    if missing := [name for name in _NEEDED if name not in given]:
        raise Unusable(f"a workload also needs {', '.join(map(_flag, missing))}")


def _number(name: str, text: str) -> int:
    try:
        return int(_WORKLOAD[name](text))
    except Unusable as error:
        raise Unusable(f"{_flag(name)} is {text!r}; {error}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _accelerators(wanted: str | None) -> tuple[Accelerator, ...]:
    """All, or those that a name, a part of one, or a vendor means; in the order of the catalogue."""
    everything = catalogue.accelerators()
    if wanted is None:
        return everything
    problems = ValueProblems()
    found = [problems.read_or((), _meant, word.strip(), everything) for word in wanted.split(",")]
    problems.check()
    meant = {accelerator.name for accelerators in found for accelerator in accelerators}
    return tuple(accelerator for accelerator in everything if accelerator.name in meant)


def _meant(word: str, everything: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
    """A name means that one only; else whole GPUs of a vendor, or all with the word in their names."""
    exact = catalogue.find_accelerator(word)
    if exact is not None:
        return (exact,)
    found = tuple(a for a in everything if word.lower() in (a.vendor, "") or word.lower() in a.name.lower())
    if not word or not found:
        nearest = " or ".join(catalogue.nearest_accelerators(word)) or "a name that `kvgate gpus` lists"
        raise Unusable(f"--gpus names {word!r}, which is neither an accelerator nor a vendor; write {nearest}")
    return found


def _prices(file: BinaryIO | None) -> Prices:
    if file is None:
        return list_prices()
    name = Path(file.name).name
    try:
        return read_prices(read_all(file, max_bytes=MAX_PRICES_BYTES).decode(), where=name)
    except (BadPrices, Refused, UnicodeDecodeError) as error:
        raise BadPrices(f"--prices {name}: {error}") from None

"""Options of `kvgate size` → the question that the search answers."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Accelerator, BudgetRequest, Guarantee, Workload
from kvgate.catalogue.prices import BadPrices, Prices, list_prices, read_prices
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.documents.bounded_files import Refused, read_all
from kvgate.judge.what_if import UnknownFacts, read_request
from kvgate.planning.size import Question
from kvgate.vllm.values import UnusableValue, ValueProblems, read_tokens, whole

MAX_PRICES_BYTES = 1 << 20
"""Largest file of prices."""
_WORKLOAD = {
    "peak_concurrency": whole(1_000_000),
    "prompt_tokens": read_tokens,
    "output_tokens": read_tokens,
    "shared_prefix_tokens": read_tokens,
}
_NEEDED = ("peak_concurrency", "prompt_tokens", "output_tokens")


def asked(
    values: Mapping[str, Any], prices: BinaryIO | None, models: PublishedModels = NO_MODELS
) -> tuple[Question, Prices]:
    """Read the question and the prices. Raises UnusableValue with everything that is wrong, and UnknownFacts."""
    values = dict(values)
    problems = ValueProblems()
    accelerators = problems.read_or(catalogue.accelerators(), _accelerators, values.pop("gpus", None))
    dtypes = tuple(dict.fromkeys(name.strip() for name in values.pop("dtypes").split(",") if name.strip()))
    max_gpus, guarantee = values.pop("max_gpus"), values.pop("guarantee", None)
    workload = problems.read_or(None, _workload, {key: values.pop(key) for key in _WORKLOAD if key in values})
    costs = problems.read_or(list_prices(), _prices, prices)
    read = partial(read_request, models=models)
    request, findings = problems.read_or(
        (None, ()), read, {"usage_context": "server", **values, "gpu": accelerators[0].name}
    )
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
    """Choose what must fit. Without --max-model-len, the requests of the workload set it: they must be able to run."""
    settings = request.settings
    usual = Guarantee.WORKLOAD if workload else Guarantee.FULL_CONTEXT if settings.max_num_seqs else Guarantee.STARTUP
    guarantee = Guarantee(named) if named else usual
    if guarantee is Guarantee.WORKLOAD and workload is None:
        raise UnusableValue(f"guarantee Workload needs {', '.join(map(_flag, _NEEDED))}")
    if guarantee is Guarantee.FULL_CONTEXT and not settings.max_num_seqs:
        raise UnusableValue(
            "guarantee FullContext needs --max-num-seqs: that many requests of --max-model-len at the same time"
        )
    if guarantee is Guarantee.WORKLOAD and workload and settings.max_model_len is None:
        request = request.with_settings(max_model_len=workload.request_tokens)
    return replace(request, guarantee=guarantee, workload=workload)


def _workload(given: Mapping[str, str]) -> Workload | None:
    """Read the options of the workload. Raises UnusableValue with every value that is wrong and every option that is missing."""
    if not given:
        return None
    problems, numbers = [], {}
    for name, text in given.items():
        try:
            numbers[name] = int(_WORKLOAD[name](text))
        except UnusableValue as error:
            problems.append(f"{_flag(name)} is {text!r}; {error}")
    if missing := [name for name in _NEEDED if name not in given]:
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


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _accelerators(wanted: str | None) -> tuple[Accelerator, ...]:
    """Return the accelerators of --gpus in the order of the catalogue; all of them without --gpus. Raises UnusableValue.

    A name means that accelerator only. Any other word means the whole GPUs of a vendor, and all with the word in their names.
    """
    everything = catalogue.accelerators()
    if wanted is None:
        return everything
    meant, problems = set[str](), []
    for word in map(str.strip, wanted.split(",")):
        exact = catalogue.find_accelerator(word)
        found = (
            [exact]
            if exact
            else [a for a in everything if word.lower() in (a.vendor, "") or word.lower() in a.name.lower()]
        )
        if not word or not found:
            nearest = " or ".join(catalogue.nearest_accelerators(word)) or "a name that `kvgate gpus` lists"
            problems.append(f"--gpus names {word!r}, which is neither an accelerator nor a vendor; write {nearest}")
        meant |= {accelerator.name for accelerator in found}
    if problems:
        raise UnusableValue("; ".join(problems))
    return tuple(accelerator for accelerator in everything if accelerator.name in meant)


def _prices(file: BinaryIO | None) -> Prices:
    if file is None:
        return list_prices()
    name = Path(file.name).name
    try:
        return read_prices(read_all(file, max_bytes=MAX_PRICES_BYTES).decode(), where=name)
    except (BadPrices, Refused, UnicodeDecodeError) as error:
        raise BadPrices(f"--prices {name}: {error}") from None

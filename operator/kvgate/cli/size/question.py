"""Options of `kvgate size` → the question that the search answers."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import AUTO_MAX_MODEL_LEN, Accelerator, BudgetRequest, Guarantee, Workload
from kvgate.catalogue.prices import BadPrices, Prices, list_prices, read_prices
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.cli.gpu_names import read_gpus
from kvgate.cli.stated_workload import RATES, promise_of
from kvgate.cli.workload_options import taken_workload
from kvgate.documents.bounded_files import Refused, read_all
from kvgate.judgement.what_if import UnknownFacts, read_request
from kvgate.planning.size import Question
from kvgate.vllm.values import UnusableValue, ValueProblems

MAX_PRICES_BYTES = 1 << 20
MAX_GPUS, NODE_GPUS = 64, 8
"""GPUs that are searched by default: for a number of requests, and where the answer is how many requests a node holds."""


def question_of(
    values: Mapping[str, Any], prices: BinaryIO | None, models: PublishedModels = NO_MODELS
) -> tuple[Question, Prices]:
    """Read the question and the prices. Raises UnusableValue with everything that is wrong, and UnknownFacts."""
    values = dict(values)
    problems = ValueProblems()
    every = values.pop("every", False)
    accelerators, available = problems.read_or(
        (catalogue.accelerators(), {}), partial(_accelerators, every=every), values.pop("gpus", None)
    )
    dtypes = tuple(dict.fromkeys(name.strip() for name in values.pop("dtypes").split(",") if name.strip()))
    max_gpus, guarantee = values.pop("max_gpus", None), values.pop("guarantee", None)
    fills = not values.keys() & {"peak_concurrency", *RATES}
    workload = problems.read_or(None, partial(taken_workload, needed=()), values)
    costs = problems.read_or(list_prices(), _prices, prices)
    read = partial(read_request, models=models)
    request, findings = problems.read_or(
        (None, ()), read, {"usage_context": "server", **values, "gpu": accelerators[0].name}
    )
    problems.check()
    if request is None:
        raise UnknownFacts(findings)
    request = _with_guarantee(request, workload, guarantee)
    fills = fills and request.guarantee is Guarantee.WORKLOAD
    question = Question(
        request=request,
        available=available,
        fills=fills,
        accelerators=accelerators,
        kv_cache_dtypes=dtypes or ("auto",),
        prices=costs.per_gpu_hour,
        max_gpus=max_gpus or (NODE_GPUS if fills else MAX_GPUS),
        findings=findings,
    )
    return question, costs


def _with_guarantee(request: BudgetRequest, workload: Workload | None, named: str | None) -> BudgetRequest:
    """Choose what must fit. Without --max-model-len, the requests of the workload set it: they must be able to run."""
    settings = request.settings
    stated = [name for name in ("max_model_len", "max_num_seqs") if getattr(settings, name) is not None]
    guarantee = promise_of(named, workload, stated, needed=("prompt_tokens",))
    if guarantee is Guarantee.FULL_CONTEXT and settings.max_model_len == AUTO_MAX_MODEL_LEN:
        guarantee = Guarantee.STARTUP  # nobody states the length that is promised
    if guarantee is Guarantee.FULL_CONTEXT and not settings.max_num_seqs:
        raise UnusableValue(
            "guarantee FullContext needs --max-num-seqs: that many requests of --max-model-len at the same time"
        )
    if guarantee is Guarantee.WORKLOAD and workload and settings.max_model_len is None:
        request = request.with_settings(max_model_len=workload.request_tokens)
    return replace(request, guarantee=guarantee, workload=workload)


def _accelerators(wanted: str | None, *, every: bool) -> tuple[tuple[Accelerator, ...], Mapping[str, int]]:
    """Return the accelerators of --gpu in the order of the catalogue, and how many there are of each where that is stated.

    A word that is no name means a vendor's, or all with the word in their names: slices of GPUs among them only for `every` one, and
    for a word that names slices. Without --gpu it is all of them that are usually met. Raises UnusableValue.
    """
    everything = tuple(a for a in catalogue.accelerators() if every or not a.is_slice)
    if wanted is None:
        return everything, {}
    if "mig" in wanted.lower():
        everything = catalogue.accelerators()
    meant, problems, available = set[str](), [], dict[str, int]()
    for choice in read_gpus(wanted):
        word = choice.names[0] if len(choice.names) == 1 else choice.text
        known = [name for name in choice.names if catalogue.find_accelerator(name)]
        found = known or [a.name for a in everything if word.lower() == a.vendor or word.lower() in a.name.lower()]
        if choice.count is not None:
            available |= dict.fromkeys(found, choice.count)
        if not found:
            nearest = " or ".join(catalogue.nearest_accelerators(word)) or "a name that `kvgate gpus` lists"
            problems.append(f"--gpu names {word!r}, which is neither an accelerator nor a vendor; write {nearest}")
        meant |= set(found)
    if problems or not meant:
        raise UnusableValue("; ".join(problems) or "--gpu is empty, which is neither an accelerator nor a vendor")
    return tuple(each for each in catalogue.every_accelerator() if each.name in meant), available


def _prices(file: BinaryIO | None) -> Prices:
    if file is None:
        return list_prices()
    name = Path(file.name).name
    try:
        return read_prices(read_all(file, max_bytes=MAX_PRICES_BYTES).decode(), where=name)
    except (BadPrices, Refused, UnicodeDecodeError) as error:
        raise BadPrices(f"--prices {name}: {error}") from None

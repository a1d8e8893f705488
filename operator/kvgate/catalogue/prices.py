"""Prices of GPUs per hour: our dated list prices, or a file of the user's."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import starmap
from typing import Any

from msgspec import Struct

from kvgate import bundle, catalogue
from kvgate.documents.nodes import YamlError, value_of
from kvgate.vllm.values import UnusableValue, ValueProblems, exact_decimal

_NO_PRICE = ("", Fraction(0))
MAX_PRICES = 1000
"""Entries of a file; each name that is not in the catalogue is compared with all that are, which takes milliseconds."""


class BadPrices(UnusableValue):
    """A file that is not a list of prices; the message says what it must be."""


class Prices(Struct, frozen=True, kw_only=True):
    per_gpu_hour: Mapping[str, Fraction]
    currency: str
    remark: str
    """Words for people about the source of the prices."""


@lru_cache(maxsize=1)
def list_prices() -> Prices:
    """Return on-demand list prices, each with its source and date in the data file."""
    data = _parsed(bundle.text("prices.yaml"))
    dates = sorted(str(entry["date"]) for entry in data["lists"])
    providers = dict.fromkeys(entry["provider"] for entry in data["lists"])
    return Prices(
        per_gpu_hour={
            name: price for entry in data["lists"] for name, price in starmap(_priced, entry["prices"].items())
        },
        currency=data["currency"],
        remark=f"on-demand list prices of {', '.join(providers)}, read {dates[0]} to {dates[-1]}; --prices for your own",
    )


def read_prices(text: str, *, where: str) -> Prices:
    """Read a file of the user's: accelerator → price, and perhaps `currency`. Raises BadPrices with everything that is wrong."""
    data = dict(_parsed(text))
    if len(data) > MAX_PRICES:
        raise BadPrices(f"it has {len(data)} entries; write at most {MAX_PRICES}")
    problems = ValueProblems()
    currency = problems.read_or("", _currency, data.pop("currency", "USD"))
    priced = [problems.read_or(_NO_PRICE, _priced, str(name), price) for name, price in data.items()]
    problems.read_or(None, _check_once, [name for name, _ in priced if name])
    try:
        problems.check()
    except UnusableValue as error:
        raise BadPrices(str(error)) from None
    return Prices(per_gpu_hour=dict(priced), currency=currency, remark=f"prices of {where}")


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        data = value_of(text)
    except YamlError as error:
        raise BadPrices(f"it is not YAML: line {error.line}: {error.message}; {error.remediation}") from None
    if not isinstance(data, Mapping):
        raise BadPrices("it must be a mapping: a name that `kvgate gpus` lists, a colon, a price per hour")
    return data


def _check_once(names: Sequence[str]) -> None:
    """Refuse two prices of one accelerator, which may have been written under two of its names."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise BadPrices(f"{', '.join(twice)}: more than one price; write one")


def _currency(value: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise BadPrices(f"currency is {value!r}; write a name such as EUR, one for all prices")


def _priced(name: str, price: Any) -> tuple[str, Fraction]:
    accelerator = catalogue.find_accelerator(name)
    if accelerator is None:
        nearest = " or ".join(catalogue.nearest_accelerators(name)) or "a name that `kvgate gpus` lists"
        raise BadPrices(f"{name} is not in the catalogue; write {nearest}")
    value = exact_decimal(price)
    if value is None or value < 0:
        raise BadPrices(f"{name} has the price {price!r}; write a number from 0, such as 2.50")
    return accelerator.name, value

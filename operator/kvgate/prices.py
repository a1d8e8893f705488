"""What a GPU costs per hour: our dated list prices, or a file of the user's."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from kvgate import catalogue
from kvgate.record import record

_DATA = Path(__file__).parent / "data" / "prices.yaml"
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BadPrices(ValueError):
    """A file that is not a list of prices; the message says what it must be."""


@record
class Prices:
    """Prices of one GPU per hour by the accelerator's short name."""

    per_gpu_hour: Mapping[str, Fraction]
    currency: str
    remark: str
    """Where they come from, for people."""


@lru_cache(maxsize=1)
def list_prices() -> Prices:
    """On-demand list prices, each with its source and date in the data file."""
    data = _parsed(_DATA.read_text(encoding="utf-8"))
    dates = sorted(str(entry["date"]) for entry in data["lists"])
    providers = dict.fromkeys(entry["provider"] for entry in data["lists"])
    return Prices(
        per_gpu_hour={name: price for entry in data["lists"] for name, price in _prices(entry["prices"])},
        currency=data["currency"],
        remark=f"on-demand list prices of {', '.join(providers)}, read {dates[0]} to {dates[-1]}; --prices for your own",
    )


def read_prices(text: str, *, where: str) -> Prices:
    """A file of the user's: accelerator → price, and perhaps `currency`. Raises BadPrices."""
    data = dict(_parsed(text))
    currency = data.pop("currency", "USD")
    return Prices(per_gpu_hour=dict(_prices(data)), currency=str(currency), remark=f"prices of {where}")


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise BadPrices(f"it is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, Mapping):
        raise BadPrices("it must be a mapping: a name that `kvgate gpus` lists, a colon, a price per hour")
    return data


def _prices(data: Mapping[Any, Any]) -> Iterator[tuple[str, Fraction]]:
    for name, price in data.items():
        accelerator = catalogue.find_accelerator(str(name))
        if accelerator is None:
            nearest = " or ".join(catalogue.nearest_accelerators(str(name))) or "a name that `kvgate gpus` lists"
            raise BadPrices(f"{name} is not in the catalogue; write {nearest}")
        yield accelerator.name, _price(str(name), price)


def _price(name: str, price: Any) -> Fraction:
    """Exactly the decimal that is written."""
    if isinstance(price, int | float | str) and not isinstance(price, bool) and len(str(price)) <= 20:
        try:
            value = Fraction(str(price))
        except (ValueError, ZeroDivisionError):
            value = Fraction(-1)
        if value >= 0:
            return value
    raise BadPrices(f"{name} has the price {price!r}; write a number from 0, such as 2.50")

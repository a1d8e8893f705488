"""Prices: ours are dated and sourced, the user's are read exactly, and what cannot be read is named."""

import datetime as dt
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate import catalogue
from kvgate.catalogue.prices import BadPrices, list_prices, read_prices
from support.tables import table

DATA = Path(__file__).parents[3] / "operator" / "kvgate" / "catalogue" / "data" / "prices.yaml"
LISTS: list[dict[str, Any]] = yaml.safe_load(DATA.read_text(encoding="utf-8"))["lists"]


@pytest.mark.parametrize("entry", LISTS, ids=[f"{entry['provider']} {entry['date']}" for entry in LISTS])
def test_every_list_has_provider_source_copy_and_date(entry: dict[str, Any]) -> None:
    assert entry.keys() == {"provider", "source", "copy", "date", "prices"}
    assert entry["source"].startswith("https://")
    assert entry["copy"].startswith("https://")
    assert isinstance(entry["date"], dt.date)
    names = {accelerator.name for accelerator in catalogue.accelerators()}
    assert entry["prices"].keys() <= names
    assert all(isinstance(price, str) and Fraction(price) > 0 for price in entry["prices"].values())


def test_every_accelerator_has_one_price_at_most_and_the_usual_ones_have_one() -> None:
    listed = [name for entry in LISTS for name in entry["prices"]]
    assert len(listed) == len(set(listed)) == len(list_prices().per_gpu_hour)
    assert {
        "H100-SXM-80GB",
        "H200-SXM-141GB",
        "A100-SXM-80GB",
        "L4-24GB",
        "L40S-48GB",
        "B200-SXM-180GB",
        "MI300X-192GB",
    } <= set(listed)


def test_the_remark_says_when_the_list_was_read() -> None:
    assert str(min(entry["date"] for entry in LISTS)) in list_prices().remark
    assert "--prices" in list_prices().remark


@pytest.mark.parametrize("written", ["2.10", '"2.10"', "2.1"])
def test_a_price_of_the_user_is_the_decimal_that_is_written(written: str) -> None:
    prices = read_prices(f"currency: EUR\nh100-sxm-80gb: {written}\nL4: 1\n", where="ours.yaml")
    assert prices.per_gpu_hour == {"H100-SXM-80GB": Fraction(21, 10), "L4-24GB": 1}
    assert prices.currency == "EUR"
    assert "ours.yaml" in prices.remark


@table(
    ("text", "words"),
    [
        ("- 1", "mapping"),
        ("a: [", "not YAML"),
        ("H999: 1", "not in the catalogue"),
        ("L40X: 1", "L40"),
        ("L4: cheap", "L4 has the price 'cheap'"),
        ("L4: -1", "number from 0"),
        ("L4: yes", "number from 0"),
        ("L4: .inf", "number from 0"),
        ("L4: 1/0", "number from 0"),
        ("L4:", "number from 0"),
        ("L4: 1\nL4-24GB: 2", "L4-24GB: more than one price; write one"),
        ("L4: 1e999999999", "number from 0"),
        ("L4: 2026-13-45", "L4 has the price '2026-13-45'"),
        ("currency: [EUR]", "currency is \\['EUR'\\]; write a name such as EUR"),
        ("H999: 1\nL4: -1", "H999 is not in the catalogue; .*; L4 has the price -1"),
    ],
)
def test_what_is_not_a_price_is_named(text: str, words: str) -> None:
    with pytest.raises(BadPrices, match=words):
        read_prices(text, where="ours.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 10}]\n" for n in range(1, 30)), "aliases stand for"),
        ("a: " + "[" * 90_000 + "]" * 90_000, "nested deeper"),
        ("a: " + "[" * 90_000, "nested deeper"),
        ("".join(f"H100-{n}: 1\n" for n in range(1001)), "1001 entries"),
        ("L4: 1\nL4: 2\n", "key L4 is written twice"),
    ],
)
def test_a_file_of_prices_that_would_fill_memory_or_time_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadPrices, match=words):
        read_prices(text, where="ours.yaml")

"""Default and longest max_model_len by release, against what `_get_and_verify_max_len` of vLLM's source returns.

`max_model_len.csv` has the models of the catalogue. `length_rules.jsonl` has a config for each kind of rope scaling and place of a key,
run with the releases 0.8.5, 0.10.2, 0.11.0 to 0.12.0, 0.14.0, 0.19.0, 0.20.0, 0.24.0 and 0.29.0 to 0.33.0.
"""

import json
from typing import Any

import pytest

from kvgate import catalogue
from kvgate.budget import ModelShape
from kvgate.budget.engine.settings import longest_context, resolve_settings
from kvgate.budget.releases.versions import accounting_of, parse_patch
from kvgate.hf_config import read_config
from parity.tables import HERE, rows_of
from support.builders import catalogue_shape, new_request
from support.tables import table

RELEASES = ("0.8.5", "0.11.2", "0.19.0", "0.24.0", "0.33.0")
MODELS: dict[str, dict[str, tuple[int, int]]] = {}
for row in rows_of("max_model_len.csv"):
    MODELS.setdefault(row["model"], {})[row["since"]] = (int(row["default"]), int(row["longest"]))
RULES = [json.loads(line) for line in (HERE / "length_rules.jsonl").read_text(encoding="utf-8").splitlines()]


def lengths(shape: ModelShape, version: str) -> tuple[int, int]:
    """(default, longest) max_model_len in tokens."""
    accounting = accounting_of(version)
    resolved = resolve_settings(new_request(shape=shape, vllm_version=version, max_model_len=None), accounting)
    return resolved.max_model_len, longest_context(shape, accounting)


def test_every_model_of_the_catalogue_is_compared() -> None:
    assert set(MODELS) == set(catalogue.model_names())


@pytest.mark.slow
@table("model", sorted(MODELS))
def test_a_model_runs_with_the_lengths_of_its_release(model: str) -> None:
    shape = catalogue_shape(model)
    known = sorted(MODELS[model], key=parse_patch)
    for since, until in zip(known, [*known[1:], None], strict=True):
        last = [each for each in RELEASES if until is None or parse_patch(each) < parse_patch(until)][-1]
        for version in {since, last} - ({"0.33.0"} if "Step-3.7" in model else set()):
            assert lengths(shape, version) == MODELS[model][since], version


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["name"]))
def test_a_config_has_the_lengths_of_each_release(rule: dict[str, Any]) -> None:
    shape = read_config(rule["config"])
    for version, expected in rule["since"].items():
        assert lengths(shape, version) == tuple(expected), version

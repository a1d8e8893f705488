"""config.json of every family with parts taken out or given another value, as an object and as text."""

import copy
import json
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from fuzz.mutation import nested, odd
from kvgate import catalogue
from kvgate.budget.ground.interval import Verdict
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.what_if import assess_request
from kvgate.statement.what_if import BadRequest

Path = tuple[str, ...]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 3, 7, -1, -4096, 10**6, 10**9, 10**30, 0.5, -0.5, 1e308, "", "0", "many", [], [0], ["full_attention"],
    ["no_such_attention"] * 5, {}, {"a": 1}, [[1, 2], {"b": None}],
)  # fmt: skip
GPUS = ("H100-SXM-80GB", "T4-16GB", "B200-SXM-180GB", "MI300X-192GB", "A100-SXM-40GB")


@lru_cache(maxsize=1)
def families() -> tuple[dict[str, Any], ...]:
    """One configuration per model class: the first by name."""
    by_class: dict[str, dict[str, Any]] = {}
    for name in catalogue.model_names():
        config = dict(catalogue.load_model(name).config)
        by_class.setdefault(config["architectures"][0], config)
    return tuple(by_class.values())


def paths_of(config: Any, at: Path = ()) -> Iterator[Path]:
    """Every key, in nested objects as well."""
    for key, value in config.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*at, key))


def mutated_config(chance: random.Random) -> dict[str, Any]:
    """A family's config.json with one to three keys taken out or given another value."""
    config = copy.deepcopy(chance.choice(families()))
    for _ in range(chance.randint(1, 3)):
        path = chance.choice(list(paths_of(config)) or [("architectures",)])
        parent = config
        for key in path[:-1]:
            parent = parent[key]
        if chance.random() < 0.5:
            parent.pop(path[-1], None)
        else:
            parent[path[-1]] = copy.deepcopy(chance.choice(VALUES)) if chance.random() < 0.8 else odd(chance)
    return config


def config_text(chance: random.Random) -> str:
    """What may stand behind configFrom: mostly JSON, and mostly a config."""
    kind = chance.random()
    if kind < 0.7:
        return json.dumps(mutated_config(chance))
    if kind < 0.8:
        text = json.dumps(mutated_config(chance))
        start = chance.randrange(len(text))
        return (
            text[:start]
            + chance.choice(("", ",", "}", "Infinity", "1e999", "\\ud800", '"', "NaN"))
            + text[start + chance.randint(0, 9) :]
        )
    if kind < 0.9:
        return json.dumps(nested(chance, chance.choice((3, 60, 900))))
    return chance.choice(
        (
            "",
            "null",
            "[]",
            "{}",
            "{",
            "[" * 5000,
            '{"a":' * 5000,
            "9" * 6000,
            "x: 1",
            "\ufeff{}",
            '{"architectures": ["X"]}',
        )
    )


def violations(config: dict[str, Any], gpu: str, tensor: int, length: int | None) -> Iterator[str]:
    values = {"model_config": config, "gpu": gpu, "tensor_parallel_size": tensor, "max_model_len": length}
    try:
        assessment = assess_request(values)
    except BadRequest:
        return
    if assessment.verdict is Verdict.UNKNOWN and not assessment.findings:
        yield "Unknown without a finding"
    if assessment.verdict is Verdict.FITS:
        yield from _impossible(assessment)


def _impossible(assessment: Assessment) -> Iterator[str]:
    """Every figure of a ledger that is called Fits is above zero where it must be, and the whole holds its parts."""
    budget = assessment.budget
    if budget is None or budget.tightest is None or budget.resolved.max_model_len <= 0:
        yield "Fits without a budget"
        return
    for stage in budget.stages:
        ledger = stage.ledger
        if ledger is None or not 0 <= ledger.weights.low <= ledger.weights.expected or ledger.weights.expected <= 0:
            yield "Fits without weights"
        elif any(term.low < 0 for name, term in ledger.terms if name != "cuda_graph"):
            yield "Fits with a term below zero"
        elif not 0 < stage.available.low <= stage.available.high <= ledger.total_bytes:
            yield "Fits with more or less memory than there is"
        elif stage.bytes_per_block <= 0 and budget.kv_cache is not None and budget.kv_cache.groups:
            yield "Fits with blocks of no bytes"


def check_seed(seed: int) -> list[str]:
    chance = random.Random(f"configs {seed}")
    config = mutated_config(chance)
    return list(violations(config, chance.choice(GPUS), chance.choice((1, 2, 8)), chance.choice((None, 4096))))


def written(seed: int) -> bytes:
    return json.dumps(mutated_config(random.Random(f"configs {seed}")), indent=1).encode()

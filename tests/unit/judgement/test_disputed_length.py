"""A config that says less than the catalogue of the same name: one of the two is not the published one, so its length refuses nothing."""

from typing import Any

import pytest

from kvgate import catalogue
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.what_if import assess_request

NAME = "Qwen/Qwen1.5-1.8B"


def assessed(max_model_len: int, *, name: str = NAME, **config: Any) -> Assessment:
    entry = catalogue.find_model(NAME)
    assert entry is not None
    values = {"model": name, "model_config": {**entry.config, **config}, "gpu": "H100-SXM-80GB"}
    return assess_request({**values, "max_model_len": max_model_len})


def severities(max_model_len: int, **others: Any) -> list[str]:
    found = assessed(max_model_len, **others).findings
    return [finding.severity.value for finding in found if finding.rule.id == "MaxModelLenAboveModel"]


@pytest.mark.parametrize(
    ("length", "expected"),
    [(4096, []), (8192, ["warning"]), (32_768, ["warning"]), (32_769, ["error"])],
)
def test_up_to_the_known_length_it_is_a_warning(length: int, expected: list[str]) -> None:
    """Four logged starts ran with 8196 and 32768 tokens, and a copy of the config that is in use says 4096."""
    assert severities(length, max_position_embeddings=4096) == expected


@pytest.mark.parametrize(("length", "verdict"), [(4096, "Fits"), (8192, "MayNotFit"), (40_000, "DoesNotFit")])
def test_what_is_disputed_is_no_promise_either(length: int, verdict: str) -> None:
    assert assessed(length, max_position_embeddings=4096).verdict == verdict


def test_a_config_of_another_name_is_believed() -> None:
    assert severities(8192, name="/models/my-own", max_position_embeddings=4096) == ["error"]
    assert severities(8192, name="me/Qwen1.5-1.8B-mine", max_position_embeddings=4096) == ["error"]


def test_the_published_config_refuses() -> None:
    assert severities(40_000) == ["error"]

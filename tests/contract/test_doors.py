"""One case folder, every door: they must agree on what becomes of an object, and why."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.doors import DOORS

CASES = sorted(path.parent for path in Path(__file__).parent.glob("*/request.yaml"))


def expected_of(case: Path, door: str) -> dict[str, Any]:
    """What every door says, with what this one cannot know."""
    expected: dict[str, Any] = yaml.safe_load((case / "expected.yaml").read_text(encoding="utf-8"))
    return {**expected, **expected.get("doors", {}).get(door, {})}


REFUSED = [
    case
    for case in CASES
    if (expected := expected_of(case, "controller"))["decision"] == "Refuse" and expected["verdict"] is not None
]
"""By the budget or a setting: objects that can be read."""
FIELDS = {
    "max_model_len": "maxModelLen",
    "max_num_seqs": "maxNumSeqs",
    "kv_cache_dtype": "kvCacheDtype",
    "gpu_memory_utilization": "gpuMemoryUtilization",
    "kv_cache_memory_bytes": "kvCacheMemoryBytes",
    "num_gpu_blocks_override": "numGpuBlocksOverride",
    "chosen": "chosen",
}
"""Of the effective values: as the command line writes them, and as the status does."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_door_decides_alike(case: Path, door: str) -> None:
    expected = expected_of(case, door)
    outcome = DOORS[door](case / "request.yaml")
    assert outcome.decision == expected["decision"], outcome.message
    assert outcome.verdict in (None, str(expected["verdict"] or "null")), outcome.message
    assert outcome.reason in (None, expected["reason"]), outcome.message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_command_line_says_why(case: Path) -> None:
    message = DOORS["command_line"](case / "request.yaml").message
    for words in expected_of(case, "command_line")["message"]:
        assert words in message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_webhook_says_why_where_it_does_not_simply_admit(case: Path) -> None:
    outcome = DOORS["webhook"](case / "request.yaml")
    expected = expected_of(case, "webhook")
    warns = expected.get("warns", False)
    assert (outcome.message != "") == (outcome.decision != "Admit" or warns)
    for words in expected["message"] if "doors" in expected or warns else ():
        assert words in outcome.message


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_the_controller_alone_refuses_with_the_words_of_kubectl(case: Path) -> None:
    assert DOORS["controller"](case / "request.yaml").message == DOORS["webhook"](case / "request.yaml").message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_command_line_tells_the_values_that_are_rendered(case: Path) -> None:
    told = DOORS["command_line"](case / "request.yaml").effective
    rendered = DOORS["controller"](case / "request.yaml").effective
    if rendered is None:  # refused, or a GPU that nobody knows
        assert told is None or expected_of(case, "controller")["reason"] == "UnknownAccelerator"
        return
    assert told is not None
    in_status = {FIELDS[name]: value for name, value in told.items() if value is not None}
    in_status |= {"chosen": [FIELDS[name] for name in told["chosen"]]} if told["chosen"] else {}
    assert in_status == rendered


def test_the_cases_cover_every_decision_and_verdict() -> None:
    assert REFUSED
    answers = [expected_of(case, "command_line") for case in CASES]
    assert {answer["decision"] for answer in answers} == {
        "Admit",
        "AdmitWithWarning",
        "AdmitAdjusted",
        "Skipped",
        "Refuse",
    }
    assert {answer["verdict"] for answer in answers} == {"Fits", "MayNotFit", "DoesNotFit", "Unknown", None}

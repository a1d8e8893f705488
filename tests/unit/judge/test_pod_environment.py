"""Variables of template.env: what they change in the verdict, and what is said of them."""

from typing import Any

import pytest

from kvgate.judge.pod_environment import PodEnvironment, read_environment
from kvgate.vllm.variables import MOVING, RESERVED
from support.manifests import an_owner

SECRET = "sk-2f9c41d07ab3"
FROM_SECRET = {"secretKeyRef": {"name": "api", "key": "key"}}


def read(*variables: dict[str, Any]) -> PodEnvironment:
    return read_environment(an_owner(template={"env": list(variables)}).spec)


def told(name: str, **given: Any) -> list[tuple[str, str]]:
    return [(each.rule, each.field) for each in read({"name": "A", "value": "1"}, {"name": name, **given}).findings]


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_API_KEY",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "S3_ACCESS_KEY",
        "api_key",
        "DB_PASSWORD",
    ],
)
def test_a_secret_in_plain_text_is_warned_of_and_not_repeated(name: str) -> None:
    assert told(name, value=SECRET) == [("SecretInPlainText", "spec.template.env[1].value")]
    found = read({"name": name, "value": SECRET}).findings
    assert "secretKeyRef" in found[0].message
    assert len(found[0].message) <= 120  # all that a webhook's warning holds
    assert SECRET not in str(found)
    assert told(name, **FROM_SECRET) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"), ("VLLM_API_KEY", ""), ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_NEW_TOKENS", "1000000000"), ("SECRETARY", "a long enough name"), ("MONKEY", "a long enough name"),
    ],
)  # fmt: skip
def test_a_name_or_a_value_that_is_no_secret_is_not_warned_of(name: str, value: str) -> None:
    assert told(name, value=value) == []


@pytest.mark.parametrize(
    ("value", "is_warned"),
    [("$(HOME)/x", True), ("$$(HOME)", True), ("$HOME", False), ("$(date +%s)", False), ("$", False), ("$()", False)],
)
def test_a_reference_that_kubernetes_would_replace_is_warned_of(value: str, *, is_warned: bool) -> None:
    assert told("X", value=value) == ([("VariableNotExpanded", "spec.template.env[1].value")] if is_warned else [])


@pytest.mark.parametrize(
    ("name", "value", "is_warned"),
    [
        ("HF_HOME", "/cache", False), ("HF_HOME", "/cache/hub", False), ("VLLM_CACHE_ROOT", "/cache/v", False),
        ("HF_HOME", "/data", True), ("HOME", "/root", True), ("VLLM_CACHE_ROOT", "", True), ("HF_HOME", "/cachette", True),
        ("HF_HUB_CACHE", "/data", False),
    ],
)  # fmt: skip
def test_a_folder_that_is_lost_with_the_container_is_warned_of(name: str, value: str, *, is_warned: bool) -> None:
    assert told(name, value=value) == ([("OutsideCacheVolume", "spec.template.env[1].value")] if is_warned else [])


@pytest.mark.parametrize("row", MOVING, ids=lambda row: row.name)
def test_a_variable_that_moves_memory_leaves_the_verdict_open_or_is_warned_of(row: Any) -> None:
    for given in ({"value": "other"}, FROM_SECRET):
        read_ = read({"name": row.name, **given})
        assert read_.kinds == ((row.kind,) if row.kind else ())
        assert [each.rule for each in read_.findings] == ([] if row.kind else ["SettingMovesMemory"])
    for value in row.harmless:
        assert read({"name": row.name, "value": value}) == PodEnvironment()


def test_no_variable_is_both_reserved_and_judged() -> None:
    assert [row.name for row in MOVING if any(group.hold(row.name) for group in RESERVED)] == []

"""Adapters that an engine is started with, and that vLLM refuses."""

import json
from typing import Any

import pytest

from kvgate.api.validation import parse_document
from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published, PublishedModels, by_name, name_key
from kvgate.findings.finding import Severity
from kvgate.judgement.adapters import look_up_adapters
from kvgate.judgement.facts import ConfigMissing, gather
from kvgate.judgement.models import look_up_model
from kvgate.judgement.what_if import read_request
from kvgate.statement.deployment import statement_of
from support.builders import new_document
from support.tables import table

CONFIG = {
    "peft_type": "LORA",
    "r": 64,
    "lora_alpha": 16,
    "target_modules": ["q_proj"],
    "base_model_name_or_path": "Qwen/Qwen3-8B",
}


def known(**changes: Any) -> PublishedModels:
    entry = Published(name="me/sql-lora", config={}, adapter={**CONFIG, **changes})
    return PublishedModels(fetched=by_name([entry]))


def told(
    lora_modules: Any, *, model: str = "Qwen/Qwen3-8B", version: str = "0.32.0", **changes: Any
) -> list[tuple[str, str]]:
    rank = changes.pop("max_lora_rank", None)
    found = look_up_adapters(lora_modules, model=model, max_lora_rank=rank, version=version, models=known(**changes))
    findings = [*found]
    assert {(each.rule.id, each.field) for each in findings} <= {("LoraRefused", "lora_modules")}
    return [(finding.severity, str(finding.message)) for finding in findings]


REFUSED = [(Severity.ERROR, "vLLM refuses to load the adapter sql: its rank 64 is above --max-lora-rank 16")]


@pytest.mark.parametrize(
    "lora_modules",
    [
        ["sql=me/sql-lora"],
        ["other=/data/x", "sql = Me/SQL-lora"],
        [json.dumps({"name": "sql", "path": "me/sql-lora"})],
        [{"name": "sql", "path": "me/sql-lora"}],
        "sql=me/sql-lora",
    ],
)
def test_an_adapter_of_too_large_a_rank_is_refused(lora_modules: Any) -> None:
    assert told(lora_modules) == REFUSED
    assert told(lora_modules, max_lora_rank=64) == []


@pytest.mark.parametrize(("changes", "raises"), [({}, True), ({"r": 8, "use_dora": True}, False)])
def test_a_larger_limit_is_the_remedy_where_the_rank_is_the_reason(changes: dict[str, Any], *, raises: bool) -> None:
    models = known(**changes)
    (finding,) = look_up_adapters(
        ["sql=me/sql-lora"], model="Qwen/Qwen3-8B", max_lora_rank=None, version="0.32.0", models=models
    )
    assert ("to the adapter's rank or more" in str(finding.remediation)) is raises
    assert "leave the adapter out" in str(finding.remediation)


def test_an_adapter_of_another_model_is_a_warning() -> None:
    ((severity, message),) = told(["sql=me/sql-lora"], model="meta-llama/Llama-3.1-8B", max_lora_rank=64)
    assert severity is Severity.WARNING
    assert message == "the adapter sql was made for Qwen/Qwen3-8B, and meta-llama/Llama-3.1-8B is served"


def test_a_broken_config_is_a_warning() -> None:
    ((severity, message),) = told(["sql=me/sql-lora"], r="many")
    assert severity is Severity.WARNING
    assert "r is 'many'" in message


@table("lora_modules", [None, [], ["sql"], ["sql=unknown/adapter"], [5], ["{"], [{"name": 1}], "[" * 5000, True])
def test_what_is_not_known_is_not_judged(lora_modules: Any) -> None:
    assert told(lora_modules) == []


def test_a_release_that_does_not_exist_is_reported_elsewhere() -> None:
    assert told(["sql=me/sql-lora"], version="yesterday") == []


def test_an_engine_is_judged_with_its_adapters() -> None:
    values = {
        "model": "Qwen/Qwen3-8B",
        "gpu": "L4",
        "vllm_version": "0.32.0",
        "enable_lora": True,
        "lora_modules": ["sql=me/sql-lora"],
    }
    _, findings = read_request(values, models=known())
    assert "LoraRefused" in {finding.rule.id for finding in findings}


def test_a_deployment_is_judged_with_the_adapters_of_its_arguments() -> None:
    arguments = ["--enable-lora", "--lora-modules", "sql=me/sql-lora"]
    document = new_document(model="Qwen/Qwen3-8B", accelerator="L4", vllm={"extraArgs": arguments})
    spec = parse_document(document).spec
    found = [
        each for each in gather(statement_of(spec), no_config, models=known()).findings if each.rule.id == "LoraRefused"
    ]
    assert [(each.field, each.severity) for each in found] == [("lora_modules", Severity.ERROR)]
    assert not [each for each in gather(statement_of(spec), no_config).findings if each.rule.id == "LoraRefused"]


@pytest.mark.parametrize(
    ("arguments", "is_refused"),
    [
        (["--lora-modules=sql=me/sql-lora"], True), (["--seed=1", "--lora-modules=sql=me/sql-lora"], True),
        (["--lora-modules=sql=me/sql-lora", "--max-lora-rank=64"], False), (["--lora-modules=sql=me/sql-lora", "--max-lora-rank=32"], True),
        (["--seed=1"], False), (["--lora-modules=sql=me/other"], False),
    ],
    ids=str,
)  # fmt: skip
def test_the_rank_of_the_arguments_counts(arguments: list[str], *, is_refused: bool) -> None:
    spec = parse_document(new_document(vllm={"extraArgs": ["--enable-lora", *arguments]})).spec
    found = gather(statement_of(spec), no_config, models=known()).findings
    assert [(each.rule.id, each.field) for each in found] == ([("LoraRefused", "lora_modules")] if is_refused else [])


def test_an_adapter_that_could_not_be_fetched_is_a_warning() -> None:
    missing = NotFetched(name="me/x", reason=Reason.UNREACHABLE, message="the hub says no", remedies=("log in",))
    models = PublishedModels(missing={name_key("me/x"): missing})
    (finding,) = look_up_adapters(["a=me/x"], model="m", max_lora_rank=None, version="0.32.0", models=models)
    assert (finding.severity, finding.field, finding.remediation) == (Severity.WARNING, "lora_modules", "log in")
    assert finding.message == "the adapter a could not be fetched: the hub says no"


def no_config(reference: object) -> ConfigMissing:
    raise AssertionError(reference)


def test_an_adapter_that_is_served_as_a_model_names_its_base() -> None:
    shape, (finding,) = look_up_model("me/sql-lora", models=known())
    assert shape is None
    assert "LoRA adapter of Qwen/Qwen3-8B and no model" in str(finding.message)

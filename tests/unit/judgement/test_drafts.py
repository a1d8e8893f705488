"""The draft of a question is looked up like its model, and what is wrong with it is said where it was written."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.api.validation import parse_document
from kvgate.budget import Speculation, Verdict
from kvgate.checkpoint.published import Published, PublishedModels, TensorGroup, by_name
from kvgate.judgement.assess import assess
from kvgate.judgement.drafts import look_up_draft
from kvgate.judgement.facts import ConfigMissing, gather
from kvgate.judgement.what_if import assess_request
from kvgate.statement.deployment import statement_of
from kvgate.statement.what_if import BadRequest
from support.builders import new_document

QWEN_EAGLE3 = "AngelSlim/Qwen3-8B_eagle3"
EAGLE3 = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": 128256, "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
}  # fmt: skip
LLAMA = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-SXM-80GB", "vllm_version": "0.32.0"}


def answer(config: object, **more: object) -> tuple[Verdict, set[str]]:
    assessment = assess_request({**LLAMA, "speculative_config": config, **more})
    return assessment.verdict, {finding.rule.id for finding in assessment.findings}


def published(name: str, *tensors: str) -> PublishedModels:
    groups = tuple(TensorGroup(name=each, dtype="BF16", shape=(1,), size_bytes=2) for each in tensors)
    return PublishedModels(locked=by_name([Published(name=name, config=CONFIG, tensors=groups)]))


def test_a_draft_of_the_catalogue_gives_a_verdict() -> None:
    assert answer({"model": EAGLE3, "num_speculative_tokens": 3}) == (Verdict.FITS, set())


def test_an_unknown_draft_leaves_the_verdict_open_and_says_what_to_do() -> None:
    assessment = assess_request(
        {**LLAMA, "speculative_config": {"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-9B", "num_speculative_tokens": 3}}
    )
    found = next(finding for finding in assessment.findings if finding.rule.id == "UnknownDraft")
    assert assessment.verdict is Verdict.UNKNOWN
    assert EAGLE3 in str(found.remediation)
    assert "--draft-config" in str(found.remediation)


def test_the_config_of_an_unknown_draft_can_be_given() -> None:
    config = {"model": "/models/own-eagle3", "num_speculative_tokens": 3}
    assert answer(config, draft_config=CONFIG) == (Verdict.FITS, set())


def test_a_lock_file_wins_and_its_tensors_say_which_ends_a_draft_has() -> None:
    speculation = Speculation(model=EAGLE3.upper(), num_speculative_tokens=3)
    draft, findings = look_up_draft(
        speculation, "0.32.0", models=published(EAGLE3, "lm_head.weight", "midlayer.mlp.weight")
    )
    assert findings == ()
    assert draft is not None
    assert draft.stored_ends == {"lm_head"}


@pytest.mark.parametrize("method", ["ngram", "suffix", "mtp"])
def test_nothing_is_looked_up_where_no_other_model_drafts(method: str) -> None:
    assert look_up_draft(Speculation(method=method, num_speculative_tokens=1), "0.32.0") == (None, ())


def test_a_class_that_the_release_does_not_have_is_an_error_of_the_speculative_config() -> None:
    _, findings = look_up_draft(Speculation(model="z-lab/Qwen3-8B-DFlash-b16", num_speculative_tokens=3), "0.18.0")
    assert [(each.rule.id, each.field, each.severity) for each in findings] == [
        ("ModelClassNotInRelease", "speculative_config", "error")
    ]


def test_all_problems_of_a_drafts_config_are_findings() -> None:
    broken = {**CONFIG, "hidden_size": -1, "num_attention_heads": "many"}
    verdict, rules = answer({"model": "a/eagle3", "num_speculative_tokens": 3}, draft_config=broken)
    assert verdict is Verdict.UNKNOWN
    assert "InvalidModelConfig" in rules
    assessment = assess_request(
        {**LLAMA, "speculative_config": {"model": "a/eagle3", "num_speculative_tokens": 3}, "draft_config": broken}
    )
    told = [str(finding.message) for finding in assessment.findings if finding.rule.id == "InvalidModelConfig"]
    assert len(told) == 2


def test_a_draft_of_another_vocabulary_and_of_another_model_are_told_apart() -> None:
    verdict, rules = answer({"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3})
    assert (verdict, rules) == (Verdict.DOES_NOT_FIT, {"SpeculationRefused"})
    verdict, rules = answer({"model": "AngelSlim/Qwen3-8B_eagle3", "num_speculative_tokens": 3})
    assert (verdict, rules) == (Verdict.FITS, {"DraftOfAnotherModel"})


def test_options_that_each_give_one_key_are_joined() -> None:
    parts = {"spec_model": EAGLE3, "spec_tokens": 3}
    joined = assess_request({**LLAMA, **parts})
    whole = assess_request({**LLAMA, "speculative_config": json.dumps({"model": EAGLE3, "num_speculative_tokens": 3})})
    assert joined.budget is not None
    assert whole.budget is not None
    assert joined.budget.num_tokens == whole.budget.num_tokens


def test_the_options_of_v0_name_a_draft_too() -> None:
    old = {
        **LLAMA,
        "vllm_version": "0.7.3",
        "speculative_model": "meta-llama/Llama-3.2-1B-Instruct",
        "num_speculative_tokens": 5,
    }
    assessment = assess_request(old)
    assert assessment.verdict is Verdict.FITS
    assert assessment.budget is not None
    assert assessment.budget.request.draft is not None


@pytest.mark.parametrize("config", ["{", "[]", 7, {"model": "x", "num_speculative_tokens": "a"}, {"method": "eagle3"}])
def test_garbage_is_a_bad_request(config: object) -> None:
    with pytest.raises(BadRequest):
        assess_request({**LLAMA, "speculative_config": config})


def test_a_model_that_is_named_as_its_own_draft_drafts_by_its_own_layers() -> None:
    asked = {
        "model": "Qwen/Qwen3.6-27B",
        "gpu": "B200",
        "vllm_version": "0.32.0",
        "max_model_len": 4096,
        "max_num_seqs": 8,
    }
    both = [
        assess_request({**asked, "speculative_config": {"method": "mtp", "num_speculative_tokens": 2, **more}})
        for more in ({}, {"model": "qwen/Qwen3.6-27B"})
    ]
    assert [each.verdict for each in both] == [Verdict.FITS] * 2
    assert both[0].budget is not None
    assert both[1].budget is not None
    assert both[0].budget.num_tokens == both[1].budget.num_tokens


def no_text(_: object) -> ConfigMissing:
    return ConfigMissing(message="there is none", remediation="write one")


@pytest.mark.parametrize(
    ("arguments", "verdict", "rules"),
    [
        ([f"--spec-model={QWEN_EAGLE3}", "--spec-tokens=3"], Verdict.FITS, set()),
        (['--speculative-config={"model":"nobody/eagle3","num_speculative_tokens":3}'], Verdict.UNKNOWN,
         {"UnknownDraft", "UnmodelledKind"}),
        (['--speculative-config={"model":"meta-llama/Llama-3.2-1B-Instruct","num_speculative_tokens":3}'], Verdict.DOES_NOT_FIT,
         {"SpeculationRefused"}),
        (['--speculative-config={"method":"eagle3","num_speculative_tokens":"many"}'], Verdict.DOES_NOT_FIT, {"InvalidSetting"}),
    ],
)  # fmt: skip
def test_admission_judges_the_draft_that_extra_args_name(
    arguments: list[str], verdict: Verdict, rules: set[str]
) -> None:
    document = new_document(vllm={"maxModelLen": 4096, "maxNumSeqs": 4, "extraArgs": arguments, "version": "0.32.0"})
    spec = parse_document(document).spec
    assessment = assess(spec, gather(statement_of(spec), no_text))
    assert assessment.verdict is verdict
    assert {finding.rule.id for finding in assessment.findings if finding.severity != "info"} >= rules


def locked(**changes: Any) -> PublishedModels:
    entry = catalogue.find_draft(EAGLE3)
    assert entry is not None
    return PublishedModels(locked=by_name([Published(name=EAGLE3, config={**entry.config, **changes})]))


@pytest.mark.parametrize(
    ("changes", "facts"),
    [({}, []), ({"max_position_embeddings": 1000}, []), ({"num_attention_heads": 16}, ["caches"])],  # a shorter draft is no other one
    ids=str,
)  # fmt: skip
def test_a_draft_of_a_lock_file_is_held_against_the_catalogue(changes: dict[str, Any], facts: list[str]) -> None:
    draft, _ = look_up_draft(Speculation(model=EAGLE3, num_speculative_tokens=3), "0.32.0", models=locked(**changes))
    assert draft is not None
    assert draft.shape.origin is not None
    assert (draft.shape.origin.kind, draft.shape.origin.place) == ("lock file", "the lock file")
    assert [each.fact for each in draft.shape.contradictions] == facts
    assert draft.shape.origin.differences == draft.shape.contradictions


def test_the_catalogue_goes_before_a_lock_file_only_where_the_user_says_so() -> None:
    speculation = Speculation(model=EAGLE3, num_speculative_tokens=3)
    models = replace(locked(hidden_size=2048), catalogue_first=True)
    draft, _ = look_up_draft(speculation, "0.32.0", models=models)
    assert draft is not None
    assert (draft.shape.hidden_size, draft.shape.origin) == (4096, None)


def test_a_fetched_draft_is_used_where_the_catalogue_has_none() -> None:
    entry = Published(name="my/eagle3", config=CONFIG, checkpoint_bytes=77)
    for models in (PublishedModels(fetched=by_name([entry])), PublishedModels(locked=by_name([entry]))):
        draft, findings = look_up_draft(
            Speculation(model="my/eagle3", num_speculative_tokens=3), "0.32.0", models=models
        )
        assert draft is not None
        assert (findings, draft.stored_bytes, draft.stored_ends, draft.shape.contradictions) == ((), 77, None, ())


@pytest.mark.parametrize(
    ("name", "stored_bytes"), [("meta-llama/Llama-3.2-1B-Instruct", 0), ("meta-llama/Llama-3.1-8B-Instruct", 16_060_522_496)]
)  # fmt: skip
def test_the_catalogue_may_know_the_bytes_of_a_model_that_drafts(name: str, stored_bytes: int) -> None:
    draft, _ = look_up_draft(Speculation(model=name, num_speculative_tokens=3), "0.32.0")
    assert draft is not None
    assert draft.stored_bytes == stored_bytes

"""A finding is data: its sentence and its remedy are worded in the names of the door that shows it."""

import pickle

import pytest

from kvgate.findings.finding import (
    Change,
    Finding,
    Naming,
    SettingName,
    Severity,
    any_one,
    at_least,
    at_most,
    change,
    do,
    leave_out,
    steps,
    vllm_name,
    words,
)
from kvgate.judgement.assess import field_name
from kvgate.manifests.judging.engine_budget import EngineNames
from kvgate.rules.memory import KV_CACHE_TOO_SMALL
from kvgate.vllm.arguments import option_name
from support.tables import table

LENGTH = "max_model_len"
IN_VALUES = EngineNames(paths=((LENGTH, "vllmConfig.maxModelLen"), ("max_num_seqs", "")))


def finding() -> Finding:
    remedy = any_one(at_most(LENGTH, 8192, before=16384), "use a larger GPU")
    return KV_CACHE_TOO_SMALL.finding(LENGTH, words("{max_model_len} {length} is too long", length=16384), remedy)


@pytest.mark.parametrize(
    ("naming", "name"),
    [
        (vllm_name, "max_model_len"),
        (option_name, "--max-model-len"),
        (field_name, "spec.vllm.maxModelLen"),
        (IN_VALUES, "vllmConfig.maxModelLen"),
    ],
)
def test_a_door_names_the_setting_as_its_reader_writes_it(naming: Naming, name: str) -> None:
    told = finding().named(naming)
    assert told.message == f"{name} 16384 is too long"
    assert told.remediation == f"any one of: lower {name} from 16384 to 8192 or less; use a larger GPU"
    assert told.remedy_lines == ["any one of:", f"- lower {name} from 16384 to 8192 or less", "- use a larger GPU"]


@pytest.mark.parametrize(
    ("naming", "setting", "name"),
    [
        (field_name, "model_config", "spec.model.configFrom"),
        (field_name, "async_scheduling", "--async-scheduling"),
        (field_name, "spec.template.env[0]", "spec.template.env[0]"),
        (IN_VALUES, "max_num_seqs", "--max-num-seqs"),
        (IN_VALUES, "dtype", "--dtype"),
        (option_name, "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
    ],
)
def test_what_has_no_field_is_an_option(naming: Naming, setting: str, name: str) -> None:
    assert naming(setting) == name


@table(
    ("action", "text"),
    [
        (at_most(LENGTH, 8), "set --max-model-len to 8 or less"),
        (at_least(LENGTH, 8), "set --max-model-len to 8 or more"),
        (at_least(LENGTH, 8, before=4), "raise --max-model-len from 4 to 8 or more"),
        (change(Change.SET, LENGTH, 8), "set --max-model-len to 8"),
        (change(Change.SET, LENGTH, 8, before=4, reason="it fits then"), "change --max-model-len from 4 to 8: it fits then"),
        (change(Change.LOWER, LENGTH, before=9), "lower --max-model-len from 9"),
        (change(Change.RAISE, LENGTH, 8, before=4), "raise --max-model-len from 4 to 8"),
        (leave_out(LENGTH), "leave --max-model-len out"),
        (do("add {max_model_len}"), "add --max-model-len"),
    ],
)  # fmt: skip
def test_an_action_is_one_line(action: object, text: str) -> None:
    assert any_one(action).lines(option_name) == [text]  # type: ignore[arg-type]
    assert any_one(action).worded(option_name) == text  # type: ignore[arg-type]


def test_steps_are_numbered() -> None:
    remedy = steps("drain the node", at_most(LENGTH, 8))
    assert remedy.lines(vllm_name) == ["1. drain the node", "2. set max_model_len to 8 or less"]
    assert remedy.worded(vllm_name) == "drain the node; then set max_model_len to 8 or less"


def test_texts_of_users_are_never_read_as_templates() -> None:
    told = KV_CACHE_TOO_SMALL.finding("model", "{max_model_len} {0} {", "write {dtype}").named(option_name)
    assert (told.message, told.remediation) == ("{max_model_len} {0} {", "write {dtype}")
    assert told.words.settings() == frozenset()


def test_a_finding_knows_whether_its_sentence_names_its_setting() -> None:
    assert finding().names_its_field
    assert finding().with_words("with vLLM {release}: {message}", release="0.33.0").names_its_field
    assert KV_CACHE_TOO_SMALL.finding(LENGTH, words("{name} is 1", name=SettingName(LENGTH))).names_its_field
    assert not KV_CACHE_TOO_SMALL.finding(LENGTH, "one request does not fit").names_its_field


def test_only_an_error_is_softened() -> None:
    assert finding().softened().severity is Severity.WARNING
    info = KV_CACHE_TOO_SMALL.finding(LENGTH, "m", severity=Severity.INFO)
    assert info.softened() is info


def test_findings_travel_between_processes() -> None:
    told = finding().named(field_name)
    back = pickle.loads(pickle.dumps(told))
    assert back == told
    assert back.message == told.message
    assert hash(back) == hash(told)

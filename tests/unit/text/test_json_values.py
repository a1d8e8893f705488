"""Half of a surrogate pair is refused where text enters: it would raise wherever it is written."""

from typing import Any

import pytest

from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import parse_config_text
from kvgate.judgement.models import shape_of_text
from kvgate.text.json_values import has_lone_surrogate, parsed_has_lone_surrogate
from support.builders import new_document

HALF = chr(0xD800)


@pytest.mark.parametrize("value", [HALF, {HALF: 1}, [{"a": [f"x{HALF}"]}], {"a": chr(0xDFFF)}])
def test_half_of_a_pair_is_found_wherever_it_stands(value: Any) -> None:
    assert has_lone_surrogate(value)


@pytest.mark.parametrize("value", ["🚀", {"é": [1, None, True, 1.5]}, {1: object()}])
def test_other_text_and_other_values_are_fine(value: Any) -> None:
    assert not has_lone_surrogate(value)


def test_a_pair_that_is_escaped_is_a_character() -> None:
    assert not parsed_has_lone_surrogate(r'"\ud83d\ude80"', "🚀")
    assert parsed_has_lone_surrogate(r'"\uD800"', HALF)


@pytest.mark.parametrize("text", [r'{"architectures": ["\ud800"]}', r'{"\udfff": 1}', f'{{"a": "{HALF}"}}'])
def test_a_config_that_holds_half_of_a_pair_is_a_finding(text: str) -> None:
    with pytest.raises(ModelConfigError, match="half of a surrogate pair"):
        parse_config_text(text)
    shape, (finding,) = shape_of_text(text, name="a/b", where="ConfigMap x, key config.json")
    assert shape is None
    assert finding.rule.id == "InvalidModelConfig"
    finding.message.encode()


@pytest.mark.parametrize("metadata", [{"annotations": {"a": HALF}}, {"labels": {HALF: "a"}}, {"name": f"q{HALF}"}])
def test_metadata_with_half_of_a_pair_is_a_finding(metadata: dict[str, Any]) -> None:
    document = new_document()
    document["metadata"] = {"name": "qwen", **metadata}
    with pytest.raises(InvalidDocument, match="metadata cannot be stored"):
        parse_document(document)


@pytest.mark.parametrize("spec", [{"accelerator": {"type": f"H100{HALF}"}}, {"template": {"labels": {"a": HALF}}}])
def test_a_spec_with_half_of_a_pair_is_a_finding_that_can_be_written(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocument) as error:
        parse_document(new_document(**spec))
    assert all(finding.message.encode() for finding in error.value.findings)

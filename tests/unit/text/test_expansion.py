"""`$(NAME)`: Kubernetes' own answers, recorded from its code by tools/controlplane/go/kube_expansion.go, and every text kept from it."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kvgate.text.expansion import escape_references, expand_references

LINES = (Path(__file__).parent / "kubelet_expansions.jsonl").read_text(encoding="utf-8").splitlines()
VARIABLES: dict[str, str] = json.loads(LINES[0])
ROWS: list[tuple[str, str]] = [(text, result) for text, result in map(json.loads, LINES[1:])]


def test_texts_are_expanded_as_kubernetes_code_expands_them() -> None:
    assert len(ROWS) == 1965
    assert {text for text, _ in ROWS} >= {"$$(A)", "$(A", "$()", "$((A)"}
    assert [text for text, result in ROWS if expand_references(text, VARIABLES.get) != result] == []


def test_a_reference_inside_another_one_is_a_part_of_its_name() -> None:
    assert expand_references("$(cat $(A))", {"A": "1"}.get) == "$(cat $(A))"


@given(text=st.text(alphabet="$()A{} é\n") | st.text())
def test_an_escaped_text_arrives_as_it_is_whatever_variables_there_are(text: str) -> None:
    assert expand_references(escape_references(text), lambda name: f"value of {name}") == text


def test_every_recorded_text_arrives_as_it_is_once_it_is_escaped() -> None:
    assert [text for text, _ in ROWS if expand_references(escape_references(text), VARIABLES.get) != text] == []

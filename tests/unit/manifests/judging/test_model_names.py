"""What is written for a model, and the model that it is."""

import pytest

from kvgate.documents.written import Written
from kvgate.judgement.siblings import sibling_of
from kvgate.manifests.judging.model_names import find_model
from support.tables import table

GRANITE = "ibm-granite/granite-3.1-8b-instruct"


def test_a_slash_behind_a_name_is_no_part_of_it() -> None:
    """KServe's `storage.path` is a folder, which people name after the model."""
    found = find_model([Written(value="ibm-granite/granite-3.1-8b-instruct/", path="storage.path")])
    assert found
    assert (found.name, found.is_place) == ("ibm-granite/granite-3.1-8b-instruct", False)


@pytest.mark.parametrize(
    ("place", "model"),
    [
        ("oci://registry.example.com/cars/modelcar-granite-3-1-8b-instruct:1.5", GRANITE),
        ("oci://registry.example.com/cars/modelcar-catalog:granite-3.1-8b-instruct", GRANITE),
        ("s3://models/granite_3.1_8b_instruct/", GRANITE),
        ("s3://<YOUR_BUCKET>/granite_3.1_8b_instruct", GRANITE),
        ("/models/Granite-3.1-8B-Instruct", GRANITE),
        ("/models/granite-3.1-8b-instruct-AWQ", GRANITE),
        ("pvc://weights/granite-3-1-8b", "ibm-granite/granite-3.1-8b-instruct"),
    ],
)
def test_a_place_is_told_by_its_last_name(place: str, model: str | None) -> None:
    found = find_model([Written(value=place, path="uri")])
    assert found
    sibling = sibling_of(found.name)
    assert (sibling.model if sibling else None) == model


@table(
    "written",
    ["<model-path>", "hf://<org>/<model>", "s3://b/<model>", "${MODEL}", "{{ .Values.model }}", "YOUR_MODEL", "your-org/your-model",
     "REPLACE_ME", "MODEL_ID", "/path/to/model", "/models/<name>", "CHANGEME", "xxx"],
)  # fmt: skip
def test_a_placeholder_is_no_models_name(written: str) -> None:
    assert find_model([Written(value=written, path="model")]) is None
    assert find_model([Written(value=written, path="model"), Written(value=GRANITE, path="name")]) is not None


@pytest.mark.parametrize(
    "written", ["transformers/x", "xgen/xgen-7b", "yourself/y", "Replit/replit-code", "todo-ai/a-b"]
)
def test_a_name_that_begins_like_a_placeholder_is_one(written: str) -> None:
    assert find_model([Written(value=written, path="model")]) is not None


@pytest.mark.parametrize(
    ("uri", "name", "model"),
    [
        ("pvc://weights", "acme/chat-13b", "acme/chat-13b"),
        ("pvc://weights/", "chat-13b", "chat-13b"),
        ("pvc://weights/models/step-7", "acme/chat-13b", "acme/chat-13b"),
        ("pvc://weights/models/step-7", "chat", "models/step-7"),
        ("pvc://weights/granite-3-1-8b-instruct", "acme/chat", "granite-3-1-8b-instruct"),
        ("pvc://weights", GRANITE, GRANITE),
    ],
)
def test_a_claim_is_told_by_the_name_beside_it(uri: str, name: str, model: str) -> None:
    found = find_model([Written(value=uri, path="uri"), Written(value=name, path="name")])
    assert found
    assert found.name == model

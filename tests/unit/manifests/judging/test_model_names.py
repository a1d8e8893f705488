"""What is written for a model, and the model that it is."""

import pytest

from kvgate.judge.siblings import sibling_of
from kvgate.manifests.judging.model_names import Named, find_model

GRANITE = "ibm-granite/granite-3.1-8b-instruct"


def test_a_slash_behind_a_name_is_no_part_of_it() -> None:
    """KServe's `storage.path` is a folder, which people name after the model."""
    found = find_model([Named(text="ibm-granite/granite-3.1-8b-instruct/", path="storage.path")])
    assert found
    assert (found.name, found.is_place) == ("ibm-granite/granite-3.1-8b-instruct", False)


@pytest.mark.parametrize(
    ("place", "model"),
    [
        ("oci://registry.example.com/cars/modelcar-granite-3-1-8b-instruct:1.5", GRANITE),
        ("oci://registry.example.com/cars/modelcar-catalog:granite-3.1-8b-instruct", GRANITE),
        ("s3://models/granite_3.1_8b_instruct/", GRANITE),
        ("/models/Granite-3.1-8B-Instruct", GRANITE),
        ("/models/granite-3.1-8b-instruct-AWQ", GRANITE),
        ("pvc://weights/granite-3-1-8b", "ibm-granite/granite-3.1-8b-instruct"),
    ],
)
def test_a_place_is_told_by_its_last_name(place: str, model: str | None) -> None:
    found = find_model([Named(text=place, path="uri")])
    assert found
    sibling = sibling_of(found.name)
    assert (sibling.model if sibling else None) == model

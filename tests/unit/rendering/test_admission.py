"""The record of an admission: what it stands for, what makes it void, and what it does not depend on."""

from collections.abc import Callable
from typing import Any

import pytest

from kvgate.api.status import RecordedFigure
from kvgate.api.validation import parse_document
from kvgate.budget.answers.figure_values import Bounds
from kvgate.rendering.admission import (
    Admitted,
    _digest_of,
    admission_status,
    admitted_prediction,
    budget_status,
    config_digest,
)
from kvgate.rendering.admission import read_record as read
from kvgate.rendering.workload import rendered
from support.admissions import admission_of, read_back, stored
from support.manifests import a_document
from support.tables import table

ADJUST = {
    "vllm": {"maxNumSeqs": 64, "maxModelLen": 32768},
    "admission": {"policy": "Adjust", "adjust": {"minMaxNumSeqs": 2}},
}
PINNED = {"admission": {"capacity": "Pinned"}}
Json = dict[str, Any]


def signed(record: Json) -> Json:
    """A record below the name that its content has: somebody who knows how kvgate names them wrote it."""
    name = record["metadata"]["name"].rpartition("-")[0]
    record["metadata"]["name"] = f"{name}-{_digest_of(record['spec'])[:16]}"
    return record


@pytest.mark.parametrize(
    "spec", [{}, ADJUST, PINNED, {"model": {"name": "nobody/novel-7b"}}, {"accelerator": {"type": "MI300X"}}]
)
def test_what_is_written_is_read_back_and_renders_and_shows_the_same(spec: Json) -> None:
    document = a_document(**spec)
    found = admission_of(document)
    again = read_back(found, document)
    assert again is not None
    assert (again.record, again.owner, again.digest, again.name) == (
        found.record,
        found.owner,
        found.digest,
        found.name,
    )
    assert budget_status(again.prediction) == budget_status(found.prediction)
    assert admission_status(again) == admission_status(found)
    assert None not in admission_status(again).values(), "what is not known has no field"
    assert again.owner is not None
    assert rendered(again.owner, again.figures) == rendered(parse_document(document), found.figures)


@pytest.mark.parametrize("missing", ["verdict", "guarantee"])
def test_a_record_without_a_verdict_or_its_guarantee_promises_nothing(missing: str) -> None:
    record = admission_of(a_document()).record
    assert admitted_prediction(record) is not None
    assert admitted_prediction(record.model_copy(update={missing: None})) is None


def test_an_end_that_is_a_whole_number_is_read_beside_ends_that_are_none() -> None:
    figure = RecordedFigure(low=0, expected="1.5", high="2.25")
    record = admission_of(a_document()).record.model_copy(update={"figures": {"fullLengthRequests": figure}})
    found = admitted_prediction(record)
    assert found is not None
    assert found.figures["full_length_requests"] == Bounds(0, 1.5, 2.25)


def test_the_smallest_value_that_an_adjustment_may_choose_is_believed() -> None:
    document = a_document(**ADJUST)
    written = stored(admission_of(document), document)
    for value, is_believed in ((2, True), (1, False)):
        written["spec"]["effective"]["maxNumSeqs"] = value
        assert (read(document, signed(written)) is not None) == is_believed


def test_every_figure_of_the_table_is_recorded() -> None:
    found = admission_of(a_document(**PINNED))
    again = read_back(found, a_document(**PINNED))
    assert found.prediction is not None
    assert again is not None
    assert again.prediction is not None
    known = {name: value for name, value in found.prediction.figures.items() if value is not None}
    assert len(known) > 30
    assert dict(again.prediction.figures) == known


@pytest.mark.parametrize(
    ("spec", "forged"),
    [
        (PINNED, {"kvCacheMemoryBytes": 90 << 30}),
        (PINNED, {"kvCacheMemoryBytes": 0}),
        (PINNED, {"kvCacheMemoryBytes": 1 << 30, "numGpuBlocksOverride": 1000}),
        ({}, {"kvCacheMemoryBytes": 1 << 30}),
        ({"model": {"name": "nobody/novel-7b"}, **PINNED}, {"kvCacheMemoryBytes": 1 << 30}),
    ],
    ids=["more than the GPU has", "nothing", "two sizes", "not in the spec", "no ledger to hold it against"],
)
def test_a_pinned_size_that_no_verdict_could_have_is_void(spec: Json, forged: dict[str, int]) -> None:
    document = a_document(**spec)
    written = stored(admission_of(document), document)
    assert read(document, signed(written)) is not None
    written["spec"]["effective"].update(forged)
    assert read(document, signed(written)) is None


@pytest.mark.parametrize(
    "effective",
    [{"maxNumSeqs": 65}, {"maxNumSeqs": 1}, {"maxModelLen": 40960}, {"kvCacheDtype": "fp8"}, {"maxNumSeqs": 0}],
)
def test_values_that_no_verdict_could_have_are_judged_anew(effective: Json) -> None:
    document = a_document(**ADJUST)
    written = stored(admission_of(document), document)
    assert written["spec"]["effective"]["maxNumSeqs"] in range(2, 64)
    written["spec"]["effective"].update({"maxModelLen": 32768, "maxNumSeqs": 9, "kvCacheDtype": "auto"})
    assert read(document, signed(written)) is not None
    written["spec"]["effective"].update(effective)
    assert read(document, signed(written)) is None


def forge(path: str, value: Any) -> Callable[[Json], None]:
    def change(record: Json) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            record = record[parent]
        record[last] = value

    return change


FORGED = [
    forge("spec.effective.maxNumSeqs", 4096),
    forge("spec.placement.resource", "example.com/gpu"),
    forge("spec.admitted.vllm", {"maxNumSeqs": 4, "image": "evil"}),
    forge("spec.message", "believe me"),
    forge("spec.loadSeconds", "soon"),
    forge("spec.admitted", {"model": 1}),
    forge("spec.figures.capacityTokens.expected", 1),
    forge("spec.figures.capacityTokens.expected", "many"),
    forge("spec.figures.capacityTokens.low", 10**12),
    forge("spec.verdict", "Splendid"),
    forge("spec", None),
    forge("spec", {}),
    forge("metadata.name", "qwen-0123456789abcdef"),
    forge(
        "metadata.ownerReferences", [{"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "name": "b"}]
    ),
    forge("spec.inferenceDeployment", "another"),
]


@table("change", FORGED)
def test_what_somebody_wrote_is_judged_anew(change: Callable[[Json], None]) -> None:
    document = a_document()
    record = stored(admission_of(document), document)
    assert read(document, record) is not None
    change(record)
    assert read(document, record) is None


def test_fields_of_a_later_release_stay_in_the_record_and_count_for_its_name() -> None:
    document = a_document()
    written = stored(admission_of(document), document)
    written["spec"]["forecast"] = {"of": "tomorrow"}
    assert read(document, written) is None
    assert read(document, signed(written)) is not None


def test_a_record_is_of_the_object_whose_uid_its_owner_reference_has() -> None:
    """Anybody can copy labels."""
    document = a_document()
    record = stored(admission_of(document), document)
    record["metadata"] |= {"labels": {}, "ownerReferences": [{"uid": document["metadata"]["uid"]}]}
    assert read(document, record) is not None


def test_the_record_of_another_object_is_none_of_this_one() -> None:
    document = a_document()
    record = stored(admission_of(document), document)
    assert read(a_document("another"), record) is None
    restored = a_document()
    restored["metadata"]["uid"] = "another"
    assert read(restored, record) is not None, "a restore from a backup gives the same objects other uids"
    record["metadata"]["ownerReferences"] = []
    assert read(restored, record) is not None, "or no owner at all"


def test_the_same_decision_with_the_same_figures_has_the_same_name_and_any_other_has_another() -> None:
    first = admission_of(a_document())
    assert admission_of(a_document(generation=7, replicas=5)).name == first.name
    for other in ({"vllm": {"maxNumSeqs": 3}}, {"template": {"labels": {"team": "a"}}}, PINNED):
        assert admission_of(a_document(**other)).name != first.name
    assert admission_of(a_document(annotations={"kvgate.io/skip-budget": "Tuesday"})).name != first.name


def test_scaling_is_the_same_spec_and_any_other_change_is_not() -> None:
    for found in (admission_of(a_document()), without_spec(admission_of(a_document()))):
        assert is_of(found)
        assert is_of(found, replicas=7)
        assert is_of(found, admission={"recalibrate": True})
        assert not is_of(found, vllm={"maxNumSeqs": 5})
        assert not is_of(found, template={"labels": {"team": "a"}})
        assert not is_of(found, annotations={"kvgate.io/skip-budget": "Tuesday"})
        assert not is_of(found, config_digest("{}")), "a config.json is there now, and was not"


def is_of(found: Admitted, digest: str | None = None, **spec: Any) -> bool:
    return found.is_of(parse_document(a_document(generation=2, **spec)), digest)


def without_spec(found: Admitted) -> Admitted:
    record = found.record.model_copy(update={"admitted": None})
    return Admitted(record=record, owner=None, prediction=found.prediction, digest=found.digest)


def test_a_config_map_that_went_takes_no_verdict_away_and_another_text_does() -> None:
    found = admission_of(a_document(), config="text")
    owner = parse_document(a_document())
    assert found.is_of(owner, config_digest("text"))
    assert found.is_of(owner, None)
    assert not found.is_of(owner, config_digest("another"))


@pytest.mark.parametrize(
    ("replicas", "rendered"), [(5, 5), (0, 0), (-1, 2), (True, 2), ("3", 2), (None, 2), (10**6, 2)]
)
def test_an_earlier_spec_runs_with_the_replicas_that_are_requested_now(replicas: object, rendered: int) -> None:
    owner = admission_of(a_document(replicas=2)).scaled(replicas)
    assert owner is not None
    assert owner.spec.replicas == rendered


def large(text: str, count: int) -> Json:
    return a_document(template={"env": [{"name": f"A{n}", "value": text * 4096} for n in range(count)]})


@pytest.mark.parametrize("text", ["<", "&", "\u2028"])
def test_a_spec_of_nearly_a_megabyte_and_a_half_is_recorded(text: str) -> None:
    document = large(text, 60)  # each character takes six bytes in the API server's store
    found = admission_of(document)
    assert found.record.admitted == document["spec"]
    assert read_back(found, document) is not None


@pytest.mark.parametrize("text", ["<", "&", "\u2028"])
def test_a_spec_that_leaves_no_room_for_its_figures_is_left_out_and_still_stands(text: str) -> None:
    document = large(text, 64)
    found = admission_of(document)
    assert found.record.admitted is None
    again = read_back(found, document)
    assert again is not None
    assert again.scaled(3) is None
    assert again.is_of(parse_document(document), None)
    assert not again.is_of(parse_document(large(text, 63)), None)


def test_the_slots_of_adapters_are_a_line_of_the_recorded_ledger() -> None:
    served = {"vllm": {"maxNumSeqs": 2, "maxModelLen": 4096, "extraArgs": ["--enable-lora", "--max-lora-rank=64"]}}
    budget = budget_status(admission_of(a_document(**served)).prediction)
    assert budget is not None
    assert budget["ledger"]["loraBytes"] > 0
    plain = budget_status(admission_of(a_document(vllm={"maxNumSeqs": 2, "maxModelLen": 4096})).prediction)
    assert plain is not None
    assert "loraBytes" not in plain["ledger"]

"""The record of what was admitted: what it stands for, what makes it void, and what it does not depend on."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from kvgate.api.validation import parse_document
from kvgate.controller.decision import assess_owner
from kvgate.rendering.standing import (
    MAX_SPEC_BYTES,
    Admitted,
    _digest,
    config_digest,
    dumped,
    read_standing,
    renewed,
    standing_of,
    with_budget,
)
from kvgate.rendering.workload import Figures, figures_of_verdict, rendered
from support.manifests import a_document

ADJUST = {
    "vllm": {"maxNumSeqs": 64, "maxModelLen": 32768},
    "admission": {"policy": "Adjust", "adjust": {"minMaxNumSeqs": 2}},
}


PINNED = {"admission": {"capacity": "Pinned"}}


def admitted(document: dict[str, Any], config: object = None) -> Admitted:
    owner = parse_document(document)
    judged = assess_owner(owner, "")
    figures = figures_of_verdict(owner, judged.assessment, judged.accelerator)
    assert isinstance(figures, Figures)
    return standing_of(document, owner, judged.assessment, figures, calibration_revision=0, config=config)


def status_with(found: Admitted) -> dict[str, Any]:
    provenance = found.provenance.model_dump(by_alias=True, exclude_none=True)
    return {
        "standing": dumped(found.record),
        "provenance": provenance,
        **({"budget": found.budget} if found.budget else {}),
    }


@pytest.mark.parametrize(
    "spec", [{}, ADJUST, PINNED, {"model": {"name": "nobody/novel-7b"}}, {"accelerator": {"type": "MI300X"}}]
)
def test_what_is_written_is_read_back_and_renders_the_same(spec: dict[str, Any]) -> None:
    document = a_document(**spec)
    found = admitted(document)
    again = read_standing(document, status_with(found))
    assert again == found
    assert again is not None
    assert again.owner is not None
    assert rendered(again.owner, again.figures) == rendered(parse_document(document), found.figures)


@pytest.mark.parametrize(
    ("spec", "forged"),
    [
        (PINNED, {"kvCacheMemoryBytes": 90 << 30}),
        (PINNED, {"kvCacheMemoryBytes": 0}),
        (PINNED, {"kvCacheMemoryBytes": 1 << 30, "numGpuBlocksOverride": 1000}),
        ({}, {"kvCacheMemoryBytes": 1 << 30}),
        ({"model": {"name": "nobody/novel-7b"}, **PINNED}, {"kvCacheMemoryBytes": 1 << 30}),
    ],
    ids=["more than the GPU has", "nothing", "two sizes", "not asked for", "no ledger to hold it against"],
)
def test_a_pinned_size_that_no_verdict_could_have_is_void(spec: dict[str, Any], forged: dict[str, int]) -> None:
    document = a_document(**spec)
    found = admitted(document)
    written = status_with(found)
    written["standing"]["effective"].update(forged)
    written["standing"]["digest"] = _digest(written["standing"], document, found.budget)
    assert read_standing(document, written) is None


def test_a_record_without_a_budget_stays_whole_beside_the_budget_of_a_refused_generation() -> None:
    found = admitted(a_document(model={"name": "nobody/novel-7b"}))
    assert found.budget is None
    later = a_document(generation=2)
    status = {"standing": dumped(with_budget(found).record), "budget": {"of": "another"}}
    again = read_standing(later, status)
    assert again is not None
    assert (again.budget, again.figures) == (None, found.figures)


def test_a_record_moves_its_budget_in_and_out_and_stays_whole() -> None:
    document = a_document()
    found = admitted(document)
    aside = with_budget(found)
    later = a_document(generation=2)
    again = read_standing(later, {"standing": dumped(aside.record), "budget": {"of": "another"}})
    assert again is not None
    assert again.budget == found.budget
    back = renewed(again, later)
    assert (back.record.generation, back.record.budget) == (2, None)
    assert read_standing(later, status_with(back)) == back


def forge(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(status: dict[str, Any]) -> None:
        for path, value in changes.items():
            node = status
            *parents, last = path.split("__")
            for parent in parents:
                node = node[parent]
            node[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        forge(standing__effective__maxNumSeqs=4096),
        forge(standing__placement__resource="example.com/gpu"),
        forge(standing__spec__vllm={"maxNumSeqs": 4, "image": "evil"}),
        forge(standing__message="believe me"),
        forge(standing__generation=0),
        forge(standing__digest="0" * 64),
        forge(standing__loadSeconds="soon"),
        forge(standing__spec={"model": 1}),
        forge(standing=None),
        forge(standing=[]),
        forge(budget={}),
        forge(budget__capacityTokens=1),
    ],
)
def test_what_somebody_wrote_is_judged_anew(change: Callable[[dict[str, Any]], None]) -> None:
    document = a_document()
    status = copy.deepcopy(status_with(admitted(document)))
    change(status)
    assert read_standing(document, status) is None


@pytest.mark.parametrize(
    "effective",
    [{"maxNumSeqs": 65}, {"maxNumSeqs": 1}, {"maxModelLen": 40960}, {"kvCacheDtype": "fp8"}, {"maxNumSeqs": 0}],
)
def test_a_record_that_is_signed_and_cannot_be_the_engines_is_judged_anew(effective: dict[str, Any]) -> None:
    document = a_document(**ADJUST)
    found = admitted(document)
    assert found.record.effective.max_num_seqs in range(2, 64)
    record = found.record.model_copy(update={"effective": type(found.record.effective).from_document(
        {"maxModelLen": 32768, "maxNumSeqs": 9, "kvCacheDtype": "auto", **effective})})  # fmt: skip
    forged = renewed(Admitted(record=record, owner=found.owner, budget=found.budget), document)
    assert read_standing(document, status_with(forged)) is None


def test_the_record_of_another_object_is_none_of_this_one() -> None:
    document = a_document()
    status = status_with(admitted(document))
    document["metadata"]["uid"] = "another"
    assert read_standing(document, status) is None


def test_scaling_is_the_same_spec_and_any_other_change_is_not() -> None:
    found = admitted(a_document())

    def is_of(digest: str | None = None, **spec: Any) -> bool:
        return found.is_of(parse_document(a_document(generation=2, **spec)), 2, digest)

    assert is_of()
    assert is_of(replicas=7)
    assert not is_of(vllm={"maxNumSeqs": 5})
    assert not is_of(template={"labels": {"team": "a"}})
    assert not is_of(annotations={"kvgate.io/skip-budget": "Tuesday"})
    assert not is_of(digest=config_digest("{}")), "a config.json is there now, and was not"


def test_a_config_map_that_went_takes_no_verdict_away_and_another_text_does() -> None:
    found = admitted(a_document(), config="text")
    owner = parse_document(a_document())
    assert found.is_of(owner, 1, config_digest("text"))
    assert found.is_of(owner, 1, None)
    assert not found.is_of(owner, 1, config_digest("another"))


@pytest.mark.parametrize(
    ("replicas", "rendered"), [(5, 5), (0, 0), (-1, 2), (True, 2), ("3", 2), (None, 2), (10**6, 2)]
)
def test_an_earlier_spec_runs_with_the_replicas_that_are_asked_for_now(replicas: object, rendered: int) -> None:
    owner = admitted(a_document(replicas=2)).scaled(replicas)
    assert owner is not None
    assert owner.spec.replicas == rendered


@pytest.mark.parametrize(
    ("text", "annotation", "fields"),
    [
        pytest.param("<", "", "", id="markup, which is stored as escapes"),
        pytest.param("&", "", "", id="another of it"),
        pytest.param("\u2028", "", "", id="line separators"),
        pytest.param("x", "<" * 200_000, "", id="annotations beside it"),
        pytest.param("x", "", "k" * 1_200_000, id="the names of its fields beside it"),
    ],
)
def test_a_spec_is_kept_only_where_the_stored_object_has_room_for_it(text: str, annotation: str, fields: str) -> None:
    document = a_document(template={"env": [{"name": f"A{n}", "value": text * 4096} for n in range(40)]})
    document["metadata"]["annotations"] = {"note": annotation}
    document["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": {f"f:{fields}": {}}}]
    assert len(json.dumps(document["spec"], ensure_ascii=False).encode()) < MAX_SPEC_BYTES
    found = admitted(document)
    assert found.record.spec is None
    assert read_standing(document, status_with(found)) is not None


def test_a_spec_is_kept_beside_ordinary_annotations() -> None:
    document = a_document(template={"env": [{"name": f"A{n}", "value": "x" * 4096} for n in range(64)]})
    document["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "y" * (200 << 10)}
    assert admitted(document).record.spec == document["spec"]


def test_a_spec_that_is_too_large_is_not_kept_and_still_stands() -> None:
    env = [{"name": f"A{n}", "value": "x" * 4096} for n in range(64)]
    texts = {f"a{n}": "y" * 4096 for n in range(64)}
    document = a_document(template={"env": env, "annotations": texts, "nodeSelector": {"a": "b"}})
    assert len(str(document)) > MAX_SPEC_BYTES
    found = admitted(document)
    assert found.record.spec is None
    again = read_standing(document, status_with(found))
    assert again is not None
    assert again.scaled(3) is None
    assert again.is_of(parse_document(document), 1, None)
    assert not again.is_of(parse_document(document), 2, None)


def test_the_slots_of_adapters_are_a_line_of_the_recorded_ledger() -> None:
    served = {"vllm": {"maxNumSeqs": 2, "maxModelLen": 4096, "extraArgs": ["--enable-lora", "--max-lora-rank=64"]}}
    budget = admitted(a_document(**served)).budget
    assert budget is not None
    assert budget["ledger"]["loraBytes"] > 0
    plain = admitted(a_document(vllm={"maxNumSeqs": 2, "maxModelLen": 4096})).budget
    assert plain is not None
    assert "loraBytes" not in plain["ledger"]

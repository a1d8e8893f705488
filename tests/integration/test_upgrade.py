"""An upgrade from releases that kept their record in the status: no pod template changes, and each object gets an AdmissionRecord.

The objects in `data` are those of a real API server after such a release had served them, with the fields that it managed. Each file is of
one state of kvgate 0.1: without a digest of the pods (96f73d43), with it (48d537f4), and the last one with that format (946862a8).
"""

import copy
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kvgate import catalogue
from kvgate.controller.memory import Memory
from kvgate.controller.starts import ObservedStarts
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.rendering.live_deployment import _own_template, differences, template_digest
from kvgate.webhook.review import review
from support.reconciling import FakeCluster, new
from unit.webhook.conftest import new_review

FILES = sorted((Path(__file__).parent / "data").glob("live-objects-*.json"))
NAMES = ("plain", "adjusted", "refused", "skipped", "unknown", "pinned")
OF_THE_RECORD = ("effective", "budget", "calibrationRevision", "alternatives")
Json = dict[str, Any]


def live(path: Path, name: str) -> tuple[FakeCluster, tuple[str, str]]:
    """A cluster with one object and its children as that release left them."""
    found = json.loads(path.read_text(encoding="utf-8"))[name]
    cluster = FakeCluster(found["infd"])
    cluster.objects |= {"deployments": found["deployment"], "services": found["service"]}
    return cluster, ("default", name)


def conditions(status: Json) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of each condition; the proposals in the message of a refusal are those of today."""
    return {
        each["type"]: (each["status"], each["reason"], each["message"].partition(". Would fit: ")[0])
        for each in status["conditions"]
    }


@pytest.mark.parametrize(("path", "name"), list(product(FILES, NAMES)), ids=lambda each: getattr(each, "stem", each))
async def test_an_upgrade_changes_no_pod_and_keeps_every_promise(path: Path, name: str) -> None:
    cluster, key = live(path, name)
    document, deployment = cluster.objects["inferencedeployments"] or {}, cluster.objects["deployments"] or {}
    before, was = copy.deepcopy(document["status"]), copy.deepcopy(deployment)
    reconcile, _ = new(cluster)
    await reconcile(key)
    applied = cluster.objects["deployments"] or {}
    assert all(path.startswith("metadata.") for path in differences(was, applied))
    assert template_digest(_own_template(was)) == template_digest(applied["spec"]["template"])
    status = document["status"]
    parts = ("effective",) if name == "refused" else OF_THE_RECORD  # the figures of a refused spec are those of today
    assert {part: status.get(part) for part in parts} == {part: before.get(part) for part in parts}
    kinds = ("Accepted", "Adjusted", "Predicted")
    assert [conditions(status)[kind] for kind in kinds] == [conditions(before)[kind] for kind in kinds]
    assert not {"standing", "provenance"} & set(status)
    record = cluster.record
    assert (record["admitted"], record["generation"]) == (before["standing"]["spec"], before["standing"]["generation"])
    assert record["effective"] == before["standing"]["effective"]
    assert status["admission"]["decision"] == before["standing"]["decision"]
    cluster.writes.clear()
    await reconcile(key)
    await new(cluster)[0](key)
    assert cluster.writes == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_the_metrics_show_what_they_showed(path: Path) -> None:
    cluster, key = live(path, "plain")
    before = copy.deepcopy((cluster.objects["inferencedeployments"] or {})["status"]["budget"])
    memory = Memory(DeploymentSnapshot(), ObservedStarts(None))
    await new(cluster, memory)[0](key)
    sample = memory._samples[key]
    assert sample.capacity_bytes == tuple(before["availableKvCacheBytes"][end] for end in ("low", "expected", "high"))
    assert sample.capacity_tokens is not None
    assert sample.capacity_tokens[1] == before["capacityTokens"]
    assert sample.headroom_ratio is not None
    assert int(sample.headroom_ratio[1] * 100) == before["headroomPercent"]
    assert (sample.demand_bytes, sample.memory is not None) == (before["demandBytes"], True)
    assert sample.demand_tokens == pytest.approx(4 * 40960, rel=0.01)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "edit",
    [
        {"standing": {"digest": "0" * 64}},
        {"budget": {"capacityTokens": 1}},
        {"standing": {"effective": {"maxNumSeqs": 4096}}},
    ],
    ids=["another digest", "another budget", "other values"],
)
async def test_a_record_of_such_a_release_that_was_edited_is_judged_anew(path: Path, edit: Json) -> None:
    cluster, key = live(path, "plain")
    document = cluster.objects["inferencedeployments"] or {}
    for part, change in edit.items():
        document["status"][part].update(change)
    await new(cluster)[0](key)
    assert cluster.record["effective"]["maxNumSeqs"] == 4
    assert cluster.record["figures"]["capacityTokens"]["expected"] > 400_000
    assert not {"standing", "provenance"} & set(document["status"])


async def test_a_refused_edit_can_be_undone_after_the_upgrade() -> None:
    cluster, key = live(FILES[0], "refused")
    document = cluster.objects["inferencedeployments"] or {}
    reconcile, _ = new(cluster)
    await reconcile(key)
    before = copy.deepcopy(cluster.record)
    document["spec"]["vllm"]["maxNumSeqs"] = 4
    document["metadata"]["generation"] += 1
    await reconcile(key)
    assert conditions(document["status"])["Accepted"][:2] == ("True", "Fits")
    assert cluster.record == before


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_webhook_lets_scaling_pass_while_an_upgrade_is_on_its_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is as an earlier release left it; this release knows a GPU with less memory, on which it would not fit."""
    cluster, _ = live(path, "plain")
    old = cluster.objects["inferencedeployments"] or {}
    smaller = catalogue.find_accelerator("L4-24GB")
    monkeypatch.setattr("kvgate.judgement.facts.catalogue.find_accelerator", lambda _: smaller)
    assert review(new_review(request={"object": {**old, "status": {}}})).body["response"]["allowed"] is False
    for part, is_allowed in ({"replicas": 3}, True), ({"vllm": {"maxNumSeqs": 5}}, False):
        changed = {**old, "spec": {**old["spec"], **part}}
        answer = review(new_review(request={"operation": "UPDATE", "object": changed, "oldObject": old}))
        assert answer.body["response"]["allowed"] is is_allowed

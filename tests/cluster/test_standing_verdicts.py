"""Every way in which a verdict could move by itself, on a real control plane: no pod, no value and no promised figure moves."""

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from kvgate.budget import ObservedStart
from kvgate.calibration.keeping import shard_name, shard_of
from kvgate.calibration.records import MAX_STARTS, write_records
from kvgate.cluster.client import ADMISSION_RECORDS, Cluster, load_configuration
from support.doors import running
from support.inference import CRD, Objects, inference_deployment
from support.starts import a_pods_start, a_start

pytestmark = pytest.mark.cluster

OLD = "kvgate-calibration"
"""The ConfigMap of older releases, which is still read."""
SHARD = shard_name(OLD, shard_of(""))
"""The one of starts that somebody stated, as LESS and MORE are."""
OPTIONS = ("--resync-seconds=1", "--observe-seconds=1", f"--calibration=default/{OLD}")
SEQS, ADJUST = {"maxNumSeqs": 12}, {"policy": "Adjust", "adjust": {"knobs": ["MaxModelLen"]}}
LESS, MORE = (a_start(error, max_num_seqs=12, vllm_version="0.33.0") for error in (-6, 1.2))
"""Starts after which kvgate renders a shorter, or a longer, maxModelLen for the objects here."""
NAMES = ("adjusted", "follows")
OF_ITS_TIME = ("generation", "admitted", "calibrationRevision")
"""Parts of a record that are another's when it is made again: scaling is another generation of the same spec."""


@pytest.fixture(scope="module")
def objects(plane: ControlPlane) -> Objects:
    """Two objects that were admitted after LESS; the second one follows better predictions at once."""
    found = Objects(plane=plane)
    write(found, write_records((LESS,)))
    with controller(found):
        plane.apply(
            inference_deployment("adjusted", vllm=SEQS, admission=ADJUST),
            inference_deployment("follows", vllm=SEQS, admission={**ADJUST, "recalibrate": True}),
        )
        for name in NAMES:
            found.wait_for(name, "Ready", "True")
            found.wait_for(name, "Observed", "False", "PodUnreachable")  # nothing changes by itself any more
    return found


def controller(objects: Objects, **variables: str) -> Any:

    return running("controller", *OPTIONS, kubeconfig=objects.plane.kubeconfig, variables={**os.environ, **variables})


def write(objects: Objects, text: str | None, place: str = SHARD) -> None:
    """Leave this text alone; the other place is empty."""
    objects.plane.kubectl("delete", "configmap", OLD, SHARD, "--ignore-not-found")
    if text is not None:
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": place, "namespace": "default"}}
        objects.plane.kubectl("create", "-f", "-", input=json.dumps({**document, "data": {"starts.jsonl": text}}))


def stands(objects: Objects, name: str = "adjusted") -> Any:
    """What must not move: the verdict, its figures, the Deployment's spec, and the pods themselves."""
    status, deployment = objects.get("infd", name)["status"], objects.get("deployment", name)
    conditions = {each["type"]: each for each in status["conditions"]}
    return {
        **{part: status.get(part) for part in ("effective", "budget", "calibrationRevision")},
        "record": {part: value for part, value in objects.record(name).items() if part not in OF_ITS_TIME},
        **{kind: conditions[kind] for kind in ("Accepted", "Adjusted", "Predicted")},
        "spec": deployment["spec"],
        "generation": deployment["metadata"]["generation"],
        "pods": sorted((pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in objects.pods(name)),
    }


def today(objects: Objects, name: str = "adjusted") -> int | None:
    """Tokens that would be predicted now, where that differs."""
    shown = objects.get("infd", name)["status"].get("recalibrated")
    return None if shown is None else int(shown["capacityTokens"])


def another_tenants() -> Iterator[ObservedStart]:
    start = a_pods_start(-9, "p", namespace="hostile", owner="evil", max_num_seqs=12)
    for number in range(MAX_STARTS):
        key = replace(start.key, max_num_batched_tokens=8192 + number // 2)
        yield replace(start, pod=f"p{number}", key=key, revision=number + 5)


@pytest.mark.parametrize("place", [OLD, SHARD], ids=["of older releases", "a shard"])
def test_whatever_becomes_of_the_starts_nothing_moves(plane: ControlPlane, objects: Objects, place: str) -> None:
    before = {name: stands(objects, name) for name in NAMES}
    series = 'kvgate_recalibrated_kv_cache_capacity_tokens{namespace="default",inferencedeployment="adjusted",bound="expected"}'
    losses = {
        "deleted": None,
        "truncated": write_records((LESS,))[:-80],
        "rewound": write_records(()),
        "filled by another tenant": write_records(another_tenants()),
    }
    with controller(objects) as door:
        for name, text in losses.items():
            write(objects, write_records((LESS,)), place)
            wait_until(lambda: today(objects) is None, f"before it is {name}: today's prediction is the admitted one")
            write(objects, text, place)
            wait_until(lambda: today(objects) is not None, f"{name}: today's prediction is shown")
            assert {each: stands(objects, each) for each in NAMES} == before, name
            assert "are not recorded any more" in objects.condition("adjusted", "PredictionOutdated")[2]
        wait_until(lambda: door.count_of(series) == today(objects), "and it is a metric")
        settled = objects.settle(2.0)
    with controller(objects):
        objects.settle(2.0)
        assert {each: stands(objects, each) for each in NAMES} == before, "restarted"
        assert len(objects.writes()) == settled, "a restart writes nothing"
    wide = plane.kubectl("get", "infd", "adjusted", "-o", "wide").stdout.splitlines()
    row = dict(zip(wide[0].split(), wide[1].split(), strict=False))
    assert (int(row["TOKENSTODAY"]), row["VERDICTTODAY"]) == (today(objects), "Fits")
    assert int(row["TOKENS"]) == before["adjusted"]["budget"]["capacityTokens"]


def test_a_better_prediction_is_used_at_once_where_the_spec_wants_it(objects: Objects) -> None:
    before = {name: stands(objects, name) for name in NAMES}
    write(objects, write_records((replace(MORE, revision=10),)))
    with controller(objects):
        wait_until(
            lambda: objects.get("infd", "follows")["status"]["effective"] != before["follows"]["effective"],
            "it follows",
        )
        objects.wait_for("follows", "Ready", "True")
        after = stands(objects, "follows")
        assert after["effective"]["maxModelLen"] > before["follows"]["effective"]["maxModelLen"]
        assert not set(after["pods"]) & set(before["follows"]["pods"]), "its pods are replaced"
        assert objects.record("follows")["recalibrations"] == 1
        assert stands(objects) == before["adjusted"], "the other one stands"
        objects.wait_for_event("follows", ("Normal", "Adjusted"))


UPGRADE = """
from msgspec.structs import replace
from kvgate import catalogue
from kvgate.rendering import recalibration, workload
known, tables = catalogue.find_accelerator, workload.accounting_of
def smaller(name):
    found = known(name)
    sizes = ("memory_bytes", "memory_low_bytes", "memory_high_bytes")
    less = {name: getattr(found, name) - (2 << 30) for name in sizes} if found else {}
    return found and replace(found, **less, gpu_labels=("ANOTHER-LABEL",))
def other(version):
    found = tables(version)
    return replace(found, shutdown_timeout=not found.shutdown_timeout)
catalogue.find_accelerator, workload.accounting_of = smaller, other
workload.PRE_STOP_SECONDS, workload.GRACE_SECONDS, workload.MAX_LOAD_SECONDS = 5, 300, 300
recalibration.__version__ = "9.9.9"
"""
"""Another size of the GPU, another table of releases, and other pods for the same figures."""


def test_an_upgrade_replaces_no_pod_and_is_named(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(UPGRADE)
    write(objects, write_records((LESS,)))
    with controller(objects):
        wait_until(lambda: today(objects) is None, "today's prediction is the admitted one")
    before = stands(objects)
    with controller(objects, PYTHONPATH=str(tmp_path)):
        wait_until(lambda: today(objects) is not None, "today's prediction is shown")
        assert "and kvgate 9.9.9 computes other figures" in objects.condition("adjusted", "PredictionOutdated")[2]
        objects.plane.kubectl("scale", "infd", "adjusted", "--replicas=2")
        wait_until(lambda: objects.get("infd", "adjusted")["status"].get("readyReplicas") == 2, "two pods are ready")
        after = stands(objects)
        assert {each: after[each] for each in ("effective", "budget")} == {
            each: before[each] for each in ("effective", "budget")
        }
        assert after["spec"]["template"] == before["spec"]["template"]
        assert set(after["pods"]) >= set(before["pods"])
        settled = objects.settle(2.0)
        assert objects.settle(2.0) == settled, "it settles"
    with controller(objects):  # and back again
        objects.plane.kubectl("scale", "infd", "adjusted", "--replicas=1")
        wait_until(lambda: objects.get("infd", "adjusted")["status"].get("replicas") == 1, "one pod is left")
        objects.settle(2.0)
        assert stands(objects)["spec"]["template"] == before["spec"]["template"]


def wiped(objects: Objects) -> None:
    patch = [{"op": "remove", "path": "/status"}]
    objects.plane.kubectl("patch", "infd", "adjusted", "--subresource=status", "--type=json", "-p", json.dumps(patch))


def edited(objects: Objects) -> None:
    forged = {"admission": {"record": "another"}, "budget": {"capacityTokens": 1}, "conditions": []}
    written = json.dumps({"status": forged})
    objects.plane.kubectl("patch", "infd", "adjusted", "--subresource=status", "--type=merge", "-p", written)


def as_an_older_release_leaves_it(objects: Objects) -> None:
    written = json.dumps({"status": {"admission": None, "recalibrated": None}})
    objects.plane.kubectl("patch", "infd", "adjusted", "--subresource=status", "--type=merge", "-p", written)


def without_its_record(objects: Objects) -> None:
    objects.plane.kubectl("delete", "admissionrecord", objects.get("infd", "adjusted")["status"]["admission"]["record"])


def without_record_and_status(objects: Objects) -> None:
    without_its_record(objects)
    wiped(objects)


CHANGES = [wiped, edited, as_an_older_release_leaves_it, without_its_record, without_record_and_status]


@pytest.mark.parametrize("change", CHANGES)
def test_what_others_make_of_status_and_record_restarts_no_engine(objects: Objects, change: Any) -> None:
    """The next replica knows other starts. Where the record is gone, the Deployment says which judgement it was."""
    before, name = stands(objects), recorded(objects)
    write(objects, write_records((LESS, replace(MORE, revision=10))))
    change(objects)
    with controller(objects):
        wait_until(lambda: recorded(objects) == name, "status and record are there again")
        objects.wait_for("adjusted", "Ready", "True")
        objects.settle(2.0)
        after = stands(objects)
    for kind in ("Accepted", "Adjusted", "Predicted"):
        after[kind].pop("lastTransitionTime"), before[kind].pop("lastTransitionTime")
    assert after == before


def recorded(objects: Objects) -> str | None:
    """The name of the record, where status and record are there."""
    name: str = objects.get("infd", "adjusted").get("status", {}).get("admission", {}).get("record", "")
    return name if name and objects.find("admissionrecord", name) else None


def test_a_record_never_changes(objects: Objects) -> None:
    name = recorded(objects)
    for patch in (
        {"message": "x"},
        {"admitted": {"vllm": {"maxNumSeqs": 1}}},
        {"novel": 1},
        {"figures": {"demandBytes": None}},
    ):
        done = objects.plane.kubectl(
            "patch", "admissionrecord", str(name), "--type=merge", "-p", json.dumps({"spec": patch}), check=False
        )
        assert "a record never changes: kvgate makes another one" in done.stderr, patch


async def test_a_list_of_records_has_no_specs(objects: Objects) -> None:
    """A resync lists all of them, and one may have more than a megabyte."""
    configuration = await load_configuration(str(objects.plane.kubeconfig))
    async with Cluster(configuration, lambda *_: None) as cluster:
        listed = [each async for each in cluster.list_metadata(ADMISSION_RECORDS)]
        assert [each["metadata"]["labels"]["kvgate.io/inferencedeployment"] for each in listed] == list(NAMES)
        assert {frozenset(each) for each in listed} == {frozenset({"apiVersion", "kind", "metadata"})}
        assert len([each async for each in cluster.list_metadata(ADMISSION_RECORDS, "elsewhere")]) == 0


def test_an_edit_has_a_record_of_its_own_and_scaling_has_none(objects: Objects) -> None:
    with controller(objects):
        objects.plane.apply(inference_deployment("edited"))
        objects.wait_for("edited", "Ready", "True")
        first = objects.record("edited")
        for replicas in (2, 0, 1):
            objects.plane.kubectl("scale", "infd", "edited", f"--replicas={replicas}")
            wait_until(lambda: objects.get("infd", "edited")["status"].get("replicas") == replicas, "it is scaled")  # noqa: B023
        assert objects.record("edited") == first
        objects.patch("edited", {"spec": {"vllm": {"maxNumSeqs": 3}}})
        wait_until(lambda: objects.record("edited") != first, "another spec is another admission")
        of_it = ("get", "admissionrecords", "-l", "kvgate.io/inferencedeployment=edited", "-o", "name")
        wait_until(lambda: len(objects.plane.kubectl(*of_it).stdout.split()) == 1, "the first record is deleted")
        objects.plane.kubectl("delete", "infd", "edited")
        wait_until(lambda: not objects.plane.kubectl(*of_it).stdout, "the record is deleted with its object")


def test_a_restore_from_a_backup_keeps_record_and_pods(plane: ControlPlane, objects: Objects) -> None:
    """A tool for backups leaves owner references out, because the owners have other uids."""
    with controller(objects):
        plane.apply(inference_deployment("restored", vllm=SEQS, admission=ADJUST))
        objects.wait_for("restored", "Ready", "True")
    name = objects.get("infd", "restored")["status"]["admission"]["record"]
    kinds = (("infd", "restored"), ("admissionrecord", name), ("deployment", "restored"), ("service", "restored"))
    saved = [objects.get(kind, each) for kind, each in kinds]
    plane.kubectl("delete", "infd", "restored", "--cascade=orphan")
    wait_until(lambda: "ownerReferences" not in objects.get(*kinds[2])["metadata"], "the children are nobody's")
    (document, *_) = saved
    del document["status"], document["metadata"]["uid"], document["metadata"]["resourceVersion"]
    write(objects, write_records((MORE,)))
    plane.kubectl("create", "-f", "-", input=json.dumps(document))
    with controller(objects):
        objects.wait_for("restored", "Ready", "True")
        objects.wait_for("restored", "Observed", "False", "PodUnreachable")  # nothing changes by itself any more
        objects.settle(2.0)
    after = [objects.get(kind, each) for kind, each in kinds]
    assert after[1]["spec"] == saved[1]["spec"]
    assert after[2]["spec"] == saved[2]["spec"]
    for child in after[1:]:
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [after[0]["metadata"]["uid"]]


def test_an_older_crd_drops_fields_and_moves_nothing(plane: ControlPlane, objects: Objects) -> None:
    before = stands(objects)
    crd = yaml.load(CRD.read_text(encoding="utf-8"), yaml.CSafeLoader)
    older = copy.deepcopy(crd)
    status = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    for name in ("admission", "recalibrated"):
        del status[name]
    plane.apply(older)
    try:
        write(objects, write_records((MORE,)))
        with controller(objects):
            objects.wait_for("adjusted", "PredictionOutdated", "True")
            settled = objects.settle(3.0)
            assert objects.settle(3.0) == settled, "what the API server drops is not written for ever"
            assert stands(objects) == before
    finally:
        plane.apply(crd)

"""The event of a lost replica: the watch of Deployments may be ahead of that of pods, so a cause has a while to come."""

from typing import Any

import pytest

from kvgate.api.conditions import Reason
from kvgate.controller import reconcile as module
from kvgate.controller.memory import Memory
from kvgate.controller.starts import ObservedStarts
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.rendering.hindrances import Hindrance
from kvgate.rendering.labels import HASH_ANNOTATION
from support.manifests import a_document
from support.reconciling import KEY, FakeCluster, new, told


def have_ready(cluster: FakeCluster, ready: int) -> dict[str, Any]:
    """Two replicas that were all available once, of which this many are."""
    deployment = cluster.objects["deployments"]
    assert deployment is not None
    conditions = [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]
    deployment["status"] = {
        "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": ready,
        "availableReplicas": ready, "conditions": conditions,
    }  # fmt: skip
    return deployment


@pytest.mark.parametrize("becomes", ["stays", "is explained", "is back"])
async def test_a_lost_replica_is_an_event_once_no_cause_came(becomes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, memory = FakeCluster(a_document(replicas=2)), Memory(DeploymentSnapshot(), ObservedStarts(None))
    reconciler, _ = new(cluster, memory)
    planned = list[float]()
    reconciler.look_again = lambda _, seconds: planned.append(seconds)
    await reconciler(KEY)
    deployment = have_ready(cluster, 2)
    await reconciler(KEY)
    have_ready(cluster, 1)
    cluster.created.clear()
    await reconciler(KEY)
    assert told(cluster)["Degraded"] == ("True", "ReplicaLost"), "at once"
    assert [each["reason"] for each in cluster.created] == []
    assert [round(each) for each in planned] == [module.CAUSE_SECONDS]
    if becomes == "is explained":
        template = deployment["spec"]["template"]["metadata"]["annotations"][HASH_ANNOTATION]
        said = Hindrance(pod="a", template_hash=template, reason=Reason.NOT_ANSWERING, message="its probe fails")
        memory.hinder({KEY: [said]})
    elif becomes == "is back":
        have_ready(cluster, 2)
    monkeypatch.setattr(module, "CAUSE_SECONDS", 0.0)
    await reconciler(KEY)
    await reconciler(KEY)
    expected = {"stays": "ReplicaLost", "is explained": "NotAnswering", "is back": "ReplicasReady"}
    assert [each["reason"] for each in cluster.created] == [expected[becomes]]

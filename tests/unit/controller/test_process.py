"""The process around the working thread: what it waits for, what it says meanwhile, and how it ends."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest

from kvgate.controller import working_thread
from kvgate.controller.command import ClusterNotPrepared, ThreadDied, _pushing, run
from kvgate.controller.leadership import LeaseLost
from kvgate.controller.state import ControllerOptions, Process
from kvgate.runtime.service import OtlpOptions
from support.api_server import ApiServer, api_server
from support.waiting import until

pytestmark = pytest.mark.slow

LABELLED = {
    "deployments": True,
    "services": True,
    "poddisruptionbudgets": True,
    "pods": True,
    "inferencedeployments": False,
}
"""Kinds that are watched, and whether only those with kvgate's label are."""


@dataclass
class Controller:
    """A controller on an API server in memory."""

    server: ApiServer
    stopped: asyncio.Event
    ended: asyncio.Task[None]
    log: pytest.LogCaptureFixture

    def said(self) -> list[str]:
        return [record.getMessage() for record in self.log.records if record.name == "kvgate.controller.command"]

    async def probe(self, path: str) -> tuple[int, str]:
        port = next(
            record.__dict__["fields"]["metrics_port"] for record in self.log.records if record.msg == "listening"
        )
        async with aiohttp.request("GET", f"http://127.0.0.1:{port}/{path}") as answer:
            return answer.status, await answer.text()

    async def until_said(self, words: str) -> None:
        await until(lambda: self.ended.done() or any(words in line for line in self.said()))

    async def until_ready(self, status: int, words: str) -> None:
        await self.until_said("listening")

        async def is_so() -> bool:
            found, text = await self.probe("readyz")
            return found == status and words in text

        await until(is_so)


@asynccontextmanager
async def controller(
    folder: Path, log: pytest.LogCaptureFixture, *, refusals: dict[str, int] | None = None, **options: Any
) -> AsyncIterator[Controller]:
    log.set_level(logging.INFO)
    async with api_server(folder) as (server, kubeconfig):
        server.refusals = refusals or {}
        stopped = asyncio.Event()
        given = {"metrics_host": "127.0.0.1", "metrics_port": 0, "instance": "ours", **options}
        work = run(ControllerOptions(kubeconfig=kubeconfig, **given), stopped)
        found = Controller(server=server, stopped=stopped, ended=asyncio.create_task(work), log=log)
        try:
            yield found
        finally:
            stopped.set()
            await asyncio.wait([found.ended])


@pytest.mark.parametrize(
    ("status", "hint"), [(403, "; the controller's role lacks a rule"), (503, ""), (401, "")], ids=str
)
async def test_what_cannot_be_listed_is_told_with_the_right_that_may_be_missing(
    status: int, hint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with controller(tmp_path, caplog, refusals={"services": status}) as found:
        await found.until_ready(503, "list services: as the test says")
        assert f"cannot work yet: list services: as the test says{hint}" in found.said()
        (record,) = (record for record in caplog.records if record.levelname == "ERROR")
        assert record.__dict__["fields"] == {"verb": "list", "resource": "services"}
        assert (await found.probe("livez"))[0] == 200, "a restart would not help"
    assert found.ended.exception() is None
    assert found.said()[-1] == "stopped"
    assert {method for method, *_ in found.server.requests} == {"GET"}


async def test_a_kind_that_the_cluster_does_not_know_ends_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with controller(tmp_path, caplog, refusals={"inferencedeployments": 404}) as found:
        await asyncio.wait([found.ended])
    with pytest.raises(
        ClusterNotPrepared, match=r"does not know inferencedeployments\.kvgate\.io: install the CustomResource"
    ):
        found.ended.result()


async def test_one_that_waits_for_the_lease_writes_nothing_and_tells_whom_it_waits_for_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is ready only while it waits for a replica of its own installation."""
    async with controller(tmp_path, caplog, refusals={"leases": 403}) as found:
        await found.until_ready(503, "cannot take the Lease: list leases")
        assert [line for line in found.said() if "name another one by --lease-namespace" in line] == found.said()[1:]
        found.server.lease("theirs-1", instance="theirs")
        found.server.refusals = {}
        await found.until_ready(503, "theirs-1 (theirs) holds it for all namespaces")
        found.server.lease("ours-1", instance="ours")
        await found.until_ready(200, "ours-1 (ours) holds it for all namespaces")
        asked = len(found.server.requests)
        await until(lambda: len(found.server.requests) >= asked + 2)
        assert sum("ours-1 (ours)" in line for line in found.said()) == 1
        assert 'kvgate_leader{lease="kvgate-controller"} 0.0' in (await found.probe("metrics"))[1]
    assert {method for method, *_ in found.server.requests} == {"GET"}
    assert "working" not in found.said()


async def test_one_that_works_watches_four_kinds_and_releases_its_lease_when_it_is_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def watched() -> dict[str, bool]:
        return {
            path.rpartition("/")[2]: query.get("labelSelector") == "kvgate.io/inferencedeployment"
            for _, path, query in found.server.requests
            if query.get("watch")
        }

    async with controller(tmp_path, caplog) as found:
        await until(lambda: found.ended.done() or watched() == LABELLED)
        await found.until_ready(200, "ok")
        assert found.server.leases["kvgate-controller"]["spec"]["holderIdentity"]
        assert 'kvgate_leader{lease="kvgate-controller"} 1.0' in (await found.probe("metrics"))[1]
    assert found.ended.exception() is None
    assert found.server.leases["kvgate-controller"]["spec"]["holderIdentity"] == ""
    assert [line for line in found.said() if "did not end" in line] == []


async def test_one_whose_lease_somebody_takes_ends_and_leaves_it_to_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with controller(tmp_path, caplog, namespaces=("chat", "search")) as found:
        await found.until_said("working")
        (name,) = found.server.leases
        found.server.lease("theirs-1", instance="theirs", name=name, namespaces="chat")
        await asyncio.wait([found.ended])
    with pytest.raises(LeaseLost, match=f"lost the Lease kube-system/{name}: theirs-1 holds"):
        found.ended.result()
    assert found.server.leases[name]["spec"]["holderIdentity"] == "theirs-1"
    listed = [path for method, path, query in found.server.requests if query.get("limit") == "1"]
    assert [path.partition("/namespaces/")[2] for path in listed] == [
        f"{namespace}/{kind}"
        for namespace in ("chat", "search")
        for kind in ("inferencedeployments", "deployments", "services", "poddisruptionbudgets", "pods")
    ]
    (record,) = (record for record in caplog.records if record.getMessage() == "working")
    assert record.__dict__["fields"] == {"namespaces": ["chat", "search"]}


async def test_one_whose_watching_thread_fails_ends_and_frees_the_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_thread, "_watch", AsyncMock(side_effect=RuntimeError("as the test says")))
    async with controller(tmp_path, caplog) as found:
        await asyncio.wait([found.ended])
    with pytest.raises(ThreadDied, match="has ended by itself"):
        found.ended.result()
    assert found.server.leases["kvgate-controller"]["spec"]["holderIdentity"] == ""
    assert [record.getMessage() for record in caplog.records if record.name == "kvgate.controller.working_thread"] == [
        "the working thread has failed"
    ]


async def test_metrics_are_pushed_from_the_start_on_where_an_endpoint_is_given() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otlp` is not installed")
    from support.otlp import answering, attributes, receiving

    with receiving(answering()) as receiver:
        otlp = OtlpOptions(endpoint=receiver.address, interval_seconds=60)
        async with _pushing(Process(options=ControllerOptions(metrics_host="127.0.0.1", metrics_port=0, otlp=otlp))):
            await asyncio.to_thread(receiver.wait)
    resource = dict(attributes(receiver.requests[0].resource_metrics[0].resource))
    assert resource["service.name"] == "kvgate-controller"
    assert receiver.points("kvgate_leader") == {(("lease", "kvgate-controller"),): 0}, (
        "it says so before it holds the Lease, as a scrape would"
    )

"""/metrics in the format that is asked for; the probes in the words of the door."""

import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kvgate.metrics.exporter import DeploymentSnapshot, Probe, endpoint_app, metrics_answer, new_registry
from kvgate.metrics.listener import listen
from kvgate.metrics.samples import DeploymentSample

SAMPLE = DeploymentSample(
    namespace="serving",
    name="chat",
    model="Qwen/Qwen3-8B",
    accelerator="L4-24GB",
    kv_cache_dtype="auto",
    policy="Reject",
    capacity_bytes=(1, 2, 3),
    headroom_ratio=(-0.5, 0.25, 0.5),
)


def fine() -> tuple[bool, str]:
    return True, "ok"


@contextlib.asynccontextmanager
async def endpoint(
    registry: CollectorRegistry, readyz: Probe = fine, deployments: DeploymentSnapshot | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    app = endpoint_app(registry, livez=fine, readyz=readyz, deployments=deployments)
    runner = await listen(app, "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            yield client
    finally:
        await runner.cleanup()


def published(*samples: DeploymentSample) -> DeploymentSnapshot:
    snapshot = DeploymentSnapshot()
    snapshot.publish({(sample.namespace, sample.name): sample for sample in samples})
    return snapshot


PLAIN = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "content_type", "ending"),
    [
        ("", PLAIN, "\n"),
        ("text/plain;version=0.0.4", PLAIN, "\n"),
        (OPENMETRICS, OPENMETRICS, "# EOF\n"),
        (PROMETHEUS_2, OPENMETRICS, "# EOF\n"),
        (PROMETHEUS_3, f"{OPENMETRICS}; charset=utf-8; escaping=allow-utf-8", "# EOF\n"),
    ],
)
async def test_metrics_come_in_the_format_that_is_asked_for(accept: str, content_type: str, ending: str) -> None:
    deployments = published(SAMPLE)
    async with (
        endpoint(new_registry(), deployments=deployments) as client,
        client.get("/metrics", headers={"Accept": accept}) as response,
    ):
        text = await response.text()
        assert response.headers["Content-Type"].startswith(content_type)
        assert response.headers["Content-Encoding"] == "gzip"
    assert text.endswith(ending)
    assert text.count("# EOF") == ending.count("# EOF")
    assert (
        'kvgate_kv_cache_headroom_ratio{namespace="serving",inferencedeployment="chat",bound="expected"} 0.25' in text
    )
    assert "kvgate_build_info{" in text


async def test_nothing_is_compressed_for_who_does_not_take_it() -> None:
    async with (
        endpoint(new_registry(), deployments=published(SAMPLE)) as client,
        client.get("/metrics", headers={"Accept-Encoding": "identity"}) as response,
    ):
        assert "Content-Encoding" not in response.headers
        assert "kvgate_build_info{" in await response.text()


def test_a_strict_reader_of_openmetrics_takes_every_family() -> None:
    body, _ = metrics_answer(OPENMETRICS, new_registry(), published(SAMPLE))
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}  # type: ignore[no-untyped-call]
    assert families["kvgate_kv_cache_capacity_bytes"].unit == "bytes"
    assert len(families["kvgate_kv_cache_capacity_bytes"].samples) == 3


def test_a_process_without_deployments_has_none_of_their_families() -> None:
    body, _ = metrics_answer(PLAIN, new_registry(), None)
    assert b"kvgate_kv_cache" not in body


async def test_the_probes_say_what_the_door_says() -> None:
    async with endpoint(CollectorRegistry(), lambda: (False, "standing by")) as client:
        async with client.get("/readyz") as response:
            assert (response.status, await response.text()) == (503, "standing by\n")
        async with client.get("/livez") as response:
            assert (response.status, await response.text()) == (200, "ok\n")


async def test_a_port_that_is_taken_is_an_error_that_leaves_nothing_open() -> None:
    app = endpoint_app(CollectorRegistry(), livez=fine, readyz=fine)
    taken = await listen(app, "127.0.0.1", 0)
    other = endpoint_app(CollectorRegistry(), livez=fine, readyz=fine)
    with pytest.raises(OSError, match="address already in use"):
        await listen(other, "127.0.0.1", taken.addresses[0][1])
    await taken.cleanup()

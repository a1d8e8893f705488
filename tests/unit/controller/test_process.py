"""The process around kopf's thread."""

import asyncio

import pytest

from kvgate.controller.command import _pushing
from kvgate.controller.state import ControllerOptions, Process
from kvgate.runtime.service import OtlpOptions


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

"""What the heartbeat of the reconciling loop tells: that it turns, how late, and whether the controller acts."""

import asyncio
import time

import pytest

from kvgate.cluster.errors import Forbidden
from kvgate.controller import working_thread
from kvgate.controller.memory import Memory
from kvgate.controller.state import ControllerOptions, Process
from support.waiting import turns

BLOCKED_SECONDS = 0.05


async def test_a_loop_that_was_blocked_woke_up_that_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_thread, "BEAT_SECONDS", 0.0)
    process = Process(options=ControllerOptions(metrics_host="127.0.0.1", metrics_port=0))
    beat = asyncio.create_task(working_thread._beat(process, Memory(process.deployments, process.starts)))
    await turns()
    time.sleep(BLOCKED_SECONDS)  # noqa: ASYNC251 - that is the point
    await turns()
    beat.cancel()
    lag_seconds = process.registry.get_sample_value("kvgate_event_loop_lag_seconds")
    assert lag_seconds is not None
    assert lag_seconds >= BLOCKED_SECONDS


@pytest.mark.parametrize("error", [Forbidden("get", "configmaps", "no"), ValueError("a text that nobody thought of")])
async def test_observed_starts_that_cannot_be_read_keep_nobody_from_working(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(options=ControllerOptions(metrics_host="127.0.0.1", metrics_port=0))

    async def load(_: object) -> None:
        raise error

    monkeypatch.setattr(process.starts, "load", load)
    await process.starts.try_load(None, process.troubles, loop="start")  # type: ignore[arg-type]
    assert process.registry.get_sample_value("kvgate_background_errors_total", {"loop": "start"}) == 1


async def test_the_heartbeat_survives_metrics_that_cannot_be_published(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(options=ControllerOptions(metrics_host="127.0.0.1", metrics_port=0))
    memory, beats, third = Memory(process.deployments, process.starts), [], asyncio.Event()

    def publish() -> None:
        beats.append(process.health.beat_at)
        if len(beats) == 3:
            third.set()
        raise UnicodeEncodeError("utf-8", "x", 0, 1, "no")

    monkeypatch.setattr(memory, "publish", publish)
    monkeypatch.setattr(working_thread, "BEAT_SECONDS", 0.0)
    beat = asyncio.create_task(working_thread._beat(process, memory))
    await third.wait()
    await turns()
    beat.cancel()
    assert process.health.livez()[0]
    assert process.registry.get_sample_value("kvgate_background_errors_total", {"loop": "beat"}) >= 3

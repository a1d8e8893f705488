"""When the process is alive, and when it is ready."""

import pytest

from kvgate.controller.state import Health
from support.waiting import Clock


@pytest.fixture
def health(clock: Clock) -> Health:
    health = Health(resync_seconds=300, clock=clock)
    health.begin()
    health.answered()
    return health


def test_before_the_api_server_answers_it_is_alive_and_not_ready(clock: Clock) -> None:
    health = Health(resync_seconds=300, clock=clock)
    assert health.livez()[0]
    assert health.readyz() == (False, "starting")


def test_a_replica_that_waits_is_ready_and_a_second_installation_is_not(clock: Clock) -> None:
    health = Health(resync_seconds=300, clock=clock)
    health.wait("waiting for the Lease of a", is_standby=True)
    assert health.readyz() == (True, "waiting for the Lease of a")
    health.wait("waiting for the Lease of b", is_standby=False)
    assert health.readyz() == (False, "waiting for the Lease of b")
    assert health.livez()[0]


def test_a_loop_that_stands_still_is_dead(health: Health, clock: Clock) -> None:
    clock.now += 9
    assert health.livez()[0]
    clock.now += 2
    assert health.livez() == (False, "the event loop has not turned for 11 s")


def test_silence_of_the_api_server_makes_it_unready_but_not_dead(health: Health, clock: Clock) -> None:
    clock.now += 1000
    health.beat()
    health.trouble = "refused"
    assert health.readyz() == (False, "refused")
    assert health.livez()[0]


def wait_while_the_api_server_answers(seconds: float, health: Health, clock: Clock) -> None:
    until = clock.now + seconds
    while clock.now < until:
        clock.now = min(clock.now + 5, until)
        health.beat()
        health.answered()


def test_a_resync_that_never_ends_is_dead_where_the_api_server_answers(health: Health, clock: Clock) -> None:
    wait_while_the_api_server_answers(930, health, clock)
    assert health.livez() == (True, "ok")
    wait_while_the_api_server_answers(1, health, clock)
    assert health.livez() == (False, "no resync for 931 s although the API server answers")
    health.resynced()
    assert health.livez() == (True, "ok")


def test_an_outage_is_no_time_in_which_a_resync_was_due(health: Health, clock: Clock) -> None:
    wait_while_the_api_server_answers(900, health, clock)
    clock.now += 100
    health.beat()
    assert health.livez() == (True, "ok")
    wait_while_the_api_server_answers(900, health, clock)
    assert health.livez() == (True, "ok")
    wait_while_the_api_server_answers(40, health, clock)
    assert not health.livez()[0]

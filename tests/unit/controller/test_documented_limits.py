"""Limits and times that a page states are those that the controller and the webhook have."""

import re
from pathlib import Path

from kvgate.cluster.leases import DURATION_SECONDS
from kvgate.controller import fetches, judging, leadership, memory, model_store, observe, resolving, schedule, state
from kvgate.rendering.observation import DRIFT_PERCENT
from kvgate.rendering.recalibration import MAX_RECALIBRATIONS, SAME_PERCENT
from kvgate.webhook import judging as reviewing
from kvgate.webhook import server
from support.tables import table

DOCS = Path(__file__).parents[3] / "docs" / "concepts"
WORDS = {2: "two", 3: "three", 5: "five", 10: "ten", 20: "twenty"}
TIMES = {60: "a minute", 300: "five minutes", 600: "ten minutes", 3600: "an hour", 86400: "a day"}
REVIEW, RECONCILE, FETCHES = reviewing.LIMITS, judging.LIMITS, fetches.FetchLimits()
OPTIONS = state.ControllerOptions(metrics_host="", metrics_port=0)
STATED = [
    ("operation", f"judge in worker processes ({WORDS[REVIEW.workers]} each;"),
    ("operation", f"judge in worker processes ({WORDS[RECONCILE.workers]} each;"),
    ("operation", f"| {REVIEW.budget_seconds:g} s of processor time, {REVIEW.wall_seconds:g} s in all |"),
    ("operation", f"in the controller | {RECONCILE.budget_seconds:g} s of processor time |"),
    ("operation", f"one namespace | {REVIEW.max_waiting}, each for at most {reviewing.WAIT_SECONDS:g} s |"),
    ("operation", f"HTTP 429 with `Retry-After: {server.RETRY_AFTER_SECONDS}`"),
    ("operation", f"| memory of a worker | {REVIEW.memory_bytes / 2**20:g} MiB above its start |"),
    ("operation", f"| memory of a worker | {RECONCILE.memory_bytes / 2**20:g} MiB above its start |"),
    ("operation", f"body; between requests | 5 s; 5 s; {server.BODY_SECONDS:g} s; 120 s |"),
    ("operation", f"| one body | {server.MAX_BODY_BYTES / 2**20:g} MiB |"),
    ("operation", f"| all bodies in flight | {server.MAX_BYTES_IN_FLIGHT / 2**20:g} MiB |"),
    ("operation", f"may be replaced, {WORDS[MAX_RECALIBRATIONS]} times per spec at most."),
    ("operation", f"at most {WORDS[memory.MAX_CORRECTIONS]} times {TIMES[int(memory.WINDOW_SECONDS)]}"),
    ("operation", f"or the size by more than {SAME_PERCENT} % and more than a block"),
    ("resolving", f"for at most `models.resolveSeconds` ({state.RESOLVE_SECONDS:g})."),
    ("two-controllers", f"confirmed | every {leadership.RENEW_SECONDS:g} s. Without it"),
    ("two-controllers", f"Without it for {leadership.WRITE_SECONDS:g} s a process stops writing"),
    ("two-controllers", f"after {DURATION_SECONDS} s another may take the Lease"),
    ("resolving", f"| {FETCHES.per_minute} in a minute, {FETCHES.burst} at once after a pause"),
    ("resolving", f"each at most {fetches.BOUNDS.max_seconds:g} s and {fetches.BOUNDS.max_bytes / 2**20:g} MiB"),
    (
        "resolving",
        f"| {FETCHES.at_once_per_namespace} of {FETCHES.at_once} workers, {FETCHES.waiting_per_namespace} waiting",
    ),
    ("resolving", f"| {FETCHES.at_once_per_namespace} of {fetches.WORKERS.workers} workers"),
    ("resolving", f"| {model_store.MAX_ENTRIES}, or {model_store.MAX_BYTES / 2**10:g} KiB."),
    ("resolving", f"| kept for {TIMES[int(model_store.UNUSED_SECONDS)]} |"),
    ("resolving", f"such as `NotFound`, holds for {TIMES[int(resolving.REFUSED_SECONDS)]}."),
    ("resolving", f"at least every {TIMES[int(resolving.MAX_RETRY_SECONDS)]}"),
    (
        "observed",
        f"at most {WORDS[int(observe.TIMEOUT_SECONDS)]} seconds and {observe.MAX_BYTES / 2**20:g} MiB, without redirects",
    ),
    ("observed", f"until the other has stayed for {TIMES[int(observe.SETTLED_AFTER * OPTIONS.observe_seconds)]} |"),
    ("observed", f"they differ by more than {DRIFT_PERCENT} %"),
    ("index", f"is looked for after {schedule.LOOK_AGAIN_SECONDS:g} seconds"),
]
"""(page, words of it)."""


@table(("page", "words"), STATED)
def test_a_page_states_the_limit_that_there_is(page: str, words: str) -> None:
    text = re.sub(r"\s+", " ", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert words in text

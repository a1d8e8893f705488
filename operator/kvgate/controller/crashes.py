"""Why an engine ended, from its termination message or else from its log.

A log may hold prompts, so no line of it is logged, stored or reported: only the sentence in which vLLM states the cause is kept.
"""

import asyncio
import logging
import re
from collections.abc import Iterable

from msgspec.structs import replace

from kvgate.api.conditions import Reason
from kvgate.cluster.client import Cluster
from kvgate.cluster.errors import ApiError
from kvgate.controller.pods import Pod
from kvgate.rendering.observation import Crash
from kvgate.rendering.workload import CONTAINER
from kvgate.sources.start_failure import FailureKind, StartFailure, recognise
from kvgate.vllm.redacting import redacted

MANY_RESTARTS = 2
"""Restarts after which an end that vLLM itself did not want is not expected to pass: a hub or a network may be well again before."""
MAX_QUOTED = 300

_REASONS = {
    FailureKind.KV_CACHE_TOO_SMALL: Reason.KV_CACHE_TOO_SMALL,
    FailureKind.NO_MEMORY_FOR_KV_CACHE: Reason.KV_CACHE_TOO_SMALL,
    FailureKind.MAMBA_BLOCKS: Reason.KV_CACHE_TOO_SMALL,
    FailureKind.GPU_MEMORY_TAKEN: Reason.OUT_OF_MEMORY,
    FailureKind.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    FailureKind.INVALID_SETTING: Reason.ENGINE_REFUSED_TO_START,
}
"""Reasons by kinds; a failure of the environment has the name of its row."""


def cause_in(text: str) -> StartFailure | None:
    """Return the cause that a text states; None where it has none, such as the end of a traceback whose cause was printed before."""
    failure = recognise(text)
    return failure if failure and failure.kind is not FailureKind.ENGINE_CORE_FAILED else None


def wants_log(pod: Pod) -> bool:
    """Return True where the termination message has no cause; with V1 the traceback of vLLM's API server alone fills it."""
    ended = pod.ended
    return ended is not None and not pod.is_ready and ended.reason != "OOMKilled" and cause_in(ended.message) is None


def crash_of(pod: Pod, logged: StartFailure | None = None) -> Crash | None:
    """Return the crash of a pod, if it is to be reported; `logged` is the cause in its log."""
    ended = pod.ended
    if (
        pod.is_ready or ended is None or ended.reason == "OOMKilled"
    ):  # that is a hindrance, which Kubernetes states at once
        return None
    failure = cause_in(ended.message) or logged
    crash = Crash(pod=pod.name, template_hash=pod.template_hash, reason=Reason.ENGINE_CRASHED, message="")
    has_ended_once = pod.restarts < MANY_RESTARTS
    if failure and failure.kind not in _REASONS:
        # lines about tokens, paths and addresses are nobody's to read in a status: the table's own words stand for them
        words = f"{failure.row.cause} {failure.row.do}"
        return replace(crash, reason=failure.id, message=words, may_pass=has_ended_once)
    if failure:
        return replace(
            crash,
            reason=_REASONS[failure.kind],
            message=f"vLLM reports: {failure.sentence.rstrip('.')}",
            available_kv_cache_bytes=failure.available_kv_cache_bytes,
            declared_image=pod.declared_image,
            image=pod.image,
            node=pod.node,
        )
    last = next((line.strip() for line in reversed(ended.message.splitlines()) if line.strip()), "")
    end = f"with {redacted(last)[:MAX_QUOTED]!r}" if last else f"without a message ({ended.reason})"
    message = f"the engine ended {end}; see `kubectl logs -n {pod.namespace} {pod.name} --previous`"
    return replace(crash, message=message, may_pass=has_ended_once)


MAX_READS = 8
"""Logs that one round reads at the same time; the others wait for the next round. So nodes that hang cost a round one time limit."""

_OF_REQUESTS = re.compile(r"^.*(?:prompt|message|received request|generated response).*$", re.IGNORECASE | re.MULTILINE)
"""Lines that quote users, who could write a sentence that looks like a cause."""

_log = logging.getLogger(__name__)


class CrashLogs:
    """The causes in the logs of containers that ended; one per process. Each log is read once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._causes: dict[tuple[str, str], StartFailure | None] = {}
        """Causes by the pod's uid and its run; None where the log has no known cause, or cannot be read."""
        self._logged: set[str] = set()
        """Kinds of errors that were logged."""

    def cause(self, pod: Pod) -> StartFailure | None:
        return self._causes.get(_run(pod))

    def is_due(self, pod: Pod) -> bool:
        return wants_log(pod) and _run(pod) not in self._causes

    async def read(self, pods: Iterable[Pod]) -> None:
        """Read the logs that are due among these pods, and forget all other pods."""
        runs = {_run(pod): pod for pod in pods if pod.ended}
        self._causes = {run: cause for run, cause in self._causes.items() if run in runs}
        due = [(run, pod) for run, pod in runs.items() if self.is_due(pod)][:MAX_READS]
        causes = await asyncio.gather(*(self._cause(pod) for _, pod in due))
        self._causes |= {run: cause for (run, _), cause in zip(due, causes, strict=True)}

    async def _cause(self, pod: Pod) -> StartFailure | None:
        previous = pod.ended is not None and pod.ended.has_restarted
        try:
            log = await self._cluster.log(pod.namespace, pod.name, CONTAINER, of_previous=previous)
        except ApiError as error:
            kind = type(error).__name__  # the node's own words are not logged: they might quote the container's log
            if kind not in self._logged:
                self._logged.add(kind)
                fields = {"namespace": pod.namespace, "pod": pod.name, "verb": error.verb, "resource": error.resource}
                text = "the log of the crashed pod %s/%s cannot be read: %s"
                _log.warning(text, pod.namespace, pod.name, kind, extra={"fields": fields})
            return None
        return cause_in(_OF_REQUESTS.sub("", log))


def _run(pod: Pod) -> tuple[str, str]:
    return pod.uid, pod.ended.container_id if pod.ended else ""

"""Causes of an engine's end, from its termination message or from its log: pure."""

import asyncio
import logging
import re
from collections.abc import Iterable

from kvgate.api.conditions import Reason
from kvgate.cluster.client import Cluster
from kvgate.cluster.errors import ApiError
from kvgate.controller.pods import Pod
from kvgate.rendering.observation import Crash
from kvgate.rendering.pod import CONTAINER
from kvgate.sources.start_failure import FailureKind, StartFailure, recognise

UNKNOWN_RESTARTS = 2
"""An end for a cause that is not known is told when it has come again: once is an accident."""
MAX_QUOTED = 300

_REASONS = {
    FailureKind.KV_CACHE_TOO_SMALL: Reason.KV_CACHE_TOO_SMALL,
    FailureKind.NO_MEMORY_FOR_KV_CACHE: Reason.KV_CACHE_TOO_SMALL,
    FailureKind.MAMBA_BLOCKS: Reason.KV_CACHE_TOO_SMALL,
    FailureKind.GPU_MEMORY_TAKEN: Reason.OUT_OF_MEMORY,
    FailureKind.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    FailureKind.INVALID_SETTING: Reason.ENGINE_REFUSED_TO_START,
}
_TELLS_KV_CACHE = (FailureKind.KV_CACHE_TOO_SMALL, FailureKind.NO_MEMORY_FOR_KV_CACHE)
"""Their available bytes are the KV cache's; those of the others are the GPU's."""


def cause_in(text: str) -> StartFailure | None:
    """None, too, for the mere end of a traceback: its cause was printed before."""
    failure = recognise(text)
    return failure if failure and failure.kind in _REASONS else None


def wants_log(pod: Pod) -> bool:
    """The termination message does not hold the cause: with V1 the API server's own traceback alone is longer."""
    ended = pod.ended
    return ended is not None and not pod.is_ready and ended.reason != "OOMKilled" and cause_in(ended.message) is None


def crash_of(pod: Pod, logged: StartFailure | None = None) -> Crash | None:
    """None while nothing is wrong, or may yet come right by itself; `logged` is the cause that its log tells."""
    ended = pod.ended
    if pod.is_ready or ended is None:
        return None
    failure = cause_in(ended.message) or logged
    if failure:
        return _refusal(pod, failure)
    if pod.restarts < UNKNOWN_RESTARTS:
        return None
    message = _unknown(pod, ended.reason, ended.message)
    return Crash(pod=pod.name, template_hash=pod.template_hash, reason=Reason.ENGINE_CRASHED, message=message)


def _refusal(pod: Pod, failure: StartFailure) -> Crash:
    return Crash(
        pod=pod.name,
        template_hash=pod.template_hash,
        reason=_REASONS[failure.kind],
        message=f"vLLM says: {failure.sentence.rstrip('.')}",
        available_kv_cache_bytes=failure.available_bytes if failure.kind in _TELLS_KV_CACHE else None,
        declared_image=pod.declared_image,
        image=pod.image,
    )


def _unknown(pod: Pod, reason: str, message: str) -> str:
    if reason == "OOMKilled":
        return "the container's memory limit was reached (not the GPU's); raise spec.template.resources.limits.memory"
    last = next((line.strip() for line in reversed(message.splitlines()) if line.strip()), "")
    quoted = f"the engine ended with {last[:MAX_QUOTED]!r}" if last else f"the engine ended without a word ({reason})"
    return f"{quoted}; `kubectl logs -n {pod.namespace} {pod.name} --previous` has more"


MAX_READS = 8
"""Logs that one round reads; the others wait for the next. Nodes that hang cost a round one time limit, however many pods crash."""

_OF_REQUESTS = re.compile(r"^.*(?:prompt|message|received request|generated response).*$", re.IGNORECASE | re.MULTILINE)
"""Lines that quote users, who may write what an engine says when it ends."""

_log = logging.getLogger(__name__)


class CrashLogs:
    """One per process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._causes: dict[tuple[str, str], StartFailure | None] = {}
        """Causes by the pod's uid and its run; None where the log has no known cause, or cannot be read."""
        self._told: set[str] = set()

    def cause(self, pod: Pod) -> StartFailure | None:
        return self._causes.get(_run(pod))

    async def read(self, pods: Iterable[Pod]) -> None:
        """Whatever has not been read of these; who is not among them is forgotten."""
        runs = {_run(pod): pod for pod in pods if pod.ended}
        self._causes = {run: cause for run, cause in self._causes.items() if run in runs}
        due = [(run, pod) for run, pod in runs.items() if run not in self._causes and wants_log(pod)][:MAX_READS]
        causes = await asyncio.gather(*(self._cause(pod) for _, pod in due))
        self._causes |= {run: cause for (run, _), cause in zip(due, causes, strict=True)}

    async def _cause(self, pod: Pod) -> StartFailure | None:
        previous = pod.ended is not None and pod.ended.has_restarted
        try:
            log = await self._cluster.log(pod.namespace, pod.name, CONTAINER, of_previous=previous)
        except ApiError as error:
            self._tell(pod, error)
            return None
        return cause_in(_OF_REQUESTS.sub("", log))

    def _tell(self, pod: Pod, error: ApiError) -> None:
        """Once per kind of error; not in the node's words, which are not known to be free of the log's."""
        kind = type(error).__name__
        if kind not in self._told:
            self._told.add(kind)
            fields = {"namespace": pod.namespace, "pod": pod.name, "verb": error.verb, "resource": error.resource}
            _log.warning("no log of crashed pod %s/%s: %s", pod.namespace, pod.name, kind, extra={"fields": fields})


def _run(pod: Pod) -> tuple[str, str]:
    return pod.uid, pod.ended.container_id if pod.ended else ""

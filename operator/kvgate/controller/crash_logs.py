"""The logs of engines that ended without telling why in their last words: each is read once, and only the cause is kept.

A log may hold prompts. So no line of it is logged, stored or told; what leaves is the sentence in which vLLM says the cause.
"""

import asyncio
import logging
import re
from collections.abc import Iterable

from kvgate.cluster.client import Cluster
from kvgate.cluster.errors import ApiError
from kvgate.controller.crashes import cause_in, wants_log
from kvgate.controller.pods import Pod
from kvgate.rendering.pod import CONTAINER
from kvgate.sources.start_failure import StartFailure

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

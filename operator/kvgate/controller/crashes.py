"""Why an engine ended, from the end of its log: pure."""

from kvgate.api.conditions import Reason
from kvgate.controller.pods import Pod
from kvgate.rendering.observation import Crash
from kvgate.sources.start_failure import FailureKind, recognise

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


def wants_log(pod: Pod) -> bool:
    """The termination message does not hold the cause: with V1 the API server's own traceback alone is longer."""
    ended = pod.ended
    return ended is not None and not pod.is_ready and ended.reason != "OOMKilled" and _known(pod, ended.message) is None


def crash_of(pod: Pod, log: str = "") -> Crash | None:
    """None while nothing is wrong, or may yet come right by itself; `log` is more of what the container wrote."""
    ended = pod.ended
    if pod.is_ready or ended is None:
        return None
    known = _known(pod, ended.message) or _known(pod, log)
    if known is not None or pod.restarts < UNKNOWN_RESTARTS:
        return known
    return _crash(pod, Reason.ENGINE_CRASHED, _unknown(pod, ended.reason, ended.message))


def _known(pod: Pod, text: str) -> Crash | None:
    failure = recognise(text)
    reason = _REASONS.get(failure.kind) if failure else None
    return _crash(pod, reason, f"vLLM says: {failure.sentence.rstrip('.')}") if failure and reason else None


def _crash(pod: Pod, reason: Reason, message: str) -> Crash:
    return Crash(pod=pod.name, template_hash=pod.template_hash, reason=reason, message=message)


def _unknown(pod: Pod, reason: str, message: str) -> str:
    if reason == "OOMKilled":
        return "the container's memory limit was reached (not the GPU's); raise spec.template.resources.limits.memory"
    last = next((line.strip() for line in reversed(message.splitlines()) if line.strip()), "")
    quoted = f"the engine ended with {last[:MAX_QUOTED]!r}" if last else f"the engine ended without a word ({reason})"
    return f"{quoted}; `kubectl logs -n {pod.namespace} {pod.name} --previous` has more"

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


def crash_of(pod: Pod) -> Crash | None:
    """None while nothing is wrong, or may yet come right by itself."""
    if pod.is_ready or pod.ended is None:
        return None
    failure = recognise(pod.ended.message)
    reason = _REASONS.get(failure.kind) if failure else None
    if failure and reason:
        return _crash(pod, reason, f"vLLM says: {failure.sentence.rstrip('.')}")
    if pod.restarts < UNKNOWN_RESTARTS:
        return None
    return _crash(pod, Reason.ENGINE_CRASHED, _unknown(pod, pod.ended.reason, pod.ended.message))


def _crash(pod: Pod, reason: Reason, message: str) -> Crash:
    return Crash(pod=pod.name, template_hash=pod.template_hash, reason=reason, message=message)


def _unknown(pod: Pod, reason: str, message: str) -> str:
    if reason == "OOMKilled":
        return "the container's memory limit was reached (not the GPU's); raise spec.template.resources.limits.memory"
    last = next((line.strip() for line in reversed(message.splitlines()) if line.strip()), "")
    quoted = f"the engine ended with {last[:MAX_QUOTED]!r}" if last else f"the engine ended without a word ({reason})"
    return f"{quoted}; `kubectl logs -n {pod.namespace} {pod.name} --previous` has more"

"""Causes of an engine's end, from its termination message or from its log: pure."""

from kvgate.api.conditions import Reason
from kvgate.controller.pods import Pod
from kvgate.rendering.observation import Crash
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

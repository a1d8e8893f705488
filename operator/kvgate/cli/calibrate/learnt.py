"""The listing of what was learnt: per setting and namespace the starts, whether each is used, and what that does to a prediction."""

from collections.abc import Iterator
from typing import Any

from kvgate.budget import Calibration, CalibrationScope, ObservedStart, StartKey
from kvgate.budget.ground.units import format_gib
from kvgate.budget.observed.calibration import Weighed
from kvgate.calibration.keeping import setting_id
from kvgate.calibration.observed import unused_text
from kvgate.cli.calibrate.places import Starts

Json = dict[str, Any]

_DECIDED = {
    "used": "used",
    "outdated": "replaced by newer starts that agree on something else",
    "expired": "its image, driver or node is no longer what runs: it widens and moves nothing of another object",
    "dropped": "dropped, and not learnt again",
}


def learnt(places: Starts, *, namespace: str | None = None, setting: str | None = None) -> list[Json]:
    """Return one object for each setting in each namespace, for people and for JSON."""
    calibration, found = places.calibration, dict[tuple[StartKey, str], list[ObservedStart]]()
    for start in calibration.starts:
        place = start.namespace if calibration.scope is CalibrationScope.NAMESPACE else ""
        if namespace in (None, start.namespace) and setting in (None, setting_id(start.key)):
            found.setdefault((start.key, place), []).append(start)
    settings = []
    for (key, place), starts in found.items():
        weighed = calibration.seen_from(place, "").weighed(key)
        followed = {start.revision for start in weighed.followed}
        settings.append({
            "setting": setting_id(key),
            "namespace": place,
            "architecture": key.architecture,
            "accelerator": key.accelerator,
            "vllm_version": key.vllm_version,
            "tensor_parallel_size": key.tensor_parallel_size,
            "max_num_batched_tokens": key.max_num_batched_tokens,
            "kv_cache_dtype": key.kv_cache_dtype,
            "effect": _effect(weighed),
            "starts": [_of_start(calibration, start, is_followed=start.revision in followed) for start in starts],
        })  # fmt: skip
    return settings


def _effect(weighed: Weighed) -> str:
    """Describe the difference that the starts make to the prediction for another object."""
    followed, others = ([start.residual_bytes for start in starts] for starts in (weighed.followed, weighed.others))
    if followed:
        middle = sorted(followed)[len(followed) // 2]
        moves = f"predictions follow {len(followed)} {_starts(followed)}: {_signed(middle)} against the formulas"
        return moves + (f", widened by {len(others)} more" if others else "")
    if not others:
        return "predictions stay at the formulas: no start counts"
    bounds = f"{_signed(min(others))} to {_signed(max(others))}"
    widened = f"predictions stay at the formulas, widened by {len(others)} {_starts(others)} ({bounds})"
    return f"{widened}; two objects on two nodes must agree to move them"


def _starts(found: list[int]) -> str:
    return "start" if len(found) == 1 else "starts"


def _of_start(calibration: Calibration, start: ObservedStart, *, is_followed: bool) -> Json:
    state = calibration.state(start).value
    why = "pinned" if start.is_pinned else unused_text(calibration, start) or _DECIDED.get(state, state)
    if state == "used" and not start.is_pinned:
        why = "followed" if is_followed else "alone: it widens and moves nothing of another object"
    seen = {
        name: getattr(start, name)
        for name in ("namespace", "owner", "pod", "node", "image", "driver", "product")
        if getattr(start, name)
    }
    return {
        "start": start.revision,
        "state": state,
        "why": why,
        "is_followed": is_followed,
        "source": start.source,
        "origin": start.origin.value,
        "max_num_seqs": start.max_num_seqs,
        "available_kv_cache_bytes": start.available_kv_cache_bytes,
        "predicted_bytes": start.predicted.expected,
        "gpu_at_start": start.gpu_at_start.value,
        **seen,
    }


def lines_of(settings: list[Json], frozen: frozenset[str]) -> Iterator[str]:
    """Yield the listing as lines of text."""
    if frozen:
        yield f"frozen, nothing new is learnt: {', '.join(sorted(frozen))}"
    if not settings:
        yield "no start was learnt"
    for number, each in enumerate(settings):
        where = f" in namespace {each['namespace']}" if each["namespace"] else ""
        sizes = f"tp {each['tensor_parallel_size']}, {each['max_num_batched_tokens']} batched tokens, KV {each['kv_cache_dtype']}"
        if number or frozen:
            yield ""
        yield f"setting {each['setting']}{where}"
        yield f"  {each['architecture']} on {each['accelerator']}, vLLM {each['vllm_version']}, {sizes}"
        yield f"  {each['effect']}"
        for start in each["starts"]:
            difference = start["available_kv_cache_bytes"] - start["predicted_bytes"]
            size = f"{format_gib(start['available_kv_cache_bytes'])} ({_signed(difference)})"
            pod = f", pod {start['pod']}" if "pod" in start else ""
            yield f"  start {start['start']}: {size}, max_num_seqs {start['max_num_seqs']}, GPU {start['gpu_at_start'].lower()}"
            yield f"    {start['source'] or start['origin']}{pod}: {start['why']}"


def _signed(size: int) -> str:
    return f"{'−' if size < 0 else '+'}{format_gib(abs(size))}"

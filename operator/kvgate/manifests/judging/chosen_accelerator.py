"""The accelerator that an engine is judged on: by its hints, else by what is configured."""

import re
from collections.abc import Sequence

from kvgate import catalogue
from kvgate.documents.written import Written
from kvgate.manifests.pods.accelerator_hints import AcceleratorFound, accelerators_of, may_be_unnamed, unlisted_hint
from kvgate.manifests.pods.engine_found import FoundEngine, Hint
from kvgate.record import record
from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import Located, Place, located

_CPU_IMAGE = re.compile(r"(?:^|[-_/:.])cpu(?:$|[-_/:.@])")
_SHARING_LABELS = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")
_SHARING_STRATEGIES = ("time-slicing", "time-sharing", "mps")
_SHARED_SUFFIX, _SHARED_RESOURCE = "-SHARED", "nvidia.com/gpu.shared"
"""Marks of NVIDIA's device plugin in the product's label, or in the resource, where GPUs are shared."""
_MAX_NAMES = 4
"""Accelerators that one sentence names."""


@record
class Chosen:
    """The accelerator that is judged, and the remarks about the choice."""

    name: str | None
    """None where nothing tells it."""
    path: str = ""
    """Path of the field that named it."""
    others: tuple[str | None, ...] = ()
    """The one with the most memory where several are possible; None for one that nothing names."""
    findings: tuple[Located, ...] = ()
    assumed: tuple[str, ...] = ()


def choose(engine: FoundEngine, configured: str | None) -> Chosen:
    """Choose the configured accelerator if the hints allow it, else the possible one with the least memory."""
    found = accelerators_of(engine.hints)
    if found:
        meant = next((each for each in found if len(found) > 1 and _is_called(each, configured)), None)
        if meant:
            name = meant.accelerator.name
            return Chosen(name=name, path=meant.hint.path, assumed=(f"accelerator {name}, as configured",))
        by_memory = sorted(found, key=lambda each: each.accelerator.memory_bytes)
        least, most = by_memory[0], by_memory[-1]
        others = (
            *([most.accelerator.name] if len(found) > 1 else []),
            *([None] if may_be_unnamed(engine.hints) else []),
        )
        findings = (_several(found, is_open=None in others),) if others else ()
        return Chosen(
            name=least.accelerator.name,
            path=least.hint.path,
            others=others,
            findings=(*findings, *_shared(engine.hints, least)),
        )
    if unlisted := unlisted_hint(engine.hints):
        return Chosen(name=unlisted.value, path=unlisted.path)
    if image := cpu_image(engine):
        return Chosen(name=None, path=image.path, findings=(_on_cpu(image),))
    if configured:
        return Chosen(name=configured, assumed=(f"accelerator {configured}, as configured",))
    return Chosen(name=None)


def _is_called(found: AcceleratorFound, configured: str | None) -> bool:
    named = catalogue.find_accelerator(configured) if configured else None
    return named is not None and named.name == found.accelerator.name


def _several(found: tuple[AcceleratorFound, ...], *, is_open: bool) -> Located:
    names = [each.accelerator.name for each in found]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    more += ", or on a node whose labels name none" if is_open else ""
    message = f"it may run on any of {', '.join(names[:_MAX_NAMES])}{more}; the one with the least memory is judged"
    at = Place(name="accelerator", path=found[0].hint.path)
    return located("SeveralAccelerators", Severity.INFO, at, message, "select one, or size for the least")


def _shared(hints: Sequence[Hint], found: AcceleratorFound) -> tuple[Located, ...]:
    """Return the remark about GPUs that several containers share, in turns or at once (MPS)."""
    beside = (hint for hint in hints if hint.term in (None, found.hint.term))
    said = next((hint for hint in beside if _says_shared(hint)), None)
    if said is None:
        return ()
    words = f"{said.name}: {said.value}" if said.name in _SHARING_LABELS else said.value
    message = f"{words} is a GPU that is shared with other containers, whose memory is not counted here"
    at = Place(name="accelerator", path=said.path)
    return (located("SharedGpu", Severity.WARNING, at, message, "leave each its part by gpu_memory_utilization"),)


def _says_shared(hint: Hint) -> bool:
    if hint.name in _SHARING_LABELS:
        return hint.value in _SHARING_STRATEGIES
    return hint.value.endswith(_SHARED_SUFFIX) or (hint.name == "resource" and hint.value == _SHARED_RESOURCE)


def cpu_image(engine: FoundEngine) -> Written | None:
    """Its image, where that is made for CPUs."""
    return next((image for image in (engine.version, engine.image) if _CPU_IMAGE.search(image.text)), None)


def _on_cpu(image: Written) -> Located:
    at = Place(name="accelerator", path=image.path)
    message = "this image runs on CPUs, whose KV cache is main memory: not judged"
    return located("RunsOnCpu", Severity.INFO, at, message, "VLLM_CPU_KVCACHE_SPACE says how much it takes")

"""Spec and assessment → vLLM's command line, word by word as its process gets it: no shell ever sees it."""

from collections.abc import Iterator
from contextlib import suppress

from kvgate.api.status import Effective
from kvgate.api.v1alpha1 import InferenceDeploymentSpec, Model, Vllm
from kvgate.budget.errors import UnknownVersion
from kvgate.budget.versions import accounting_of
from kvgate.vllm.flags import FLAGS

MODEL_MOUNT = "/model"
"""Folder of weights from a volume or an image in the container."""
GRACE_SECONDS = 120
"""Time from the announcement of a pod's end to its kill; vLLM gets what the preStop pause and the exit leave of it."""
SHUTDOWN_RESERVE_SECONDS = 20


def command(model: Model) -> list[str]:
    """`vllm serve MODEL`."""
    return ["vllm", "serve", model_path(model)]


def model_path(model: Model) -> str:
    """A Hugging Face id, or the folder where a volume or an image is mounted."""
    if model.source is None:
        return model.name
    claim = model.source.persistent_volume_claim
    return f"{MODEL_MOUNT}/{claim.path}" if claim and claim.path else MODEL_MOUNT


def arguments(spec: InferenceDeploymentSpec, effective: Effective) -> list[str]:
    """Everything after the model, one option per item."""
    return [
        *_model_arguments(spec.model),
        *_setting_arguments(spec.vllm, effective),
        *_shutdown_arguments(spec.vllm),
        *spec.vllm.extra_args,
    ]


def _model_arguments(model: Model) -> Iterator[str]:
    if model.source is not None:
        yield f"--served-model-name={model.name}"
    elif model.revision is not None:
        yield f"--revision={model.revision}"


def _setting_arguments(vllm: Vllm, effective: Effective) -> Iterator[str]:
    values = {**dict(vllm), **dict(effective)}
    seen = set()
    for owned in FLAGS:
        if owned.field in seen or owned.field not in values:
            continue
        seen.add(owned.field)
        yield from _option(owned.flag, owned.field, values[owned.field])


def _option(flag: str, field: str, value: object) -> Iterator[str]:
    """Write one option; a value that changes nothing is left out, and switches have no value."""
    if value is None or value == "auto" or (field.endswith("_parallel_size") and value == 1):
        return
    if isinstance(value, bool):
        if value:
            yield flag
        elif field == "enable_prefix_caching":
            yield f"--no-{flag.removeprefix('--')}"
    else:
        yield f"{flag}={value}"


def _shutdown_arguments(vllm: Vllm) -> Iterator[str]:
    """Releases that can finish running requests get the time to do so."""
    with suppress(UnknownVersion):
        if accounting_of(vllm.version).shutdown_timeout:
            yield f"--shutdown-timeout={GRACE_SECONDS - SHUTDOWN_RESERVE_SECONDS}"

"""The pod template: passes the restricted Pod Security Standard, asks for its GPU by product, waits as long as loading takes."""

from collections.abc import Iterator
from contextlib import suppress

from kvgate.api.base import Document, KeyRef
from kvgate.api.quantity import format_bytes, plus_bytes
from kvgate.api.status import Effective, Placement
from kvgate.api.template import Amounts, EnvVar, Resources, Template
from kvgate.api.v1alpha1 import InferenceDeployment, InferenceDeploymentSpec, Model, Vllm
from kvgate.budget.calibration import Scope
from kvgate.budget.errors import UnknownVersion
from kvgate.budget.plan import Budget
from kvgate.budget.units import GIB, cdiv
from kvgate.budget.versions import accounting_of
from kvgate.calibration.records import Trust
from kvgate.rendering.labels import HASH_ANNOTATION, labels, render_hash
from kvgate.text.expansion import escaped
from kvgate.vllm.settings import SPEC_SETTINGS
from kvgate.vllm.variables import CACHE_MOUNT, FOLDERS

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
    """One option for each field whose value is not its default. A switch has no value on the command line."""
    values = {**dict(vllm), **dict(effective)}
    for setting in SPEC_SETTINGS:
        field = Vllm.model_fields.get(setting.name)
        if field is None or (value := values[setting.name]) == field.default:
            continue
        if setting.is_switch:
            yield setting.flag if value else f"--no-{setting.flag[2:]}"
        else:
            yield f"{setting.flag}={value}"


def _shutdown_arguments(vllm: Vllm) -> Iterator[str]:
    """Releases that can finish running requests get the time to do so."""
    with suppress(UnknownVersion):
        if accounting_of(vllm.version).shutdown_timeout:
            yield f"--shutdown-timeout={GRACE_SECONDS - SHUTDOWN_RESERVE_SECONDS}"


PORT = 8000
CONTAINER = "vllm"
HEALTH_PATH = "/health"
"""Answered without an API key (vLLM guards /v1 and its like), and not before the weights are loaded: vLLM 0.6 to 0.33 listen
only once the engine is up, so until then a connection is refused."""
USER_ID = 2000
"""Not root; vLLM's images allow any user that has a HOME to write to."""
PRE_STOP_SECONDS = 15
"""Until every client has heard that the pod is leaving."""
LOAD_BYTES_PER_SECOND = 150_000_000
"""A slow download; faster ones only make the startup probe succeed earlier."""
LOAD_BASE_SECONDS = 180
"""Start of Python, compilation, CUDA graphs."""
MIN_LOAD_SECONDS = 600
MAX_LOAD_SECONDS = 3600
LOAD_STEP_SECONDS = 300
"""Load budgets are whole steps: a better estimate of the weights must not restart pods."""
STARTUP_PERIOD_SECONDS = 10

IMAGES = {"nvidia": "vllm/vllm-openai", "amd": "vllm/vllm-openai-rocm"}
"""vLLM's own images by vendor; for other vendors the spec must name one."""
VLLM_ALONE = Trust.of(IMAGES.values(), Scope.NAMESPACE)
"""Default of the rule about whose starts teach: images that are rendered where a spec names none."""
PRODUCT_LABELS = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.product-name"}
"""Node labels that name the GPU, by vendor."""


def image_of(spec: InferenceDeploymentSpec, vendor: str) -> str | None:
    """The spec's image, or vLLM's own of that release; None where vLLM publishes none for this vendor."""
    repository = IMAGES.get(vendor)
    tag = "v" + spec.vllm.version.removeprefix("v").replace("+", "-")  # 0.19.0+cu130 is published as v0.19.0-cu130
    return spec.vllm.image or (f"{repository}:{tag}" if repository else None)


def pod_template(
    owner: InferenceDeployment, *, image: str, placement: Placement, effective: Effective, load_seconds: int
) -> Document:
    """Return the pod template with its own hash as annotation: pods roll once per change, and never without one."""
    template = owner.spec.template
    container = _container(owner.spec, image, placement, effective, load_seconds)
    body: Document = {
        "metadata": {
            "labels": {**(template.labels or {}), **labels(owner.name)},
            "annotations": dict(template.annotations or {}),
        },
        "spec": {**_pod_settings(template, placement), "containers": [container], "volumes": _volumes(owner.spec)},
    }
    body["metadata"]["annotations"][HASH_ANNOTATION] = render_hash(body)
    return body


def load_budget_seconds(budget: Budget | None) -> int:
    """Return the seconds that download, load and compilation may take; the longest where the weights are not known."""
    ledgers = [stage.ledger for stage in budget.stages if stage.ledger] if budget else []
    if budget is None or not ledgers:
        return MAX_LOAD_SECONDS
    ranks = budget.request.settings.parallelism.tensor
    weights_bytes = sum(ledger.weights.expected for ledger in ledgers) * ranks
    seconds = cdiv(weights_bytes, LOAD_BYTES_PER_SECOND) + LOAD_BASE_SECONDS
    return min(max(cdiv(seconds, LOAD_STEP_SECONDS) * LOAD_STEP_SECONDS, MIN_LOAD_SECONDS), MAX_LOAD_SECONDS)


def shared_memory_bytes(spec: InferenceDeploymentSpec) -> int:
    """Return the bytes of /dev/shm: NCCL's buffers grow with the ranks that share a pod."""
    ranks = spec.vllm.num_gpus
    return GIB if ranks == 1 else max(10, 2 * ranks) * GIB


def _pod_settings(template: Template, placement: Placement) -> Document:
    settings: Document = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service called vllm would set VLLM_PORT, which vLLM reads as its own
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": _tolerations(template, placement),
    }
    if placement.gpu_labels and placement.vendor in PRODUCT_LABELS:
        settings["affinity"] = _product_affinity(placement)
    if template.node_selector:
        settings["nodeSelector"] = dict(template.node_selector)
    if template.image_pull_secrets:
        settings["imagePullSecrets"] = [{"name": name} for name in template.image_pull_secrets]
    if template.priority_class_name:
        settings["priorityClassName"] = template.priority_class_name
    return settings


def _product_affinity(placement: Placement) -> Document:
    """Only nodes whose GPU is the one that was judged; shared GPUs (…-SHARED) have another label and never match."""
    wanted = {"key": PRODUCT_LABELS[placement.vendor], "operator": "In", "values": list(placement.gpu_labels)}
    terms = [{"matchExpressions": [wanted]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _tolerations(template: Template, placement: Placement) -> list[Document]:
    ours = {"key": placement.resource, "operator": "Exists", "effect": "NoSchedule"}
    theirs = (item.model_dump(by_alias=True, exclude_none=True) for item in template.tolerations or ())
    return [ours, *theirs]


def _container(
    spec: InferenceDeploymentSpec, image: str, placement: Placement, effective: Effective, load_seconds: int
) -> Document:
    return {
        "name": CONTAINER,
        "image": image,
        "command": [escaped(word) for word in command(spec.model)],
        "args": [escaped(word) for word in arguments(spec, effective)],
        "env": _environment(spec),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(spec, placement),
        "startupProbe": _probe(period=STARTUP_PERIOD_SECONDS, failures=cdiv(load_seconds, STARTUP_PERIOD_SECONDS)),
        "readinessProbe": _probe(period=5, failures=3),
        "livenessProbe": _probe(period=10, failures=10),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # a failed start says why in the pod's status
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": False,  # nvidia-cdi-hook writes to it
        },
        "volumeMounts": _mounts(spec),
    }


def _probe(*, period: int, failures: int) -> Document:
    return {
        "httpGet": {"path": HEALTH_PATH, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _environment(spec: InferenceDeploymentSpec) -> list[Document]:
    """Ours first; a variable of the template with the same name wins."""
    ours: dict[str, Document] = {
        name: {"name": name, "value": value}
        for name, value in {
            "HOME": FOLDERS["HOME"],
            "USER": "vllm",  # torch asks who it is; the user id has no name in the image
            "HF_HOME": FOLDERS["HF_HOME"],
            "VLLM_CACHE_ROOT": FOLDERS["VLLM_CACHE_ROOT"],
        }.items()
    }
    if spec.model.source is not None:
        ours["HF_HUB_OFFLINE"] = {"name": "HF_HUB_OFFLINE", "value": "1"}
    if spec.model.token_secret_ref is not None:
        ours["HF_TOKEN"] = _from_secret("HF_TOKEN", spec.model.token_secret_ref)
    theirs = {variable.name: _variable(variable) for variable in spec.template.env or ()}
    return list({**ours, **theirs}.values())


def _variable(variable: EnvVar) -> Document:
    if variable.secret_key_ref is not None:
        return _from_secret(variable.name, variable.secret_key_ref)
    return {"name": variable.name, "value": escaped(variable.value or "")}


def _from_secret(name: str, reference: KeyRef) -> Document:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}}


def _resources(spec: InferenceDeploymentSpec, placement: Placement) -> Document:
    """GPUs follow from the parallel sizes; /dev/shm counts as the container's memory and comes on top."""
    asked, shared = spec.template.resources or Resources(), shared_memory_bytes(spec)
    requests = _amounts(asked.requests, shared)
    limits = {**_amounts(asked.limits, shared), placement.resource: str(spec.vllm.num_gpus)}
    return {"requests": requests, "limits": limits} if requests else {"limits": limits}


def _amounts(amounts: Amounts | None, shared_bytes: int) -> Document:
    asked = amounts.model_dump(by_alias=True, exclude_none=True) if amounts else {}
    return {
        name: plus_bytes(amount, shared_bytes) if name == "memory" else str(amount) for name, amount in asked.items()
    }


def _mounts(spec: InferenceDeploymentSpec) -> list[Document]:
    mounts: list[Document] = [
        {"name": "cache", "mountPath": CACHE_MOUNT},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the path in the container
    ]
    model: list[Document] = [{"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True}]
    return mounts + (model if spec.model.source is not None else [])


def _volumes(spec: InferenceDeploymentSpec) -> list[Document]:
    claim = spec.template.cache_claim_name
    cache = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    shared = {"emptyDir": {"medium": "Memory", "sizeLimit": format_bytes(shared_memory_bytes(spec))}}
    return [{"name": "cache", **cache}, {"name": "shm", **shared}, *_model_volumes(spec)]


def _model_volumes(spec: InferenceDeploymentSpec) -> list[Document]:
    source = spec.model.source
    if source is None:
        return []
    if source.image is not None:
        return [{"name": "model", "image": {"reference": source.image.reference, "pullPolicy": "IfNotPresent"}}]
    if source.persistent_volume_claim is not None:
        claim = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        return [{"name": "model", "persistentVolumeClaim": claim}]
    return []

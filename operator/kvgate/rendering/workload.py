"""The Deployment and the Service of an InferenceDeployment, or why there are none; the pod template and vLLM's command line.

All follow from the spec and the figures of its verdict. The pod passes the restricted Pod Security Standard, requests its GPU by product,
and has as much time to start as loading may take.
"""

from contextlib import suppress

from msgspec import Struct

from kvgate.api.base import Document, KeyRef
from kvgate.api.conditions import Reason
from kvgate.api.quantity import format_bytes, plus_bytes
from kvgate.api.status import Effective, Placement
from kvgate.api.template import ENGINE_CONTAINER, Amounts, Resources, Template
from kvgate.api.v1alpha1 import InferenceDeployment, InferenceDeploymentSpec, Model, Vllm
from kvgate.budget import Accelerator, Budget, CalibrationScope, UnknownVersion, accounting_of
from kvgate.budget.answers.sharing import part_of
from kvgate.budget.ground.units import MIB, cdiv
from kvgate.budget.host.memory import HostLedger
from kvgate.calibration.trust import Trust
from kvgate.catalogue.lookup import labels_of_boards, mig_profile
from kvgate.judgement.assess import effective_values, host_ledger_of
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.summary import accepted
from kvgate.rendering.labels import (
    HASH_ANNOTATION,
    PREDICTED_TOKENS_ANNOTATION,
    digest_of,
    hashed,
    labels,
    metadata,
    render_hash,
    selector,
)
from kvgate.rendering.rollout import spread_of, strategy_of
from kvgate.rules.facts import UNKNOWN_ACCELERATOR
from kvgate.statement.deployment import links_bytes, memory_request_bytes, shared_memory_bytes, statement_of
from kvgate.text.expansion import escape_references
from kvgate.vllm.settings import SPEC_SETTINGS
from kvgate.vllm.variables import CACHE_MOUNT, FOLDERS

MODEL_MOUNT = "/model"
"""Folder of the weights in the container, where they come from a volume or an image."""
GRACE_SECONDS = 120
"""Time from the announcement of a pod's end to its kill. vLLM gets what the preStop pause and its own exit leave of that."""
SHUTDOWN_RESERVE_SECONDS = 20
PORT = 8000
CONTAINER = ENGINE_CONTAINER
HEALTH_PATH = "/health"
"""Path of the probes. vLLM answers it without an API key, which it requires for /v1 only, and not before the weights are loaded: vLLM 0.6
to 0.33 listen only when the engine is up, so until then a connection is refused."""
USER_ID = 2000
"""Not root; vLLM's images allow any user that has a HOME to write to."""
PRE_STOP_SECONDS = 15
"""Time in which every client learns that the pod is leaving."""
LOAD_BYTES_PER_SECOND = 150_000_000
"""Speed of a slow download; with a faster one the startup probe succeeds earlier."""
LOAD_BASE_SECONDS = 180
"""Time for the start of Python, the compilation and the CUDA graphs."""
MIN_LOAD_SECONDS = 600
MAX_LOAD_SECONDS = 3600
LOAD_STEP_SECONDS = 300
"""Load budgets are multiples of this, so that a better estimate of the weights does not restart pods."""
STARTUP_PERIOD_SECONDS = 10

IMAGES = {"nvidia": "vllm/vllm-openai", "amd": "vllm/vllm-openai-rocm"}
"""vLLM's own images by vendor; for other vendors the spec must name an image."""
VLLM_ALONE = Trust.of(IMAGES.values(), CalibrationScope.NAMESPACE)
"""Default rule about whose starts correct predictions: those of the images that are rendered where a spec names none."""
SHARED_SUFFIX = ".shared"
"""Ending of the resource where NVIDIA's device plugin shares a GPU under another name (`renameByDefault`)."""
CLAIM = "gpus"
"""Name of the claim of devices in a pod, and of its request."""
MEMORY_CLAIM = "nvidia.com/gpumem"
"""MiB of each GPU that HAMi lets a container have."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PRODUCT_LABELS = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.product-name"}
"""Node labels that name the GPU, by vendor."""


def image_of(spec: InferenceDeploymentSpec, vendor: str) -> str | None:
    """Return the spec's image, or vLLM's own of that release; None where vLLM publishes none for this vendor."""
    repository = IMAGES.get(vendor)
    tag = "v" + spec.vllm.version.removeprefix("v").replace("+", "-")  # 0.19.0+cu130 is published as v0.19.0-cu130
    return spec.vllm.image or (f"{repository}:{tag}" if repository else None)


def pod_template(
    owner: InferenceDeployment, *, image: str, placement: Placement, effective: Effective, load_seconds: int
) -> Document:
    """Return the pod template with its own hash as annotation, so that pods are replaced once per change and never without one."""
    template = owner.spec.template
    host = host_ledger_of(statement_of(owner.spec), placement.vendor)
    volumes, mounts = _storage(owner.spec, host)
    resources, claim = _resources(owner.spec, placement, host), claim_template(owner, placement)
    container = {
        **_container(owner.spec, image, resources, effective, load_seconds),
        "volumeMounts": [*mounts, *(template.volume_mounts or ())],
    }
    if template.env_from:
        container["envFrom"] = list(template.env_from)
    body: Document = {
        "metadata": {
            "labels": {**(template.labels or {}), **labels(owner.name)},
            "annotations": dict(template.annotations or {}),
        },
        "spec": {
            **_pod_settings(template, placement, owner.name),
            "containers": [container, *_hardened(template.containers)],
            "volumes": [*volumes, *(template.volumes or ())],
        },
    }
    if claim is not None:
        reference = {"name": CLAIM, "resourceClaimTemplateName": claim["metadata"]["name"]}
        body["spec"]["resourceClaims"] = [reference]
    body["metadata"]["annotations"][HASH_ANNOTATION] = render_hash(body)
    return body


def command(model: Model) -> list[str]:
    """Return `vllm serve MODEL`, as words: no shell ever sees it."""
    return ["vllm", "serve", model_path(model)]


def model_path(model: Model) -> str:
    """Return the model's Hugging Face id, or the folder where a volume or an image is mounted."""
    if model.source is None:
        return model.name
    claim = model.source.persistent_volume_claim
    return f"{MODEL_MOUNT}/{claim.path}" if claim and claim.path else MODEL_MOUNT


def arguments(spec: InferenceDeploymentSpec, effective: Effective) -> list[str]:
    """Return everything after the model, one option per item; a setting with its default value is left out."""
    found: list[str] = []
    names = spec.model.served_model_names or (() if spec.model.source is None else (spec.model.name,))
    if len(names) == 1:
        found.append(f"--served-model-name={names[0]}")
    elif names:
        found += ["--served-model-name", *names]
    if spec.model.source is None and spec.model.revision is not None:
        found.append(f"--revision={spec.model.revision}")
    values = {**dict(spec.vllm), **{name: value for name, value in effective if value is not None}}
    if spec.vllm.max_model_len == "auto":
        values["max_model_len"] = "auto"
    for setting in SPEC_SETTINGS:
        field = Vllm.model_fields.get(setting.name)
        if field is None or (value := values[setting.name]) == field.default:
            continue
        if setting.is_switch:  # a switch has no value on the command line
            found.append(setting.flag if value else f"--no-{setting.flag[2:]}")
        else:
            found.append(f"{setting.flag}={value}")
    if effective.num_gpu_blocks_override is not None:
        found.append(f"--num-gpu-blocks-override={effective.num_gpu_blocks_override}")
    with suppress(UnknownVersion):
        if accounting_of(
            spec.vllm.version
        ).shutdown_timeout:  # releases that can finish running requests get time for it
            found.append(f"--shutdown-timeout={GRACE_SECONDS - SHUTDOWN_RESERVE_SECONDS}")
    return [*found, *spec.vllm.extra_args]


def placement_of(spec: InferenceDeploymentSpec, accelerator: Accelerator) -> Placement:
    """Return the resource and the node labels by which the pods find a whole GPU, a slice, or their part of one that is shared."""
    resource, products, claim = accelerator.resource, accelerator.gpu_labels, spec.accelerator.claim
    shared_by, memory_mib, stated = spec.accelerator.shared_by, None, spec.accelerator.resource_name
    decided = None if spec.accelerator.type else accelerator.name
    if spec.accelerator.resource_claim is not None:
        return Placement(
            vendor=accelerator.vendor,
            resource=resource,
            device_selector=_device_selector(accelerator),
            accelerator=decided,
        )
    if stated is not None:
        resource = stated
    if stated is not None and mig_profile(stated):
        products = labels_of_boards(accelerator)
    elif claim == "GpuShared":
        resource += SHARED_SUFFIX
    elif claim == "GpuMemory":
        memory_mib = part_of(accelerator, shared_by).memory_bytes // MIB
    elif (
        shared_by > 1 and accelerator.vendor == "nvidia"
    ):  # GPU feature discovery marks replicas that keep the resource's name
        products = tuple(f"{product}-SHARED" for product in products)
    return Placement(
        vendor=accelerator.vendor,
        resource=resource,
        gpu_labels=products,
        gpu_memory_mib=memory_mib,
        accelerator=decided,
    )


def _device_selector(accelerator: Accelerator) -> str | None:
    """Return the expression by which NVIDIA's driver gives this board, or slices of this size; the names of others differ by release."""
    if accelerator.vendor != "nvidia":
        return None
    board, _, profile = accelerator.name.partition("-MIG-")
    wanted = f"profile == '{profile}'" if accelerator.is_slice and board else f"productName == '{accelerator.product}'"
    return f"device.attributes['gpu.nvidia.com'].{wanted}"


def tolerated(resource: str) -> tuple[str, ...]:
    """Return the keys of the taints that keep others from the nodes of a resource: a MIG slice has its own, and that of its board."""
    key = resource.removesuffix(SHARED_SUFFIX)
    return (key, "nvidia.com/gpu") if mig_profile(resource) else (key,)


def loaded_bytes(budget: Budget | None) -> int | None:
    """Return the weights of one engine's ranks together; None where they are not known."""
    ledgers = [stage.ledger for stage in budget.stages if stage.ledger] if budget else []
    if budget is None or not ledgers:
        return None
    return sum(ledger.weights.expected for ledger in ledgers) * budget.request.settings.parallelism.tensor


def load_budget_seconds(budget: Budget | None) -> int:
    """Return the seconds that download, load and compilation may take; the longest where the weights are not known."""
    weights_bytes = loaded_bytes(budget)
    if weights_bytes is None:
        return MAX_LOAD_SECONDS
    seconds = cdiv(weights_bytes, LOAD_BYTES_PER_SECOND) + LOAD_BASE_SECONDS
    return min(max(cdiv(seconds, LOAD_STEP_SECONDS) * LOAD_STEP_SECONDS, MIN_LOAD_SECONDS), MAX_LOAD_SECONDS)


def _pod_settings(template: Template, placement: Placement, name: str) -> Document:
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
        "tolerations": [
            *({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in tolerated(placement.resource)),
            *(template.tolerations or ()),
        ],
    }
    given = {
        "affinity": _affinity(template.affinity or {}, placement),
        "nodeSelector": dict(template.node_selector or {}),
        "imagePullSecrets": [{"name": name} for name in template.image_pull_secrets or ()],
        "priorityClassName": template.priority_class_name,
        "topologySpreadConstraints": spread_of(template, name),
        "schedulerName": template.scheduler_name,
        "runtimeClassName": template.runtime_class_name,
        "serviceAccountName": template.service_account_name,
        "initContainers": _hardened(template.init_containers),
    }
    return {**settings, **{field: value for field, value in given.items() if value}}


def _affinity(given: Document, placement: Placement) -> Document:
    """Return the affinity with the GPU's product in each required term: pods go only to nodes whose GPU is the one that was judged.

    Time-sliced GPUs have labels of their own (…-SHARED).
    """
    if not placement.gpu_labels or placement.vendor not in PRODUCT_LABELS:
        return given
    product = {"key": PRODUCT_LABELS[placement.vendor], "operator": "In", "values": list(placement.gpu_labels)}
    nodes = given.get("nodeAffinity", {})
    terms = nodes.get(_REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    with_gpu = [{**term, "matchExpressions": [*term.get("matchExpressions", ()), product]} for term in terms]
    return {**given, "nodeAffinity": {**nodes, _REQUIRED: {"nodeSelectorTerms": with_gpu}}}


def _security_context() -> Document:
    """Return the security context of every container of a pod."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": False,  # nvidia-cdi-hook writes to it
    }


def _hardened(containers: tuple[Document, ...] | None) -> list[Document]:
    """Return containers of the user's with the security context of the engine's."""
    return [{**container, "securityContext": _security_context()} for container in containers or ()]


def _container(
    spec: InferenceDeploymentSpec, image: str, resources: Document, effective: Effective, load_seconds: int
) -> Document:
    return {
        "name": CONTAINER,
        "image": image,
        "command": [escape_references(word) for word in command(spec.model)],
        "args": [escape_references(word) for word in arguments(spec, effective)],
        "env": _environment(spec),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": resources,
        "startupProbe": _probe(period=STARTUP_PERIOD_SECONDS, failures=cdiv(load_seconds, STARTUP_PERIOD_SECONDS)),
        "readinessProbe": _probe(period=5, failures=3),
        "livenessProbe": _probe(period=10, failures=10),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # a failed start says why in the pod's status
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}, **(spec.template.lifecycle or {})},
        "securityContext": _security_context(),
    }


def _probe(*, period: int, failures: int) -> Document:
    return {
        "httpGet": {"path": HEALTH_PATH, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _environment(spec: InferenceDeploymentSpec) -> list[Document]:
    """Return the variables, kvgate's first; a variable of the template with the same name replaces it."""
    found: dict[str, Document] = {
        name: {"name": name, "value": value}
        for name, value in {
            "HOME": FOLDERS["HOME"],
            "USER": "vllm",  # torch asks for the user's name, and this user id has none in the image
            "HF_HOME": FOLDERS["HF_HOME"],
            "VLLM_CACHE_ROOT": FOLDERS["VLLM_CACHE_ROOT"],
        }.items()
    }
    if spec.model.source is not None:
        found["HF_HUB_OFFLINE"] = {"name": "HF_HUB_OFFLINE", "value": "1"}
    if spec.model.token_secret_ref is not None:
        found["HF_TOKEN"] = _from_secret("HF_TOKEN", spec.model.token_secret_ref)
    for variable in spec.template.env or ():
        if variable.secret_key_ref is not None:
            found[variable.name] = _from_secret(variable.name, variable.secret_key_ref)
        else:
            found[variable.name] = {"name": variable.name, "value": escape_references(variable.value or "")}
    return list(found.values())


def _from_secret(name: str, reference: KeyRef) -> Document:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}}


def _resources(spec: InferenceDeploymentSpec, placement: Placement, host: HostLedger | None) -> Document:
    """Return the resources. The GPUs follow from the parallel sizes; queues in /dev/shm are memory of the container and are added to it.

    Memory that the spec does not state is requested as the ledger of the host expects it.
    """
    resources, links = spec.template.resources or Resources(), links_bytes(spec)
    requests, limits = _amounts(resources.requests, links), _amounts(resources.limits, links)
    if host and "memory" not in requests and "memory" not in limits:
        requests["memory"] = format_bytes(memory_request_bytes(host))
    is_claimed = spec.accelerator.resource_claim is not None
    if not is_claimed:
        limits = {**limits, placement.resource: str(spec.vllm.num_gpus)}
    if placement.gpu_memory_mib is not None:
        limits[MEMORY_CLAIM] = str(placement.gpu_memory_mib)
    parts = {"requests": requests, "limits": limits, "claims": [{"name": CLAIM}] if is_claimed else None}
    return {name: amounts for name, amounts in parts.items() if amounts}


def _amounts(amounts: Amounts | None, shared_bytes: int) -> Document:
    stated = amounts.model_dump(by_alias=True, exclude_none=True) if amounts else {}
    return {
        name: plus_bytes(amount, shared_bytes) if name == "memory" else str(amount) for name, amount in stated.items()
    }


def _storage(spec: InferenceDeploymentSpec, host: HostLedger | None) -> tuple[list[Document], list[Document]]:
    """Return the volumes and their mounts: cache, shared memory, and the model where it is not downloaded."""
    claim, source = spec.template.cache_claim_name, spec.model.source
    cache = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    shm_bytes = shared_memory_bytes(spec, host)
    shared = {"emptyDir": {"medium": "Memory", "sizeLimit": format_bytes(shm_bytes)}}
    volumes: list[Document] = [{"name": "cache", **cache}, {"name": "shm", **shared}]
    mounts: list[Document] = [
        {"name": "cache", "mountPath": CACHE_MOUNT},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the path in the container
    ]
    if source is None:
        return volumes, mounts
    if source.image is not None:
        volumes.append({"name": "model", "image": {"reference": source.image.reference, "pullPolicy": "IfNotPresent"}})
    elif source.persistent_volume_claim is not None:
        model = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        volumes.append({"name": "model", "persistentVolumeClaim": model})
    return volumes, [*mounts, {"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True}]


def claim_template(owner: InferenceDeployment, placement: Placement) -> Document | None:
    """Return the ResourceClaimTemplate of the pods' devices; None where they request an extended resource.

    Its spec can never change, so its name has the digest of the spec. Those of earlier pods go with their owner.
    """
    claim = owner.spec.accelerator.resource_claim
    if claim is None:
        return None
    expressions = dict.fromkeys(filter(None, (*claim.selectors, placement.device_selector)))
    request: Document = {
        "deviceClassName": claim.device_class_name, "allocationMode": "ExactCount", "count": owner.spec.vllm.num_gpus,
        **({"selectors": [{"cel": {"expression": each}} for each in expressions]} if expressions else {}),
    }  # fmt: skip
    spec = {"spec": {"devices": {"requests": [{"name": CLAIM, "exactly": request}]}}}
    own = metadata(owner)
    name = f"{owner.name}-{digest_of(spec)[:8]}"
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {**own, "name": name}, "spec": spec,
    }  # fmt: skip


def service(owner: InferenceDeployment) -> Document:
    """Return the Service `http://NAME.NAMESPACE:8000`. Its port states TCP, because server-side apply would list it twice without."""
    port = {"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}
    return hashed({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner),
        "spec": {"selector": selector(owner.name), "ports": [port]},
    })  # fmt: skip


ROLLOUT_SLACK_SECONDS = 600
"""Time on top of the load budget for scheduling the pod and pulling the image."""


class NotRendered(Struct, frozen=True, kw_only=True):
    """The reason why nothing is rendered; pods that run already keep running."""

    reason: Reason
    message: str
    is_waiting: bool = False
    """True where kvgate itself ends this soon: nothing is wrong with the spec."""


class Rendered(Struct, frozen=True, kw_only=True):
    deployment: Document
    service: Document
    claim: Document | None = None
    """ResourceClaimTemplate; None where the pods request an extended resource."""


class PodFigures(Struct, frozen=True, kw_only=True):
    """All that the rendering needs beside the spec."""

    effective: Effective
    placement: Placement
    load_seconds: int
    predicted_tokens: int | None


def render(
    owner: InferenceDeployment, assessment: Assessment, accelerator: Accelerator | None
) -> Rendered | NotRendered:
    figures = figures_of_verdict(owner, assessment, accelerator)
    return figures if isinstance(figures, NotRendered) else rendered(owner, figures)


def figures_of_verdict(
    owner: InferenceDeployment, assessment: Assessment, accelerator: Accelerator | None
) -> PodFigures | NotRendered:
    """Return the figures of a verdict. An unknown model is rendered as written; pods for an unknown GPU cannot be placed."""
    if assessment.decision is Decision.REFUSE:
        _, reason, message = accepted(assessment)
        return NotRendered(reason=reason, message=message)
    if accelerator is None:
        finding = next(f for f in assessment.findings if f.rule == UNKNOWN_ACCELERATOR)
        return NotRendered(reason=Reason.UNKNOWN_ACCELERATOR, message=f"{finding.message}; {finding.remediation}")
    if image_of(owner.spec, accelerator.vendor) is None:
        message = f"vLLM publishes no image for {accelerator.vendor} accelerators; set spec.vllm.image"
        return NotRendered(reason=Reason.NOT_RENDERED, message=message)
    return PodFigures(
        effective=effective_values(owner.spec, assessment),
        placement=placement_of(owner.spec, accelerator),
        load_seconds=load_budget_seconds(assessment.effective),
        predicted_tokens=predicted_tokens(assessment),
    )


def rendered(owner: InferenceDeployment, figures: PodFigures) -> Rendered:
    template = pod_template(
        owner,
        image=image_of(owner.spec, figures.placement.vendor) or "",
        placement=figures.placement,
        effective=figures.effective,
        load_seconds=figures.load_seconds,
    )
    tokens = figures.predicted_tokens
    annotations = {} if tokens is None else {"annotations": {PREDICTED_TOKENS_ANNOTATION: str(tokens)}}
    deployment = hashed({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata(owner), **annotations},
        "spec": {
            "replicas": owner.spec.wanted_replicas,
            "selector": {"matchLabels": selector(owner.name)},
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": figures.load_seconds + ROLLOUT_SLACK_SECONDS,
            "strategy": strategy_of(owner.spec),
            "template": template,
        },
    })  # fmt: skip
    claim = claim_template(owner, figures.placement)
    return Rendered(deployment=deployment, service=service(owner), claim=claim)


def predicted_tokens(assessment: Assessment) -> int | None:
    """Return the expected size of the KV cache in tokens; None where it could not be computed."""
    budget = assessment.effective
    return budget.num_tokens.expected if budget and budget.num_tokens else None

"""The kind InferenceDeployment of kvgate.io/v1alpha1, as a user writes it. template.py has the pod template, status.py what kvgate writes.

The text below a field is its description in the CRD, which `kubectl explain` prints.
"""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kvgate.api import SKIP_BUDGET_ANNOTATION, SKIP_BUDGET_UNTIL_ANNOTATION
from kvgate.api.base import (
    ApiModel,
    CelRule,
    Count,
    CountOrPercent,
    Distinct,
    DnsName,
    Document,
    FreeForm,
    GpuShare,
    ImageReference,
    KeyRef,
    ParallelSize,
    Switch,
    Tokens,
    TokensOrAuto,
)
from kvgate.api.template import Template
from kvgate.budget import DEFAULT_VERSION, Capacity, Guarantee, Knob
from kvgate.vllm.pod_options import OWNED_FLAG_PATTERN, SECRET_FLAG_PATTERN, SECRET_FLAGS, owned_flag, secret_flag

MAX_NAME_LENGTH = 45
"""Characters of a name: `<name>-kvgate-xxxxx` must fit the 63 characters of a pod's host name."""

Policy = Literal["Reject", "Adjust", "Warn"]
Text = Annotated[str, Field(min_length=1, max_length=253)]


class ConfigFrom(ApiModel):
    """Place of the model's config.json, for a model that the catalogue does not know."""

    config_map_key_ref: KeyRef
    """Key of a ConfigMap in the same namespace; its text is the config.json of the model."""


FOLDER_PATTERN = r"^[A-Za-z0-9_][-._A-Za-z0-9]*(/+[.]?[-_A-Za-z0-9][-._A-Za-z0-9]*)*/*$"
"""A path below the root of a volume, in RE2 syntax: no part of it is `..`."""


class PersistentVolumeClaimSource(ApiModel):
    """A volume that holds the weights."""

    claim_name: DnsName
    """Name of a PersistentVolumeClaim in the same namespace."""
    path: Annotated[str, Field(max_length=1024, pattern=FOLDER_PATTERN)] | None = None
    """Folder of the model on the volume, relative to its root. Default: the root."""


class ImageSource(ApiModel):
    """An OCI image that holds the weights; it is mounted as an image volume."""

    reference: ImageReference
    """Reference of the image, such as registry.example.com/models/qwen3:1."""


class ModelSource(ApiModel):
    """Place that the weights are loaded from."""

    cel_rules: ClassVar = (
        CelRule(
            rule="has(self.persistentVolumeClaim) != has(self.image)",
            message="exactly one of persistentVolumeClaim and image must be set",
            holds=lambda source: (source.persistent_volume_claim is None) != (source.image is None),
        ),
    )

    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    """A PersistentVolumeClaim that holds the weights."""
    image: ImageSource | None = None
    """An OCI image that holds the weights."""


class Model(ApiModel):
    """The model that is served."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=256,
            pattern=r"^[A-Za-z0-9][-._A-Za-z0-9]*(/[A-Za-z0-9][-._A-Za-z0-9]*)?(:[A-Za-z0-9_]{2,32})?$",
        ),
    ]
    """Hugging Face id, such as Qwen/Qwen3-8B, or org/name:Q4_K_M for a GGUF file of that type. kvgate takes the shape of the model from its
    catalogue, or from configFrom."""
    revision: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[-._/A-Za-z0-9]+$")] | None = None
    """Branch, tag or commit of the model repository. Default: its main branch."""
    config_from: ConfigFrom | None = None
    """The config.json of the model. It wins over the catalogue."""
    source: ModelSource | None = None
    """Place that the weights are loaded from. Default: the Hugging Face hub."""
    served_model_names: (
        Annotated[
            tuple[
                Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_][-._/:@A-Za-z0-9]*$")], ...
            ],
            Field(min_length=1, max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}),
            Distinct,
        ]
        | None
    ) = None
    """Names of the model in vLLM's API; answers and metrics carry the first. Default: its Hugging Face id."""
    token_secret_ref: KeyRef | None = None
    """Key of a Secret that holds a Hugging Face token. The pod reads it; kvgate never does."""


GPU_RESOURCE_PATTERN = (
    r"^([a-z]+[.])?(nvidia|amd|intel|habana)[.](com|ai)/[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$"
)
"""Extended resources of GPUs and of parts of them."""


class ResourceClaim(ApiModel):
    """Devices that the pods claim by dynamic resource allocation. Their number follows from the parallel sizes."""

    device_class_name: DnsName
    """Name of the DeviceClass, such as gpu.nvidia.com or mig.nvidia.com."""
    selectors: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(max_length=8)] = ()
    """Expressions of CEL that a device must satisfy, all of them. For a GPU of NVIDIA kvgate adds its product name, or the
    profile of the MIG slice."""


class Accelerator(ApiModel):
    """The GPU that the deployment runs on."""

    cel_rules: ClassVar = (
        CelRule(
            rule="!(has(self.resourceName) && has(self.resourceClaim))",
            message="set resourceName or resourceClaim, not both",
            holds=lambda accelerator: accelerator.resource_name is None or accelerator.resource_claim is None,
        ),
        CelRule(
            rule="self.claim == 'Gpu' || !(has(self.resourceName) || has(self.resourceClaim))",
            message="claim is about the resource that kvgate chooses; leave it out beside resourceName and resourceClaim",
            holds=lambda accelerator: (
                accelerator.claim == "Gpu" or not (accelerator.resource_name or accelerator.resource_claim)
            ),
            field_path=".claim",
        ),
        CelRule(
            rule="self.sharedBy == 1 || !has(self.resourceClaim)",
            message="each pod claims devices of its own with resourceClaim: sharedBy must be 1",
            holds=lambda accelerator: accelerator.shared_by == 1 or accelerator.resource_claim is None,
            field_path=".sharedBy",
        ),
        CelRule(
            rule="self.claim == 'Gpu' || self.sharedBy > 1",
            message="claim GpuShared and claim GpuMemory need sharedBy of at least 2",
            holds=lambda accelerator: accelerator.claim == "Gpu" or accelerator.shared_by > 1,
            field_path=".claim",
        ),
    )

    type: Text | None = None
    """Name of the GPU in the accelerator catalogue (H100-SXM-80GB), or its product name in the driver (NVIDIA H100 80GB HBM3). It may be
    left out where resourceName, resourceClaim or template.nodeSelector decides the GPU: then the nodes in the cluster say which it is."""
    resource_name: Annotated[str, Field(max_length=253, pattern=GPU_RESOURCE_PATTERN)] | None = None
    """Extended resource that a pod requests, such as nvidia.com/mig-3g.40gb: a slice of the mixed MIG strategy, by which it is judged.
    Default: the resource of the type."""
    resource_claim: ResourceClaim | None = None
    """Devices by dynamic resource allocation, in the place of an extended resource (Kubernetes 1.34 and later)."""
    shared_by: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Number of engines that share each GPU, this one included, 1 to 64. Each of them may use an equal part of the memory;
    gpuMemoryUtilization has to say so, or policy Adjust may with the knob GpuMemoryUtilization."""
    claim: Literal["Gpu", "GpuShared", "GpuMemory"] = "Gpu"
    """Resource that a pod requests of a shared GPU. Gpu: nvidia.com/gpu, on nodes that time-slice it or run MPS. GpuShared:
    nvidia.com/gpu.shared, where the device plugin renames it. GpuMemory: also nvidia.com/gpumem, an equal part of the memory, where
    HAMi shows a container no more than that; gpuMemoryUtilization is then a share of that part."""


class Vllm(ApiModel):
    """Settings of vLLM, under vLLM's own names."""

    cel_rules: ClassVar = (
        CelRule(
            rule="self.tensorParallelSize * self.pipelineParallelSize * self.prefillContextParallelSize * self.dataParallelSize <= 1024",
            message="tensorParallelSize × pipelineParallelSize × prefillContextParallelSize × dataParallelSize must be at most 1024",
            holds=lambda vllm: vllm.num_gpus <= 1024,
        ),
        CelRule(
            rule="!has(self.gpuMemoryUtilization) || double(self.gpuMemoryUtilization) > 0.0",
            message="gpuMemoryUtilization must be above 0",
            holds=lambda vllm: vllm.gpu_memory_utilization is None or float(vllm.gpu_memory_utilization) > 0,
            field_path=".gpuMemoryUtilization",
        ),
        CelRule(
            rule=f"!has(self.extraArgs) || !self.extraArgs.exists(a, a.matches('{OWNED_FLAG_PATTERN}'))",
            message="extraArgs sets an option that a field of the spec owns; set the field instead",
            holds=lambda vllm: not any(owned_flag(argument) for argument in vllm.extra_args),
            field_path=".extraArgs",
            culprits=lambda vllm: (argument[:80] for argument in vllm.extra_args if owned_flag(argument)),
        ),
        CelRule(
            rule=f"!has(self.extraArgs) || !self.extraArgs.exists(a, a.matches('{SECRET_FLAG_PATTERN}'))",
            message=(
                "extraArgs holds a secret, and whoever may read the object or the pod reads it; keep it in a Secret: "
                + "; ".join(f"instead of {flag} {instead}" for flag, instead in SECRET_FLAGS.items())
            ),
            holds=lambda vllm: not any(secret_flag(argument) for argument in vllm.extra_args),
            field_path=".extraArgs",
            culprits=lambda vllm: (each.partition("=")[0] for each in vllm.extra_args if secret_flag(each)),
        ),
    )

    version: Annotated[str, Field(max_length=64, pattern=r"^v?[0-9]+\.[0-9]+([-.+a-zA-Z0-9]*)$")] = DEFAULT_VERSION
    """Release of vLLM, such as 0.33.0. It decides the defaults and the memory accounting, and the image where none is named."""
    image: ImageReference | None = None
    """Container image. Default: vLLM's image of this version; a `+` in the version is a `-` in its tag (0.19.0+cu130: v0.19.0-cu130)."""
    max_model_len: TokensOrAuto | None = None
    """Longest request in tokens, prompt and output together, or auto: the longest that fits, up to the model's own maximum (vLLM 0.14 and
    later). With auto the promise is admission.adjust.minMaxModelLen. Default: the model's own maximum."""
    max_num_seqs: Count | None = None
    """Requests that run at the same time. Default: as many as fit the guarantee, and at most vLLM's default."""
    max_num_batched_tokens: Tokens | None = None
    """Tokens of one forward pass at most. Default: vLLM's default for this version and GPU."""
    kv_cache_dtype: Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9_]+$")] = "auto"
    """Format of the KV cache: auto, fp8, bfloat16 … auto is the format of the model; with fp8 weights alone the cache is not fp8."""
    dtype: Literal["auto", "bfloat16", "float16", "float32", "half", "float"] = "auto"
    """Format of the weights and activations that are not quantised."""
    quantization: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[-_a-z0-9]+$")] | None = None
    """Quantisation of an unquantised checkpoint while it is loaded, such as fp8. Default: as the checkpoint says."""
    gpu_memory_utilization: GpuShare | None = None
    """Share of each GPU's memory that vLLM may use: a decimal string above 0, up to 1, such as "0.9". Default: vLLM's for this version."""
    tensor_parallel_size: ParallelSize = 1
    """Number of GPUs that share every layer, 1 to 1024."""
    pipeline_parallel_size: ParallelSize = 1
    """Number of stages that share the layers, 1 to 1024."""
    data_parallel_size: ParallelSize = 1
    """Number of replicas of the attention within one engine, 1 to 1024."""
    decode_context_parallel_size: ParallelSize = 1
    """Number of tensor parallel ranks that share the KV cache of one request, 1 to 1024. They need no further GPUs."""
    prefill_context_parallel_size: ParallelSize = 1
    """Number of GPUs that share a prompt, 1 to 1024, each with its own copy of the weights. Above 1, no budget can be computed."""
    enable_expert_parallel: Switch = False
    """Give every GPU whole experts instead of a part of each."""
    block_size: Annotated[int, Field(strict=True, ge=1, le=16384)] | None = None
    """Tokens of one KV cache block, 1 to 16384. Default: vLLM's for this model and GPU."""
    enforce_eager: Switch = False
    """Run the model without CUDA graphs."""
    enable_prefix_caching: Switch | None = None
    """Keep the cache of equal prefixes once. Default: vLLM's for this version and model."""
    kv_cache_memory_bytes: Annotated[int, Field(strict=True, ge=1, le=1 << 50)] | None = None
    """KV cache memory of each GPU in bytes. gpuMemoryUtilization then only decides how much of the GPU must be free at the start."""
    extra_args: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(max_length=32)] = ()
    """Further arguments for vLLM, one per item. kvgate refuses options that a field owns, and those that vLLM of this version refuses."""

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size
        return ranks * self.data_parallel_size


class Workload(ApiModel):
    """Load that all replicas serve together at their peak. Each data-parallel rank of each replica takes an equal share, rounded up."""

    cel_rules: ClassVar = (
        CelRule(
            rule="self.sharedPrefixTokens <= self.promptTokens",
            message="sharedPrefixTokens must be at most promptTokens: the prefix is a part of the prompt",
            holds=lambda workload: workload.shared_prefix_tokens <= workload.prompt_tokens,
            field_path=".sharedPrefixTokens",
        ),
    )

    peak_concurrency: Count
    """Requests that run at the same time, on all replicas together."""
    prompt_tokens: Tokens
    """Tokens of the prompt of one request."""
    output_tokens: Tokens
    """Tokens that are generated for one request."""
    shared_prefix_tokens: Annotated[int, Field(strict=True, ge=0, le=100_000_000)] = 0
    """Tokens at the beginning of the prompt that all requests share, such as a system prompt. They are counted once."""


class Adjust(ApiModel):
    """Limits within which kvgate may change settings so that the deployment fits."""

    knobs: Annotated[
        tuple[Knob, ...],
        Field(min_length=1, max_length=4, json_schema_extra={"x-kubernetes-list-type": "set"}),
        Distinct,
    ] = (
        Knob.MAX_NUM_SEQS,
        Knob.MAX_MODEL_LEN,
    )
    """Settings that may change; the first is the one that you would rather change. GpuMemoryUtilization changes only where sharedBy is
    above 1, and to an equal part at most."""
    min_max_model_len: Tokens = 1
    """Least value of maxModelLen, in tokens. Where vllm.maxModelLen is auto and this is above 1, it is a promise whatever the policy:
    FullContext is judged at it, a Workload with one request of it beside, and a pod that serves shorter ones is the condition
    LengthBelowFloor. Without it the start alone decides."""
    min_max_num_seqs: Count = 1
    """Least value of maxNumSeqs."""


class Admission(ApiModel):
    """Reaction of kvgate to a deployment that does not fit."""

    policy: Policy = "Reject"
    """Reject refuses the deployment, Adjust renders smaller values that fit, Warn renders it as it is written and warns."""
    guarantee: Guarantee | None = None
    """Demand that must fit: Startup is one request of maxModelLen tokens, Workload is spec.workload, FullContext is maxNumSeqs requests
    of maxModelLen tokens. Default: Workload if there is one, else FullContext."""
    capacity: Capacity = Capacity.PROFILED
    """Way to find the size of the KV cache. Profiled: vLLM measures what is left, anew on every start. Pinned: kvgate gives vLLM the low
    end of the prediction, so that all starts of all replicas have the same size; a start that takes more memory fails, out of memory."""
    adjust: Adjust = Adjust.model_construct()
    """Limits of the policy Adjust."""
    recalibrate: Switch = False
    """False: an admitted spec keeps its verdict and its values until the spec is edited. True: a better prediction, from observed starts or
    from a later release of kvgate, takes their place at once; with policy Adjust that may replace pods. It never refuses what runs."""


class RollingUpdate(ApiModel):
    """Number of pods that a rollout replaces at a time, as in a Deployment."""

    cel_rules: ClassVar = (
        CelRule(
            rule=(
                "!has(self.maxUnavailable) || !string(self.maxUnavailable).matches('^0+%?$') "
                "|| (has(self.maxSurge) && !string(self.maxSurge).matches('^0+%?$'))"
            ),
            message="a rollout that makes no pod unavailable needs a maxSurge above 0, and free GPUs for it",
            holds=lambda update: not _is_zero(update.max_unavailable) or not _is_zero(update.max_surge or 0),
            field_path=".maxUnavailable",
        ),
    )

    max_surge: CountOrPercent | None = None
    """Pods that may run beyond spec.replicas during a rollout, as a number or in percent. Each needs GPUs that are free, and waits for
    them, with the old pods running. Default: 0, because most clusters have none."""
    max_unavailable: CountOrPercent | None = None
    """Replicas that may be missing during a rollout, as a number or in percent. Default: 1, or 0 where maxSurge is above 0."""


def _is_zero(amount: int | str | None) -> bool:
    return amount is not None and re.fullmatch("0+%?", str(amount)) is not None


class Strategy(ApiModel):
    """Way in which new pods take the place of old ones."""

    cel_rules: ClassVar = (
        CelRule(
            rule="!has(self.rollingUpdate) || !has(self.type) || self.type == 'RollingUpdate'",
            message="rollingUpdate needs type RollingUpdate",
            holds=lambda strategy: strategy.rolling_update is None or strategy.type in (None, "RollingUpdate"),
            field_path=".rollingUpdate",
        ),
    )

    type: Literal["RollingUpdate", "Recreate"] | None = None
    """RollingUpdate replaces pods one after the other. Recreate ends all of them before new ones start. Default: RollingUpdate."""
    rolling_update: RollingUpdate | None = None
    """Number of pods that a rollout replaces at a time."""


class DisruptionBudget(ApiModel):
    """Limit of the evictions, such as by a drain of a node, that the pods bear at a time."""

    enabled: Switch | None = None
    """False: no PodDisruptionBudget. Default: one, where more than one replica runs."""
    max_unavailable: CountOrPercent | None = None
    """Replicas that may be missing, as a number or in percent. Default: 1, or 0 where the guarantee Workload needs every replica: a drain
    then waits until there is one more."""


class InferenceDeploymentSpec(ApiModel):
    """The deployment as it should be: a model, a GPU, settings of vLLM, and a guarantee."""

    cel_rules: ClassVar = (
        CelRule(
            rule=(
                "has(self.accelerator.type) || has(self.accelerator.resourceName) || has(self.accelerator.resourceClaim) || "
                "(has(self.template.nodeSelector) && size(self.template.nodeSelector) > 0)"
            ),
            message=(
                "accelerator.type is required where neither accelerator.resourceName, accelerator.resourceClaim nor "
                "template.nodeSelector decides the GPU"
            ),
            holds=lambda spec: bool(
                spec.accelerator.type
                or spec.accelerator.resource_name
                or spec.accelerator.resource_claim
                or spec.template.node_selector
            ),
            field_path=".accelerator.type",
        ),
        CelRule(
            rule="!has(self.admission.guarantee) || self.admission.guarantee != 'Workload' || has(self.workload)",
            message="guarantee Workload needs spec.workload",
            holds=lambda spec: spec.admission.guarantee is not Guarantee.WORKLOAD or spec.workload is not None,
            field_path=".workload",
        ),
        CelRule(
            rule="self.admission.capacity != 'Pinned' || !has(self.vllm.kvCacheMemoryBytes)",
            message=(
                "admission.capacity Pinned and vllm.kvCacheMemoryBytes both set the size of the KV cache; leave vllm.kvCacheMemoryBytes "
                "out, or set admission.capacity to Profiled"
            ),
            holds=lambda spec: spec.admission.capacity is Capacity.PROFILED or spec.vllm.kv_cache_memory_bytes is None,
            field_path=".admission.capacity",
        ),
    )

    model: Model
    """The model that is served."""
    accelerator: Accelerator
    """The GPU that the deployment runs on."""
    vllm: Vllm = Vllm.model_construct()
    """Settings of vLLM."""
    workload: Workload | None = None
    """Load that all replicas serve together at their peak; the guarantee Workload needs it."""
    admission: Admission = Admission.model_construct()
    """Reaction of kvgate to a deployment that does not fit."""
    replicas: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 1
    """Number of engines that run side by side. Each of them has the whole budget to itself, and its share of the workload."""
    suspend: Switch | None = None
    """True: no pod runs, and the verdict stands; false again: as many as spec.replicas. Default: false."""
    strategy: Strategy | None = None
    """Way in which a change of the spec replaces pods. Default: RollingUpdate with maxSurge 0 and maxUnavailable 1, so that a rollout needs
    no free GPU: an old pod ends before its successor starts."""
    pod_disruption_budget: DisruptionBudget | None = None
    """PodDisruptionBudget of the pods. Default: one with maxUnavailable 1 where more than one replica runs."""
    template: Template = Template.model_construct()
    """Part of the pod template that is yours to choose; kvgate renders everything else."""

    @property
    def wanted_replicas(self) -> int:
        """Replicas that run; none where the deployment is suspended."""
        return 0 if self.suspend else self.replicas

    @property
    def num_engines(self) -> int:
        """Engines that share the workload: data-parallel ranks of all replicas; without replicas, those of one."""
        return max(1, self.replicas) * self.vllm.data_parallel_size


class InferenceDeployment(ApiModel):
    """A vLLM deployment, admitted by its KV-cache budget."""

    cel_rules: ClassVar = (
        CelRule(
            rule=f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
            message=f"metadata.name must have at most {MAX_NAME_LENGTH} characters, so that the names of its pods fit 63",
            holds=lambda document: len(str(document.metadata.get("name", ""))) <= MAX_NAME_LENGTH,
        ),
        CelRule(
            rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            message="metadata.name must begin with a letter and have letters, digits and dashes only: a Service gets this name",
            holds=lambda document: (
                re.fullmatch("([a-z]([-a-z0-9]*[a-z0-9])?)?", str(document.metadata.get("name", ""))) is not None
            ),
        ),
    )

    api_version: Literal["kvgate.io/v1alpha1"]
    kind: Literal["InferenceDeployment"]
    metadata: Annotated[Document, FreeForm] = {}  # noqa: RUF012 - pydantic copies defaults
    spec: InferenceDeploymentSpec
    """The deployment as it should be."""

    @property
    def name(self) -> str:
        return str(self.metadata.get("name", ""))

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace", "default"))

    @property
    def skip_reason(self) -> str | None:
        """Return the reason in the break-glass annotation; None where it is not set or empty."""
        reason = self._annotation(SKIP_BUDGET_ANNOTATION)
        return " ".join(reason.split())[:256] or None if isinstance(reason, str) else None  # a warning is one line

    @property
    def skip_until(self) -> str | None:
        """Return the end of the break glass as it is written; None where the annotation is not set."""
        until = self._annotation(SKIP_BUDGET_UNTIL_ANNOTATION)
        return until[:64] if isinstance(until, str) else None

    def _annotation(self, name: str) -> object:
        annotations = self.metadata.get("annotations")
        return annotations.get(name) if isinstance(annotations, dict) else None

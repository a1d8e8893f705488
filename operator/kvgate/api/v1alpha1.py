"""InferenceDeployment, kvgate.io/v1alpha1: what a user writes. What kvgate writes back stands in status.py."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kvgate.api import SKIP_BUDGET_ANNOTATION
from kvgate.api.base import (
    ApiModel,
    CelRule,
    Count,
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
)
from kvgate.api.template import Template
from kvgate.budget.adjust import Knob
from kvgate.budget.request import Guarantee
from kvgate.budget.versions import DEFAULT_VERSION
from kvgate.vllm.pod_options import OWNED_FLAG_PATTERN, SECRET_FLAG_PATTERN, SECRET_FLAGS, owned_flag, secret_flag

MAX_NAME_LENGTH = 45
"""So that `<name>-kvgate-xxxxx` fits the 63 characters of a pod's host name."""

Policy = Literal["Reject", "Adjust", "Warn"]
Text = Annotated[str, Field(min_length=1, max_length=253)]


class ConfigFrom(ApiModel):
    """Place of the model's config.json, for models that the catalogue does not know."""

    config_map_key_ref: KeyRef
    """A ConfigMap key that holds the model's config.json."""


FOLDER_PATTERN = r"^[A-Za-z0-9_][-._A-Za-z0-9]*(/+[.]?[-_A-Za-z0-9][-._A-Za-z0-9]*)*/*$"
"""A path below the root of a volume: no part of it is `..`; RE2 syntax."""


class PersistentVolumeClaimSource(ApiModel):
    """Weights on a volume."""

    claim_name: DnsName
    """Name of the PersistentVolumeClaim."""
    path: Annotated[str, Field(max_length=1024, pattern=FOLDER_PATTERN)] | None = None
    """Folder of the model on the volume; omitted: its root."""


class ImageSource(ApiModel):
    """Weights in an OCI image, mounted as an image volume."""

    reference: ImageReference
    """Image reference."""


class ModelSource(ApiModel):
    """Source of the weights; omitted: the Hugging Face hub."""

    cel_rules: ClassVar = (
        CelRule(
            rule="has(self.persistentVolumeClaim) != has(self.image)",
            message="exactly one of persistentVolumeClaim and image must be set",
            holds=lambda source: (source.persistent_volume_claim is None) != (source.image is None),
        ),
    )

    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    """Weights on a PersistentVolumeClaim."""
    image: ImageSource | None = None
    """Weights in an OCI image."""


class Model(ApiModel):
    """The model that is served."""

    name: Annotated[
        str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9][-._A-Za-z0-9]*(/[A-Za-z0-9][-._A-Za-z0-9]*)?$")
    ]
    """Hugging Face id, such as Qwen/Qwen3-8B; the catalogue knows its shape, or configFrom says it."""
    revision: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[-._/A-Za-z0-9]+$")] | None = None
    """Branch, tag or commit of the model repository."""
    config_from: ConfigFrom | None = None
    """The model's config.json; wins over the catalogue."""
    source: ModelSource | None = None
    """Source of the weights; omitted: the Hugging Face hub."""
    token_secret_ref: KeyRef | None = None
    """Key of a Secret with a Hugging Face token; the pod reads it, kvgate never does."""


class Accelerator(ApiModel):
    """The GPU that it runs on."""

    type: Text
    """A name of the accelerator catalogue (H100-SXM-80GB), or the driver's product name (NVIDIA H100 80GB HBM3)."""


class Vllm(ApiModel):
    """vLLM's own settings, under vLLM's names."""

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
    """Release of vLLM: decides defaults and accounting, and the image unless one is named."""
    image: ImageReference | None = None
    """Container image; omitted: vLLM's own image of this version, where a `+` becomes the `-` of its tags (0.19.0+cu130: v0.19.0-cu130)."""
    max_model_len: Tokens | None = None
    """Longest request, prompt and output together; omitted: the model's own maximum."""
    max_num_seqs: Count | None = None
    """Requests that run at the same time; omitted: as many as fit the guarantee, at most vLLM's default."""
    max_num_batched_tokens: Tokens | None = None
    """Tokens of one forward pass; omitted: vLLM's default for this version and GPU."""
    kv_cache_dtype: Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9_]+$")] = "auto"
    """Format of the KV cache (auto, fp8, bfloat16 …); fp8 weights alone do not make it fp8."""
    dtype: Literal["auto", "bfloat16", "float16", "float32", "half", "float"] = "auto"
    """Format of weights and activations that are not quantised."""
    quantization: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[-_a-z0-9]+$")] | None = None
    """Quantise an unquantised checkpoint while loading (fp8); omitted: as the checkpoint says."""
    gpu_memory_utilization: GpuShare | None = None
    """Share of each GPU's memory that vLLM may use, as a decimal string; omitted: vLLM's default for this version."""
    tensor_parallel_size: ParallelSize = 1
    """GPUs that share every layer."""
    pipeline_parallel_size: ParallelSize = 1
    """Stages that share the layers."""
    data_parallel_size: ParallelSize = 1
    """Replicas of the attention within one engine."""
    decode_context_parallel_size: ParallelSize = 1
    """Ranks that deal out the KV cache of a request between them."""
    prefill_context_parallel_size: ParallelSize = 1
    """GPUs that share a prompt, each with its own copy of the weights; above 1 no budget can be given."""
    enable_expert_parallel: Switch = False
    """Deal experts out whole instead of cutting each."""
    block_size: Annotated[int, Field(strict=True, ge=1, le=16384)] | None = None
    """Tokens of a KV cache block; omitted: vLLM's default."""
    enforce_eager: Switch = False
    """Run without CUDA graphs."""
    enable_prefix_caching: Switch | None = None
    """Share the cache of equal prefixes; omitted: vLLM's default."""
    kv_cache_memory_bytes: Annotated[int, Field(strict=True, ge=1, le=1 << 50)] | None = None
    """KV cache memory per GPU in bytes; bypasses gpuMemoryUtilization, as in vLLM."""
    extra_args: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(max_length=32)] = ()
    """Further arguments for vLLM, one per item; refused are those that a field owns, and what vLLM of this version refuses."""

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size
        return ranks * self.data_parallel_size


class Workload(ApiModel):
    """Load that the deployment is expected to serve at its peak."""

    cel_rules: ClassVar = (
        CelRule(
            rule="self.sharedPrefixTokens <= self.promptTokens",
            message="sharedPrefixTokens must be at most promptTokens: the prefix is a part of the prompt",
            holds=lambda workload: workload.shared_prefix_tokens <= workload.prompt_tokens,
            field_path=".sharedPrefixTokens",
        ),
    )

    peak_concurrency: Count
    """Requests that run at the same time."""
    prompt_tokens: Tokens
    """Prompt tokens of a request."""
    output_tokens: Tokens
    """Generated tokens of a request."""
    shared_prefix_tokens: Annotated[int, Field(strict=True, ge=0, le=100_000_000)] = 0
    """Prompt tokens that all requests share, such as a system prompt; counted once."""


class Adjust(ApiModel):
    """Limits within which kvgate may change settings to make it fit."""

    knobs: Annotated[
        tuple[Knob, ...],
        Field(min_length=1, max_length=3, json_schema_extra={"x-kubernetes-list-type": "set"}),
        Distinct,
    ] = (
        Knob.MAX_NUM_SEQS,
        Knob.MAX_MODEL_LEN,
    )
    """Settings that may change, in the order in which you would rather change them."""
    min_max_model_len: Tokens = 1
    """Floor for maxModelLen."""
    min_max_num_seqs: Count = 1
    """Floor for maxNumSeqs."""


class Admission(ApiModel):
    """Reaction of kvgate when it does not fit."""

    policy: Policy = "Reject"
    """Reject refuses, Adjust renders smaller values that fit, Warn renders as written and says so."""
    guarantee: Guarantee | None = None
    """Demand that must fit: Startup (one request of maxModelLen), Workload, FullContext (maxNumSeqs of them); omitted: Workload
    if a workload is declared, else FullContext."""
    adjust: Adjust = Adjust.model_construct()
    """Limits of policy Adjust."""


class InferenceDeploymentSpec(ApiModel):
    """The wanted deployment: a model on a GPU with vLLM's settings, and a guarantee."""

    cel_rules: ClassVar = (
        CelRule(
            rule="!has(self.admission.guarantee) || self.admission.guarantee != 'Workload' || has(self.workload)",
            message="guarantee Workload needs spec.workload",
            holds=lambda spec: spec.admission.guarantee is not Guarantee.WORKLOAD or spec.workload is not None,
            field_path=".workload",
        ),
    )

    model: Model
    """The model that is served."""
    accelerator: Accelerator
    """The GPU that it runs on."""
    vllm: Vllm = Vllm.model_construct()
    """vLLM's settings."""
    workload: Workload | None = None
    """Load that it is expected to serve."""
    admission: Admission = Admission.model_construct()
    """Reaction of kvgate when it does not fit."""
    replicas: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 1
    """Engines that run side by side; each has the whole budget."""
    template: Template = Template.model_construct()
    """The part of the pod template that is the user's to choose."""


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
    """The wanted deployment."""

    @property
    def name(self) -> str:
        return str(self.metadata.get("name", ""))

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace", "default"))

    @property
    def skip_reason(self) -> str | None:
        """The reason in the break-glass annotation; None where it is not set or empty."""
        annotations = self.metadata.get("annotations")
        reason = annotations.get(SKIP_BUDGET_ANNOTATION) if isinstance(annotations, dict) else None
        return " ".join(reason.split())[:256] or None if isinstance(reason, str) else None  # a warning is one line

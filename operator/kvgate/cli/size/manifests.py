"""A candidate of `kvgate size` as a manifest, as the values of a chart or as a command line: `kvgate check` judges each of them alike.

Fields: our own API; github.com/vllm-project/production-stack, `helm/templates/deployment-vllm-multi.yaml`; github.com/kserve/kserve,
`LLMInferenceService` v1alpha1.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from msgspec import Struct

from kvgate.api import API_VERSION, KIND, field_path
from kvgate.api.v1alpha1 import MAX_NAME_LENGTH
from kvgate.budget import Capacity, Guarantee
from kvgate.budget.answers.pod_ledger import pod_ledger
from kvgate.budget.ground.units import GIB
from kvgate.judgement.assess import pinned_option
from kvgate.planning.candidate import Candidate
from kvgate.planning.request_lengths import equal_requests
from kvgate.planning.size import NODE
from kvgate.rendering.workload import IMAGES, PRODUCT_LABELS
from kvgate.statement.deployment import memory_request_bytes
from kvgate.text.inert import inert_line
from kvgate.vllm.options import options
from kvgate.vllm.settings import SPEC_SETTINGS, WHAT_IFS
from kvgate.vllm.values import UnusableValue

Document = dict[str, Any]
_SETTINGS = {setting.name: setting for setting in WHAT_IFS}
_OF_SPEC = frozenset(setting.name for setting in SPEC_SETTINGS)
_OF_CHART = {
    "tensor_parallel_size": "tensorParallelSize", "max_model_len": "maxModelLen", "max_num_seqs": "maxNumSeqs",
    "gpu_memory_utilization": "gpuMemoryUtilization", "dtype": "dtype",
}  # fmt: skip
"""Options that production-stack's chart takes as fields of `vllmConfig`."""
_CPUS_PER_GPU = 4
LINE = "vllm-serve"
"""The form without an image and without a place in a cluster."""


class Row(Struct, frozen=True, kw_only=True):
    """A candidate with all that its engines are started with."""

    candidate: Candidate
    model: str
    options: Mapping[str, Any]
    """vLLM's name of an option → its value: those that the search chose, then those of the user."""
    not_written: tuple[str, ...]
    """Flags of the question that are no options of vLLM, so that no manifest holds them."""

    @property
    def name(self) -> str:
        """A name for the Kubernetes object, from the model's."""
        words = re.sub(r"[^a-z0-9]+", "-", self.model.rpartition("/")[2].lower())
        return words[:MAX_NAME_LENGTH].strip("-") or "vllm"

    @property
    def image(self) -> str:
        """vLLM's own image of the release."""
        version = self.candidate.budget.request.vllm_version
        return f"{IMAGES[self.candidate.accelerator.vendor]}:v{version.removeprefix('v').replace('+', '-')}"

    @property
    def flags(self) -> list[str]:
        """Every option as one word: `--max-model-len=8192`."""
        return [_flag(name, value) for name, value in self.options.items()]


def row_of(candidate: Candidate, given: Mapping[str, Any]) -> Row:
    """Return the candidate with the settings that the user gave. Raises UnusableValue where the model has no name."""
    model = str(given.get("model") or "")
    if not model:
        raise UnusableValue("-o yaml needs --model, the name under which the engine finds the checkpoint")
    chosen = candidate.options
    known, others = options(), {name: text for name, text in given.items() if name in _SETTINGS}
    names = [name for name in others if name not in {*chosen, "model", "vllm_version", "capacity"}]
    written = dict[str, Any]()
    # whole numbers and switches as such (16k → 16384), other values as the user wrote them
    for name in (each for each in names if _SETTINGS[each].flag in known):
        read = _SETTINGS[name].read(given[name])
        written[name] = read if isinstance(read, bool | int) else str(given[name])
    return Row(
        candidate=candidate,
        model=model,
        options={**chosen, **written},
        not_written=tuple(
            _SETTINGS[name].flag
            for name in names
            if name not in written and (name, given[name]) != ("installed_by", "image")  # the image says it
        ),
    )


def _flag(name: str, value: Any) -> str:
    setting = _SETTINGS[name]
    if isinstance(value, bool) and setting.is_switch:
        return setting.flag if value else f"--no-{setting.flag[2:]}"
    return f"{setting.flag}={value}"


def written(row: Row, form: str) -> str:
    """Return the text of a form. Raises UnusableValue for an engine that the form cannot hold."""
    vendor = row.candidate.accelerator.vendor
    if form != LINE and vendor not in IMAGES:
        raise UnusableValue(f"vLLM publishes no image for GPUs of {vendor}; write the command line with --as {LINE}")
    return FORMS[form](row)


def _inference_deployment(row: Row) -> str:
    request = row.candidate.budget.request
    is_pinned = request.capacity is Capacity.PINNED
    kept = {
        name: value
        for name, value in row.options.items()
        if not (is_pinned and name in pinned_option(row.candidate.budget))
    }
    fields = {field_path(name).rpartition(".")[2]: value for name, value in kept.items() if name in _OF_SPEC}
    extra = [_flag(name, value) for name, value in kept.items() if name not in _OF_SPEC]
    spec: Document = {
        "model": {"name": row.model},
        "accelerator": {"type": row.candidate.accelerator.name},
        "vllm": {"version": request.vllm_version, **fields, **({"extraArgs": extra} if extra else {})},
    }
    if workload := _workload(row):
        spec["workload"] = workload
    spec["admission"] = {"guarantee": request.guarantee.value, **({"capacity": "Pinned"} if is_pinned else {})}
    spec["replicas"] = row.candidate.replicas
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": row.name}, "spec": spec}
    return _yaml(_remarks(row), document)


def _production_stack(row: Row) -> str:
    accelerator, num_gpus = row.candidate.accelerator, _gpus_of_a_node(row, "--as production-stack")
    memory = memory_request_bytes(pod_ledger(row.candidate.budget)) // GIB
    repository, _, tag = row.image.rpartition(":")
    extra = [_flag(name, value) for name, value in row.options.items() if name not in _OF_CHART]
    config = {field: row.options[name] for name, field in _OF_CHART.items() if name in row.options}
    spec: Document = {
        "name": row.name, "repository": repository, "tag": tag, "modelURL": row.model, "replicaCount": row.candidate.replicas,
        "requestCPU": _CPUS_PER_GPU * num_gpus, "requestMemory": f"{memory}Gi", "requestGPU": num_gpus,
    }  # fmt: skip
    if accelerator.resource != "nvidia.com/gpu":
        spec["requestGPUType"] = accelerator.resource
    if terms := _node_terms(row):
        spec["nodeSelectorTerms"] = terms
    spec["vllmConfig"] = {**config, **({"extraArgs": extra} if extra else {})}
    return _yaml([*_remarks(row), *_workload_comment(row)], {"servingEngineSpec": {"modelSpec": [spec]}})


def _kserve(row: Row) -> str:
    num_gpus, parallelism = _gpus_of_a_node(row, "--as kserve"), row.candidate.parallelism
    pipeline = {"pipeline": parallelism.pipeline} if parallelism.pipeline > 1 else {}
    arguments = [
        _flag(name, value)
        for name, value in row.options.items()
        if name not in ("tensor_parallel_size", "pipeline_parallel_size")
    ]
    container = {
        "name": "main",
        "image": row.image,
        "args": arguments,
        "resources": {"limits": {row.candidate.accelerator.resource: str(num_gpus)}},
    }
    terms = {"nodeSelectorTerms": _node_terms(row)}
    affinity = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    spec = {
        "model": {"uri": f"hf://{row.model}", "name": row.model},
        "replicas": row.candidate.replicas,
        "parallelism": {"tensor": parallelism.tensor, **pipeline},
        "template": {**(affinity if _node_terms(row) else {}), "containers": [container]},
    }
    head = {"apiVersion": "serving.kserve.io/v1alpha1", "kind": "LLMInferenceService", "metadata": {"name": row.name}}
    return _yaml([*_remarks(row), *_workload_comment(row)], {**head, "spec": spec})


def _vllm_serve(row: Row) -> str:
    line = shlex.join(["vllm", "serve", row.model, *row.flags])
    return "\n".join([*(f"# {inert_line(remark)}" for remark in _remarks(row, is_line=True)), line])


FORMS: Mapping[str, Callable[[Row], str]] = {
    "inferencedeployment": _inference_deployment,
    "production-stack": _production_stack,
    "kserve": _kserve,
    LINE: _vllm_serve,
}


def _remarks(row: Row, *, is_line: bool = False) -> Iterator[str]:
    """Yield what a reader must know and the fields cannot say."""
    candidate = row.candidate
    accelerator, engine_gpus = candidate.accelerator, candidate.parallelism.num_gpus
    guarantee = candidate.budget.request.guarantee.value
    yield (
        f"kvgate size: {candidate.verdict.value} (guarantee {guarantee}): {candidate.replicas} × vLLM "
        f"{candidate.budget.request.vllm_version} on {engine_gpus} × {accelerator.name}"
    )
    if row.not_written:
        yield f"stated for kvgate size, and no part of this: {', '.join(row.not_written)}"
    if not is_line and not accelerator.gpu_labels:
        yield f"no node label means {accelerator.name} alone: select such nodes yourself, and check with --gpu {accelerator.name}"


def _workload(row: Row) -> Document:
    """Return the load of all replicas together; empty for another guarantee."""
    request = row.candidate.budget.request
    workload = request.workload
    if request.guarantee is not Guarantee.WORKLOAD or workload is None:
        return {}
    if workload.lengths:
        workload = equal_requests(row.candidate.budget, workload)
    found = {
        "peakConcurrency": workload.peak_concurrency * row.candidate.replicas,
        "promptTokens": workload.prompt_tokens,
        "outputTokens": workload.output_tokens,
        "sharedPrefixTokens": workload.shared_prefix_tokens,
    }
    return {name: number for name, number in found.items() if number}


def _workload_comment(row: Row) -> Iterator[str]:
    """Yield the comment by which `kvgate check` judges the workload too."""
    if workload := _workload(row):
        if (stated := row.candidate.budget.request.workload) and stated.lengths:
            yield "promptTokens: equal requests that need as many blocks as those of different lengths, which are a bound"
        yield f"kvgate:workload {' '.join(f'{name}={number}' for name, number in workload.items())}"


def _gpus_of_a_node(row: Row, form: str) -> int:
    """Return the GPUs of one engine. Raises UnusableValue for an engine over several nodes."""
    num_gpus = row.candidate.parallelism.num_gpus
    if num_gpus > max(NODE):
        raise UnusableValue(
            f"{form} writes engines of one node, and this one has {num_gpus} GPUs; use --as inferencedeployment, or --choose another row"
        )
    return num_gpus


def _node_terms(row: Row) -> list[Document]:
    accelerator = row.candidate.accelerator
    if not accelerator.gpu_labels:
        return []
    wanted = {"key": PRODUCT_LABELS[accelerator.vendor], "operator": "In", "values": list(accelerator.gpu_labels)}
    return [{"matchExpressions": [wanted]}]


def _yaml(remarks: Iterator[str] | list[str], document: Document) -> str:
    head = "".join(f"# {inert_line(remark)}\n" for remark in remarks)
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return f"{head}{body}".rstrip("\n")

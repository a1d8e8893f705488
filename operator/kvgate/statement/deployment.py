"""The statement of an InferenceDeployment: the fields of its spec, extraArgs and template.env."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kvgate.api.quantity import parse_quantity
from kvgate.budget import Guarantee, Workload
from kvgate.budget.ground.units import GIB, MIB, cdiv, round_up
from kvgate.budget.host.memory import HostLedger
from kvgate.budget.host.settings import UNKNOWN_POD, PodMemory
from kvgate.catalogue.lookup import find_accelerator, mig_profile, slice_of
from kvgate.findings.finding import Finding
from kvgate.statement.engine import EngineStatement, is_known_release
from kvgate.statement.passed_through import NO_EXTRA_ARGS, containers_with_gpus, read_environment, read_extra_args
from kvgate.text.patterns import pattern
from kvgate.vllm.images import is_own_image
from kvgate.vllm.settings import SPEC_SETTINGS
from kvgate.vllm.variables import ALLOW_LONG

if TYPE_CHECKING:
    from kvgate.api import v1alpha1 as api
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec, Vllm


_READERS = {setting.name: setting.read for setting in SPEC_SETTINGS if setting.budget}
"""Readers of the settings of spec.vllm that the budget reads."""
_OF_THE_MODEL = ("quantization", "dtype")
"""Settings of spec.vllm that shape the model."""


_MIG_CLASS = "mig.nvidia.com"
"""DeviceClass of NVIDIA's driver for slices."""
_PROFILE = pattern(r"""\bprofile\s*==\s*(['"])(\d+g\.\d+gb)\1""")


def statement_of(spec: InferenceDeploymentSpec) -> EngineStatement:
    """Return what the spec says about each of its engines. Fields win over extraArgs, and these over variables of the pod."""
    vllm, accelerator = spec.vllm, spec.accelerator
    extra = read_extra_args(vllm) if is_known_release(vllm.version) else NO_EXTRA_ARGS
    environment, floor = read_environment(spec), spec.admission.adjust.min_max_model_len
    given = {name: value for name in _READERS if (value := getattr(vllm, name)) is not None}
    # the API has no decimals, and its share of the memory is a text
    fields = {name: _READERS[name](value) if type(value) is str else value for name, value in given.items()}
    facts = {
        "model": spec.model.name,
        "gpu": gpu_name(accelerator) or "",
        "vllm_version": vllm.version,
        "shared_by": accelerator.shared_by,
        "capacity": spec.admission.capacity,
        **({"revision": spec.model.revision} if spec.model.revision else {}),
        **{name: value for name in _OF_THE_MODEL if (value := getattr(vllm, name)) is not None},
    }
    return EngineStatement(
        values={
            **extra.values,
            **facts,
            "max_model_len": vllm.max_model_len,
            ALLOW_LONG: environment.allows_any_length,
        },
        known={**circumstances_of_rendering(spec), **environment.circumstances, **extra.known, **facts, **fields},
        doubt=extra.doubt.without(fields),
        findings=(*_length_refused(vllm), *extra.findings, *environment.findings),
        guarantee=guarantee_of(spec),
        workload=workload_of(spec),
        least_model_len=floor if vllm.max_model_len == "auto" and floor > 1 else None,  # the default of 1 is no floor
        pod=pod_of(spec),
        config=spec.model.config_from.config_map_key_ref if spec.model.config_from else None,
        is_whole=True,
        is_one_pod=True,
        sees_part_alone=accelerator.claim == "GpuMemory",
        image_digest=(vllm.image or "").partition("@")[2],
        unmodelled_variables=environment.kinds,
        unmodelled_containers=containers_with_gpus(spec),
    )


def gpu_name(wanted: api.Accelerator) -> str | None:
    """Return the name of the GPU, or of the MIG slice that the resource means; None where the nodes decide it.

    A part of a GPU whose memory nobody knows gets a name that the catalogue lacks.
    """
    claim, resource = wanted.resource_claim, wanted.resource_name or ""
    if wanted.type is None:
        return None
    profile = mig_profile(resource)
    if claim is not None and claim.device_class_name == _MIG_CLASS:
        resource, profile = (
            _MIG_CLASS,
            next((found[2] for each in claim.selectors for found in _PROFILE.finditer(each)), ""),
        )
    board = find_accelerator(wanted.type) if resource else None
    is_slice = board is not None and board.is_slice and bool(profile or resource == _MIG_CLASS)
    if board is None or is_slice or board.resource in (resource, resource.removesuffix(".shared")):
        return wanted.type
    found = slice_of(board, profile) if profile else None
    return found.name if found else f"{wanted.type} as {resource}"


def guarantee_of(spec: InferenceDeploymentSpec) -> Guarantee:
    """Return the guarantee that is asked for, else what the numbers of the spec say."""
    return spec.admission.guarantee or (Guarantee.WORKLOAD if spec.workload else Guarantee.FULL_CONTEXT)


def _length_refused(vllm: Vllm) -> tuple[Finding, ...]:
    """Find out whether a release before 0.14 is given `auto`, which its parser refuses. An image of the user's own may take it."""
    if vllm.max_model_len != "auto" or not is_known_release(vllm.version):
        return ()
    from kvgate.vllm.option_findings import refused_values

    found = refused_values({"max_model_len": "auto"}, vllm.version, is_stated=True).values()
    return tuple(replace(each, field="max_model_len") if vllm.image is None else each.softened() for each in found)


def workload_of(spec: InferenceDeploymentSpec) -> Workload | None:
    """Return the share of one engine in the workload that the spec declares; None where it declares none."""
    declared = spec.workload
    return Workload(**declared.model_dump()).shared_among(spec.num_engines) if declared else None


def links_bytes(spec: InferenceDeploymentSpec) -> int:
    """Return the part of /dev/shm for queues and NCCL, whose buffers grow with the ranks that share a pod. kvgate adds it to the limit."""
    ranks = spec.vllm.num_gpus
    return GIB if ranks == 1 else max(10, 2 * ranks) * GIB


def pod_of(spec: InferenceDeploymentSpec) -> PodMemory:
    """Return the memory of a pod. /dev/shm is rendered as large as it must be, so that only the limit of the container is compared."""
    limits = spec.template.resources.limits if spec.template.resources else None
    limit = parse_quantity(limits.memory) if limits and limits.memory is not None else None
    return PodMemory(limit_bytes=int(limit), added_bytes=links_bytes(spec)) if limit else UNKNOWN_POD


def shared_memory_bytes(spec: InferenceDeploymentSpec, ledger: HostLedger | None) -> int:
    """Return the size of /dev/shm: the part for queues and NCCL, and what the engine keeps there beside them."""
    kept = sum(line.amount.high for line in ledger.shared if line.name != "messages") if ledger else 0
    return links_bytes(spec) + round_up(kept, MIB)


def memory_request_bytes(ledger: HostLedger) -> int:
    """Return what a pod requests where its spec states neither request nor limit: what it is expected to take, in whole GiB.

    It is a request alone. It finds a node that has the memory, and a prediction that is too small kills nothing.
    """
    return cdiv(ledger.needs.expected, GIB) * GIB


def circumstances_of_rendering(spec: InferenceDeploymentSpec) -> dict[str, Any]:
    """Return the circumstances of the pods that are rendered from a spec.

    An emptyDir is empty when a pod starts for the first time, and what is promised must hold then. A claim may hold what an earlier
    pod has compiled, or nothing.
    """
    found: dict[str, Any] = {"usage_context": "server"}
    if spec.vllm.image is None or is_own_image(spec.vllm.image):
        found["installed_by"] = "image"
    if spec.template.cache_claim_name is None:
        found["compile_cache"] = "cold"
    return found

"""EngineStatement: one engine as a door was told about it. The rest of the road is the same for every door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget import DEFAULT_VERSION, Capacity, Guarantee, UnknownVersion, Workload, accounting_of
from kvgate.budget.host.settings import UNKNOWN_POD, PodMemory
from kvgate.findings.finding import Finding
from kvgate.statement.gpus import NO_GPU, Gpus
from kvgate.statement.releases import Releases
from kvgate.vllm.given_settings import Doubt

if TYPE_CHECKING:
    from kvgate.api.base import KeyRef


class EngineStatement(Struct, frozen=True, kw_only=True):
    """One engine of one release on one GPU, with the load that is promised. Nothing in it was looked up."""

    values: Mapping[str, Any]
    """Every option and fact as it was given, by vLLM's names."""
    known: Mapping[str, Any]
    """Typed values of those that the budget reads: the model, the GPU, the release, settings, circumstances."""
    doubt: Doubt = Doubt()
    """Settings whose value kvgate does not know."""
    findings: tuple[Finding, ...] = ()
    """Findings about the words of the statement."""
    guarantee: Guarantee
    """The promise; Startup where no load is promised."""
    workload: Workload | None = None
    """Load of this engine."""
    least_model_len: int | None = None
    """Tokens that a length which vLLM chooses must reach; None where the length is stated, or no floor."""
    gpus: Gpus = NO_GPU
    """The GPUs that it may run on, where `known` names none."""
    pod: PodMemory = UNKNOWN_POD
    config: KeyRef | None = None
    """Key of a ConfigMap that holds the model's config.json."""
    is_whole: bool = False
    """True where vLLM is started with these values alone, so that the rest is its defaults."""
    is_one_pod: bool = False
    """True where one pod holds every rank."""
    sees_part_alone: bool = False
    """True where the container sees its part of a shared GPU, and nothing of its neighbours."""
    image_digest: str = ""
    unmodelled_variables: tuple[str, ...] = ()
    """Features without a formula that variables of the pod switch on."""

    @property
    def model(self) -> str:
        return str(self.known.get("model", ""))

    @property
    def version(self) -> str:
        """Release of vLLM; the default where none is given."""
        return str(self.known.get("vllm_version", DEFAULT_VERSION))

    @property
    def releases(self) -> Releases:
        """The one release of its values."""
        return Releases(low=self.version, high=self.version, is_stated="vllm_version" in self.known)

    def on_gpu(self, gpu: str) -> EngineStatement:
        """Return the same engine on one of its GPUs."""
        return replace(self, known={**self.known, "gpu": gpu}, gpus=Gpus(name=gpu))

    @property
    def capacity(self) -> Capacity:
        return Capacity(self.known.get("capacity", Capacity.PROFILED))

    @property
    def is_of_known_release(self) -> bool:
        """True where the accounting of its release is known."""
        return is_known_release(self.version)


def is_known_release(version: str) -> bool:
    """Return whether the accounting of a release is known."""
    try:
        accounting_of(version)
    except UnknownVersion:
        return False
    return True

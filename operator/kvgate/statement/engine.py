"""EngineStatement: one engine as a door was told about it. The rest of the road is the same for every door."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import (
    DEFAULT_VERSION,
    Accelerator,
    Capacity,
    Guarantee,
    UnknownVersion,
    Workload,
    accounting_of,
    is_newer_than_known,
    parse_patch,
)
from kvgate.budget.ground.units import MIB
from kvgate.budget.host.settings import UNKNOWN_POD, PodMemory
from kvgate.findings.finding import Finding
from kvgate.text.patterns import pattern
from kvgate.vllm.given_settings import Doubt
from kvgate.vllm.images import Strength
from kvgate.vllm.options import releases_read

if TYPE_CHECKING:
    from kvgate.api.base import KeyRef


_DESKTOP = ("GeForce", "Radeon", "Jetson", "Laptop", "NVIDIA RTX ", "GB10", "Arc ")
_SERVER = "Server Edition"
"""Words in the names of products for desks and devices, and of those among them for servers."""


ACCELERATOR_RESOURCE = pattern(
    r"(?:nvidia\.com/(?:gpu(?:\.shared)?|mig-.*)|volcano\.sh/v?gpu-number|aliyun\.com/gpu-count"
    r"|amd\.com/gpu|gpu\.intel\.com/(?:xe|i915)|habana\.ai/gaudi"
    r"|google\.com/tpu|aws\.amazon\.com/neuron\w*|huawei\.com/[Aa]scend.*|(?:cambricon|metax-tech|enflame|hygon|mthreads|kunlunxin|qualcomm)\.com/.*|iluvatar\.ai/.*|rebellions\.ai/.*)"
)
"""Extended resources that are whole accelerators, or slices of one."""


class GpuPart(Struct, frozen=True, kw_only=True):
    """The part of a GPU's memory that a container may use, where GPUs are shared out."""

    amount: Fraction
    """MiB, or a share of the memory."""
    is_share: bool
    path: str
    claim: str
    """The claim as it is written: `nvidia.com/gpumem: 20000`."""
    is_all_it_sees: bool
    """True where CUDA tells the container that the GPU has no more (HAMi); else the scheduler alone counts with it."""

    def of(self, memory_bytes: int) -> int:
        """Return the bytes of a GPU with so much memory."""
        return int(self.amount * memory_bytes) if self.is_share else min(int(self.amount * MIB), memory_bytes)


class Gpus(Struct, frozen=True, kw_only=True):
    """The GPUs that an engine may run on, by their names in the catalogue."""

    name: str | None = None
    """The named one with the least memory; None where none is named."""
    others: tuple[str, ...] = ()
    """The others that are possible, by memory."""
    must_start_on_all: bool = False
    """True where the user stated the list: an engine that does not start on one of them is refused."""
    may_be_unnamed: bool = False
    """True where it may run on a node whose GPU nothing names, too."""
    is_open: bool = False
    """True where it may run on any GPU of the catalogue, or of `among`."""
    among: tuple[str, ...] = ()
    """The GPUs that a name such as H100 means, where it is open; empty: all of the catalogue."""
    vendor: str = "nvidia"
    """Vendor of a GPU that nothing names."""
    is_vendor_stated: bool = False
    """True where something says that it is this vendor."""
    part: GpuPart | None = None

    @property
    def is_unjudged(self) -> bool:
        return self.name is None and not self.is_open

    @property
    def named(self) -> tuple[Accelerator, ...]:
        """The named ones, each with the memory that CUDA shows the container."""
        known = (catalogue.find_accelerator(name) for name in (self.name, *self.others) if name)
        return self._seen(each for each in known if each)

    def possible(self, vendor: str) -> tuple[Accelerator, ...]:
        """Return the whole boards of a vendor, or those that a name means, each with the memory that CUDA shows the container."""
        meant = map(catalogue.find_accelerator, self.among)
        return self._seen(tuple(each for each in meant if each) or _boards(vendor))

    @property
    def largest(self) -> str:
        """Name of the possible one with the most memory; of the whole catalogue that of the largest board for servers."""
        if not self.among:
            return largest_board(self.vendor)
        return max(self.possible(self.vendor), key=lambda each: each.memory_bytes).name

    def _seen(self, gpus: Iterable[Accelerator]) -> tuple[Accelerator, ...]:
        part = self.part
        if part is None or not part.is_all_it_sees:
            return tuple(gpus)
        sizes = ((each, part.of(each.memory_bytes)) for each in gpus)
        return tuple(
            replace(each, memory_bytes=size, memory_low_bytes=size, memory_high_bytes=size) for each, size in sizes
        )


NO_GPU = Gpus()
ANY_GPU = Gpus(is_open=True)


@lru_cache(maxsize=8)
def _boards(vendor: str) -> tuple[Accelerator, ...]:
    return tuple(each for each in catalogue.accelerators() if each.vendor == vendor and not each.is_slice)


@lru_cache(maxsize=8)
def largest_board(vendor: str) -> str:
    """Return the name of the board for servers with the most memory."""
    return max(filter(is_for_servers, _boards(vendor)), key=lambda each: each.memory_bytes).name


def is_for_servers(accelerator: Accelerator) -> bool:
    """Return whether a board is made for servers, as those of clouds are."""
    return _SERVER in accelerator.product or not any(word in accelerator.product for word in _DESKTOP)


OLDEST_GUESS = "0.8.5"
"""Oldest release that is guessed: without a stated one nobody means an engine before V1, unless only older releases have an option."""


class Releases(Struct, frozen=True, kw_only=True):
    """The oldest and the newest release that it may be; both are equal where it is known."""

    low: str
    high: str
    assumed: str = ""
    """Words for people about the assumption; empty where the manifest states the release."""
    why: str = ""
    is_stated: bool = False
    """True where the manifest or the configuration states it."""
    is_ahead: bool = False
    """The engine is built after the newest release that is known."""
    strength: Strength = Strength.STRONG
    """How surely it is one of these."""
    is_inferred: bool = False
    """True where no image says anything, and the range follows from the model's class and the options."""

    @property
    def is_one(self) -> bool:
        return self.low == self.high

    def may_be(self, release: str) -> bool:
        """Return whether it may be a release beside the oldest and the newest: where the evidence is weak, any that people use.

        An engine is no older than what it is written for, and an option that is gone may stand in a manifest of today.
        """
        if release in (self.low, self.high):
            return False
        is_weak = self.strength is Strength.WEAK
        low = OLDEST_GUESS if is_weak and not self.is_inferred else self.low
        high = newest_understood() if is_weak else self.high
        return parse_patch(low) <= parse_patch(release) <= parse_patch(high)


def newest_understood() -> str:
    """The newest release that was read and whose accounting the budget knows."""
    return next(release for release in reversed(releases_read()) if not is_newer_than_known(release))


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
    unmodelled_containers: tuple[str, ...] = ()
    """Other containers of the pod that take memory of a GPU, in words."""

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

    @property
    def capacity(self) -> Capacity:
        return Capacity(self.known.get("capacity", Capacity.PROFILED))


def is_known_release(version: str) -> bool:
    try:
        accounting_of(version)
    except UnknownVersion:
        return False
    return True

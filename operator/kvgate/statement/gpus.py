"""The GPUs that an engine may run on: one, several that are named, or any of the catalogue."""

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Accelerator
from kvgate.budget.ground.units import MIB

_DESKTOP = ("GeForce", "Radeon", "Jetson", "Laptop", "NVIDIA RTX ", "GB10", "Arc ")
_SERVER = "Server Edition"
"""Words in the names of products for desks and devices, and of those among them for servers."""


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
    """True where it may run on any GPU of the catalogue."""
    vendor: str = "nvidia"
    """Vendor of a GPU that nothing names."""
    is_vendor_stated: bool = False
    """True where something says that it is this vendor."""
    part: GpuPart | None = None

    @property
    def is_unjudged(self) -> bool:
        """True for hardware that kvgate does not judge."""
        return self.name is None and not self.is_open

    @property
    def named(self) -> tuple[Accelerator, ...]:
        """The named ones, each with the memory that CUDA shows the container."""
        known = (catalogue.find_accelerator(name) for name in (self.name, *self.others) if name)
        return self._seen(each for each in known if each)

    def possible(self, vendor: str) -> tuple[Accelerator, ...]:
        """Return the whole boards of a vendor, each with the memory that CUDA shows the container."""
        return self._seen(_boards(vendor))

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

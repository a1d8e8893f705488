"""Look up accelerators in data files of our own, which are read once; never the network."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec.json import decode

from kvgate import bundle
from kvgate.budget import Accelerator
from kvgate.budget.ground.units import MIB
from kvgate.text.patterns import pattern

DATA = Path(__file__).parent / "data"
"""The folder of the data files."""


def read_yaml(path: Path) -> Any:
    """Return the value of a data file that people edit; only `make generate` reads such files."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe loader


@lru_cache(maxsize=1)
def _accelerator_entries() -> tuple[Mapping[str, Any], ...]:
    return tuple(decode(bundle.read("accelerators.json")))


@lru_cache(maxsize=1)
def every_accelerator() -> tuple[Accelerator, ...]:
    """Return all accelerators that a user may name, in the order of the data file."""
    found = list[Accelerator]()
    for entry in _accelerator_entries():
        memory = entry["memory_mib"]
        low, high = entry.get("memory_mib_range", (memory, memory))
        major, _, minor = str(entry.get("compute_capability", "")).partition(".")
        accelerator = Accelerator(
            name=entry["name"],
            product=entry["product"],
            memory_bytes=memory * MIB,
            memory_low_bytes=low * MIB,
            memory_high_bytes=high * MIB,
            compute_capability=(int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None,
            vendor=entry["vendor"],
            unified_memory=entry.get("unified_memory", False),
            nvlink=entry.get("interconnect") == "nvlink",
            multiprocessors=entry.get("sm_count", 0),
            memory_bandwidth_bytes_per_second=entry.get("memory_bandwidth_bytes_per_second"),
            peak_bf16_flops=entry.get("peak_bf16_flops"),
            peak_fp8_flops=entry.get("peak_fp8_flops"),
            is_slice="mig_profile" in entry,
            gpu_labels=tuple(entry.get("gpu_labels", ())),
            resource=entry.get("resource", "nvidia.com/gpu"),
        )
        found.append(accelerator)
    return tuple(found)


@lru_cache(maxsize=1)
def accelerators() -> tuple[Accelerator, ...]:
    """Return those on which people usually serve: only they are proposed, or guessed where a GPU is not named."""
    pairs = zip(_accelerator_entries(), every_accelerator(), strict=True)
    return tuple(accelerator for entry, accelerator in pairs if "is_seldom" not in entry)


@lru_cache(maxsize=1)
def driver_memory_mib() -> Mapping[str, int]:
    """Return short name → MiB that `nvidia-smi` and the node label `nvidia.com/gpu.memory` report, more than a process sees.

    Boards that are seldom met are left out: a memory alone does not mean them.
    """
    return {
        e["name"]: e["nvml_memory_mib"]
        for e in _accelerator_entries()
        if "nvml_memory_mib" in e and "is_seldom" not in e
    }


@lru_cache(maxsize=1)
def nvml_mib() -> Mapping[str, int]:
    """Return short name → MiB that NVML reports, for the accelerators of which a source states it."""
    return {each["name"]: each["nvml_memory_mib"] for each in _accelerator_entries() if "nvml_memory_mib" in each}


_MIG_RESOURCE = pattern(r"nvidia\.com/mig-(\d+g\.\d+gb)(?:\.me)?(?:\.shared)?")


def mig_profile(resource: str) -> str:
    """Return the profile that a resource of the mixed MIG strategy names: `3g.40gb`; empty for any other resource."""
    found = _MIG_RESOURCE.fullmatch(resource)
    return found[1] if found else ""


def slice_of(board: Accelerator, profile: str) -> Accelerator | None:
    """Return the MIG slice of a board; GPU feature discovery names it by the board's label and the profile."""
    found = (find_accelerator(f"{label}-MIG-{profile}") for label in board.gpu_labels)
    return next(filter(None, found), None)


def slices(profile: str) -> tuple[Accelerator, ...]:
    """Return the MIG slices of a profile, of every board."""
    return tuple(each for each in every_accelerator() if each.is_slice and each.name.endswith(f"-MIG-{profile}"))


def labels_of_boards(slice_: Accelerator) -> tuple[str, ...]:
    """Return the product labels of the boards that a MIG slice is cut from: with the mixed strategy nodes have them."""
    return tuple(label.rpartition("-MIG-")[0] for label in slice_.gpu_labels)


_FIXED_MIB, _SHARE_UNSEEN = 410, 0.0019
"""MiB, and share of the memory, that nvidia-smi counts and a process does not see: by the 14 boards whose two figures are both logged."""


def seen_mib(driver_mib: int) -> int:
    """Return the memory that a process sees of so much by nvidia-smi, where no log says it."""
    return driver_mib - _FIXED_MIB - round(driver_mib * _SHARE_UNSEEN)


@lru_cache(maxsize=1)
def _accelerator_names() -> dict[str, Accelerator]:
    """Return the accelerators by the letters and digits of each of their names: short, product, label, alias."""
    return {_letters(name): accelerator for accelerator, names in named_accelerators() for name in names}


@lru_cache(maxsize=1)
def named_accelerators() -> tuple[tuple[Accelerator, tuple[str, ...]], ...]:
    """Return every accelerator with its names: short, product, labels, aliases."""
    pairs = zip(_accelerator_entries(), every_accelerator(), strict=True)
    return tuple((a, (a.name, a.product, *a.gpu_labels, *entry.get("aliases", ()))) for entry, a in pairs)


def _letters(name: str) -> str:
    """Return the letters and digits of a name: `RTX-4090`, `rtx_4090` and `RTX4090` are one name."""
    return "".join(filter(str.isalnum, name)).lower()


def find_accelerator(name: str) -> Accelerator | None:
    """Find an accelerator by short name, driver's product name, node label or alias; case and separators do not matter."""
    return _accelerator_names().get(_letters(name))


_MAKERS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct", "radeon", "intel", "habana", "gpu"})
"""Words that a name may have or lack."""


_PROFILE = pattern(r"\d+g(?:\.\d+gb)?")
"""`1g.5gb`, which only a slice has in its name."""


@lru_cache(maxsize=256)
def accelerators_meant(name: str, *, every: bool = False) -> tuple[str, ...]:
    """Return the short names of all accelerators that a name such as A100 may mean; slices only for a name of a slice.

    Those that are seldom met are among them for `every`.
    """
    words, usual = words_of(name), accelerators()
    wants_slice = any(word == "mig" or _PROFILE.fullmatch(word) for word in words)
    return tuple(
        accelerator.name
        for accelerator, runs in _runs_of_names()
        if words
        and (every or accelerator in usual)
        and (wants_slice or not accelerator.is_slice)
        and ("".join(words) in runs or runs.issuperset(words))
    )


_FAMILIES: tuple[tuple[str, str, tuple[int, int] | None], ...] = (
    (r"gtx ?10\d\d|p40|p100|p4|p6000|titan xp?|gp100", "nvidia", (6, 1)),
    (r"v100s?|gv100|titan v", "nvidia", (7, 0)),
    (r"gtx ?16\d\d|rtx ?20\d\d|quadro rtx|titan rtx|t4g?|t[1-9]\d{2,3}", "nvidia", (7, 5)),
    (r"a100x?|a30x?|a800|cmp 170hx|pg506", "nvidia", (8, 0)),
    (r"rtx ?30\d\d|a2|a1[06]g?|a40|a[2-6][05]00", "nvidia", (8, 6)),
    (r"rtx ?40\d\d|[0-9]{4} (?:sff )?ada|ada generation|l4|l20|l40[gs]?|l2", "nvidia", (8, 9)),
    (r"h[12]00|h800|h20|gh200", "nvidia", (9, 0)),
    (r"g?b[12]00", "nvidia", (10, 0)),
    (r"g?b300", "nvidia", (10, 3)),
    (r"rtx ?50\d\d|rtx pro", "nvidia", (12, 0)),
    (r"mi\d{2,3}[ax]?|rx ?\d{4}|r9\d00|w[67]\d00|vega|gfx\w+|amd|instinct|radeon", "amd", None),
    (r"arc|b[56][078]0?|max 1\d{3}|intel|gaudi|habana", "intel", None),
    (r"nvidia|geforce|quadro|tesla|rtx|gtx", "nvidia", None),
)
"""Words in the names of a family of GPUs → its vendor and compute capability; the first that is there counts."""


def with_memory(among: Iterable[Accelerator], memory_bytes: int) -> list[Accelerator]:
    """Return those that have so much memory; drivers report up to 0.5 % more or less."""
    return [each for each in among if each.memory_low_bytes * 199 <= memory_bytes * 200 <= each.memory_high_bytes * 201]


@lru_cache(maxsize=256)
def likely_kind(name: str, memory_bytes: int) -> tuple[str, tuple[int, int] | None]:
    """Return the likely vendor and compute capability of a GPU that is not listed; an empty vendor and None: not known.

    A name tells them. Without one, all listed GPUs with so much memory must agree.
    """
    written = re.sub(r"[^a-z0-9]+", " ", name.lower())
    for words, vendor, capability in _FAMILIES:
        if re.search(rf"\b(?:{words})\b", written):
            return vendor, capability
    alike = [] if name else with_memory(accelerators(), memory_bytes)
    vendors, capabilities = {each.vendor for each in alike}, {each.compute_capability for each in alike}
    return (vendors.pop() if len(vendors) == 1 else ""), (capabilities.pop() if len(capabilities) == 1 else None)


def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name in small letters, without those that a name may have or lack."""
    return tuple(word for word in re.split(r"[^a-z0-9.]+", name.lower()) if word and word not in _MAKERS)


@lru_cache(maxsize=1)
def _runs_of_names() -> tuple[tuple[Accelerator, frozenset[str]], ...]:
    """Return the words of every name, alone and joined with their neighbours: `rtx`, `4090`, `rtx4090`."""
    return tuple(
        (
            a,
            frozenset(
                "".join(words[i:j]) for words in map(words_of, names) for i, j in combinations(range(len(words) + 1), 2)
            ),
        )
        for a, names in named_accelerators()
    )


@lru_cache(maxsize=256)
def nearest_accelerators(name: str) -> tuple[str, ...]:
    """Return the short names of up to three accelerators that the user may have meant: named, beginning alike, or looking alike.

    One that is seldom met is among them only where no other is.
    """
    written = "".join(words_of(name))
    begun = [
        accelerator.name
        for accelerator, runs in _runs_of_names()
        if written and not accelerator.is_slice and any(run.startswith(written) for run in runs)
    ]
    found = [*accelerators_meant(name), *begun]
    if not found:
        close = close_matches(_letters(name), _accelerator_names(), n=6, cutoff=0.5)
        close.sort(key=lambda match: -_shared_beginning(match, _letters(name)))
        found = [_accelerator_names()[match].name for match in close]
    usual = {accelerator.name for accelerator in accelerators()}
    return tuple(dict.fromkeys(each for each in found if each in usual) or dict.fromkeys(found))[:3]


def _shared_beginning(one: str, other: str) -> int:
    return next(
        (i for i, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other))
    )


def close_matches(name: str, names: Iterable[str], *, n: int, cutoff: float) -> list[str]:
    """Return the nearest names; difflib is imported late, because only a mistyped name needs it."""
    from difflib import get_close_matches

    return get_close_matches(name, names, n=n, cutoff=cutoff)

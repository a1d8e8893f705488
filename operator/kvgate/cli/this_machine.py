"""`--gpu auto`: the GPUs of this machine, by the programs of their vendors: nvidia-smi, amd-smi, rocm-smi."""

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from kvgate.budget.ground.units import MIB

SECONDS = 10
"""Time for one program."""
_MAX_CHARACTERS = 1 << 20
_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
"""Units of amd-smi, which are powers of two."""


class Device(Struct, frozen=True, kw_only=True):
    """A GPU, or a MIG slice of one, as its vendor's program reports it."""

    product: str
    memory_bytes: int = 0
    """Memory as the program counts it, more than a process sees; 0: not told."""


def devices() -> Counter[Device]:
    """Return the GPUs of this machine, and how many there are of each; of the first program that finds any."""
    for program, arguments, read in _PROGRAMS:
        if (path := shutil.which(program)) is None:
            continue
        try:
            done = subprocess.run([path, *arguments], capture_output=True, timeout=SECONDS, check=False)  # noqa: S603 - found in PATH
        except (OSError, subprocess.TimeoutExpired):
            continue
        printed = done.stdout[:_MAX_CHARACTERS].decode(errors="replace") if done.returncode == 0 else ""
        if found := Counter(read(printed)):
            return found
    return Counter()


_SLICE = re.compile(r"\s+MIG\s+(\S+)\s+Device\s+\d+:")
_BOARD = re.compile(r"GPU \d+: (.+?) \(UUID: ")


def of_nvidia_list(text: str) -> Iterator[Device]:
    """Read `nvidia-smi -L`: the slices of boards that are cut; nothing where none is."""
    board = ""
    for line in text.splitlines():
        if found := _BOARD.match(line):
            board = found[1]
        elif found := _SLICE.match(line):
            yield Device(product=f"{board} MIG {found[1]}")


def of_nvidia_table(text: str) -> Iterator[Device]:
    """Read `nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits`; unified memory is `[N/A]`."""
    for line in text.splitlines():
        product, comma, memory = line.rpartition(",")
        if comma and product.strip():
            mib = int(memory) if memory.strip().isdecimal() else 0
            yield Device(product=product.strip(), memory_bytes=mib * MIB)


def of_amd_smi(text: str) -> Iterator[Device]:
    """Read `amd-smi static --asic --vram --json`: a list, in newer releases under `gpu_data`."""
    stated = _json(text)
    for gpu in stated.get("gpu_data", []) if isinstance(stated, dict) else stated or []:
        asic, vram = gpu.get("asic") or {}, gpu.get("vram") or {}
        size = vram.get("size") if isinstance(vram, dict) else None
        amount = size.get("value", 0) if isinstance(size, dict) else 0
        unit = _BYTES.get(str(size.get("unit")), 0) if isinstance(size, dict) else 0
        if name := asic.get("market_name"):
            yield Device(product=str(name), memory_bytes=int(amount) * unit if str(amount).isdecimal() else 0)


def of_rocm_smi(text: str) -> Iterator[Device]:
    """Read `rocm-smi --showproductname --showmeminfo vram --json`; graphics inside of a CPU have less than 1 GiB."""
    stated = _json(text)
    for name, card in stated.items() if isinstance(stated, dict) else ():
        if not name.startswith("card") or not isinstance(card, dict):
            continue
        lower = {key.lower(): str(value) for key, value in card.items()}
        product = next((lower[key] for key in ("card series", "device name", "card model") if key in lower), "")
        memory = lower.get("vram total memory (b)", "")
        if product and not (memory.isdecimal() and int(memory) < 1 << 30):
            yield Device(product=product, memory_bytes=int(memory) if memory.isdecimal() else 0)


def _json(text: str) -> Any:
    """Parse what a program prints; warnings may stand before it."""
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    try:
        return json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        return None


_PROGRAMS: tuple[tuple[str, Sequence[str], Callable[[str], Iterator[Device]]], ...] = (
    ("nvidia-smi", ("-L",), of_nvidia_list),
    ("nvidia-smi", ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits"), of_nvidia_table),
    ("amd-smi", ("static", "--asic", "--vram", "--json"), of_amd_smi),
    ("rocm-smi", ("--showproductname", "--showmeminfo", "vram", "--json"), of_rocm_smi),
)
"""Program, its arguments, and the reader of its output, in the order in which they are asked."""

"""`--gpu`: names that people use for GPUs, a number of them, or a machine with them → accelerators of the catalogue, for all commands."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from re import IGNORECASE
from typing import Any

from msgspec import Struct

from kvgate import catalogue
from kvgate.budget import Accelerator
from kvgate.budget.ground.units import MIB
from kvgate.catalogue.gpu_names import gpus_meant, why_not_run
from kvgate.catalogue.lookup import seen_mib
from kvgate.cli.terminal import show_error, some_of
from kvgate.text.patterns import pattern
from kvgate.vllm.values import UnusableValue

AUTO = "auto"
_COUNTED = pattern(
    r"(?P<before>\d{1,6}) ?[x×*](?!tx?\b)(?P<name>.+)|(?P<other>.+?)(?: ?[x×*] ?|:| \()(?P<after>\d{1,3})x?\)?",
    IGNORECASE,
)
"""`8xH100`, `8 × H100`, `H100 x8`, `H100:8`: so many GPUs."""
_MEMORY = pattern(r"(\d{1,4}) ?g(?:i?b|i)?", IGNORECASE)
"""`24GB`: all boards of this size."""
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size")


class GpuChoice(Struct, frozen=True, kw_only=True):
    """The accelerators that one name means, and how many there are."""

    text: str
    names: tuple[str, ...]
    """Names of the catalogue, or the text itself where none is known. Several: any may be meant, and the answer is for all."""
    count: int | None = None
    """GPUs; None where nothing states a number."""
    is_machine: bool = False
    """The number is that of a machine, which an engine need not use whole."""
    memory_bytes: int | None = None
    """Memory as a process sees it, where this machine's driver reports another one than the catalogue has."""
    remark: str = ""
    """Advice where the name is not known."""

    def settings(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the settings of a question, and what to tell about them.

        A number of GPUs that is typed is the tensor parallel size where no parallel size is; a machine may have more than are used.
        """
        memory = {} if self.memory_bytes is None else {"gpu_memory_bytes": str(self.memory_bytes)}
        settings = {**memory, **given, **({"gpu": self.names[0]} if len(self.names) == 1 else {})}
        remark = "" if "gpu_memory_bytes" in given else self.remark
        if self.count is None:
            return settings, remark
        sizes = [int(text) for key in _PARALLEL if (text := str(given.get(key, "1"))).isdecimal()]
        needed, are = prod(sizes), f"--gpu {self.text}: {self.count} × {' or '.join(self.names[:3])}"
        if needed > self.count or self.is_machine:
            return settings, f"{are}; the engine uses {needed}"
        if any(key in given for key in _PARALLEL) or self.count == 1:
            return settings, remark
        told = f"{are}; tensor_parallel_size is {self.count}, because no parallel size is given"
        return {**settings, "tensor_parallel_size": str(self.count)}, told


def on_gpus(given: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield the settings for each GPU of a list, and the names that are meant where they are several; tell what was understood.

    Raises UnusableValue.
    """
    settings = dict(given)
    if not (text := settings.pop("gpu", None)):
        yield settings, ()
        return
    for choice in read_gpus(str(text)) or (_unknown(str(text)),):
        understood, told = choice.settings(settings)
        if told:
            show_error(told)
        yield understood, choice.names if len(choice.names) > 1 else ()


def on_one_gpu(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the one GPU that is named. Raises UnusableValue where there are several."""
    questions = list(on_gpus(given))
    names = [name for settings, meant in questions for name in meant or (settings.get("gpu"),)]
    if len(names) > 1:
        raise UnusableValue(f"--gpu {given['gpu']} may be {some_of(map(str, names))}; name the one that it is")
    return questions[0][0]


def read_gpus(text: str) -> tuple[GpuChoice, ...]:
    """Return what each name of a list means. Raises UnusableValue for what vLLM does not run on."""
    found = list[GpuChoice]()
    for item in filter(None, (" ".join(part.split()) for part in text.split(","))):
        found += _this_machine() if item.lower() == AUTO else [_choice(item)]
    return tuple(found)


def _choice(text: str) -> GpuChoice:
    """Read one name: a size, a GPU, a number of GPUs, a machine. Raises UnusableValue."""
    if sized := _MEMORY.fullmatch(text):
        ending = f"-{int(sized[1])}GB"
        alike = [each for each in catalogue.accelerators() if each.name.endswith(ending) and not each.is_slice]
        told = f"no GPU of the catalogue has {text}; give its memory: --gpu-memory-bytes {int(sized[1])}Gi"
        return GpuChoice(text=text, names=_names(alike) or (text,), remark="" if alike else told)
    if meant := gpus_meant(text):
        return GpuChoice(text=text, names=_names(meant))
    if counted := _COUNTED.fullmatch(text):
        count, name = int(counted["before"] or counted["after"]), (counted["name"] or counted["other"]).strip()
        if count < 1:
            raise UnusableValue(f"--gpu says {text!r}; write at least one GPU, such as 8x{name}")
        found = _choice(name)
        return GpuChoice(text=text, names=found.names, count=count, remark=found.remark)
    from kvgate.manifests.pods.accelerator_hints import accelerators_named, gpus_of_instance
    from kvgate.manifests.pods.engine_found import Hint

    # an instance type of a cloud, or a word by which a node's label, Ray or SkyPilot names a GPU
    for value in (text, f"Standard_{text}"):
        if meant := accelerators_named(value):
            has = gpus_of_instance([Hint(name=INSTANCE, value=value, path="")])
            return GpuChoice(text=text, names=_names(meant), count=has, is_machine=True)
    return _unknown(text)


def _names(found: Sequence[Accelerator]) -> tuple[str, ...]:
    return tuple(each.name for each in found)


INSTANCE = "node.kubernetes.io/instance-type"


def _unknown(text: str) -> GpuChoice:
    """Say what to write instead of a name. Raises UnusableValue where vLLM does not run on what it names."""
    from kvgate.manifests.pods.accelerator_hints import other_hardware_in

    if reason := why_not_run(text):
        raise UnusableValue(f"--gpu {text}: {reason}")
    if hardware := other_hardware_in(text):
        raise UnusableValue(f"--gpu {text}: it is {hardware}, which kvgate does not judge")
    nearest = catalogue.nearest_accelerators(text)
    write = f"write {' or '.join(nearest)}" if nearest else "`kvgate gpus` lists the names"
    told = f"--gpu {text} is no GPU of the catalogue; {write}, or give its memory: --gpu-memory-bytes 12Gi"
    return GpuChoice(text=text, names=(text,), remark=told)


def _this_machine() -> Iterator[GpuChoice]:
    """Yield the GPUs of this machine. Raises UnusableValue where no program tells them."""
    from kvgate.cli.this_machine import devices

    found = devices()
    if not found:
        raise UnusableValue(
            "--gpu auto: neither nvidia-smi nor amd-smi nor rocm-smi finds a GPU on this machine; name the GPU, such as --gpu L4"
        )
    for device, count in found.items():
        meant, reported = gpus_meant(device.product), device.memory_bytes
        # nothing is reported of unified memory; else a driver reports at most 5 % more than a process sees
        alike = [
            each
            for each in meant
            if (not reported or each.memory_low_bytes <= reported <= each.memory_high_bytes * 1.05 + 512 * MIB)
        ]
        names = _names(alike or meant) or (device.product,)
        # what no row of the catalogue explains: another board under a known name, memory that checks itself, a new board
        is_other = bool(reported) and not alike
        seen = seen_mib(reported // MIB) * MIB if is_other else None
        yield GpuChoice(
            text=f"auto, {device.product}",
            names=names[:1] if is_other else names,
            count=count,
            is_machine=True,
            memory_bytes=seen,
        )

"""GPUs that an engine may run on, where its manifest names none or several: verdicts on each, folded into words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Accelerator, Verdict
from kvgate.budget.units import format_gib
from kvgate.findings.finding import any_one
from kvgate.findings.located import Located, Place, located
from kvgate.judge.on_accelerators import AcceleratorVerdict, MemoryNeeded
from kvgate.manifests.judging.gpus import Chosen
from kvgate.manifests.pods.engine_found import FoundEngine, GpuPart
from kvgate.rules.manifests import ACCELERATOR_DECIDES, SEVERAL_ACCELERATORS
from kvgate.text.patterns import pattern

_ROCM_IMAGE = pattern(r"(?:^|[-_/:.])rocm")
_VENDORS: Mapping[str, str] = {
    "nvidia.com/": "nvidia",
    "volcano.sh/": "nvidia",
    "aliyun.com/": "nvidia",
    "amd.com/": "amd",
}
"""Beginning of the name of a resource → the vendor of the GPUs."""
_DESKTOP = ("GeForce", "Radeon", "Jetson", "Laptop", "NVIDIA RTX ", "GB10", "Arc ")
_SERVER = "Server Edition"
"""Words in the names of products for desks and devices, and of those among them for servers."""
_FORM_FACTORS = ("-SXM-", "-PCIe-", "-NVL-")
_MAX_NAMES = 4
"""Accelerators that one part of the sentence names."""
_WORDS: Mapping[Verdict, str] = {
    Verdict.FITS: "starts on",
    Verdict.MAY_NOT_FIT: "may start on",
    Verdict.UNKNOWN: "is not judged on",
    Verdict.DOES_NOT_FIT: "does not start on",
}
_REASONS: Mapping[str, str] = {
    "DtypeRefused": "bfloat16",
    "WeightFormatRefused": "weight format",
    "KVCacheDtypeRefused": "kv_cache_dtype",
    "BlockSizeRefused": "block_size",
    "CacheKernelMissing": "no kernel for its cache",
    "UtilizationTooHigh": "gpu_memory_utilization",
    "KVCacheMemoryAboveGpu": "kv_cache_memory_bytes",
    "SlicesCannotBeJoined": "slices cannot be joined",
}
"""Id of a rule → its words in brackets, where the reason is not the memory."""


def vendor_of(engine: FoundEngine) -> tuple[str, bool]:
    """Return (vendor of the GPUs, whether the manifest says so): by the resource, else by the image, else NVIDIA."""
    for hint in engine.hints:
        for beginning, vendor in _VENDORS.items():
            if hint.name == "resource" and hint.value.startswith(beginning):
                return vendor, True
    if any(_ROCM_IMAGE.search(image.text) for image in (engine.version, engine.image)):
        return "amd", True
    return "nvidia", engine.num_gpus.is_set


def possible_gpus(vendor: str, part: GpuPart | None) -> tuple[Accelerator, ...]:
    """Return the whole boards of a vendor, with the memory that CUDA shows the container."""
    return _seen(_boards(vendor), part)


def named_gpus(names: Iterable[str | None], part: GpuPart | None) -> tuple[Accelerator, ...]:
    """Return the GPUs of the catalogue with these names, with the memory that CUDA shows the container."""
    known = (catalogue.find_accelerator(name) for name in names if name)
    return _seen(tuple(each for each in known if each), part)


def _seen(gpus: tuple[Accelerator, ...], part: GpuPart | None) -> tuple[Accelerator, ...]:
    if part is None or not part.is_all_it_sees:
        return gpus
    sizes = [part.of(each.memory_bytes) for each in gpus]
    return tuple(
        replace(each, memory_bytes=size, memory_low_bytes=size, memory_high_bytes=size)
        for each, size in zip(gpus, sizes, strict=True)
    )


@lru_cache(maxsize=8)
def _boards(vendor: str) -> tuple[Accelerator, ...]:
    return tuple(each for each in catalogue.accelerators() if each.vendor == vendor and not each.is_slice)


@lru_cache(maxsize=8)
def largest_board(vendor: str) -> str:
    """Return the name of the board for servers with the most memory."""
    return max(filter(is_for_servers, _boards(vendor)), key=lambda each: each.memory_bytes).name


def smallest_that_starts(verdicts: Sequence[AcceleratorVerdict]) -> str | None:
    """Return the GPU with the least memory on which it starts, for servers if one is; else one on which it may; else nothing."""
    known = [(each, accelerator) for each in verdicts if (accelerator := catalogue.find_accelerator(each.name))]
    for verdict in (Verdict.FITS, Verdict.MAY_NOT_FIT):
        alike = [accelerator for each, accelerator in known if each.verdict is verdict]
        if alike:
            return min(alike, key=lambda each: (not is_for_servers(each), each.memory_bytes)).name
    return None


def is_for_servers(accelerator: Accelerator) -> bool:
    """Return whether a board is made for servers, as those of clouds are."""
    return _SERVER in accelerator.product or not any(word in accelerator.product for word in _DESKTOP)


def which_start(
    engine: FoundEngine, verdicts: Sequence[AcceleratorVerdict], needed: MemoryNeeded | None
) -> Iterator[Located]:
    """Say on which GPUs it starts, where the verdicts differ."""
    if len({each.verdict for each in verdicts}) < 2:
        return
    needs = f"; {needed_text(needed)}" if needed else ""
    message = f"no GPU is named where kvgate looks: it {folded(verdicts)}{needs}"
    select = ("select nodes by nvidia.com/gpu.product",) if engine.is_in_a_pod else ()
    remedy = any_one(*select, "give --accelerator", "state the GPUs of its node pool in .kvgate.yaml")
    yield located(ACCELERATOR_DECIDES, Place(name="accelerator", path=engine.path), message, remedy)


def which_of_several(engine: FoundEngine, chosen: Chosen, verdicts: Sequence[AcceleratorVerdict]) -> Iterator[Located]:
    """Say on which of several named GPUs it starts, unless the verdict is the same on all for a reason that is not the GPU."""
    kinds = {(each.verdict, each.reason) for each in verdicts}
    is_about_gpus = len(kinds) > 1 or any(each.lacking_bytes for each in verdicts)
    if not is_about_gpus and not chosen.may_be_unnamed:
        return
    names = _names([each.name for each in verdicts])
    more = ", or on a node whose labels name none" if chosen.may_be_unnamed else ""
    verb = "is to" if chosen.must_start_on_all else "may"
    message = f"it {verb} run on any of {names}{more}: it {folded(verdicts, is_whole=False)}"
    at = Place(name="accelerator", path=chosen.path or engine.path)
    yield located(SEVERAL_ACCELERATORS, at, message, any_one("select one", "size for the least"))


# ── folding ───────────────────────────────────────────────────────────────────────────────────────────────────────


def folded(verdicts: Sequence[AcceleratorVerdict], *, is_whole: bool = True, verb: str = "starts") -> str:
    """Return `starts on L4-24GB and larger; not on A10G-24GB (lacks 1.20 GiB) and smaller`.

    `is_whole`: the verdicts are those on the whole catalogue, not on a list of names. Boards for desks are then named only where no
    board for servers starts; several boards of one name and memory are one.
    """
    if not is_whole:
        return _listed(verdicts)
    rows = _rows(verdicts)
    fits, may = ([each for each in rows if each.verdict is verdict] for verdict in (Verdict.FITS, Verdict.MAY_NOT_FIT))
    starts, exceptions = _starts(rows)
    below = rows[: rows.index(fits[0])] if fits else rows
    told_may = [each for each in may if each in exceptions or each in below]
    refused = [each for each in exceptions if each not in may]
    lower = [each for each in below if each not in may]
    parts = [
        f"{verb} on {starts}" if fits else "",
        f"may {verb.removesuffix('s')} on {_names([each.name for each in told_may])}" if told_may else "",
        f"not on {_refused(refused, lower)}" if refused or lower else "",
    ]
    return "; ".join(filter(None, parts))


def sentence(verdict: AcceleratorVerdict, *, verb: str = "start") -> str:
    """Return the verdict on one GPU in words: `it does not start on T4-16GB (lacks 5.46 GiB)`."""
    reason = _reason(verdict)
    return f"it {_WORDS[verdict.verdict].replace('start', verb)} {verdict.name}" + (f" ({reason})" if reason else "")


def _listed(verdicts: Sequence[AcceleratorVerdict]) -> str:
    """Return the same words for a list of names, each of which is told."""
    texts = []
    for verdict, words in _WORDS.items():
        alike = [each for each in verdicts if each.verdict is verdict]
        if alike:
            texts.append(f"{words} {_names(list(_with_reasons(alike)))}")
    return "; ".join(texts)


def _rows(verdicts: Sequence[AcceleratorVerdict]) -> list[AcceleratorVerdict]:
    """Return the verdicts that words are made of, by memory, with one name for boards that differ in form alone."""
    known = [(each, catalogue.find_accelerator(each.name)) for each in verdicts]
    by_memory = sorted(known, key=lambda pair: (pair[1].memory_bytes if pair[1] else 0, pair[0].name))
    shown = [each for each, accelerator in by_memory if accelerator is None or is_for_servers(accelerator)]
    if not any(each.verdict in (Verdict.FITS, Verdict.MAY_NOT_FIT) for each in shown):
        shown = [each for each, _ in by_memory]
    forms: dict[str, list[AcceleratorVerdict]] = {}
    for each in shown:
        forms.setdefault(_without_form(each.name), []).append(each)
    rows = []
    for name, alike in forms.items():
        is_one = len(alike) > 1 and len({(each.verdict, _reason(each)) for each in alike}) == 1
        rows += [replace(alike[0], name=name)] if is_one else alike
    return rows


def _without_form(name: str) -> str:
    for form in _FORM_FACTORS:
        name = name.replace(form, "-")
    return name


def _starts(rows: Sequence[AcceleratorVerdict]) -> tuple[str, list[AcceleratorVerdict]]:
    """Return (names of those that start, larger ones that do not although they are among `and larger`)."""
    fits = [index for index, each in enumerate(rows) if each.verdict is Verdict.FITS]
    if not fits:
        return "", []
    tail = len(rows)
    while tail and rows[tail - 1].verdict is Verdict.FITS:
        tail -= 1
    heads = [rows[index].name for index in fits if index < tail]
    exceptions = [each for each in rows[fits[0] :] if each.verdict is not Verdict.FITS]
    last = [f"{rows[tail].name} and larger" if tail < len(rows) - 1 else rows[tail].name] if tail < len(rows) else []
    if len(heads) <= min(len(exceptions), _MAX_NAMES - 1) or not last:
        return _names([*heads, *last]), []
    return f"{rows[fits[0]].name} and larger", exceptions


def _refused(exceptions: Sequence[AcceleratorVerdict], below: Sequence[AcceleratorVerdict]) -> str:
    """Return the names with their reasons; of more than two smaller ones the largest stands for all."""
    cut = len(below) > 2
    nearest = [below[-1]] if cut else list(reversed(below))
    texts = list(_with_reasons([*exceptions, *nearest]))
    return _names(texts) + (" and smaller" if cut else "")


def _with_reasons(verdicts: Sequence[AcceleratorVerdict]) -> Iterator[str]:
    for reason, group in groupby(verdicts, key=_reason):
        names = [each.name for each in group]
        yield f"{_names(names)} ({reason})" if reason else _names(names)


def _reason(verdict: AcceleratorVerdict) -> str:
    """Return the reason in a few words: `lacks 1.20 GiB`, `bfloat16`."""
    if verdict.lacking_bytes is not None:
        return f"lacks {format_gib(verdict.lacking_bytes)}"
    return _REASONS.get(verdict.reason, verdict.reason)


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def needed_text(needed: MemoryNeeded) -> str:
    """Return `one GPU must have about 19.60 GiB: 15.27 GiB of weights, 1.13 GiB for one request of max_model_len`."""
    parts = [f"{format_gib(needed.weights_bytes)} of weights"]
    if needed.request_bytes:
        parts.append(f"{format_gib(needed.request_bytes)} for one request of max_model_len")
    if needed.demand_bytes > needed.request_bytes:
        parts.append(f"{format_gib(needed.demand_bytes)} for what is guaranteed")
    whole = f"about {format_gib(needed.memory_bytes)}: " if needed.memory_bytes is not None else ""
    return f"one GPU must have {whole}{', '.join(parts)}"

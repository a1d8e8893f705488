"""Verdicts on the GPUs that an engine may run on, folded into words: which it starts on, which not, and what one GPU must have."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Verdict
from kvgate.budget.ground.units import format_gib
from kvgate.judgement.assessment import AcceleratorVerdict, MemoryNeeded
from kvgate.statement.engine import is_for_servers
from kvgate.text.patterns import pattern

_FORM_FACTOR = pattern("-(?:SXM|PCIe|NVL)-")
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


def folded(verdicts: Sequence[AcceleratorVerdict], *, is_whole: bool = True, verb: str = "starts") -> str:
    """Return `starts on L4-24GB and larger; not on A10G-24GB (lacks 1.20 GiB) and smaller`.

    `is_whole`: the verdicts are those on the whole catalogue, not on a list of names. Boards for desks are then named only where no
    board for servers starts; several boards of one name and memory are one.
    """
    if not is_whole:
        return _listed(verdicts, verb)
    return "; ".join(filter(None, _parts(_rows(verdicts), verb)))


def starting(verdicts: Sequence[AcceleratorVerdict], *, is_whole: bool = True) -> str:
    """Return the GPUs on which it starts, or may, without the smaller ones: `L4-24GB and larger; may start on A10G-24GB`."""
    if not is_whole:
        started = [each for each in verdicts if each.verdict in (Verdict.FITS, Verdict.MAY_NOT_FIT)]
        words = _listed([replace(each, reason="", lacking_bytes=None) for each in started])
    else:
        words = "; ".join(filter(None, _parts(_rows(verdicts), "starts")[:2]))
    return words.removeprefix("starts on ") or "no GPU"


def _parts(rows: Sequence[AcceleratorVerdict], verb: str) -> tuple[str, str, str]:
    """Return the words about the GPUs that it starts on, those that it may start on, and those that it does not."""
    fits, may = ([each for each in rows if each.verdict is verdict] for verdict in (Verdict.FITS, Verdict.MAY_NOT_FIT))
    starts, exceptions = _starts(rows)
    below = rows[: rows.index(fits[0])] if fits else rows
    told_may = [each for each in may if each in exceptions or each in below]
    refused = [each for each in exceptions if each not in may]
    lower = [each for each in below if each not in may]
    # of more than two smaller ones the largest stands for all
    nearest = lower[-1:] if len(lower) > 2 else lower[::-1]
    not_on = names_text(list(_with_reasons([*refused, *nearest]))) + (" and smaller" if len(lower) > 2 else "")
    return (
        f"{verb} on {starts}" if fits else "",
        f"may {verb.removesuffix('s')} on {names_text([each.name for each in told_may])}" if told_may else "",
        f"not on {not_on}" if refused or lower else "",
    )


def sentence(verdict: AcceleratorVerdict, *, verb: str = "start") -> str:
    """Return the verdict on one GPU in words: `it does not start on T4-16GB (lacks 5.46 GiB)`."""
    reason = _reason(verdict)
    return f"it {_WORDS[verdict.verdict].replace('start', verb)} {verdict.name}" + (f" ({reason})" if reason else "")


def _listed(verdicts: Sequence[AcceleratorVerdict], verb: str = "starts") -> str:
    """Return the same words for a list of names, each of which is told."""
    stem = verb.removesuffix("s")
    alike = (
        (words.replace("start", stem), [each for each in verdicts if each.verdict is verdict])
        for verdict, words in _WORDS.items()
    )
    return "; ".join(f"{words} {names_text(list(_with_reasons(found)))}" for words, found in alike if found)


def _rows(verdicts: Sequence[AcceleratorVerdict]) -> list[AcceleratorVerdict]:
    """Return the verdicts that words are made of, by memory, with one name for boards that differ in form alone."""
    known = [(each, catalogue.find_accelerator(each.name)) for each in verdicts]
    by_memory = sorted(known, key=lambda pair: (pair[1].memory_bytes if pair[1] else 0, pair[0].name))
    shown = [each for each, accelerator in by_memory if accelerator is None or is_for_servers(accelerator)]
    if not any(each.verdict in (Verdict.FITS, Verdict.MAY_NOT_FIT) for each in shown):
        shown = [each for each, _ in by_memory]
    forms: dict[str, list[AcceleratorVerdict]] = {}
    for each in shown:
        forms.setdefault(_FORM_FACTOR.sub("-", each.name), []).append(each)
    rows = []
    for name, alike in forms.items():
        is_one = len(alike) > 1 and len({(each.verdict, _reason(each)) for each in alike}) == 1
        rows += [replace(alike[0], name=name)] if is_one else alike
    return rows


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
        return names_text([*heads, *last]), []
    return f"{rows[fits[0]].name} and larger", exceptions


def _with_reasons(verdicts: Sequence[AcceleratorVerdict]) -> Iterator[str]:
    for reason, group in groupby(verdicts, key=_reason):
        names = [each.name for each in group]
        yield f"{names_text(names)} ({reason})" if reason else names_text(names)


def _reason(verdict: AcceleratorVerdict) -> str:
    """Return the reason in a few words: `lacks 1.20 GiB`, `bfloat16`."""
    if verdict.lacking_bytes is not None:
        return f"lacks {format_gib(verdict.lacking_bytes)}"
    return _REASONS.get(verdict.reason, verdict.reason)


def names_text(names: Sequence[str]) -> str:
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

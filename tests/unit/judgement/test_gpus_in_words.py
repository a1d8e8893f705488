"""Verdicts on many GPUs, folded into a sentence that a person reads at once."""

import pytest

from kvgate import catalogue
from kvgate.budget import Verdict
from kvgate.judgement.assessment import AcceleratorVerdict, MemoryNeeded
from kvgate.judgement.gpus_in_words import folded, needed_text, sentence
from kvgate.judgement.on_accelerators import smallest_that_starts
from kvgate.statement.engine import is_for_servers
from support.tables import table

FITS, MAY, NOT, UNKNOWN = Verdict.FITS, Verdict.MAY_NOT_FIT, Verdict.DOES_NOT_FIT, Verdict.UNKNOWN
GIB = 1 << 30
NVIDIA = [each for each in catalogue.accelerators() if each.vendor == "nvidia" and not each.is_slice]


def on(name: str, verdict: Verdict, why: str | float = "") -> AcceleratorVerdict:
    if isinstance(why, float):
        return AcceleratorVerdict(name=name, verdict=verdict, reason="KVCacheTooSmall", lacking_bytes=int(why * GIB))
    return AcceleratorVerdict(name=name, verdict=verdict, reason=why)


def all_from(gib: int, *exceptions: AcceleratorVerdict) -> list[AcceleratorVerdict]:
    """Verdicts on all of NVIDIA's boards: those with so much memory fit, but for the exceptions."""
    others = {each.name: each for each in exceptions}
    plain = (
        on(each.name, FITS) if each.memory_bytes >= gib * GIB else on(each.name, NOT, gib - each.memory_bytes / GIB)
        for each in NVIDIA
    )
    return [others.get(each.name, each) for each in plain]


@table(
    ("verdicts", "words"),
    [
        ([on("L4-24GB", FITS), on("L40S-48GB", FITS)], "starts on L4-24GB and larger"),
        ([on("L4-24GB", FITS)], "starts on L4-24GB"),
        (
            [on("T4-16GB", NOT, "DtypeRefused"), on("A10G-24GB", NOT, 1.2), on("L40S-48GB", FITS), on("H200-NVL-141GB", FITS)],
            "starts on L40S-48GB and larger; not on A10G-24GB (lacks 1.20 GiB), T4-16GB (bfloat16)",
        ),
        (
            [on("T4-16GB", NOT, "DtypeRefused"), on("V100-SXM-32GB", NOT, "DtypeRefused"), on("L4-24GB", FITS), on("A40-48GB", FITS)],
            "starts on L4-24GB, A40-48GB; not on T4-16GB (bfloat16)",
        ),
        (
            [on("H100-SXM-80GB", NOT, "CacheKernelMissing"), on("L4-24GB", FITS), on("A40-48GB", FITS), on("H200-SXM-141GB", FITS),
             on("B200-SXM-180GB", FITS)],
            "starts on L4-24GB and larger; not on H100-SXM-80GB (no kernel for its cache)",
        ),
        ([on("L4-24GB", MAY, "KVCacheTooSmall"), on("A40-48GB", FITS)], "starts on A40-48GB; may start on L4-24GB"),
        ([on("L4-24GB", MAY, "KVCacheTooSmall"), on("T4-16GB", NOT, 2.0)], "may start on L4-24GB; not on T4-16GB (lacks 2.00 GiB)"),
        ([on("RTX-4090-24GB", FITS), on("T4-16GB", NOT, 2.0)], "starts on RTX-4090-24GB; not on T4-16GB (lacks 2.00 GiB)"),
        (all_from(0), "starts on T4-16GB and larger"),
        (all_from(60), "starts on H100-80GB and larger; not on Quadro-RTX-8000-48GB (lacks 12.75 GiB) and smaller"),
        (all_from(400), "not on GB300-288GB (lacks 123.50 GiB) and smaller"),
    ],
)  # fmt: skip
def test_verdicts_are_folded_by_memory(verdicts: list[AcceleratorVerdict], words: str) -> None:
    assert folded(verdicts) == words


def test_boards_of_one_name_that_differ_keep_their_names() -> None:
    verdicts = [on("H100-PCIe-80GB", NOT, 0.5), on("H100-SXM-80GB", FITS), on("H200-SXM-141GB", FITS)]
    assert folded(verdicts) == "starts on H100-SXM-80GB and larger; not on H100-PCIe-80GB (lacks 0.50 GiB)"


def test_every_fold_of_a_whole_catalogue_is_short() -> None:
    cards = [each.name for each in NVIDIA if each.memory_bytes > 40 * GIB]
    for gib in (0, 10, 20, 30, 60, 100, 200, 300):
        for name in cards:
            assert len(folded(all_from(gib, on(name, NOT, "WeightFormatRefused")))) < 160


def test_a_list_of_names_is_told_name_by_name() -> None:
    verdicts = [on("L4-24GB", NOT, 1.2), on("A10G-24GB", NOT, 1.2), on("L40S-48GB", FITS), on("X", UNKNOWN)]
    words = "starts on L40S-48GB; is not judged on X; does not start on L4-24GB, A10G-24GB (lacks 1.20 GiB)"
    assert folded(verdicts, is_whole=False) == words


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (on("L4-24GB", FITS), "it starts on L4-24GB"),
        (on("L4-24GB", MAY, "KVCacheTooSmall"), "it may start on L4-24GB (KVCacheTooSmall)"),
        (on("T4-16GB", NOT, 5.46), "it does not start on T4-16GB (lacks 5.46 GiB)"),
        (on("T4-16GB", UNKNOWN), "it is not judged on T4-16GB"),
    ],
)
def test_one_verdict_is_a_sentence(verdict: AcceleratorVerdict, words: str) -> None:
    assert sentence(verdict) == words
    assert sentence(verdict, verb="fit") == words.replace("start", "fit")


@table(
    ("rule", "words"),
    [
        ("DtypeRefused", "bfloat16"),
        ("WeightFormatRefused", "weight format"),
        ("KVCacheDtypeRefused", "kv_cache_dtype"),
        ("BlockSizeRefused", "block_size"),
        ("CacheKernelMissing", "no kernel for its cache"),
        ("UtilizationTooHigh", "gpu_memory_utilization"),
        ("KVCacheMemoryAboveGpu", "kv_cache_memory_bytes"),
        ("SlicesCannotBeJoined", "slices cannot be joined"),
        ("Other", "Other"),
    ],
)
def test_a_rule_is_told_in_a_few_words(rule: str, words: str) -> None:
    assert sentence(on("T4-16GB", NOT, rule)) == f"it does not start on T4-16GB ({words})"


def test_the_smallest_for_servers_stands_for_those_that_start() -> None:
    verdicts = [on("RTX-4090-24GB", FITS), on("H100-SXM-80GB", FITS), on("A40-48GB", FITS), on("L4-24GB", MAY)]
    assert smallest_that_starts(verdicts) == "A40-48GB"
    assert smallest_that_starts(verdicts[:1]) == "RTX-4090-24GB"
    assert smallest_that_starts(verdicts[-1:]) == "L4-24GB"
    assert smallest_that_starts([on("L4-24GB", NOT)]) is None


@table(
    ("name", "is_server"),
    [
        ("L4-24GB", True), ("H100-NVL-94GB", True), ("RTX-PRO-6000-Server-96GB", True), ("MI300X-192GB", True),
        ("RTX-PRO-6000-Workstation-96GB", False), ("RTX-4090-24GB", False), ("Jetson-AGX-Orin-64GB", False), ("GB10-128GB", False),
        ("RX-7900-XTX-24GB", False), ("R9700-32GB", False), ("RTX-A6000-48GB", False),
    ],
)  # fmt: skip
def test_boards_for_servers_are_told_apart(name: str, *, is_server: bool) -> None:
    accelerator = catalogue.find_accelerator(name)
    assert accelerator is not None
    assert is_for_servers(accelerator) is is_server


def test_what_one_gpu_must_have_is_told_in_gib() -> None:
    needed = MemoryNeeded(weights_bytes=15 * GIB, request_bytes=GIB, demand_bytes=GIB, memory_bytes=20 * GIB)
    assert needed_text(needed) == (
        "one GPU must have about 20.00 GiB: 15.00 GiB of weights, 1.00 GiB for one request of max_model_len"
    )
    more = MemoryNeeded(weights_bytes=15 * GIB, request_bytes=GIB, demand_bytes=4 * GIB, memory_bytes=None)
    assert needed_text(more).endswith(
        "15.00 GiB of weights, 1.00 GiB for one request of max_model_len, 4.00 GiB for what is guaranteed"
    )

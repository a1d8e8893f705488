"""Names that people give a GPU → the accelerators that they may mean: one, several of one family, or a reason why there is none."""

from functools import lru_cache

from kvgate.budget import Accelerator
from kvgate.catalogue.lookup import accelerators_meant, find_accelerator, named_accelerators, words_of
from kvgate.text.patterns import pattern

_FAMILIES = ("", "rtx", "rx", "gtx")
"""Words that a name may leave out: `4090`, `7900 XTX`."""
_VARIANTS = frozenset({"ti", "super", "d", "laptop", "mobile", "xt", "xtx", "gre", "sff", "v2"})
"""Words that make another board of a name: an RTX 4070 is none of the `4070 Ti`."""
_SAME_PRODUCT = pattern(r"(NVIDIA (?:GeForce|RTX A\d).*|AMD Radeon RX .*) \d+GB")
"""Boards of two sizes for which the driver has one name; the catalogue adds the size."""
_NOT_RUN = (
    (pattern(r"p100|gp100|quadrop\d{3,4}"), "compute capability 6.0 or 6.1"),
    (pattern(r"(?:tesla)?p(?:4|6|40)|(?:gtx)?10[5-8]0(?:ti)?|titanx[p]?"), "compute capability 6.1"),
    (pattern(r"(?:tesla)?m(?:4|6|10|40|60)|(?:gtx)?9[5-8]0(?:ti)?"), "compute capability 5.2"),
    (pattern(r"(?:tesla)?k(?:10|20x?|40[cm]?|80)"), "compute capability 3.7 or less"),
)
"""Names of NVIDIA's boards before Volta → what they have."""
_NOT_BUILT = (
    (pattern(r"rx6\d00(?:xt|xtx|s)?|w6\d00|prow6\d00"), "gfx103x (RDNA2)"),
    (pattern(r"rx5\d00(?:xt)?|w5\d00"), "gfx101x (RDNA)"),
    (pattern(r"mi25|mi8|mi6|rxvega\d*|vega(?:56|64)|radeonvii|rx[45]\d0x?"), "gfx906 or older (GCN)"),
)
"""Names of AMD's boards for which vLLM's ROCm build has no kernels → their architecture."""


@lru_cache(maxsize=256)
def gpus_meant(name: str) -> tuple[Accelerator, ...]:
    """Return the accelerators that a name may mean, those that are seldom met among them; nothing for an unknown name.

    A short name or an alias means one. The driver's name of boards in two sizes means both, and so does a name that leaves words out.
    """
    written, own, reported = "".join(words_of(name)), *_by_letters()
    for family in _FAMILIES:
        if found := own.get(f"{family}{written}"):
            return (found,)
        if several := reported.get(f"{family}{written}"):
            return several
    words = set(words_of(name))
    meant = [found for each in accelerators_meant(name, every=True) if (found := find_accelerator(each))]
    plain = [each for each in meant if not (_VARIANTS - words) & set(words_of(each.name))]
    if meant or not written[-1:].isdigit():
        return tuple(plain or meant)
    # the name may go on with letters alone: MI300 is an MI300X or an MI300A
    longer = (each for name, each in own.items() if name.startswith(written) and name[len(written) :].isalpha())
    return tuple(dict.fromkeys(longer))


@lru_cache(maxsize=1)
def _by_letters() -> tuple[dict[str, Accelerator], dict[str, tuple[Accelerator, ...]]]:
    """Return accelerators by the letters of their own names, and by those of the names that drivers report."""
    own, reported = dict[str, Accelerator](), dict[str, tuple[Accelerator, ...]]()
    for accelerator, (short, product, *others) in named_accelerators():
        aliases = [name for name in others if name not in accelerator.gpu_labels]
        own |= {"".join(words_of(name)): accelerator for name in (short, *aliases)}
        sized = _SAME_PRODUCT.fullmatch(product)
        for name in {product, *accelerator.gpu_labels, *([sized[1]] if sized else [])}:
            letters = "".join(words_of(name))
            reported[letters] = (*reported.get(letters, ()), accelerator)
    return own, {letters: tuple(dict.fromkeys(found)) for letters, found in reported.items()}


def why_not_run(name: str) -> str:
    """Return why vLLM does not run on a GPU of this name; empty where that is not known."""
    written = "".join(words_of(name))
    for expression, capability in _NOT_RUN:
        if expression.fullmatch(written):
            return f"vLLM needs compute capability 7.0 (Volta) or newer, and {name} has {capability}"
    for expression, architecture in _NOT_BUILT:
        if expression.fullmatch(written):
            return f"vLLM's ROCm build has no kernels for {architecture}, which {name} is"
    return ""

"""Sources that state different values of one fact about a model: config.json, a checkpoint's index and headers, a lock file, the catalogue.

Every pair goes through `compare`. The tolerance of a fact is what honest sources differ by, and stands beside it with its reason.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache

from msgspec import Struct

from kvgate.budget.engine.request import BudgetRequest
from kvgate.budget.ground.units import format_gib
from kvgate.budget.model.origin import Contradiction
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.model.weights import checkpoint_ratio, described_bytes


class Tolerance(Struct, frozen=True):
    """Bounds of (value of one source ÷ value of the other) within which the two agree."""

    low: Fraction
    high: Fraction


EXACTLY = Tolerance(Fraction(1), Fraction(1))
SAME_WEIGHTS = Tolerance(Fraction(3, 5), Fraction(3))
"""Bytes of one checkpoint by two sources. An index may count a bfloat16 model in float32 (2), and a tied head once more (2.9 for the
smallest models). Of 302 published numbers of parameters in the catalogue the formulas are off by 0.7 to 1.02, because of towers and
tied heads. A checkpoint of 8 bits whose config states no quantisation has 0.6 or less, and vLLM would load it into twice the bytes."""
ANY_FORMAT = Tolerance(Fraction(1, 16), Fraction(3))
"""The same where the format of the weights has no formula, so that plain elements of 16 bits are counted: a weight has at least a bit."""
ANY_COUNT = Tolerance(Fraction(1, 8), Fraction(8))
"""`total_size` of an index ÷ bytes of the headers. Tools write the bytes before a conversion (float32 → 4 bits), or count elements."""
BITS_OF_A_WEIGHT = Tolerance(Fraction(1), Fraction(64))
"""Bits of one weight with its scales: ggml's smallest type has 1.56, float64 has 64."""


def size_text(size_bytes: int) -> str:
    """Return a size for people, in bytes where GiB would hide it."""
    return format_gib(size_bytes) if size_bytes >= 1 << 24 else f"{size_bytes:,} byte{'s' * (size_bytes != 1)}"


def counted(noun: str) -> Callable[[int], str]:
    """Return the wording of a count: `1 layer`, `80 layers`."""
    return lambda count: f"{count:,} {noun}{'s' * (count != 1)}"


def compare(
    fact: str,
    used: tuple[str, int],
    other: tuple[str, int],
    *,
    within: Tolerance = EXACTLY,
    text: Callable[[int], str] = size_text,
    other_text: Callable[[int], str] | None = None,
) -> Iterator[Contradiction]:
    """Yield the contradiction between two sources, each as (its name, its value); 0 is a value that a source does not state.

    `used` is the one that the verdict follows; `text` words its value, and the other one too unless `other_text` does.
    """
    (source, value), (other_source, other_value) = used, other
    if value and other_value and not within.low <= Fraction(value, other_value) <= within.high:
        stated = (other_text or text)(other_value)
        yield Contradiction(fact=fact, used=text(value), source=source, other=stated, other_source=other_source)


def between(
    used: ModelShape, other: ModelShape, *, sources: tuple[str, str], length: bool
) -> tuple[Contradiction, ...]:
    """Return what two descriptions of one model contradict each other in. `length`: both state the publisher's longest context."""
    first, second = zip(sources, (used, other), strict=True)

    def both(read: Callable[[ModelShape], int]) -> tuple[tuple[str, int], tuple[str, int]]:
        return (first[0], read(first[1])), (second[0], read(second[1]))

    found = [
        *compare("layers", *both(lambda shape: len(shape.layers)), text=counted("layer")),
        *compare("hidden_size", *both(lambda shape: shape.hidden_size), text=lambda size: f"hidden_size {size}"),
        *compare(
            "weights",
            *both(lambda shape: int(described_bytes(shape) * checkpoint_ratio(shape))),
            within=SAME_WEIGHTS,
            text=lambda size: f"{size_text(size)} of weights",
        ),
    ]
    if length:
        found += compare("max_model_len", *both(lambda shape: shape.max_model_len), text=counted("token"))
    return (*found, *_caches(used, other, sources))


def _caches(used: ModelShape, other: ModelShape, sources: tuple[str, str]) -> Iterator[Contradiction]:
    """Yield the first difference between the caches of layers with the same number."""
    pairs = zip(used.layers, other.layers, strict=False)
    index, one, two = next(
        ((index, a.mixers, b.mixers) for index, (a, b) in enumerate(pairs) if a.mixers != b.mixers), (0, (), ())
    )
    for mixer, known in zip(one, two, strict=False):
        if type(mixer) is not type(known):
            texts = [mixer.kind, known.kind]
        else:
            names = [name for name in mixer.__struct_fields__ if getattr(mixer, name) != getattr(known, name)]
            texts = [", ".join(f"{name} {getattr(each, name)}" for name in names) for each in (mixer, known)]
        if mixer != known:
            where = f" in layer {index}"
            yield Contradiction(
                fact="caches", used=texts[0] + where, source=sources[0], other=texts[1] + where, other_source=sources[1]
            )
            return
    if len(one) != len(two):
        yield from compare("caches", (sources[0], len(one)), (sources[1], len(two)), text=counted("cache"))


@lru_cache(maxsize=512)
def contradictions_of(shape: ModelShape) -> tuple[Contradiction, ...]:
    """Return everything that the sources of a model contradict each other in, its config and its checkpoint among them."""
    formats = [matrix.format for layer, _ in shape.distinct_layers for matrix in layer.matrices if matrix.format]
    has_formula = not shape.unmodelled and all(each.has_formula for each in formats)
    described = described_bytes(shape) if shape.checkpoint_bytes else 0
    found = [
        *shape.contradictions,
        *compare(
            "weights",
            (shape.checkpoint_source, shape.checkpoint_bytes),
            ("config.json", described),
            within=SAME_WEIGHTS if has_formula else ANY_FORMAT,
            text=lambda size: f"{size_text(size)} of weights",
        ),
    ]
    for each in dict.fromkeys(formats):
        if each.stored_elements > 1:
            found += compare(
                "weights",
                (shape.checkpoint_source, each.stored_bytes * 8 or 1),
                ("config.json", each.stored_elements),
                within=BITS_OF_A_WEIGHT,
                text=lambda bits: f"{size_text(bits // 8)} for a module",
                other_text=lambda elements: f"{elements:,} elements in it",
            )
    return tuple(found)


def contradictions_in(request: BudgetRequest) -> tuple[Contradiction, ...]:
    """Return the contradictions about the model of a question, and about the model that drafts; bytes that the user gives decide alone."""
    drafts = contradictions_of(request.draft.shape) if request.draft else ()
    found = (*contradictions_of(request.shape), *drafts)
    return found if request.weights_bytes is None else tuple(each for each in found if each.fact != "weights")

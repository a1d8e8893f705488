"""The sources of a model's facts: where they come from, what is assumed of them, and what two sources state differently."""

from fractions import Fraction
from typing import Literal

from msgspec import Struct


class Assumption(Struct, frozen=True, kw_only=True):
    """The model's facts are those of a sibling by name; nothing is refused on them."""

    words: str
    """The clause after "assumed from"."""
    weights_low: Fraction = Fraction(1)
    """Share of the weights by formula that the checkpoint has at least."""
    weights_high: Fraction = Fraction(1)
    """Share that it has at most: the name does not state the groups, nor the modules that stay plain."""


class Contradiction(Struct, frozen=True, kw_only=True):
    """One fact about a model that two sources state differently."""

    fact: str
    """`layers`, `hidden_size`, `weights`, `max_model_len`, `caches`."""
    used: str
    """Value that the verdict follows, in words with its unit: `1 layer`."""
    source: str
    """Words for its source: `kvgate-models.json:14`."""
    other: str
    other_source: str

    @property
    def words(self) -> str:
        return f"{self.source} states {self.used}, and {self.other_source} {self.other}"

    @property
    def difference(self) -> str:
        """`1 layer, not 80 layers`."""
        return f"{self.used}, not {self.other}"


class ModelOrigin(Struct, frozen=True, kw_only=True):
    kind: Literal["catalogue", "lock file", "fetched", "given", "assumed"]
    place: str = ""
    """File and line, ConfigMap and key, or the commit of a hub; empty for the catalogue."""
    digest: str = ""
    """Hexadecimal digits that differ where the content of the source does."""
    differences: tuple[Contradiction, ...] = ()
    """Facts in which the catalogue differs, where it has the model too."""

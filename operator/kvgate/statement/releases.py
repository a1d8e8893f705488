"""The releases of vLLM that an engine may be, and how sure that is."""

from msgspec import Struct

from kvgate.budget import is_newer_than_known, parse_patch
from kvgate.vllm.images import Strength
from kvgate.vllm.options import releases_read

OLDEST_GUESS = "0.8.5"
"""Oldest release that is guessed: without a stated one nobody means an engine before V1, unless only older releases have an option."""


class Releases(Struct, frozen=True, kw_only=True):
    """The oldest and the newest release that it may be; both are equal where it is known."""

    low: str
    high: str
    assumed: str = ""
    """Words for people about the assumption; empty where the manifest states the release."""
    why: str = ""
    """Reason of the assumption."""
    is_stated: bool = False
    """True where the manifest or the configuration states it."""
    is_ahead: bool = False
    """The engine is built after the newest release that is known."""
    strength: Strength = Strength.STRONG
    """How surely it is one of these."""

    @property
    def is_one(self) -> bool:
        return self.low == self.high

    def may_be(self, release: str) -> bool:
        """Return whether it may be a release beside the oldest and the newest: where the evidence is weak, any that people use."""
        if release in (self.low, self.high):
            return False
        low, high = (OLDEST_GUESS, newest_understood()) if self.strength is Strength.WEAK else (self.low, self.high)
        return parse_patch(low) <= parse_patch(release) <= parse_patch(high)


def newest_understood() -> str:
    """The newest release that was read and whose accounting the budget knows."""
    return next(release for release in reversed(releases_read()) if not is_newer_than_known(release))

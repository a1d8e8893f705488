"""Exit codes, the same for every command."""

from enum import IntEnum


class Exit(IntEnum):
    """What a pipeline needs to know."""

    FITS = 0
    FINDINGS = 1
    UNDECIDED = 2

    @property
    def meaning(self) -> str:
        """For the reference."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.FITS: "everything is admitted; warnings do not change this",
    Exit.FINDINGS: "at least one object would be refused",
    Exit.UNDECIDED: "something could not be decided (unknown model, unreadable file, nothing to judge), or the command was misused",
}

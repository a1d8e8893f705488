"""Exit codes, the same for every command."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes for pipelines."""

    FITS = 0
    FINDINGS = 1
    UNDECIDED = 2

    @property
    def meaning(self) -> str:
        """Meaning of the code, for the reference."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.FITS: "what could be judged starts, or is admitted; warnings do not change this unless --fail-on says so",
    Exit.FINDINGS: "at least one object would be refused, one engine does not start, or a document beside them cannot be read",
    Exit.UNDECIDED: "nothing could be decided (unknown model, unreadable file, nothing to judge), or the command was misused",
}

"""The answer of a fetch that found no checkpoint: the reason, the sentence, and what to do."""

from enum import StrEnum

from msgspec import Struct


class Reason(StrEnum):
    """Reason for which a checkpoint could not be fetched; the value is the reason of a Kubernetes condition."""

    INVALID_NAME = "InvalidName"
    """The name or the revision is one that no hub has; nothing was requested."""
    GATED = "Gated"
    """The publisher lets in only accounts that it accepted."""
    NOT_FOUND = "NotFound"
    """The hub has no such repository, or shows it to its owners only."""
    REVISION_NOT_FOUND = "RevisionNotFound"
    FILE_NOT_FOUND = "FileNotFound"
    """The repository has neither config.json nor another file that describes a model."""
    UNREACHABLE = "HubUnreachable"
    """The hub did not answer, or answered with an error of its own."""
    OFFLINE = "Offline"
    """HF_HUB_OFFLINE forbids requests, and the cache does not have the checkpoint."""
    RATE_LIMITED = "RateLimited"
    TOO_LARGE = "TooLarge"
    """The files that would have to be read pass the limits of a fetch."""
    BROKEN = "Broken"
    """The answer is not what it must be: truncated, of another type, or it leads elsewhere."""
    TIME_OVER = "TimeOver"
    NOT_INSTALLED = "NotInstalled"
    """huggingface_hub is not installed."""


class NotFetched(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reason why a checkpoint that somebody asked for is not known."""

    name: str
    revision: str = ""
    reason: Reason
    message: str
    """One sentence without a full stop; it names the model and the place."""
    remedies: tuple[str, ...] = ()
    """Actions of which any one helps."""

    @property
    def is_temporary(self) -> bool:
        """True where the same request may succeed later."""
        return self.reason in (Reason.UNREACHABLE, Reason.RATE_LIMITED, Reason.TIME_OVER)

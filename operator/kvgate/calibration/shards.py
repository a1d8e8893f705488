"""The places of observed starts in a cluster: sixteen ConfigMaps by namespace, beside the one of older releases, which is only read.

Each shard states the digest of the old text that it has taken over. So nothing is lost while the old ConfigMap is there, and a start that
somebody removes from a shard stays removed, until somebody edits the old ConfigMap again.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import asdict

from kvgate.budget import ObservedStart, StartKey
from kvgate.calibration.records import EVERYTHING, MAX_REVISION, Records, read_records

SHARDS = 16
MAX_TICKS = 1 << 42
"""Milliseconds since 1970, in the year 2109. A clock beyond is wrong, and so is a number in a status."""
SALTS = 1 << 10
"""Numbers of one millisecond; each process takes one of them, so that two controllers never give the same."""


def shard_of(namespace: str) -> int:
    """Return the shard of a namespace; starts without a namespace share the one of the empty name."""
    return sha256(namespace.encode()).digest()[0] % SHARDS


def shard_name(name: str, number: int) -> str:
    """Return the name of a shard's ConfigMap, such as kvgate-calibration-3."""
    return f"{name}-{number}"


def next_revision(highest: int, clock_seconds: float, salt: int) -> int:
    """Return a number that no start had: above the highest that was ever seen, whatever the clock says."""
    ticks = min(max(int(clock_seconds * 1000), 0), MAX_TICKS)
    return min(max(ticks, highest // SALTS + 1) * SALTS + salt, MAX_REVISION)


def setting_id(key: StartKey) -> str:
    """Return ten characters that name a setting to people."""
    return sha256(repr(sorted(asdict(key).items())).encode()).hexdigest()[:10]


def is_frozen(start: ObservedStart, frozen: Iterable[str]) -> bool:
    """True where somebody decided that nothing new is learnt here: of everything, of the namespace, or of the setting in it."""
    names = (EVERYTHING, start.namespace, f"{start.namespace}/{setting_id(start.key)}")
    return any(name in frozen for name in names)


class Store(Struct, frozen=True, kw_only=True):
    """The texts of all places, read."""

    old: Records = Records()
    digest: str = ""
    """Digest of the old text; empty where there is none."""
    shards: Mapping[int, Records] = {}

    def with_old(self, text: str) -> "Store":
        digest = sha256(text.encode(errors="surrogatepass")).hexdigest()[:16] if text.strip() else ""
        return Store(old=read_records(text), digest=digest, shards=self.shards)

    def with_shard(self, number: int, records: Records) -> "Store":
        return Store(old=self.old, digest=self.digest, shards={**self.shards, number: records})

    def starts_of(self, number: int) -> tuple[ObservedStart, ...]:
        """Return the starts of a shard with those of the old text that it has not taken over; the oldest first."""
        own = self.shards.get(number, Records())
        if not self.digest or own.taken_over == self.digest:
            return own.starts
        known = set(map(_identity, own.starts))
        old = (start for start in self.old.starts if shard_of(start.namespace) == number)
        return _ordered((*own.starts, *(start for start in old if _identity(start) not in known)))

    @property
    def starts(self) -> tuple[ObservedStart, ...]:
        return _ordered(start for number in range(SHARDS) for start in self.starts_of(number))

    @property
    def frozen(self) -> frozenset[str]:
        return frozenset(name for records in (self.old, *self.shards.values()) for name in records.frozen)

    @property
    def highest(self) -> int:
        return max(self.old.highest, *(records.highest for records in self.shards.values()), 0)


def _ordered(starts: Iterable[ObservedStart]) -> tuple[ObservedStart, ...]:
    return tuple(sorted(starts, key=lambda start: start.revision))


def _identity(start: ObservedStart) -> tuple[object, ...]:
    figures = (
        start.key,
        start.max_num_seqs,
        start.requested_bytes,
        start.available_kv_cache_bytes,
        start.compile_cache,
    )
    return (*figures, start.namespace, start.owner, start.pod, start.image, start.source)

"""The observed starts that are kept: the choice among them, and their places in a cluster.

A new start is weighed against those that are known, and only a pinned one is kept for ever. The places are sixteen ConfigMaps by
namespace, beside the one of older releases, which is only read. Each shard states the digest of the old text that it has taken over. So
nothing is lost while the old ConfigMap is there, and a start that somebody removes from a shard stays removed, until somebody edits the
old ConfigMap again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import asdict, replace

from kvgate.budget import (
    HEALING_STARTS,
    MIN_WITNESSES,
    Calibration,
    ObservedStart,
    Origin,
    StartKey,
    StartState,
    disagree,
    num_witnesses,
    outdated,
)
from kvgate.calibration.records import EVERYTHING, MAX_REVISION, MAX_STARTS, Records, read_records, write_records

SHARDS = 16
MAX_TICKS = 1 << 42
"""Milliseconds since 1970, in the year 2109. A clock beyond is wrong, and so is a number in a status."""
SALTS = 1 << 10
"""Numbers of one millisecond; each process takes one of them, so that two controllers never give the same."""
MAX_STARTS_OF_A_SETTING = 8
MAX_TEXT_BYTES = 900 << 10
"""Size of the text in a ConfigMap, which holds 1 MiB."""


def with_start(
    starts: tuple[ObservedStart, ...], start: ObservedStart, *, revision: int = 0
) -> tuple[ObservedStart, ...]:
    """Return the starts with a new one, under this revision or the next; the same object where the new one adds nothing.

    The same figure of a second witness adds something: two are believed where one is not. Starts of one setting, and of pods of one
    namespace or of none, are compared. What is impossible is not kept, and what somebody dropped is not learnt again.
    """
    if not start.is_possible:
        return starts
    setting = (start.key, start.origin, start.namespace)
    alike = [known for known in starts if (known.key, known.origin, known.namespace) == setting]
    if any(known.is_dropped and not disagree((known, start)) for known in alike):
        return starts
    live = [known for known in alike if not known.is_dropped]
    newest = max((known.revision for known in starts), default=0)
    start = replace(start, revision=max(revision, newest + 1))
    if not _adds_something(live, start):
        return starts
    loose = [known for known in live if not known.is_pinned]
    dropped = None
    if len(live) >= MAX_STARTS_OF_A_SETTING:
        gone = outdated(live) | {known.revision for known in live if known.is_expired}
        of_witness = Counter(known.witness for known in live)  # nobody pushes out another witness
        dropped = min(
            loose,
            key=lambda known: (known.revision not in gone, -of_witness[known.witness], known.revision),
            default=start,
        )
    elif len(starts) >= MAX_STARTS:
        dropped = _least_missed(starts, start)
    if dropped is start:
        return starts  # everything that could make room is pinned
    kept = tuple(known for known in starts if known is not dropped)
    return (*kept, start)


def _adds_something(live: list[ObservedStart], start: ObservedStart) -> bool:
    """True for a figure that nobody reported, that one more witness or a third pod confirms, or that newer starts had replaced."""
    replaced = outdated(live) | {known.revision for known in live if known.is_expired}
    peers = [known for known in live if known.revision not in replaced and known.environment == start.environment]
    same = [
        known
        for known in peers
        if known.max_num_seqs == start.max_num_seqs
        and abs(known.overhead_bytes - start.overhead_bytes) <= start.resolution_bytes
    ]
    if any((known.witness, known.pod) == (start.witness, start.pod) for known in same):
        return False
    if len(same) >= HEALING_STARTS and num_witnesses((*same, start)) == num_witnesses(same):
        return False
    is_witnessed = start.origin is Origin.STATED or num_witnesses(peers) >= MIN_WITNESSES
    if len(live) < MAX_STARTS_OF_A_SETTING or replaced or not is_witnessed:
        return True
    # otherwise it would only push out a start that a verdict depends on
    return Calibration(starts=(*peers, start)).state(start) is StartState.CONTRADICTORY


def _least_missed(starts: tuple[ObservedStart, ...], start: ObservedStart) -> ObservedStart:
    """Return the start that makes room: the oldest of the namespace that would have the most. Records of dropped starts go last."""
    counts = Counter(known.namespace for known in (*starts, start))
    loose = (known for known in starts if not known.is_pinned)
    return max(
        loose,
        key=lambda known: (not known.is_dropped, counts[known.namespace], -known.revision),
        default=start,
    )


def fitting(starts: tuple[ObservedStart, ...], *, frozen: Iterable[str], highest: int, taken_over: str = "") -> str:
    """Return the text of the starts, of which some make room where their names are so long that the ConfigMap could not hold them."""
    while True:
        text = write_records(starts, frozen=frozen, highest=highest, taken_over=taken_over)
        if len(text.encode()) <= MAX_TEXT_BYTES or not starts:
            return text
        for _ in range(max(1, len(starts) // 50)):
            least = _least_missed(starts, starts[-1])
            starts = tuple(start for start in starts if start is not least)


def shard_of(namespace: str) -> int:
    """Return the shard of a namespace; starts without a namespace share the one of the empty name."""
    return sha256(namespace.encode()).digest()[0] % SHARDS


def shard_name(name: str, number: int) -> str:
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

    def with_text(self, number: int | None, text: str) -> "Store":
        """Read the text of a shard, or that of older releases where there is no number."""
        records = read_records(text)
        if number is not None:
            return replace(self, shards={**self.shards, number: records})
        digest = sha256(text.encode(errors="surrogatepass")).hexdigest()[:16] if text.strip() else ""
        return replace(self, old=records, digest=digest)

    def text_of(self, number: int, starts: tuple[ObservedStart, ...], frozen: Iterable[str]) -> str:
        """Return the text of a shard with these starts, which takes over those of the old text where every line of that can be read."""
        known = self.shards.get(number, Records())
        taken_over = self.digest if self.digest and not self.old.problems else known.taken_over
        highest = max(known.highest, *(start.revision for start in starts), 0)
        return fitting(starts, frozen=frozen, highest=highest, taken_over=taken_over)

    @property
    def problems(self) -> tuple[tuple[int | None, str], ...]:
        """The lines that cannot be read, each with the number of its shard; None for the old text."""
        places = ((None, self.old), *self.shards.items())
        return tuple((number, problem) for number, records in places for problem in records.problems)

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

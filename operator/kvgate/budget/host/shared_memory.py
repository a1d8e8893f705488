"""Memory that the processes of a pod share in /dev/shm: queues of messages, NCCL's segments, and the size of the largest segment."""

from kvgate.budget.ground.interval import Interval, Term
from kvgate.budget.ground.units import MIB
from kvgate.budget.host.processes import HostQuestion, Processes
from kvgate.budget.releases.host import HostAccounting

_QUEUE_LENGTH = 10
"""Messages of a queue (`MessageQueue`, max_chunks)."""
_ARENA_BYTES = 8 * 256 * MIB
"""Segment of `--enable-shm-tensor-arena` (0.32, `ShmTensorArena`)."""
_LINKED_RANK_BYTES = Interval(low=0, expected=64 * MIB, high=512 * MIB)
"""Pages of queues and of NCCL's segments that a rank writes in /dev/shm: NCCL makes segments of 7 to 10 MB (nccl#1518), by rule."""


def messages_term(accounting: HostAccounting, found: Processes) -> Term:
    """Return what ranks write of their queues and of NCCL's segments; a queue takes its pages when it is first written."""
    queues = found.engines * _queue_bytes(accounting.message_bytes, found.ranks // found.engines)
    replies = found.ranks * _queue_bytes(accounting.reply_bytes, 1)
    amount = Interval.exactly(0)
    if found.ranks > found.engines:
        most = _LINKED_RANK_BYTES.times(found.ranks)
        amount = Interval(
            low=0, expected=most.expected, high=most.high + (queues + replies if found.uses_queues else 0)
        )
    return Term(
        name="messages",
        amount=amount,
        formula="ranks × pages that are written of the queues and of NCCL's segments",
        source="vLLM 0.33, ShmRingBuffer; NCCL's by rule",
        inputs=(("ranks", found.ranks), ("queues_bytes", queues), ("replies_bytes", replies)),
    )


def segment_term(question: HostQuestion, accounting: HostAccounting, found: Processes, region: Term | None) -> Term:
    """Return the size of the largest segment: of those whose size is compared with the free space, and of those that are filled at once."""
    reply = _queue_bytes(accounting.reply_bytes, 1) if found.uses_queues else 0
    message = _queue_bytes(accounting.message_bytes, found.ranks // found.engines) if found.uses_queues else 0
    arena = _ARENA_BYTES if question.settings.shm_tensor_arena and found.uses_queues else 0
    checked = max(reply, message, arena) if accounting.checks_shared_memory else 0
    # the size of messages is a variable, and ranks of several pods reply through smaller queues
    certain = max(reply, arena) if accounting.checks_shared_memory and found.is_certain else 0
    filled = region.amount if region else Interval.exactly(0)
    high = max(checked, filled.high)
    what = "replies" if reply and checked == reply else "messages"
    what = "tensor arena" if arena and checked == arena else what
    if filled.expected > checked:
        what = "KV offload"
    return Term(
        name="segment",
        amount=Interval(low=max(certain, filled.low), expected=max(checked, filled.expected), high=high),
        formula="max(queues of 10 messages + flags, tensor arena, offloaded blocks)",
        source="vLLM 0.33, ShmRingBuffer, check_shm_free_space, SharedOffloadRegion",
        inputs=(("segment", what if high else "none"), ("replies_bytes", reply), ("messages_bytes", message)),
    )


def _queue_bytes(message_bytes: int, readers: int) -> int:
    """Return the bytes of a queue: ten messages, each with a flag and one for every reader (`ShmRingBuffer.__init__`)."""
    return _QUEUE_LENGTH * (message_bytes + 1 + readers)

"""Rules about the memory of the host: what the processes of a pod take, and what vLLM makes in /dev/shm."""

from collections.abc import Iterable, Iterator

from kvgate.budget import Budget
from kvgate.budget.answers.figures import host_label
from kvgate.budget.answers.pod_ledger import pod_ledger
from kvgate.budget.ground.units import GIB, MIB, cdiv, format_gib
from kvgate.budget.host.memory import HostLedger
from kvgate.budget.host.settings import UNKNOWN_POD, PodMemory
from kvgate.findings.finding import Action, Finding, Rule, Scope, Severity, any_one, at_least, change, do, words
from kvgate.findings.finding import Change as Kind

OVERSUBSCRIBED = Rule(
    id="Oversubscribed",
    severities=(Severity.INFO, Severity.WARNING),
    scope=Scope.MEMORY,
    title="An engine of another platform starts, and its KV cache does not hold max_num_seqs whole requests, or the declared workload.",
    explanation=(
        "Requests are preempted under load. It is a warning where a comment or a mapping declares a workload, and the GPU is named: "
        "max_num_seqs is a limit of the scheduler, and promises no load."
    ),
)
HOST_MEMORY_TOO_SMALL = Rule(
    id="HostMemoryTooSmall",
    severities=(Severity.ERROR, Severity.WARNING),
    scope=Scope.MEMORY,
    title="The processes of a pod take more memory of the host than its container may have, or than the node has.",
    explanation=(
        "The kernel kills the container, at the start or under load. It is a warning where the processes are expected to take more, and "
        "less is possible."
    ),
)
SHARED_MEMORY_TOO_SMALL = Rule(
    id="SharedMemoryTooSmall",
    severities=(Severity.ERROR, Severity.WARNING),
    scope=Scope.MEMORY,
    title="The container's /dev/shm is smaller than what vLLM and NCCL put into it.",
    explanation=(
        "From 0.27 on vLLM does not start if a segment is larger than the free space. It is a warning where the size is not certain, and "
        "for older releases, whose segments grow as they are used."
    ),
)

HOST_RULES = frozenset({HOST_MEMORY_TOO_SMALL, SHARED_MEMORY_TOO_SMALL})
"""Errors of these rules are about bytes of the host: no setting of the GPU helps."""
_SETTINGS = {
    "kv_offload": ("kv_offloading_size", "kv_transfer_config"),
    "offloaded_weights": ("cpu_offload_gb",),
    "swap_space": ("swap_space",),
    "mm_cache": ("mm_processor_cache_gb",),
    "sleep": ("enable_sleep_mode",),
    "loading": ("safetensors_load_strategy",),
}
"""Settings by which a term becomes smaller; the first one that is set."""


def host_memory_suffices(budget: Budget) -> Iterable[Finding]:
    accelerator, pod = budget.request.accelerator, budget.request.pod
    is_shared_with_gpu = accelerator.unified_memory and accelerator.vendor == "nvidia"
    if pod == UNKNOWN_POD and not is_shared_with_gpu:
        return
    ledger = pod_ledger(budget)
    if pod != UNKNOWN_POD:
        yield from judge_pod(ledger, pod)
    if is_shared_with_gpu:
        yield from _unified_memory(budget, ledger)


def judge_pod(ledger: HostLedger, pod: PodMemory) -> Iterator[Finding]:
    """Compare the ledger of a pod with the memory that it has. What is not known refuses nothing."""
    bounds = [(pod.limit_bytes, pod.added_bytes, "host_memory_limit_bytes"), (pod.node_bytes, 0, "node_memory_bytes")]
    for stated, added, field in bounds:
        if stated is not None and ledger.needs.expected > stated + added:
            yield _too_much(ledger, stated, added, field)
            break
    if pod.shm_bytes is not None and pod.shm_bytes < ledger.shared_needs.expected:
        yield _too_small(ledger, pod, pod.shm_bytes)


def _too_much(ledger: HostLedger, stated: int, added: int, field: str) -> Finding:
    needs, is_certain = ledger.needs, ledger.needs.low > stated + added
    advised = f"{cdiv(needs.expected - added, GIB)}Gi"
    message = words(
        "the processes of a pod {verb} {amount} of host memory ({parts}), and {field} {has}{plus}",
        verb="take at least" if is_certain else "are expected to take",
        amount=format_gib(needs.low if is_certain else needs.expected),
        parts=_parts(ledger, is_certain=is_certain),
        field=words(f"{{{field}}}"),
        has=f"allows {format_gib(stated)}" if field == "host_memory_limit_bytes" else f"is {format_gib(stated)}",
        plus=f" and {format_gib(added)} for /dev/shm" if added else "",
    )
    more = at_least(field, advised) if field == "host_memory_limit_bytes" else do("use a node with more memory")
    severity = Severity.ERROR if is_certain else Severity.WARNING
    return HOST_MEMORY_TOO_SMALL.finding(field, message, any_one(more, *_less(ledger)), severity=severity)


def _parts(ledger: HostLedger, *, is_certain: bool) -> str:
    """Return the three largest lines with their bytes."""
    amounts = [(line, line.amount.low if is_certain else line.amount.expected) for line in ledger.lines]
    largest = sorted((each for each in amounts if each[1] >= 8 * MIB), key=lambda each: -each[1])
    return ", ".join(f"{host_label(line.name)} {format_gib(amount)}" for line, amount in largest[:3])


def _less(ledger: HostLedger) -> Iterator[Action]:
    """Yield the way to make the largest line smaller, where a setting does."""
    line = next((line for line in ledger.largest if line.name in _SETTINGS), None)
    processes = next(line for line in ledger.lines if line.name == "processes")
    if line is not None and line.amount.expected > processes.amount.expected // 4:
        by_size, by_connector = _SETTINGS[line.name][0], _SETTINGS[line.name][-1]
        is_by_size = line.name != "kv_offload" or dict(line.inputs).get("is_by_size") != "no"
        yield change(Kind.LOWER, by_size if is_by_size else by_connector)


def _too_small(ledger: HostLedger, pod: PodMemory, has: int) -> Finding:
    segment, needs = ledger.segment.amount, ledger.shared_needs
    is_certain = segment.low > has and pod.is_shm_certain
    largest = dict(ledger.segment.inputs)["segment"]
    engines = ledger.processes.engines if largest == "KV offload" else 1  # each engine has a file of its own
    count = "a segment" if engines == 1 else f"{engines} segments"
    if segment.expected > has:
        message = words(
            "the container's /dev/shm has {has}, and vLLM makes {segment} in it ({what}); {effect}",
            has=_room(has),
            segment=f"{count} of {_size(max(segment.low, segment.expected) // engines)}",
            what=_SEGMENTS[str(largest)],
            effect="it does not start" if is_certain else "it may not start",
        )
    else:
        message = words(
            "{ranks} ranks talk through /dev/shm, which has {has}: {needed} are expected to be written there",
            ranks=ledger.processes.ranks,
            has=_room(has),
            needed=_size(needs.expected),
        )
    severity = Severity.ERROR if is_certain else Severity.WARNING
    advised = at_least("shm_bytes", f"{cdiv(needs.expected, GIB)}Gi")
    return SHARED_MEMORY_TOO_SMALL.finding("shm_bytes", message, any_one(advised), severity=severity)


_SEGMENTS = {
    "replies": "the queue of a rank's replies",
    "messages": "the queue of messages to the ranks",
    "tensor arena": "large inputs",
    "KV offload": "offloaded KV cache",
    "none": "",
}


def _room(amount: int) -> str:
    """Return a size that something has, rounded down, so that it never reads like one that is enough."""
    return f"{amount // MIB} MiB" if MIB <= amount < GIB else _size(amount) if amount >= GIB else f"{amount} bytes"


def _size(amount: int) -> str:
    return format_gib(amount) if amount >= GIB else f"{cdiv(amount, MIB)} MiB"


def _unified_memory(budget: Budget, host: HostLedger) -> Iterator[Finding]:
    """CPU and GPU share one memory: what vLLM requests for the GPU and what its processes take must fit into it together."""
    accelerator, stage = budget.request.accelerator, budget.tightest
    if stage is None or stage.ledger is None:
        return
    total = accelerator.memory_bytes
    of_gpu = stage.ledger.requested_bytes - stage.ledger.uncertainty_bytes
    least, expected = of_gpu + host.needs.low, stage.ledger.requested_bytes + host.needs.expected
    if expected <= total:
        return
    is_certain = least > accelerator.memory_high_bytes
    message = words(
        "{requested} for the GPU ({gpu_memory_utilization}) and {needs} for the processes ({parts}) share the {total} of this machine",
        requested=format_gib(stage.ledger.requested_bytes),
        needs=format_gib(host.needs.low if is_certain else host.needs.expected),
        parts=_parts(host, is_certain=is_certain),
        total=format_gib(total),
    )
    share = max(0, total - host.needs.expected) / total
    remedy = any_one(change(Kind.AT_MOST, "gpu_memory_utilization", f"{share:.2f}"), *_less(host))
    severity = Severity.ERROR if is_certain else Severity.WARNING
    yield HOST_MEMORY_TOO_SMALL.finding("gpu_memory_utilization", message, remedy, severity=severity)

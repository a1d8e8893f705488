"""Rules about engines that share a GPU: their memory together, and the order in which they start."""

from collections.abc import Iterable, Sequence
from functools import partial

from kvgate.budget import Accelerator, Budget, Verdict
from kvgate.budget.answers.sharing import Sharer, Sharing, equal_part, share_gpu, sharer_of, utilizations
from kvgate.budget.ground.units import format_gib
from kvgate.findings.finding import (
    Action,
    Change,
    Finding,
    Remedy,
    Rule,
    Scope,
    Severity,
    Words,
    any_one,
    at_most,
    change,
    do,
    remedy_of,
    words,
)

_rule = partial(Rule, scope=Scope.MEMORY)

_LATER_RELEASE = "use vLLM 0.9.1 or later, where the share is each engine's own"
_MOST_NAMES = 8
"""Engines that one sentence names."""
SHARED_GPU_OVERBOOKED = _rule(
    id="SharedGpuOverbooked",
    severities=(Severity.ERROR, Severity.WARNING),
    title="The engines that share a GPU claim more memory than it has.",
    explanation=(
        "Whatever the order, one of them does not start. It is a warning where they may start, and then run out of memory under load, "
        "and where it depends on engines that are not known here."
    ),
)


def shares_leave_room(budget: Budget) -> Iterable[Finding]:
    shared_by = budget.request.shared_by
    if shared_by == 1:
        return
    sharer = sharer_of(budget, budget.request.shape.name)
    alike = share_gpu([sharer] * shared_by)
    if alike.verdict is Verdict.FITS:
        return
    remedy = _equal_parts(budget, alike)
    if sharer.counts_others:
        is_certain, remedy = False, remedy_of(_LATER_RELEASE)
        message = words(
            "{shared_by} is {count}, and vLLM {version} takes what the others hold out of its own share: the shares of engines on one GPU "
            "have to grow in the order of their starts",
            count=shared_by,
            version=budget.request.vllm_version,
        )
    elif budget.request.settings.gpu_memory_utilization is None:
        message, is_certain = _default_shares(budget, sharer), alike.verdict is Verdict.DOES_NOT_FIT
    else:
        message = _left_to_others(budget, sharer)
        wanted_bytes = sharer.before.low * shared_by + max(sharer.requested_bytes, sharer.held.low - sharer.before.low)
        is_certain = sharer.checks_free and wanted_bytes > sharer.total.high
    severity = Severity.ERROR if is_certain else Severity.WARNING
    yield SHARED_GPU_OVERBOOKED.finding("gpu_memory_utilization", message, remedy, severity=severity)


def _default_shares(budget: Budget, sharer: Sharer) -> Words:
    count = budget.request.shared_by
    return words(
        "{shared_by} is {count}, and with vLLM's default {gpu_memory_utilization} of {share} that many engines claim {claimed} of the "
        "{total} of {gpu}: {requested} each, and {low} to {high} before it",
        count=count,
        share=_share_text(budget),
        claimed=format_gib(count * (sharer.before.expected + sharer.requested_bytes)),
        total=format_gib(sharer.memory_bytes),
        gpu=budget.request.accelerator.name,
        requested=format_gib(sharer.requested_bytes),
        low=format_gib(sharer.before.low),
        high=format_gib(sharer.before.high),
    )


def _left_to_others(budget: Budget, sharer: Sharer) -> Words:
    others = budget.request.shared_by - 1
    left_bytes = sharer.total.expected - sharer.beyond_request.expected - sharer.requested_bytes
    return words(
        "{gpu_memory_utilization} {share} is more than an equal part: it leaves {left} of {gpu} to the {others} that {shared_by} {count} "
        "states",
        share=_share_text(budget),
        left=format_gib(max(0, left_bytes)),
        gpu=budget.request.accelerator.name,
        others="other engine" if others == 1 else f"{others} other engines",
        count=budget.request.shared_by,
    )


def _share_text(budget: Budget) -> str:
    return f"{float(budget.resolved.gpu_memory_utilization):g}"


def _equal_parts(budget: Budget, alike: Sharing) -> Remedy:
    before = _share_text(budget)
    fewer = change(Change.LOWER, "shared_by", before=budget.request.shared_by)
    larger = do("use a GPU with more memory")
    if found := utilizations(alike, by_need=False):
        return any_one(at_most("gpu_memory_utilization", f"{float(found[0]):g}", before=before), fewer)
    part = equal_part(budget)
    if part is None:
        return any_one(fewer, larger)
    reason = "the equal part, which does not hold the guarantee with these settings"
    lowered = change(Change.SET, "gpu_memory_utilization", f"{float(part):g}", before=before, reason=reason)
    return any_one(fewer, larger, lowered)


SHARED_ON_ONE_SIDE = _rule(
    id="SharedOnOneSide",
    severities=(Severity.WARNING,),
    title="One place says that a GPU is shared, and another one says that it is not.",
    explanation="Either memory stays idle, or neighbours take memory that is not counted.",
)
RANKS_MAY_SHARE_A_GPU = _rule(
    id="RanksMayShareAGpu",
    severities=(Severity.WARNING,),
    title="An engine with several ranks requests several replicas of shared GPUs.",
    explanation="Two replicas may be the same GPU: then NCCL refuses to start.",
)
SHARING_LABELS = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")
"""Node labels that name the way in which a GPU is shared."""
SHARING_STRATEGIES = ("time-slicing", "time-sharing", "mps")
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
SHARED_PRODUCT = "-SHARED"
"""Ending of the product label on nodes whose replicas keep the resource's name (GPU feature discovery)."""


def label_says_shared(name: str, value: str) -> bool:
    """Return whether a node label means that containers share the GPU, in turns or at once (MPS)."""
    if name == REPLICAS_LABEL:
        return value.isdecimal() and value not in ("0", "1")
    return value in SHARING_STRATEGIES if name in SHARING_LABELS else value.endswith(SHARED_PRODUCT)


def sharing_agrees(
    shared_by: int, accelerator: Accelerator, labels: Iterable[tuple[str, str]], *, num_gpus: int, by_replicas: bool
) -> Iterable[Finding]:
    """Hold the number of sharers against the node's labels, the maker of the GPU and the ranks of the engine."""
    labels = list(labels)
    shared = next((f"{name}: {value}" for name, value in labels if label_says_shared(name, value)), "")
    if shared_by == 1:
        if shared:
            message = words(
                "the nodes share their GPUs ({shared}), and {shared_by} is 1: the whole GPU is counted", shared=shared
            )
            yield SHARED_ON_ONE_SIDE.finding(
                "shared_by",
                message,
                any_one(do("state in {shared_by} how many engines share a GPU"), "select other nodes"),
            )
        return
    whole = next((f"{name}: {value}" for name, value in labels if name in SHARING_LABELS and value == "none"), "")
    if accelerator.vendor != "nvidia":
        whole = f"{accelerator.resource} stands for whole GPUs"
    if whole and (by_replicas or accelerator.vendor != "nvidia"):
        message = words(
            "{shared_by} is {count}, and the nodes do not share their GPUs ({whole})", count=shared_by, whole=whole
        )
        yield SHARED_ON_ONE_SIDE.finding(
            "shared_by", message, any_one(change(Change.SET, "shared_by", 1), "select nodes that share their GPUs")
        )
    if num_gpus > 1 and by_replicas:
        message = words(
            "the engine needs {num_gpus} GPUs and requests as many replicas of shared ones: two of them may be the same GPU",
            num_gpus=num_gpus,
        )
        remedy = any_one(change(Change.SET, "shared_by", 1), "share GPUs between engines of one GPU each")
        yield RANKS_MAY_SHARE_A_GPU.finding("tensor_parallel_size", message, remedy)


SHARED_GPU_START_ORDER = _rule(
    id="SharedGpuStartOrder",
    severities=(Severity.WARNING, Severity.INFO),
    title="Engines that share a GPU are not started one after the other, or only some orders of their starts work.",
    explanation=(
        "vLLM measures the free memory while it starts: what a neighbour takes meanwhile counts as its own, and what a neighbour frees "
        "ends the start. It is an info where the input does not say when they are started."
    ),
)


def measured_beside_others(shared_by: int, replicas: int) -> Finding:
    """Return the finding about engines that size their KV cache by a measurement while their neighbours start."""
    together = "its replicas start at the same time" if replicas > 1 else "nothing orders the starts of the others"
    message = words(
        "{shared_by} is {count} and {together}: an engine that starts beside another one counts what that one takes meanwhile as its own, "
        "so that its KV cache is smaller than predicted, or it does not start",
        count=shared_by,
        together=together,
    )
    remedy = any_one(
        do("set {capacity} to Pinned: nothing is measured then"), "create the engines one after the other is ready"
    )
    severity = Severity.WARNING if replicas > 1 else Severity.INFO
    return SHARED_GPU_START_ORDER.finding("shared_by", message, remedy, severity=severity)


# ── several engines that are known ────────────────────────────────────────────────────────────────────────────────


def overbooked(sharing: Sharing, device: str) -> Finding | None:
    """Return the finding about engines that certainly, or probably, do not fit together on `device`; None where they do."""
    if sharing.verdict is Verdict.FITS:
        return None
    is_certain = sharing.verdict is Verdict.DOES_NOT_FIT
    consequence = (
        "whatever the order, one of them does not start"
        if is_certain
        else "one may not start, or they run out of memory under load"
    )
    message = words(
        "{engines} share {device}: together they claim {claimed} of {total}, {low} to {high} of it beside what they request{counting}; "
        "{consequence}",
        counting=", and vLLM up to 0.9.0 takes what others hold out of its own share"
        if any(s.counts_others for s in sharing.sharers)
        else "",
        engines=named_together([f"{s.name} ({_claim(s)})" for s in sharing.sharers]),
        device=device,
        claimed=format_gib(sharing.claimed.expected),
        total=format_gib(sharing.total.expected),
        low=format_gib(sum(s.before.low for s in sharing.sharers)),
        high=format_gib(sum(s.before.high for s in sharing.sharers)),
        consequence=consequence,
    )
    severity = Severity.ERROR if is_certain else Severity.WARNING
    return SHARED_GPU_OVERBOOKED.finding("gpu_memory_utilization", message, _parts(sharing), severity=severity)


def _claim(sharer: Sharer) -> str:
    if sharer.measures:
        return f"{format_gib(sharer.requested_bytes)} requested"
    wants = f", {format_gib(sharer.requested_bytes)} free at its start" if sharer.checks_free else ""
    return f"{format_gib(sharer.held.expected)} held{wants}"


def _parts(sharing: Sharing) -> Remedy:
    """Utilisations that work for all: equal ones, and those in proportion to what each needs."""
    found = (utilizations(sharing, by_need=False), utilizations(sharing, by_need=True))
    texts: dict[str, Action] = {}
    for shares in found:
        if shares is not None and (len(shares) <= _MOST_NAMES or len(set(shares)) == 1):
            each = [f"{float(share):g} for {s.name}" for s, share in zip(sharing.sharers, shares, strict=True)]
            same = f"{float(shares[0]):g} for each" if len(set(shares)) == 1 else named_together(each)
            texts[same] = do("set {gpu_memory_utilization} to {shares}", shares=same)
    counting = any(sharer.counts_others for sharer in sharing.sharers)
    instead = _LATER_RELEASE if counting else "use a GPU with more memory"
    return any_one(*(texts.values() or [instead]), "give one of them a GPU of its own")


def start_order(sharing: Sharing, device: str, how: Words, *, together: bool | None) -> Finding | None:
    """Return the finding about the order of starts; `together`: they start at once, or in an order that nobody knows (None).

    `how` names the way in which this platform starts one after the other.
    """
    measuring = [sharer for sharer in sharing.sharers if sharer.measures]
    if len(sharing.sharers) < 2 or sharing.verdict is Verdict.DOES_NOT_FIT:
        return None
    if not sharing.any_order:
        message = words(
            "on {device} the starts need this order: {order}; {last} is refused otherwise, because it wants {wanted} free",
            device=device,
            order=", then ".join(sharer.name for sharer in sharing.order[:_MOST_NAMES]),
            last=sharing.order[0].name,
            wanted=format_gib(sharing.order[0].requested_bytes),
        )
        first = sharing.order[0]
        lower = do("lower {gpu_memory_utilization} of {name}: it needs no share that large", name=first.name)
        remedy = any_one(*([] if first.measures else [lower]), Action(otherwise=how))
        return SHARED_GPU_START_ORDER.finding("gpu_memory_utilization", message, remedy)
    if together is False or not measuring:
        return None
    message = words(
        "{engines} share {device} and {when}: {measuring} what the others take meanwhile as its own, or fails when they free some; one "
        "after the other, every order works",
        engines=named_together([sharer.name for sharer in sharing.sharers]),
        device=device,
        when="start at the same time" if together else "nothing here says that they start one after the other",
        measuring="each counts" if len(measuring) > 1 else f"{measuring[0].name} counts",
    )
    give = do("give each {kv_cache_memory_bytes}, which needs no measurement (0.10.2 and later)")
    severity = Severity.WARNING if together else Severity.INFO
    return SHARED_GPU_START_ORDER.finding(
        "gpu_memory_utilization", message, any_one(Action(otherwise=how), give), severity=severity
    )


def named_together(names: Sequence[str]) -> str:
    """Return `a, b and c`; of many names the first ones and the number of the others."""
    shown = [*names[:_MOST_NAMES], *([f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else [])]
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)

"""Engines of one input that share a GPU: those that see the same GPU by name, and parts of GPUs that a scheduler counts with."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget import Budget, UnknownVersion, Verdict, accounting_of
from kvgate.budget.answers.sharing import Sharer, hundredths, share_gpu, sharer_of, starts_in
from kvgate.budget.ground.units import format_gib
from kvgate.findings.finding import Finding, Located, Severity, any_one, at_most, do, words
from kvgate.manifests.judging.engine_budget import is_partly_seen, names_of
from kvgate.manifests.judging.gpus import gpus_needed
from kvgate.manifests.judging.judgement import JudgedEngine
from kvgate.manifests.pods.engine_found import COMPOSE, FoundEngine, SeenGpus
from kvgate.rules.sharing import SHARED_GPU_OVERBOOKED, named_together, overbooked, start_order
from kvgate.vllm.options import newest_read
from kvgate.vllm.parser import CommandLine, parse_arguments
from kvgate.vllm.values import UnusableValue
from kvgate.vllm.values import share as read_share

_COMPOSE_ORDER = (
    "let each service depend on the one before it with condition: service_healthy, and give that one a healthcheck"
)
_POD_ORDER = "start one as a sidecar (an init container with restartPolicy: Always and a startupProbe), which the others wait for"
_MOST_SHARERS = 64
"""Engines on one GPU that are judged; those beyond that change no verdict."""
_MOST_PROFILES = 16
"""Profiles of compose that are told apart."""


class _Seen(Struct, frozen=True, kw_only=True):
    index: int
    judged: JudgedEngine
    seen: SeenGpus
    line: CommandLine
    devices: tuple[str, ...]


def judge_together(judged: Sequence[JudgedEngine]) -> list[JudgedEngine]:
    """Return the judgements, with what follows from the engines that share a GPU."""
    answers = [_within_its_part(each) for each in judged]
    for device, group in _groups(answers):
        for index, finding in _findings_of_group(device, group):
            answer = answers[index]
            line = next(each.line for each in group if each.judged.engine is answer.engine)
            own = _at_its_share(answer, line, finding, answer.engine.path)
            if finding.severity is Severity.ERROR:  # about memory it decides the verdict too
                answer = answer.with_answers(lambda _: Verdict.DOES_NOT_FIT)
            elif finding.rule == SHARED_GPU_OVERBOOKED:
                answer = answer.with_answers(_at_most_may_fit)
            answers[index] = replace(answer, findings=(*answer.findings, own))
    return answers


def _groups(judged: Sequence[JudgedEngine]) -> Iterator[tuple[str, list[_Seen]]]:
    """Yield (name of a GPU, the engines that use it); a set of engines that share several GPUs counts once."""
    by_device: dict[tuple[str, str], list[_Seen]] = defaultdict(list)
    pools = Counter[str]()
    for each in judged:
        if seen := each.engine.seen_gpus:
            pools[seen.pool] += seen.copies
    for index, each in enumerate(judged):
        seen = each.engine.seen_gpus
        if seen is not None and seen.copies and pools[seen.pool] > 1 and (found := _seen(index, each, seen)):
            for device in found.devices:
                by_device[seen.pool, device].append(found)
    done = set[tuple[int, ...]]()
    for (_, device), group in by_device.items():
        for together in _running_together(group):
            indexes = tuple(each.index for each in together)
            if indexes not in done and sum(each.seen.copies for each in together) > 1:
                done.add(indexes)
                yield device, together


def _seen(index: int, judged: JudgedEngine, seen: SeenGpus) -> _Seen | None:
    """Return an engine with the GPUs that it takes of those that it sees; None where their number is not known, or it is not vLLM."""
    if not judged.vllm_version:
        return None
    line = parse_arguments(judged.engine.arguments, newest_read(), program=judged.engine.program)
    needed = gpus_needed(line)
    if needed is None or needed > _MOST_SHARERS:
        return None
    names = tuple(map(str, range(needed))) if seen.names is None else seen.names
    if len(names) < needed:
        return None
    return _Seen(index=index, judged=judged, seen=seen, line=line, devices=names[:needed])


def _running_together(group: Sequence[_Seen]) -> Iterator[list[_Seen]]:
    """Yield those that always run, or with each profile of compose those that run then.

    An object that several documents describe (an overlay for each cluster) is one, and its versions never meet.
    """
    first = dict[tuple[str, ...], object]()
    engines = [(each, each.judged.engine) for each in group]
    of_first = [
        each
        for each, engine in engines
        if first.setdefault((engine.platform, engine.path, each.seen.label), _document(engine)) == _document(engine)
    ]
    if len(of_first) < len(group):
        group = [replace(each, seen=replace(each.seen, may_be_apart=True)) for each in of_first]
    profiles = sorted({profile for each in group for profile in each.seen.profiles})
    for profile in profiles[:_MOST_PROFILES] or [""]:
        yield [each for each in group if not each.seen.profiles or profile in each.seen.profiles]


def _document(engine: FoundEngine) -> tuple[str, int]:
    return engine.document.file, engine.document.position.line


def _findings_of_group(device: str, group: Sequence[_Seen]) -> Iterator[tuple[int, Finding]]:
    """Yield (number of an engine, a finding): about the memory to every engine, about the order to the first."""
    budgets = [_budget_of(each) for each in group]
    known = [(each, budget) for each, budget in zip(group, budgets, strict=True) if budget is not None]
    if len(known) < len(group):
        yield from _with_unknown_ones(device, group)
        return
    sharers: list[Sharer] = []
    for each, budget in known:
        sharer, count = sharer_of(budget, each.seen.label), min(each.seen.copies, _MOST_SHARERS - len(sharers))
        several = each.seen.copies > 1
        sharers += (replace(sharer, name=f"{sharer.name} {i}" if several else sharer.name) for i in range(1, count + 1))
    sharing = share_gpu(sharers)
    place = _place(group[0], device)
    if finding := overbooked(sharing, place):
        is_sure = not any(map(_is_unsure, group))
        for each in group:
            yield each.index, finding if is_sure else finding.softened()
    told_order = _COMPOSE_ORDER if group[0].judged.engine.platform == COMPOSE else _POD_ORDER
    if group[0].seen.starts_after is None:
        told_order = "start one after the other is ready"
    together = _start_together(group)
    labels = {each.seen.label for each in group}
    in_order = sorted(group, key=lambda each: len(labels & (each.seen.starts_after or frozenset())))
    if together is False and starts_in(sharing, [each.seen.label for each in in_order]):
        return
    if order := start_order(sharing, place, words(told_order), together=together):
        yield group[0].index, order


def _budget_of(each: _Seen) -> Budget | None:
    """Return the engine's budget; None where the GPU is not known, on which all of them must start."""
    return each.judged.assessment.budget if each.judged.assessment and each.judged.judged_on is None else None


def _with_unknown_ones(device: str, group: Sequence[_Seen]) -> Iterator[tuple[int, Finding]]:
    """Yield a warning where the shares alone are more than the GPU, whatever the models are."""
    given = [(each, _share_of(each)) for each in group]
    total = sum(share * each.seen.copies for each, share in given)
    if total > 1:
        message = words(
            "{engines} share {device}, and their {gpu_memory_utilization} add up to {total}: they request more than the GPU has",
            engines=named_together([each.seen.label for each, _ in given]),
            device=_place(group[0], device),
            total=f"{float(total):g}",
        )
        remedy = do("let the shares add up to less than 1, by what each start takes before it")
        for each, _ in given:
            finding = SHARED_GPU_OVERBOOKED.finding(
                "gpu_memory_utilization", message, remedy, severity=Severity.WARNING
            )
            yield each.index, finding


def _share_of(each: _Seen) -> Fraction:
    setting = each.line.given.get("gpu_memory_utilization")
    with suppress(UnusableValue, UnknownVersion):
        return read_share(setting.text) if setting else accounting_of(each.judged.vllm_version).gpu_memory_utilization
    return Fraction(0)


def _place(each: _Seen, device: str) -> str:
    return f"GPU {device} of {each.seen.place}"


def _start_together(group: Sequence[_Seen]) -> bool | None:
    """True where two of them start at the same time, None where nobody knows, False where each waits for the others before it."""
    if len(group) > _MOST_SHARERS or any(each.seen.copies > 1 for each in group):
        return True
    after = [each.seen.starts_after for each in group]
    if any(each is None for each in after):
        return None
    waits = {each.seen.label: each.seen.starts_after or frozenset() for each in group}
    return any(one not in waits[other] and other not in waits[one] for one in waits for other in waits if one != other)


def _is_unsure(each: _Seen) -> bool:
    """Options, a release or profiles that nobody sees may decide otherwise, and an engine that sleeps leaves its memory to others."""
    engine, budget = each.judged.engine, _budget_of(each)
    sleeps = each.line.given.get("enable_sleep_mode")
    return (
        is_partly_seen(engine, each.line)
        or engine.is_overridden
        or not each.judged.is_release_known
        or bool(each.seen.profiles)
        or each.seen.may_be_apart
        or bool(sleeps and sleeps.value)
        or bool(budget and budget.is_of_doubtful_facts)
    )


def _at_most_may_fit(verdict: Verdict) -> Verdict:
    return Verdict.MAY_NOT_FIT if verdict is Verdict.FITS else verdict


# ── parts that a scheduler counts with ────────────────────────────────────────────────────────────────────────────


def _within_its_part(judged: JudgedEngine) -> JudgedEngine:
    """Hold an engine against a claim that limits nothing: vLLM takes its share of the whole GPU, which others have claims to."""
    part = judged.engine.gpu_part
    budget = judged.assessment.budget if judged.assessment else None
    if part is None or part.is_all_it_sees or budget is None or judged.judged_on is not None:
        return judged
    sharer = sharer_of(budget, judged.engine.name)
    own_bytes = part.of(sharer.memory_bytes)
    if sharer.held.expected <= own_bytes:
        return judged
    share = hundredths(own_bytes - sharer.beyond_request.high, sharer.memory_bytes)
    message = words(
        "{claim} is a claim to {part} of {gpu}, and nothing keeps vLLM to it: {gpu_memory_utilization} {share} is a share of the whole "
        "GPU, and with what goes before it {held}",
        claim=part.claim,
        part=format_gib(own_bytes),
        gpu=budget.request.accelerator.name,
        share=f"{float(budget.resolved.gpu_memory_utilization):g}",
        held=format_gib(sharer.held.expected),
    )
    lower = [at_most("gpu_memory_utilization", f"{float(share):g}")] if share else []
    finding = SHARED_GPU_OVERBOOKED.finding(
        "gpu_memory_utilization", message, any_one(*lower, "claim as much as vLLM takes"), severity=Severity.WARNING
    )
    line = parse_arguments(judged.engine.arguments, newest_read(), program=judged.engine.program)
    own = _at_its_share(judged, line, finding, part.path)
    return replace(judged.with_answers(_at_most_may_fit), findings=(*judged.findings, own))


def _at_its_share(judged: JudgedEngine, line: CommandLine, finding: Finding, otherwise: str) -> Located:
    """Place a finding at the setting that it is about, where the engine has it."""
    at, named = line.given.get(finding.field), finding.named(names_of(judged.engine, line))
    return Located(finding=named, path=at.path if at else otherwise, line=at.line if at else 0)

"""assess(spec, facts) → Assessment: the one judgement that the webhook, the controller and the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvgate.api import field_path
from kvgate.budget import (
    AUTO_MAX_MODEL_LEN,
    NOTHING_OBSERVED,
    Accelerator,
    AdjustLimits,
    Adjustment,
    Budget,
    BudgetRequest,
    Capacity,
    Guarantee,
    Knob,
    Verdict,
    adjust,
    largest_max_num_seqs,
    parse_patch,
    plan,
)
from kvgate.budget.answers.answer import spanned
from kvgate.budget.answers.pod_ledger import pod_ledger_without_model
from kvgate.budget.host.memory import HostLedger
from kvgate.budget.host.settings import UNKNOWN_POD
from kvgate.findings.finding import Finding, Naming, error_rules, named, words
from kvgate.judgement.assessment import WORST_FIRST, Assessment, Confidence, Decision, joined, refuse_apart
from kvgate.judgement.facts import Facts, look_up_accelerator, question
from kvgate.judgement.replicas import promise_findings
from kvgate.judgement.skipping import Skip
from kvgate.rules.checks import BUDGET_RULES, judge_budget
from kvgate.rules.facts import ASSESSMENT_STOPPED, NODES_CONTRADICT, SEARCH_STOPPED
from kvgate.rules.host_memory import judge_pod
from kvgate.rules.memory import GUARANTEE_NOT_MET
from kvgate.rules.pinned import CAPACITY_CONFLICT, nothing_is_pinned
from kvgate.rules.settings import REQUEST_ABOVE_MAX_MODEL_LEN
from kvgate.rules.sharing import SHARED_GPU_OVERBOOKED, measured_beside_others, sharing_agrees
from kvgate.rules.weight_formats import NAME_STATES_ANOTHER_FORMAT, QUANTIZATION_CONTRADICTS_CHECKPOINT
from kvgate.statement.deployment import guarantee_of, statement_of
from kvgate.statement.engine import EngineStatement, is_known_release
from kvgate.statement.what_if import SIZES
from kvgate.vllm.arguments import option_name
from kvgate.vllm.given_settings import engine_settings
from kvgate.vllm.settings import SPEC_SETTINGS

if TYPE_CHECKING:
    from kvgate.api.status import Effective
    from kvgate.api.v1alpha1 import Adjust, InferenceDeploymentSpec

_OF_THE_SPEC = frozenset(setting.name for setting in SPEC_SETTINGS) | {
    "config",
    "model",
    "accelerator",
    "replicas",
    "model_config",
    "shared_by",
    "capacity",
    "host_memory_limit_bytes",
    "min_max_model_len",
}


def field_name(setting: str) -> str:
    """Name a setting for the owner of an InferenceDeployment: by the path of its field, else by the option that `extraArgs` takes."""
    return field_path(setting) if setting in _OF_THE_SPEC else option_name(setting)


_TAKE_THE_TIME = "run `kvgate check` on the object: it takes the time that it needs"


def assess(
    spec: InferenceDeploymentSpec, facts: Facts, *, skip: Skip | None = None, keep: frozenset[str] = frozenset()
) -> Assessment:
    """Judge a spec against the facts, and apply its admission policy; `skip` is the break-glass annotation as it counts now, and `keep`
    names the settings that no proposal changes."""
    *_, last = assessments(spec, facts, skip=skip, keep=keep)
    return last


def undecided(spec: InferenceDeploymentSpec, facts: Facts) -> Assessment:
    """Answer Unknown, which is never a refusal, for a door whose time is over before there is a verdict."""
    message = "the assessment took longer than it may, and was stopped before there was a verdict"
    finding = ASSESSMENT_STOPPED.finding("model", message, _TAKE_THE_TIME)
    findings = (finding, *named(facts.findings, field_name))
    answer = Assessment(verdict=Verdict.UNKNOWN, guarantee=guarantee_of(spec), findings=findings)
    return _decided(answer, spec, None)


_SEARCH_STOPPED = SEARCH_STOPPED.finding(
    "model",
    "the search for settings that fit took longer than it may, and was stopped; the verdict stands",
    _TAKE_THE_TIME,
)


def assessments(
    spec: InferenceDeploymentSpec, facts: Facts, *, skip: Skip | None = None, keep: frozenset[str] = frozenset(),
    audits: bool = False,
) -> Iterator[Assessment]:  # fmt: skip
    """Yield the verdict as soon as it is known, then the same with changes that would fit. Each answer is complete by itself.

    With `audits`, what the policy refuses is admitted as Decision.WOULD_REFUSE.
    """
    decided = partial(_decided, spec=spec, skip=skip, audits=audits)
    statement = statement_of(spec)
    findings = tuple(named((*facts.findings, *statement.findings), field_name))
    if facts.accelerator is None or not facts.is_complete:
        of_pod = pod_findings(statement)
        findings += tuple(named(of_pod, field_name))
        about_options = (*statement.findings, *(each for each in facts.findings if each.rule == CAPACITY_CONFLICT))
        verdict = Verdict.DOES_NOT_FIT if error_rules((*about_options, *of_pod)) else Verdict.UNKNOWN
        yield decided(Assessment(verdict=verdict, guarantee=guarantee_of(spec), findings=findings))
        return
    findings += tuple(named(sharing_findings(spec, facts.accelerator), field_name))
    request = _with_chosen_sequences(question(statement, facts), spec)
    judged = judge(request, extra=findings, naming=field_name)
    told = (*judged.findings, *named(promise_findings(spec, judged.budget), field_name))
    judged = replace(judged, chosen=chosen_settings(spec, request.settings.max_num_seqs), findings=told)
    if not is_about_bytes(judged):
        yield decided(judged)
        return
    yield decided(replace(judged, findings=(*judged.findings, _SEARCH_STOPPED)))
    knobs = spec.admission.adjust.knobs if spec.admission.policy == "Adjust" else ()
    if spec.vllm.max_model_len == "auto":  # vLLM lowers the length itself
        knobs = tuple(knob for knob in knobs if knob is not Knob.MAX_MODEL_LEN)
    adjustment = _adjustment(request, spec.admission.adjust, knobs) if knobs else None
    from kvgate.judgement.advisor import ADMISSION, advice  # for what does not fit

    floors = spec.admission.adjust
    scope = replace(
        ADMISSION,
        keep=ADMISSION.keep | keep,
        min_max_model_len=floors.min_max_model_len,
        min_max_num_seqs=floors.min_max_num_seqs,
    )
    others = advice(request, scope, checkpoints=False)
    yield decided(replace(judged, adjustment=adjustment, alternatives=others, sought=knobs))


def effective_values(spec: InferenceDeploymentSpec, assessment: Assessment) -> Effective:
    """Return the values that the pods are rendered from: the judged ones, or the spec's own where nothing could be judged."""
    from kvgate.api.status import Effective

    budget, lowered = assessment.effective, None
    if budget is None or assessment.verdict is Verdict.UNKNOWN:
        vllm = spec.vllm
        return Effective(
            max_model_len=None if vllm.max_model_len == "auto" else vllm.max_model_len,
            max_num_seqs=vllm.max_num_seqs,
            kv_cache_dtype=vllm.kv_cache_dtype,
        )
    if assessment.adjustment is not None and budget is assessment.adjustment.budget:
        changes = {change.field: change.after for change in assessment.adjustment.changes}
        lowered = changes.get("gpu_memory_utilization")
    return Effective(
        max_model_len=budget.resolved.max_model_len,
        max_num_seqs=budget.resolved.max_num_seqs,
        kv_cache_dtype=budget.request.settings.kv_cache_dtype,
        gpu_memory_utilization=lowered,
        **pinned_option(budget),
    )


def pinned_option(budget: Budget) -> dict[str, int]:
    """Return the option that pins the size, under vLLM's name with its value; empty where nothing is pinned.

    A release without `--kv-cache-memory-bytes` (before 0.10.2) takes blocks, and so do Intel's workers, which do not read the bytes.
    """
    if budget.pin is None or not budget.pin.num_blocks:
        return {}
    if takes_cache_bytes(budget.request):
        return {SIZES[0]: budget.pin.cache_memory_bytes}
    return {SIZES[1]: budget.pin.num_blocks}


def takes_cache_bytes(request: BudgetRequest) -> bool:
    """Return True where vLLM reads `--kv-cache-memory-bytes`."""
    from kvgate.vllm.options import options

    in_release = options()["--kv-cache-memory-bytes"].is_in(parse_patch(request.vllm_version))
    return bool(in_release) and request.accelerator.vendor != "intel"


_ABOUT_WEIGHTS = BUDGET_RULES | {QUANTIZATION_CONTRADICTS_CHECKPOINT}


def judge(request: BudgetRequest, *, extra: tuple[Finding, ...] = (), naming: Naming = option_name) -> Assessment:
    """Return budget, findings and verdict without a policy, as `kvgate explain` needs them. Raise UnknownVersion.

    Facts that are assumed from a sibling by name, or that two sources state differently, refuse nothing: what the budget's rules
    find is a warning then. The verdict is computed from them all the same.
    """
    if request.alternatives:
        return _over_alternatives(request, extra=extra, naming=naming)
    budget, found = _judged(request) if request.calibration is NOTHING_OBSERVED else _judged.__wrapped__(request)
    judged = tuple(named(found, naming))
    rules, refused = {each.rule for each in judged}, error_rules((*extra, *judged))
    confidence = Confidence.ASSUMED if budget.request.shape.assumed else Confidence.KNOWN
    of_nodes = any(each.rule == NODES_CONTRADICT for each in extra)
    if budget.contradictions or NAME_STATES_ANOTHER_FORMAT in rules or of_nodes:
        confidence = Confidence.CONTRADICTORY
    doubtful = judged
    if budget.is_of_doubtful_facts:
        doubtful = tuple(each.softened() for each in judged)
    elif confidence is Confidence.CONTRADICTORY:  # the name may be right: then the weights have other bytes
        doubtful = tuple(each.softened() if each.rule in _ABOUT_WEIGHTS else each for each in judged)
    # an engine that overbooks its GPU fits beside engines that leave it enough
    is_unsure = confidence is Confidence.CONTRADICTORY or SHARED_GPU_OVERBOOKED in rules

    def with_refusals(verdict: Verdict, *, is_refused: bool) -> Verdict:
        doubted = Verdict.MAY_NOT_FIT if is_unsure and verdict is Verdict.FITS else verdict
        return Verdict.DOES_NOT_FIT if is_refused else doubted

    return Assessment(
        verdict=with_refusals(budget.verdict, is_refused=bool(refused)),
        start_verdict=with_refusals(budget.starts, is_refused=bool(refused - _ABOUT_THE_PROMISE)),
        guarantee=budget.request.guarantee,
        confidence=confidence,
        findings=(*extra, *doubtful),
        budget=budget,
    )


_ABOUT_THE_PROMISE = {GUARANTEE_NOT_MET, REQUEST_ABOVE_MAX_MODEL_LEN}
"""Rules whose errors say that a load is not held; vLLM starts all the same."""


def _over_alternatives(request: BudgetRequest, *, extra: tuple[Finding, ...], naming: Naming) -> Assessment:
    """Judge every value that may stand where kvgate does not know the given one: only what holds for all of them is certain."""
    answers = [
        judge(replace(request, settings=settings, alternatives=()), extra=extra, naming=naming)
        for settings in request.alternatives
    ]
    worst = min(answers, key=lambda answer: (WORST_FIRST.index(answer.verdict), answer.figures.num_blocks or 0))
    world = joined([answer.world for answer in answers])
    in_all = [finding for finding in worst.findings if all(finding in answer.findings for answer in answers)]
    keeps_all = refuse_apart(world.verdict, is_error_common=bool(error_rules(in_all)))
    return replace(
        worst.in_world(world),
        findings=tuple(each if keeps_all or each in in_all else each.softened() for each in worst.findings),
        budget=spanned(worst.budget, [answer.budget for answer in answers if answer.budget]) if worst.budget else None,
    )


@lru_cache(maxsize=256)
def _judged(request: BudgetRequest) -> tuple[Budget, tuple[Finding, ...]]:
    """Return the budget of a question and what the rules find in it. The same question is asked again with each resync, and by each door;
    one with observed starts is not kept, because it would keep them all."""
    budget = plan(request)
    return budget, judge_budget(budget)


def is_about_bytes(judged: Assessment) -> bool:
    """Return whether another length, GPU or number of sequences could help.

    It cannot where vLLM refuses a setting anyway, and nobody knows where the model is assumed, or its sources contradict each other.
    """
    return (
        judged.confidence is Confidence.KNOWN
        and judged.verdict in (Verdict.DOES_NOT_FIT, Verdict.MAY_NOT_FIT)
        and error_rules(judged.findings) <= BUDGET_RULES
    )


def chosen_settings(spec: InferenceDeploymentSpec, max_num_seqs: int | None) -> tuple[str, ...]:
    """Return vLLM's names of the settings that the spec leaves out and that kvgate chose for it; `max_num_seqs` is the one in use."""
    is_chosen = spec.vllm.max_num_seqs is None and max_num_seqs is not None
    return ("max_num_seqs",) if is_chosen else ()


def host_ledger_of(statement: EngineStatement, vendor: str) -> HostLedger | None:
    """Return the host's ledger of a pod as its settings alone state it, so that no prediction about a model moves a rendered pod.

    None where the release is not known.
    """
    if not is_known_release(statement.version):
        return None
    return pod_ledger_without_model(engine_settings(statement.known), statement.version, statement.pod, vendor=vendor)


def pod_findings(statement: EngineStatement) -> tuple[Finding, ...]:
    """Judge the pod where the model, the GPU or the release is not known: what its settings take is certain without them."""
    if statement.pod == UNKNOWN_POD:
        return ()
    accelerator = look_up_accelerator(str(gpu))[0] if (gpu := statement.known.get("gpu")) else None
    ledger = host_ledger_of(statement, accelerator.vendor if accelerator else "")
    return tuple(judge_pod(ledger, statement.pod)) if ledger else ()


def sharing_findings(spec: InferenceDeploymentSpec, accelerator: Accelerator) -> Iterator[Finding]:
    """Hold spec.accelerator.sharedBy against the nodes that the pod selects."""
    accelerator_spec, labels = spec.accelerator, (spec.template.node_selector or {}).items()
    is_divided = accelerator_spec.claim == "GpuMemory"
    yield from sharing_agrees(
        accelerator_spec.shared_by, accelerator, labels, num_gpus=spec.vllm.num_gpus, by_replicas=not is_divided
    )
    is_measured = spec.admission.capacity == "Profiled" and spec.vllm.kv_cache_memory_bytes is None
    if accelerator_spec.shared_by > 1 and is_measured and not is_divided:
        yield measured_beside_others(accelerator_spec.shared_by, spec.replicas)


def _with_chosen_sequences(request: BudgetRequest, spec: InferenceDeploymentSpec) -> BudgetRequest:
    """Choose maxNumSeqs where it is omitted: as many as fit the guarantee, at most vLLM's default, at least the user's floor."""
    if spec.vllm.max_num_seqs is not None:
        return request
    budget = plan(request)
    if budget.demand is None:
        return request
    at_most, admission = budget.resolved.default_max_num_seqs, spec.admission
    floor = admission.adjust.min_max_num_seqs if admission.policy == "Adjust" else 1
    if request.guarantee is Guarantee.WORKLOAD and request.workload is not None:
        floor = max(floor, min(request.workload.peak_concurrency, at_most))
    return request.with_settings(max_num_seqs=max(floor, largest_max_num_seqs(request, at_most)))


def _adjustment(request: BudgetRequest, floors: Adjust, knobs: tuple[Knob, ...]) -> Adjustment | None:
    """Return the adjustment that policy Adjust makes; None where nothing within its limits fits, or vLLM refuses what would fit."""
    limits = AdjustLimits(
        knobs=knobs, min_max_model_len=floors.min_max_model_len, min_max_num_seqs=floors.min_max_num_seqs
    )
    adjustment = adjust(request, limits)
    if adjustment and request.settings.max_model_len == AUTO_MAX_MODEL_LEN:
        length_is_open = adjustment.budget.request.with_settings(max_model_len=AUTO_MAX_MODEL_LEN)
        adjustment = replace(adjustment, budget=plan(length_is_open))
    return adjustment if adjustment and not error_rules(judge_budget(adjustment.budget)) else None


def _decided(
    judged: Assessment, spec: InferenceDeploymentSpec, skip: Skip | None, *, audits: bool = False
) -> Assessment:
    """Apply the admission policy, the break-glass annotation where it counts, and the audit mode; nothing else does.

    A verdict that is Unknown is never a refusal. A spec that is admitted although its pinned size holds less than vLLM needs to start is
    rendered without it: vLLM measures, and finds out whether the prediction was too careful.
    """
    refuses = judged.is_refusal and spec.admission.policy != "Warn"
    decision = Decision.REFUSE if refuses else Decision.ADMIT_WITH_WARNING
    findings, budget = judged.findings, judged.budget
    if judged.verdict is Verdict.FITS:
        decision = Decision.ADMIT
    elif judged.adjustment is not None:
        decision = Decision.ADMIT_ADJUSTED
    if skip is not None:
        is_needed = decision in (Decision.REFUSE, Decision.ADMIT_ADJUSTED)
        if is_needed and skip.counts and not skip.not_excused(findings):
            decision = Decision.SKIPPED if judged.is_refusal else Decision.ADMIT_WITH_WARNING
        about_skip = skip.finding(findings, is_needed=is_needed and decision is not Decision.ADMIT_WITH_WARNING)
        findings = (about_skip, *findings) if about_skip else findings
    if audits and decision is Decision.REFUSE:
        decision = Decision.WOULD_REFUSE
    is_admitted = decision in (Decision.ADMIT_WITH_WARNING, Decision.SKIPPED, Decision.WOULD_REFUSE)
    if is_admitted and budget is not None and budget.pin is not None and not budget.surely_starts:
        message = words("nothing is pinned: vLLM would not start with the size that {capacity} Pinned gives it")
        findings = (*findings, nothing_is_pinned(message).named(field_name))
        budget = plan(replace(budget.request, capacity=Capacity.PROFILED))
    skipped = skip if decision is Decision.SKIPPED else None
    return replace(judged, decision=decision, findings=findings, budget=budget, skip=skipped)

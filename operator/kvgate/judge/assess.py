"""assess(spec, facts) → Assessment: the one judgement that the webhook, the controller and the command line share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.api import field_path
from kvgate.budget import (
    NOTHING_OBSERVED,
    AdjustLimits,
    Adjustment,
    Alternative,
    Budget,
    BudgetRequest,
    CacheFigures,
    EngineSettings,
    Guarantee,
    Knob,
    UnknownVersion,
    Verdict,
    Workload,
    adjust,
    alternatives,
    largest_max_num_seqs,
    parse_release,
    plan,
)
from kvgate.budget.answer import spanned
from kvgate.budget.host_memory import HostLedger
from kvgate.budget.pod_ledger import pod_ledger_without_model
from kvgate.budget.sharing import part_of
from kvgate.judge.drafts import own_layers
from kvgate.judge.facts import Facts
from kvgate.judge.passed_through import NO_EXTRA_ARGS, ExtraArgs, PodEnvironment, read_environment, read_extra_args
from kvgate.judge.pinning import conflicts, pinned_option, unpinned_where_hopeless
from kvgate.judge.pods import pod_of, sharing_findings, told_by_rendering
from kvgate.rules import Finding, Rule, Scope, Severity
from kvgate.rules.checks import BUDGET_RULES, judge_budget
from kvgate.rules.finding import Naming, error_rules, named
from kvgate.rules.host_memory import judge_pod
from kvgate.rules.memory import GUARANTEE_NOT_MET
from kvgate.rules.settings import REQUEST_ABOVE_MAX_MODEL_LEN
from kvgate.rules.sharing import SHARED_GPU_OVERBOOKED
from kvgate.rules.weight_formats import NAME_STATES_ANOTHER_FORMAT, QUANTIZATION_CONTRADICTS_CHECKPOINT
from kvgate.vllm.arguments import option_name
from kvgate.vllm.given_settings import circumstances_of, engine_settings, stretches_length, unmodelled_kinds
from kvgate.vllm.settings import SPEC_SETTINGS
from kvgate.vllm.variables import ALLOW_LONG

if TYPE_CHECKING:
    from kvgate.api.status import Effective
    from kvgate.api.v1alpha1 import Adjust, InferenceDeploymentSpec, Vllm

_READERS = {setting.name: setting.read for setting in SPEC_SETTINGS if setting.budget}
"""Readers of the settings of spec.vllm that the budget reads."""
_OF_THE_SPEC = frozenset(setting.name for setting in SPEC_SETTINGS) | {
    "config",
    "model_config",
    "shared_by",
    "capacity",
    "host_memory_limit_bytes",
}


def field_name(setting: str) -> str:
    """Name a setting for the owner of an InferenceDeployment: by the path of its field, else by the option that `extraArgs` takes."""
    return field_path(setting) if setting in _OF_THE_SPEC else option_name(setting)


class Decision(StrEnum):
    """Decision that the admission policy makes of a verdict."""

    ADMIT = "Admit"
    ADMIT_WITH_WARNING = "AdmitWithWarning"
    ADMIT_ADJUSTED = "AdmitAdjusted"
    REFUSE = "Refuse"


NO_FIGURES = CacheFigures()


class Confidence(StrEnum):
    """Certainty of the facts about the model. Nothing is refused on facts that are assumed or contradictory."""

    KNOWN = "Known"
    ASSUMED = "Assumed"
    """They are those of another model, by the name."""
    CONTRADICTORY = "Contradictory"
    """Two sources of them disagree, or the name and the config do."""


class Answer(Struct, frozen=True, kw_only=True):
    """One of the two answers to every question: does it start, and does it hold the promise."""

    guarantee: Guarantee | None
    """None for the load of an engine that promises none."""
    verdict: Verdict | None
    requests: float | None
    """Requests that the KV cache is expected to hold at once: of the declared workload, else of max_model_len."""
    headroom_ratio: float | None
    """(capacity − demand of this answer) / capacity, both as expected; None where no capacity is expected."""


class Assessment(Struct, frozen=True, kw_only=True):
    """The whole answer. The doors translate it and decide nothing."""

    verdict: Verdict
    """Verdict on the spec as it is written, of the answer that decides."""
    guarantee: Guarantee
    """Guarantee that is judged. Startup: there is no promise beyond the start, which decides alone."""
    start_verdict: Verdict | None = None
    """Verdict on the start, where the promise decides."""
    confidence: Confidence = Confidence.KNOWN
    decision: Decision = Decision.ADMIT
    findings: tuple[Finding, ...] = ()
    budget: Budget | None = None
    """Budget of the spec as it is written; None where facts are missing."""
    adjustment: Adjustment | None = None
    alternatives: tuple[Alternative, ...] = ()
    skip_reason: str | None = None
    """Reason in the break-glass annotation, where one is given."""
    sought: tuple[Knob, ...] = ()
    """Knobs that policy Adjust was allowed to turn. If there is no adjustment, none of their settings fits."""

    @property
    def is_refusal(self) -> bool:
        """True for DoesNotFit, unless nothing but facts that are assumed or contradict each other says so."""
        is_sure = self.confidence is Confidence.KNOWN or bool(error_rules(self.findings))
        return self.verdict is Verdict.DOES_NOT_FIT and is_sure

    @property
    def decides(self) -> Literal["starts", "holds"]:
        """The answer whose verdict this is."""
        return "starts" if self.guarantee is Guarantee.STARTUP else "holds"

    @property
    def starts(self) -> Answer:
        """The answer of vLLM's own check with these settings."""
        budget = self.budget
        ratio = budget.headroom_ratio_beside(budget.demand.checked_blocks) if budget and budget.demand else None
        return Answer(
            guarantee=Guarantee.STARTUP,
            verdict=self.start_verdict or self.verdict,
            requests=budget.requests_held if budget else None,
            headroom_ratio=ratio,
        )

    @property
    def holds(self) -> Answer:
        """The answer on the load that is promised; without a promise, the requests that the KV cache holds."""
        budget, is_promised = self.budget, self.decides == "holds"
        return Answer(
            guarantee=self.guarantee if is_promised else None,
            verdict=self.verdict if is_promised else None,
            requests=budget.requests_held if budget else None,
            headroom_ratio=budget.figures.headroom_ratio if budget and is_promised else None,
        )

    @property
    def figures(self) -> CacheFigures:
        """CacheFigures of the KV cache that is rendered; none where facts are missing."""
        return self.effective.figures if self.effective else NO_FIGURES

    @property
    def effective(self) -> Budget | None:
        """Budget of the settings that are rendered."""
        return self.adjustment.budget if self.adjustment and self.decision is Decision.ADMIT_ADJUSTED else self.budget


ASSESSMENT_STOPPED = Rule(
    id="AssessmentStopped",
    severities=(Severity.WARNING,),
    scope=Scope.TIME_LIMITS,
    title="Judging took longer than one object may take, and was stopped before there was a verdict.",
    explanation="The verdict is Unknown, which never refuses an object.",
)
SEARCH_STOPPED = Rule(
    id="SearchStopped",
    severities=(Severity.WARNING,),
    scope=Scope.TIME_LIMITS,
    title="The search for settings that would fit took longer than one object may take, and was stopped.",
    explanation="The verdict on the object as it is written stands.",
)
_TAKE_THE_TIME = "run `kvgate check` on the object: it takes the time that it needs"


def assess(spec: InferenceDeploymentSpec, facts: Facts, *, skip_reason: str | None = None) -> Assessment:
    """Judge a spec against the facts, and apply its admission policy."""
    *_, last = assessments(spec, facts, skip_reason=skip_reason)
    return last


def undecided(spec: InferenceDeploymentSpec, facts: Facts, *, skip_reason: str | None = None) -> Assessment:
    """Answer Unknown, which is never a refusal, for a door whose time is over before there is a verdict."""
    message = "the assessment took longer than it may, and was stopped before there was a verdict"
    finding = ASSESSMENT_STOPPED.finding("model", message, _TAKE_THE_TIME)
    decision = _decide(Verdict.UNKNOWN, spec, None, skipped=skip_reason is not None)
    findings = (finding, *named(facts.findings, field_name))
    return Assessment(
        verdict=Verdict.UNKNOWN,
        guarantee=guarantee_of(spec),
        decision=decision,
        findings=findings,
        skip_reason=skip_reason,
    )


_SEARCH_STOPPED = SEARCH_STOPPED.finding(
    "model",
    "the search for settings that fit took longer than it may, and was stopped; the verdict stands",
    _TAKE_THE_TIME,
)


def assessments(spec: InferenceDeploymentSpec, facts: Facts, *, skip_reason: str | None = None) -> Iterator[Assessment]:
    """Yield the verdict as soon as it is known, then the same with changes that would fit. Each answer is complete by itself."""
    extra = read_extra_args(spec.vllm) if facts.knows_version else NO_EXTRA_ARGS
    environment = read_environment(spec)
    about_options = (*extra.findings, *conflicts(spec.admission.capacity, extra.values))
    findings = tuple(named((*facts.findings, *about_options, *environment.findings), field_name))
    if facts.shape is None or facts.accelerator is None or not facts.knows_version:
        of_pod = _pod_findings(spec, facts)
        findings += tuple(named(of_pod, field_name))
        verdict = Verdict.DOES_NOT_FIT if error_rules((*about_options, *of_pod)) else Verdict.UNKNOWN
        decision = _decide(verdict, spec, None, skipped=skip_reason is not None)
        yield Assessment(
            verdict=verdict,
            guarantee=guarantee_of(spec),
            decision=decision,
            findings=findings,
            skip_reason=skip_reason,
        )
        return
    findings += tuple(named(sharing_findings(spec, facts.accelerator), field_name))
    request = _with_chosen_sequences(_request(spec, facts, extra, environment), spec)
    judged = judge(request, extra=findings, naming=field_name)
    about_bytes = is_about_bytes(judged)
    as_written = replace(
        judged,
        decision=_decide(judged.verdict, spec, None, skipped=skip_reason is not None or not judged.is_refusal),
        findings=(*judged.findings, _SEARCH_STOPPED) if about_bytes else judged.findings,
        skip_reason=skip_reason,
    )
    yield _as_admitted(as_written)
    if not about_bytes:
        return
    searches = spec.admission.policy == "Adjust"
    adjustment = _adjustment(request, spec.admission.adjust) if searches else None
    searched = replace(
        as_written,
        decision=_decide(judged.verdict, spec, adjustment, skipped=skip_reason is not None),
        findings=judged.findings,
        adjustment=adjustment,
        alternatives=alternatives(request, catalogue.accelerators()),
        sought=spec.admission.adjust.knobs if searches else (),
    )
    yield _as_admitted(searched)


def _as_admitted(assessment: Assessment) -> Assessment:
    """Return the assessment with the budget that is rendered, where a spec is admitted although its pinned size is hopeless."""
    if assessment.decision is not Decision.ADMIT_WITH_WARNING or assessment.budget is None:
        return assessment
    budget, findings = unpinned_where_hopeless(assessment.budget, assessment.findings)
    return replace(assessment, budget=budget, findings=tuple(named(findings, field_name)))


def effective_values(spec: InferenceDeploymentSpec, assessment: Assessment) -> Effective:
    """Return the values that the pods are rendered from: the judged ones, or the spec's own where nothing could be judged."""
    from kvgate.api.status import Effective

    budget, lowered = assessment.effective, None
    if budget is None or assessment.verdict is Verdict.UNKNOWN:
        vllm = spec.vllm
        return Effective(
            max_model_len=vllm.max_model_len, max_num_seqs=vllm.max_num_seqs, kv_cache_dtype=vllm.kv_cache_dtype
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
    confidence = _confidence(budget, judged)
    if budget.is_of_doubtful_facts:
        told = tuple(each.softened() for each in judged)
    elif confidence is Confidence.CONTRADICTORY:  # the name may be right: then the weights have other bytes
        told = tuple(each.softened() if each.rule in _ABOUT_WEIGHTS else each for each in judged)
    else:
        told = judged
    refused = error_rules((*extra, *judged))
    is_overbooked = any(
        each.rule == SHARED_GPU_OVERBOOKED for each in judged
    )  # it fits beside engines that leave it enough
    is_unsure = confidence is Confidence.CONTRADICTORY or is_overbooked
    return Assessment(
        verdict=_with_refusals(budget.verdict, refused, is_unsure=is_unsure),
        start_verdict=_with_refusals(budget.starts, refused - _ABOUT_THE_PROMISE, is_unsure=is_unsure),
        guarantee=request.guarantee,
        confidence=confidence,
        findings=(*extra, *told),
        budget=budget,
    )


_ABOUT_THE_PROMISE = {GUARANTEE_NOT_MET, REQUEST_ABOVE_MAX_MODEL_LEN}
"""Rules whose errors say that a load is not held; vLLM starts all the same."""


def _with_refusals(verdict: Verdict, refused: AbstractSet[Rule], *, is_unsure: bool) -> Verdict:
    """Return the verdict of the arithmetic with what vLLM refuses for other reasons."""
    if refused:
        return Verdict.DOES_NOT_FIT
    return Verdict.MAY_NOT_FIT if is_unsure and verdict is Verdict.FITS else verdict


def _confidence(budget: Budget, findings: tuple[Finding, ...]) -> Confidence:
    if budget.contradictions or any(each.rule == NAME_STATES_ANOTHER_FORMAT for each in findings):
        return Confidence.CONTRADICTORY
    return Confidence.ASSUMED if budget.request.shape.assumed else Confidence.KNOWN


def _over_alternatives(request: BudgetRequest, *, extra: tuple[Finding, ...], naming: Naming) -> Assessment:
    """Judge every value that may stand where kvgate does not know the given one: only what holds for all of them is certain."""
    answers = [
        judge(replace(request, settings=settings, alternatives=()), extra=extra, naming=naming)
        for settings in request.alternatives
    ]
    worst = min(answers, key=lambda answer: (WORST_FIRST.index(answer.verdict), answer.figures.num_blocks or 0))
    verdicts = {answer.verdict for answer in answers}
    in_all = [finding for finding in worst.findings if all(finding in answer.findings for answer in answers)]
    return replace(
        worst,
        verdict=worst.verdict if len(verdicts) == 1 else Verdict.MAY_NOT_FIT,
        findings=tuple(each if each in in_all else each.softened() for each in worst.findings),
        budget=spanned(worst.budget, [answer.budget for answer in answers if answer.budget]) if worst.budget else None,
    )


WORST_FIRST = (Verdict.DOES_NOT_FIT, Verdict.MAY_NOT_FIT, Verdict.UNKNOWN, Verdict.FITS)
"""Verdicts in the order in which one of several counts."""


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


def guarantee_of(spec: InferenceDeploymentSpec) -> Guarantee:
    """Return the guarantee that is asked for, else what the numbers of the spec say."""
    return spec.admission.guarantee or (Guarantee.WORKLOAD if spec.workload else Guarantee.FULL_CONTEXT)


def to_budget_request(spec: InferenceDeploymentSpec, facts: Facts) -> BudgetRequest:
    """Translate a spec into the question that the budget answers. Raise ValueError where the shape or the accelerator is unknown."""
    return _request(spec, facts, read_extra_args(spec.vllm), read_environment(spec))


def _request(
    spec: InferenceDeploymentSpec, facts: Facts, extra: ExtraArgs, environment: PodEnvironment
) -> BudgetRequest:
    if facts.shape is None or facts.accelerator is None:
        raise ValueError("a budget needs a model and an accelerator")
    declared, shared_by = spec.workload, spec.accelerator.shared_by
    settings = _settings(spec.vllm, {**environment.told, **extra.known})
    if settings.speculation is not None:
        settings = replace(settings, speculation=own_layers(settings.speculation, spec.model.name))
    accelerator = facts.accelerator
    if spec.accelerator.claim == "GpuMemory":  # the container sees its part alone, and nothing of its neighbours
        accelerator, shared_by = part_of(accelerator, shared_by), 1
    values = {**extra.values, "max_model_len": spec.vllm.max_model_len, ALLOW_LONG: environment.allows_any_length}
    return BudgetRequest(
        shape=facts.shape,
        accelerator=accelerator,
        shared_by=shared_by,
        draft=facts.draft,
        vllm_version=spec.vllm.version,
        settings=settings,
        alternatives=tuple(
            _settings(spec.vllm, {**environment.told, **extra.known, **each}) for each in extra.doubt.combinations()
        ),
        guarantee=guarantee_of(spec),
        workload=Workload(**declared.model_dump()) if declared else None,
        capacity=spec.admission.capacity,
        unmodelled_settings=unmodelled_kinds(values, parse_release(spec.vllm.version)),
        unmodelled_variables=environment.kinds,
        is_stretched=stretches_length(values),
        is_whole=True,
        circumstances=circumstances_of({**told_by_rendering(spec), **extra.known, **environment.told}),
        calibration=facts.calibration,
        image_digest=(spec.vllm.image or "").partition("@")[2] if facts.calibration.starts else "",
        is_one_pod=True,
        pod=pod_of(spec),
    )


def host_ledger_of(spec: InferenceDeploymentSpec, vendor: str) -> HostLedger | None:
    """Return the host's ledger of a pod as its settings alone state it, so that no prediction about a model moves a rendered pod.

    None where the release is not known.
    """
    with suppress(UnknownVersion):
        settings = _settings(spec.vllm, {**read_environment(spec).told, **read_extra_args(spec.vllm).known})
        return pod_ledger_without_model(settings, spec.vllm.version, pod_of(spec), vendor=vendor)
    return None


def _pod_findings(spec: InferenceDeploymentSpec, facts: Facts) -> tuple[Finding, ...]:
    """Judge the pod of a spec whose model or GPU is not known: what its settings take is certain without them."""
    vendor = facts.accelerator.vendor if facts.accelerator else ""
    ledger = host_ledger_of(spec, vendor) if facts.knows_version else None
    return tuple(judge_pod(ledger, pod_of(spec))) if ledger else ()


def _settings(vllm: Vllm, extra: Mapping[str, Any]) -> EngineSettings:
    """Return the settings of spec.vllm, and those of extraArgs that no field owns."""
    known, fields = dict(extra), vars(vllm)
    for name, read in _READERS.items():
        value = fields[name]
        if value is not None:  # the API has no decimals: its share of the memory is a text
            known[name] = read(value) if type(value) is str else value
    return engine_settings(known)


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


def _adjustment(request: BudgetRequest, asked: Adjust) -> Adjustment | None:
    """Return the adjustment that policy Adjust makes; None where nothing within its limits fits, or vLLM refuses what would fit."""
    limits = AdjustLimits(
        knobs=asked.knobs, min_max_model_len=asked.min_max_model_len, min_max_num_seqs=asked.min_max_num_seqs
    )
    adjustment = adjust(request, limits)
    return adjustment if adjustment and not error_rules(judge_budget(adjustment.budget)) else None


def _decide(
    verdict: Verdict, spec: InferenceDeploymentSpec, adjustment: Adjustment | None, *, skipped: bool
) -> Decision:
    """Apply the admission policy; nothing else does. A verdict that is Unknown is never a refusal."""
    if verdict is Verdict.FITS:
        return Decision.ADMIT
    if adjustment is not None and not skipped:
        return Decision.ADMIT_ADJUSTED
    refuses = verdict is Verdict.DOES_NOT_FIT and spec.admission.policy != "Warn" and not skipped
    return Decision.REFUSE if refuses else Decision.ADMIT_WITH_WARNING

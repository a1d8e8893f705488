"""An Assessment in words, the same behind every door: the refusal, the warnings, the Accepted condition."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import floor

from kvgate.api import field_path
from kvgate.api.conditions import Reason
from kvgate.budget import TOGETHER, Alternative, Budget, Correction, Guarantee, Most, Verdict, verdict_of
from kvgate.budget.answers.changes import safe_utilization
from kvgate.budget.ground.units import GIB, format_gib
from kvgate.findings.finding import Finding, Naming, Severity, error_rules
from kvgate.judgement.assess import field_name, takes_cache_bytes
from kvgate.judgement.assessment import Assessment, Confidence, Decision
from kvgate.rules.checks import BUDGET_RULES
from kvgate.rules.facts import (
    ASSESSMENT_STOPPED,
    INVALID_MODEL_CONFIG,
    KNOWN_DEFECT,
    MODEL_ASSUMED,
    SEARCH_STOPPED,
    UNKNOWN_ACCELERATOR,
    UNKNOWN_MODEL,
    UNKNOWN_VERSION,
)
from kvgate.rules.host_memory import HOST_RULES
from kvgate.rules.memory import demanded
from kvgate.rules.pinned import BUDGET_NOT_SKIPPED, BUDGET_SKIPPED, instead_of_pinned
from kvgate.rules.support import UNMODELLED_KIND
from kvgate.text.inert import inert, inert_line
from kvgate.vllm.arguments import option_name

MAX_REFUSAL = 500
"""Characters of a refusal: kubectl prints it as one line."""
MAX_WARNING = 120
"""Characters of an admission warning; the API server cuts longer ones."""

_STARTS = {
    Verdict.FITS: "starts",
    Verdict.MAY_NOT_FIT: "may not start",
    Verdict.DOES_NOT_FIT: "does not start",
    Verdict.UNKNOWN: "not decided",
}
_HOLDS = {
    Verdict.FITS: "holds",
    Verdict.MAY_NOT_FIT: "may not hold",
    Verdict.DOES_NOT_FIT: "does not hold",
}

_NOT_HELD = (_HOLDS[Verdict.MAY_NOT_FIT], _HOLDS[Verdict.DOES_NOT_FIT])

_FACT_REASONS = {
    UNKNOWN_MODEL: Reason.UNKNOWN_MODEL,
    UNKNOWN_ACCELERATOR: Reason.UNKNOWN_ACCELERATOR,
    UNKNOWN_VERSION: Reason.UNKNOWN_VERSION,
    INVALID_MODEL_CONFIG: Reason.INVALID_MODEL_CONFIG,
    UNMODELLED_KIND: Reason.UNMODELLED_KIND,
    ASSESSMENT_STOPPED: Reason.ASSESSMENT_STOPPED,
}

_DOUBTS = {Confidence.ASSUMED: Reason.MODEL_ASSUMED, Confidence.CONTRADICTORY: Reason.SOURCES_CONTRADICT}


def judged_text(verdict: Verdict, budget: Budget | None) -> str:
    """Return what was judged: `starts`, `may not start`, `holds the workload (8 requests of 2500 tokens)`."""
    if budget is None or budget.demand is None or budget.usable_blocks is None or verdict is Verdict.UNKNOWN:
        return _STARTS[verdict]
    is_about_start = verdict is Verdict.MAY_NOT_FIT and not budget.surely_starts
    if verdict is Verdict.DOES_NOT_FIT:
        is_refused = budget.verdict is not verdict  # memory holds it, and vLLM refuses a setting
        is_about_start = is_refused or verdict_of(budget.demand.startup_blocks, budget.usable_blocks) is verdict
    demand = demanded(budget)
    return f"{_HOLDS[verdict]} {demand}" if demand and not is_about_start else _STARTS[verdict]


def figures_text(budget: Budget | None) -> str:
    """Return how much there is and how much is left: `7.9 requests of 32768 tokens at once, 18.20 GiB of KV cache (headroom 87 %)`.

    Where the demand may not fit, the figures are the interval; where it does not fit, they are the most that there can be. Empty where
    nothing is known.
    """
    if budget is None or budget.kv_cache is None or budget.num_blocks is None or budget.tightest is None:
        return ""
    kv_cache, pool, available = budget.kv_cache, budget.num_blocks, budget.tightest.available
    if not kv_cache.groups:
        return "the model keeps no KV cache"
    ends = {Verdict.MAY_NOT_FIT: ("low", "high"), Verdict.DOES_NOT_FIT: ("high",)}.get(budget.verdict, ("expected",))
    requests = _range(_count(kv_cache.max_concurrency(getattr(pool, end))) for end in ends)
    size = _range(f"{max(0, getattr(available, end)) / GIB:.2f}" for end in ends)
    at_most = "at most " if ends == ("high",) and pool.low < pool.high else ""
    parallel = budget.request.settings.parallelism
    each_rank = " on each data-parallel rank" if parallel.data > 1 else ""
    per_gpu = " per GPU" if parallel.num_gpus > 1 else ""
    return (
        f"{at_most}{requests} requests of {budget.resolved.max_model_len} tokens at once{each_rank}, "
        f"{size} GiB of KV cache{per_gpu}{_headroom_text(budget)}"
    )


def _count(requests: Fraction) -> str:
    """Return a number of requests, never rounded up to one that is not held."""
    return f"{floor(requests * 10) / 10:.1f}" if requests < 100 else str(floor(requests))


_MOST_PERCENT = 100
"""Share of the expected cache beyond which an end of the headroom says nothing that the bytes beside it do not say better."""


def _headroom_text(budget: Budget) -> str:
    if budget.verdict is Verdict.DOES_NOT_FIT:
        is_exact = budget.usable_blocks is not None and budget.usable_blocks.low == budget.usable_blocks.high
        return f" ({'lacks' if is_exact else 'expected to lack'} {format_gib(budget.lacking_bytes or 0)})"
    percent = budget.headroom_percent
    if percent is None:
        return ""
    shown = (percent.low, percent.high) if budget.verdict is Verdict.MAY_NOT_FIT else (percent.expected,)
    if any(abs(each) > _MOST_PERCENT for each in shown):  # the interval is wider than the cache that is expected
        return ""
    return f" (headroom {_range(f'{each} %' for each in shown)})"


def _range(ends: Iterable[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def answer_text(assessment: Assessment) -> str:
    """Return the sentence of an assessment; where nothing names the GPU, with those on which it fits first.

    `starts on L4-24GB and larger; not on T4-16GB (bfloat16); on L4-24GB 2.1 requests …`
    """
    budget, found = assessment.budget, assessment.on_gpus
    if budget is None or found is None or found.judged_on is None or assessment.verdict is Verdict.DOES_NOT_FIT:
        return verdict_text(assessment.verdict, budget)
    from kvgate.judgement.gpus_in_words import folded

    demand, figures = demanded(budget), figures_text(budget)
    where = f"{demand} " if demand else ""
    where += folded(found.verdicts, is_whole=found.is_whole, verb="fits" if demand else "starts")
    return where + (f"; on {found.judged_on} {figures}" if figures else "")


def verdict_text(verdict: Verdict, budget: Budget | None) -> str:
    """Return both answers and how much is left, the sentence of every door, with the answer that decides first.

    `holds full context (8 requests of 32768 tokens); 9.2 requests of 32768 tokens at once, …`, or without a load that is promised
    `starts; holds 7.9 requests of 32768 tokens at once, …; no load is promised`.
    """
    judged, figures = judged_text(verdict, budget), figures_text(budget)
    if budget is None or not figures:
        return judged
    others = []
    if verdict is Verdict.DOES_NOT_FIT and budget.verdict is not verdict:
        others.append("not for lack of GPU memory")
    elif judged.startswith(_NOT_HELD):
        others.append(_STARTS[budget.starts])
    keeps_some = budget.kv_cache is not None and bool(budget.kv_cache.groups)
    is_without_load = not demanded(budget) and verdict is not Verdict.UNKNOWN and keeps_some
    holds = "holds " if is_without_load else ""
    promise = "no load is promised" if is_without_load and verdict is not Verdict.DOES_NOT_FIT else ""
    longest, length, auto = budget.auto_from, budget.resolved.max_model_len, ""
    if longest is not None:
        of_all = (
            f" of the model's {longest} tokens, {longest - length} fewer"
            if length < longest
            else " tokens, all of the model's"
        )
        auto = f"max_model_len auto is {length}{of_all}"
    return "; ".join(filter(None, (judged, *others, auto, f"{holds}{figures}", promise)))


def refusal(assessment: Assessment) -> str:
    """Return the refusal with the numbers and the changes that would fit."""
    errors = [finding for finding in assessment.findings if finding.severity is Severity.ERROR]
    if sum(len(finding.message) for finding in errors) > MAX_REFUSAL // 2:
        errors = [finding.named(short_field_name) for finding in errors]
    searched = fruitless(assessment)
    closing = f"; {searched}" if searched else ""
    if assessment.alternatives:
        budget, measured = assessment.budget, ""
        if budget and budget.demand and not any(each.field == "capacity" for each in assessment.alternatives):
            actions = instead_of_pinned(budget, budget.demand.blocks)
            measured = "".join(f"; or {action.worded(short_field_name)}" for action in actions)
        fits = f". Would fit: {alternatives_text(assessment.alternatives, most=1)}"
        closing += shortened(fits, MAX_REFUSAL // 2 - len(closing) - len(measured)) + measured
    elif errors and errors[0].remediation:
        closing += f". To fix it: {errors[0].remediation}"
    closing = shortened(inert(closing), MAX_REFUSAL // 2)
    not_skipped = [finding for finding in assessment.findings if finding.rule == BUDGET_NOT_SKIPPED]
    reasons = inert_line("; ".join(finding.message for finding in (*not_skipped, *errors)))
    return shortened(reasons, MAX_REFUSAL - len(closing)) + closing


def short_field_name(setting: str) -> str:
    """Name a field of an InferenceDeployment where there is little room: `maxNumSeqs`."""
    return _SHORT.get(setting) or field_name(setting).rpartition(".")[2]


_SHORT = {"accelerator": "accelerator", "model": "model"}
"""Settings whose fields are `type` and `name`, which say little alone."""


def fruitless(assessment: Assessment) -> str:
    """Report a search of policy Adjust that found nothing, with the settings that it may change; empty where it found something."""
    if stopped := next((f.message for f in assessment.findings if f.rule == SEARCH_STOPPED), ""):
        return stopped
    if not assessment.sought or assessment.adjustment is not None:
        return ""
    return f"no change of {' and '.join(assessment.sought)} within your floors fits"


def alternatives_text(alternatives: Sequence[Alternative], *, naming: Naming = short_field_name, most: int = 3) -> str:
    """Return `any one of: maxModelLen 19376, maxNumSeqs 8; together: kvCacheDtype fp8, maxNumSeqs 32`, the cheapest of each form first."""
    single = [change_text(each.field, each.value, naming) for each in alternatives if each.field != TOGETHER]
    sets = [f"together: {together_text(each, naming)}" for each in alternatives if each.field == TOGETHER]
    head = f"any one of: {', '.join(single)}" if len(single) > 1 else "".join(single)
    return "; or ".join((*([head] if head else []), *sets[:most]))


def together_text(alternative: Alternative, naming: Naming = short_field_name) -> str:
    """Return the changes of a set: `kvCacheDtype fp8, maxNumSeqs 32`."""
    return ", ".join(change_text(each.field, each.after, naming) for each in alternative.changes)


def change_text(setting: str, value: int | str, naming: Naming) -> str:
    """Return `maxModelLen 19376`, or `--enforce-eager`; `replicas` is a word of every door."""
    name = setting if setting == "replicas" else naming(setting)
    return name if value is True and name.startswith("--") else f"{name} {value_text(value)}"


def most_text(most: Most, what: str) -> str:
    """Return `most context: 28032 tokens with --kv-cache-dtype fp8, …; 2048 without a change`."""
    unit = "tokens" if what == "context" else "requests"
    changes = ", ".join(change_text(each.field, each.after, option_name) for each in most.changes)
    return f"most {what}: {most.value} {unit}{' with ' if changes else ''}{changes}; {most.as_it_is} without a change"


def share_text(budget: Budget) -> str:
    """Name the largest gpu_memory_utilization that is ever proposed, and why."""
    limit, outside_bytes = safe_utilization(budget)
    return (
        f"--gpu-memory-utilization is safe up to {float(limit):g}, where nothing else uses the GPU: {format_gib(outside_bytes)} are for "
        "the CUDA context, which takes its part before vLLM checks the free memory, and for buffers that come later"
    )


def value_text(value: int | str) -> str:
    """Return a value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def correction_text(correction: Correction) -> str:
    """Describe the part that observed starts have in a figure."""
    starts = f"{correction.starts} observed start" + ("s" if correction.starts > 1 else "")
    return f"as {starts} of this setting had it" if correction.is_same_setting else f"{starts} of other settings heeded"


WOULD_BE_REFUSED = "would be refused (admission.mode is Audit)"


def warnings(assessment: Assessment) -> list[str]:
    """Return the warnings for an admitted object's owner, one line each; notes about known defects of the release come last."""
    lines = [WOULD_BE_REFUSED] if assessment.decision is Decision.WOULD_REFUSE else []
    shown = [finding for finding in assessment.findings if finding.severity is not Severity.INFO]
    shown += [each for each in assessment.findings if each.severity is Severity.INFO and each.rule == KNOWN_DEFECT]
    if assessment.decision is Decision.ADMIT_ADJUSTED:
        lines.append(f"adjusted: {changes_text(assessment)}")
        shown = [finding for finding in shown if finding.rule not in BUDGET_RULES]
    if assessment.decision is not Decision.REFUSE:
        lines += [
            finding.message if len(finding.message) <= MAX_WARNING else finding.named(short_field_name).message
            for finding in shown
        ]
    return [shortened(inert_line(line), MAX_WARNING) for line in lines]


def changes_text(assessment: Assessment) -> str:
    """`maxNumSeqs 64 → 8, maxModelLen 40960 → 32768`; empty where nothing was adjusted."""
    changes = assessment.adjustment.changes if assessment.adjustment else ()
    return ", ".join(f"{field_path(c.field).rpartition('.')[2]} {c.before} → {c.after}" for c in changes)


def _chosen_text(assessment: Assessment) -> str:
    """`; maxNumSeqs 12 (chosen)`; empty where the spec states it."""
    budget = assessment.effective
    is_shown = budget is not None and assessment.verdict is not Verdict.UNKNOWN and assessment.chosen
    names = ((name, getattr(budget.resolved, name)) for name in assessment.chosen) if budget and is_shown else ()
    return "".join(f"; {short_field_name(name)} {value} (chosen)" for name, value in names)


def _pinned_text(assessment: Assessment) -> str:
    """`; pinned at 54.17 GiB of KV cache per GPU (394480 tokens)`; empty where vLLM measures."""
    pinned = assessment.effective.pinned if assessment.effective else None
    if pinned is None:
        return ""
    return f"; pinned at {format_gib(pinned.kv_cache_bytes)} of KV cache per GPU ({pinned.num_tokens} tokens)"


def finding_text(finding: Finding) -> str:
    """`KVCacheTooSmall: … (do this)`."""
    return f"{finding.rule}: {finding.message}" + (f" ({finding.remediation})" if finding.remediation else "")


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, cut with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def accepted(assessment: Assessment) -> tuple[bool | None, Reason, str]:
    """Status, reason and message of the condition Accepted."""
    if assessment.decision is Decision.REFUSE:
        only_bytes = error_rules(assessment.findings) <= BUDGET_RULES | HOST_RULES
        return False, Reason.BUDGET_EXCEEDED if only_bytes else Reason.SETTING_REFUSED, refusal(assessment)
    if assessment.decision is Decision.WOULD_REFUSE:
        return True, Reason.WOULD_BE_REFUSED, f"{WOULD_BE_REFUSED}: {refusal(assessment)}"
    if assessment.verdict is Verdict.FITS:
        assumed = (f"; {each.message}" for each in assessment.findings if each.rule == MODEL_ASSUMED)
        fits = verdict_text(Verdict.FITS, assessment.budget)
        return True, Reason.FITS, fits + _chosen_text(assessment) + _pinned_text(assessment) + "".join(assumed)
    if assessment.decision is Decision.ADMIT_ADJUSTED:
        fits = verdict_text(Verdict.FITS, assessment.effective)
        values = _chosen_text(assessment) + _pinned_text(assessment)
        return True, Reason.ADJUSTED, f"adjusted to fit: {changes_text(assessment)}; {fits}{values}"
    found = (
        finding_text(f) for f in assessment.findings if f.severity is not Severity.INFO and f.rule != BUDGET_SKIPPED
    )
    judged = verdict_text(assessment.verdict, assessment.budget) + _chosen_text(assessment)
    about = () if assessment.verdict is Verdict.UNKNOWN else (judged,)
    message = "; ".join((*about, *found))
    if assessment.verdict is Verdict.UNKNOWN:
        missing = (_FACT_REASONS[f.rule] for f in assessment.findings if f.rule in _FACT_REASONS)
        return None, next(missing, Reason.UNMODELLED_KIND), message
    if assessment.verdict is Verdict.MAY_NOT_FIT:
        return True, Reason.MAY_NOT_FIT, message
    if assessment.skip is not None:
        return True, Reason.BUDGET_SKIPPED, f"{assessment.skip.reason}: {message}"
    if assessment.is_refusal:
        return True, Reason.POLICY_WARN, message
    return True, _DOUBTS[assessment.confidence], message


def least_cache_text(budget: Budget) -> str:
    """Return the KV cache that the promise needs as the options to set, and what it leaves; empty where no size can be given for it."""
    from kvgate.budget.answers.sharing import least_cache

    found = least_cache(budget) if takes_cache_bytes(budget.request) else None
    if found is None or budget.request.guarantee is Guarantee.STARTUP:
        return ""
    return (
        f"No more than this promise: --kv-cache-memory-bytes {found.cache_memory_bytes} ({format_gib(found.cache_memory_bytes)}) "
        f"--gpu-memory-utilization {float(found.gpu_memory_utilization):g}; leaves {format_gib(found.left.low)} to "
        f"{format_gib(found.left.high)} of each GPU for neighbours"
    )

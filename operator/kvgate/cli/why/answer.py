"""One case → its answer: what happened, why, what would fix it, and what nobody can know from what was given."""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from kvgate import catalogue
from kvgate.budget import Budget, Verdict
from kvgate.budget.answers.pod_ledger import pod_ledger
from kvgate.budget.ground.units import format_gib
from kvgate.cli.reports.placed import Placed
from kvgate.cli.why.cases import Case, Judging
from kvgate.cli.why.fixes import Fix, fixes_of
from kvgate.cli.why.starts import Start
from kvgate.cli.why.stated import reported, stated
from kvgate.findings.finding import Finding, Severity
from kvgate.judgement.summary import answer_text
from kvgate.rules.checks import BUDGET_RULES
from kvgate.sources.start_failure import FailureKind, Rank, failure_rows
from kvgate.vllm.redacting import redacted

_MAX_GPUS = 4
"""Boards that a sentence names."""


class Outcome(StrEnum):
    """The answer in one word."""

    CAUSE_FOUND = "CauseFound"
    """The log states a cause, or the arithmetic refuses the engine."""
    MAY_FAIL = "MayFail"
    """Nothing says that it failed, and it may not start: the memory is close, or some of the GPUs or releases in question refuse it."""
    NOTHING_WRONG = "NothingWrong"
    """The engine starts, or the log shows a server that serves."""
    CAUSE_UNKNOWN = "CauseUnknown"
    """It failed, and the cause is not in what was given, or kvgate does not know it."""
    NOT_JUDGED = "NotJudged"
    """It is another engine than vLLM, or hardware that kvgate does not judge."""
    UNKNOWN = "Unknown"
    """Nothing says that it failed, and a fact is missing to judge it."""


class Happened(Struct, frozen=True, kw_only=True):
    """The cause in the words of whatever printed it."""

    id: str
    """Row of docs/reference/failures.md; empty for an error that has none."""
    stage: str
    cause: str
    do: str
    sentence: str
    file: str
    line: int
    text: str
    """The whole line."""
    releases: str
    source: str


class Answer(Struct, frozen=True, kw_only=True):
    title: str
    outcome: Outcome
    happened: Happened | None
    why: tuple[str, ...]
    fixes: tuple[Fix, ...]
    not_known: tuple[str, ...]
    case: Case


def answer_of(case: Case, judging: Judging) -> Answer:
    """Return the answer about one engine."""
    outcome = _outcome(case)
    has_fixes = outcome in (Outcome.CAUSE_FOUND, Outcome.MAY_FAIL) and not (case.start and case.start.is_mixed)
    return Answer(
        title=case.title,
        outcome=outcome,
        happened=_happened(case),
        why=tuple(_why(case)),
        fixes=tuple(fixes_of(case, judging)) if has_fixes else (),
        not_known=tuple(_not_known(case, judging)),
        case=case,
    )


def _outcome(case: Case) -> Outcome:
    start, item = case.start, case.item
    judged = item if item and not start else None
    is_refusal = judged.is_refused if judged else bool(case.assessment and case.assessment.is_refusal)
    is_refused = is_refusal or case.lacking is not None
    if case.is_other_engine:
        return Outcome.NOT_JUDGED
    if start and (start.failure or start.ends_in_error):
        is_named = start.failure is not None and start.failure.row.rank is not Rank.WRAPPER
        return Outcome.CAUSE_FOUND if is_named or is_refused else Outcome.CAUSE_UNKNOWN
    if start and start.log.is_ready:
        return Outcome.NOTHING_WRONG
    if is_refused:
        return Outcome.CAUSE_FOUND
    if start and start.log.max_concurrency is not None:
        return Outcome.NOTHING_WRONG
    if case.is_guessed:
        return Outcome.UNKNOWN
    if (item and item.decision is not None) or case.verdict is Verdict.FITS:
        return Outcome.NOTHING_WRONG
    return Outcome.MAY_FAIL if case.verdict is Verdict.MAY_NOT_FIT else Outcome.UNKNOWN


def _happened(case: Case) -> Happened | None:
    start = case.start
    if start is None or start.engine or not start.words or (start.failure and case.lacking is not None):
        return None  # the end of a traceback says less than the figures of the log
    if start.failure is None:
        return Happened(
            id="", stage="", cause="It failed with an error that kvgate does not know.", do="", sentence=redacted(start.words[-400:]),
            file=start.file, line=start.line, text=redacted(start.words), releases="", source="",
        )  # fmt: skip
    row = start.failure.row
    return Happened(
        id=row.id,
        stage=row.stage.value,
        cause=row.cause,
        do=row.do,
        sentence=redacted(start.failure.sentence),
        file=start.file,
        line=start.line,
        text=redacted(start.words),
        releases=row.releases,
        source=row.source,
    )


# ── why ──


def _why(case: Case) -> Iterator[str]:
    start, judged, budget = case.start, case.assessment, case.budget
    if case.is_other_engine:
        name = start.engine if start and start.engine else "another engine, or hardware that kvgate does not judge"
        yield f"this is {name}: kvgate judges vLLM on GPUs of NVIDIA and AMD"
        return
    failure = start.failure if start else None
    is_open = failure is None or failure.row.rank is Rank.WRAPPER
    is_of_bytes = is_open or bool(failure and failure.row.ledger and failure.kind is not FailureKind.INVALID_SETTING)
    is_of_host = failure is not None and failure.row.ledger == "host"
    if case.lacking is not None:
        needed, there = case.lacking
        yield (
            f"KVCacheTooSmall: one request of max_model_len needs {format_gib(needed)} of KV cache, and the log reports "
            f"{format_gib(there)}: {format_gib(needed - there)} too little"
        )
        yield failure_rows()["KVCacheTooSmall"].do
    elif judged is not None and budget is not None and is_of_bytes:
        # a verdict on GPUs that nobody named stands beside no failure
        yield answer_text(judged) if case.is_guessed and failure else f"{judged.verdict.value}: {answer_text(judged)}"
        if is_of_host:
            yield from host_sentences(budget)
        elif not case.is_guessed:
            yield from ledger_sentences(budget)
    if start and is_of_bytes and not is_of_host:
        yield from reported(start.log)
    if failure and (budget is None or case.is_guessed or not is_of_bytes):
        yield from stated(failure)
    errors, has_ledger = _errors(case), is_of_bytes and budget is not None
    yield from (f"{each.rule}: {each.message}" for each in errors if not (has_ledger and each.rule in BUDGET_RULES))
    if (
        failure
        and has_ledger
        and not (errors or is_of_host or case.is_guessed)
        and judged
        and judged.verdict is Verdict.FITS
    ):
        yield "kvgate computes that this starts with the settings that are known here: something that is not in them decided"


def _errors(case: Case) -> Sequence[Finding]:
    if case.item is not None:
        placed: Sequence[Placed] = case.item.findings
        found = [each.finding for each in placed if each.finding.severity is Severity.ERROR]
        if found:
            return found
    judged = case.assessment
    return [each for each in judged.findings if each.severity is Severity.ERROR] if judged else []


def ledger_sentences(budget: Budget) -> Iterator[str]:
    """Yield the ledger of the tightest rank as one sum, and what one request takes."""
    stage, demand = budget.tightest, budget.demand
    if stage is None or stage.ledger is None:
        return
    ledger = stage.ledger
    terms = [(line.name, line.amount.expected) for line in ledger.lines if line.amount.expected >= 1 << 20]
    minus = "".join(f" − {name.replace('_', ' ')} {format_gib(size)}" for name, size in terms)
    share = f"{float(budget.resolved.gpu_memory_utilization):g}"
    rank = " of each GPU" if budget.request.settings.parallelism.num_gpus > 1 else ""
    yield (
        f"{format_gib(ledger.total_bytes)}{rank} × {share} = {format_gib(ledger.requested_bytes)} requested{minus} "
        f"= {format_gib(max(0, stage.available.expected))} for the KV cache"
    )
    if demand is not None:
        needs = demand.startup_blocks * stage.bytes_per_block
        over = needs - stage.available.expected
        compared = f", {format_gib(over)} more than there is" if over > 0 else ""
        yield f"one request of {budget.resolved.max_model_len} tokens needs {format_gib(needs)}{compared}"


def host_sentences(budget: Budget) -> Iterator[str]:
    """Yield what a pod needs of the host's memory, and of /dev/shm."""
    ledger = pod_ledger(budget)
    needs, shared = ledger.needs, ledger.shared_needs
    needed = f"{format_gib(needs.expected)} of host memory ({format_gib(needs.low)} to {format_gib(needs.high)})"
    yield f"a pod of it needs {needed}, beside pages of files"
    if shared.high:
        yield f"{format_gib(shared.expected)} of that ({format_gib(shared.low)} to {format_gib(shared.high)}) is in /dev/shm"


# ── what is not known ──


def _not_known(case: Case, judging: Judging) -> Iterator[str]:
    start, item = case.start, case.item
    if start and start.engine:
        return
    if start:
        yield from _not_known_of_log(start)
        if not start.log.arguments and not item:
            yield "the options: the log has no line `non-default args`; give the command or the manifest too"
        if not start.log.vllm_version and not (item and item.vllm_version):
            yield "the release of vLLM: no line of the log states it; give --vllm-version"
    if item and item.assumed:
        told = {"accelerator": judging.given.accelerator, "vllm_version": judging.given.vllm_version}
        yield from (f"assumed: {each.text}" for each in item.assumed if not told.get(each.fact))
    if case.is_guessed or (case.values is not None and "gpu" not in case.values):
        yield f"the GPU: {_of_gpu((case.values or {}).get('gpu_memory_bytes'))}; give --gpu"
    yield from _not_judged(case)
    if case.is_observed and case.plain and case.plain.verdict is not case.verdict:
        yield f"the figures follow the KV cache that the log reports; without it, kvgate's verdict is {case.plain.verdict.value}"


def _of_gpu(memory_bytes: int | None) -> str:
    """Say what is known about a GPU without a name: its memory, and the boards that have so much."""
    if memory_bytes is None:
        return "nothing names it"
    alike = [
        each.name
        for each in catalogue.accelerators()
        if not each.is_slice and each.memory_low_bytes * 199 <= memory_bytes * 200 <= each.memory_high_bytes * 201
    ]
    shown = f", as {' or '.join(alike[:_MAX_GPUS])} have" if alike else ""
    return f"the log states its memory, {format_gib(memory_bytes)}{shown}, and not its name"


def _not_judged(case: Case) -> Iterator[str]:
    """Yield the facts without which there is no verdict."""
    item, judged = case.item, case.assessment
    if case.problem:
        yield f"the verdict: {case.problem}"
    if item and item.verdict is Verdict.UNKNOWN and not case.start:
        yield from (f"{each.finding.message}; {each.finding.remediation}" for each in item.missing_facts)
    elif judged is not None and judged.verdict is Verdict.UNKNOWN:
        yield from (
            f"{each.message}; {each.remediation}" for each in judged.findings if each.severity is not Severity.INFO
        )


def _not_known_of_log(start: Start) -> Iterator[str]:
    if start.is_mixed:
        yield "lines of two servers stand between each other in this log: the cause may be of either; give one log at a time"
    if start.log.starts > 1:
        yield f"the log has {start.log.starts} starts: the last one of each model counts"
    if start.failure is not None and start.failure.row.rank is not Rank.ROOT:
        yield "the root cause: this message follows from another one that is not in what was given; give the log from its first line"
    elif start.failure is None and start.ends_in_error:
        yield "the cause: kvgate's table of messages does not have this error; `--bundle FILE` writes what a report of it needs"

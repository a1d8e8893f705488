"""Pieces that were pasted → one case per engine: what was said about it, what it printed, and the judgement of both together."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import AUTO_MAX_MODEL_LEN, NOTHING_OBSERVED, Budget, Calibration, Verdict
from kvgate.calibration.observed import start_of_blocks, start_of_bytes
from kvgate.cli.check.given_facts import CheckOptions, GivenFacts, given_facts
from kvgate.cli.check.run import engines_in
from kvgate.cli.known_models import judged_with_fetched
from kvgate.cli.reports.report import Item
from kvgate.cli.why.gathered import Gathered
from kvgate.cli.why.starts import Start, starts_in
from kvgate.documents.positions import Broken
from kvgate.documents.reading import STDIN
from kvgate.documents.written import Written
from kvgate.judgement.assessment import NOT_JUDGED, Assessment
from kvgate.judgement.what_if import assess_request
from kvgate.manifests.pasted import SCRIPT_ENDING, Pasted
from kvgate.manifests.pods.accelerator_hints import accelerators_of, gpus_in, node_hints
from kvgate.manifests.pods.which_engine import server_in
from kvgate.sources.start_failure import Rank
from kvgate.statement.what_if import BadRequest

_RELEASE = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}(?:\.post\d{1,3})?")
_RELEASE_IN_PROSE = re.compile(
    r"\bvllm(?:\s+version)?[\s:=(]{1,3}v?(\d{1,3}\.\d{1,3}\.\d{1,3}(?:\.post\d{1,3})?)\b", re.IGNORECASE
)
_OF_SEVERAL = re.compile(r"[TP]P\d|rank=")
"""In the name of a process that is one of several."""
_BLOCK_OF_V0 = 16
"""Tokens of a block where nobody states it (vLLM 0.6 to 0.10, V0)."""
_OF_THE_SERVER = (
    "host",
    "port",
    "api_key",
    "hf_token",
    "uvicorn_log_level",
    "model_tag",
    "config",
    "subparser",
    "dispatch_function",
)
"""Arguments of the API server, which move no memory."""


class Case(Struct, frozen=True, kw_only=True):
    """One engine."""

    item: Item | None = None
    pasted: Pasted | None = None
    """The command that the item was made of."""
    start: Start | None = None
    values: Mapping[str, Any] | None = None
    """Options and facts of the start by vLLM's names; None where no log has arguments."""
    assessment: Assessment | None = None
    plain: Assessment | None = None
    """The judgement without what the log reports, which is what `kvgate check` says about a change."""
    problem: str = ""
    """Reason why nothing could be judged."""
    is_observed: bool = False
    """True where the KV cache that the log reports corrects the judgement."""

    @property
    def budget(self) -> Budget | None:
        return self.assessment.budget if self.assessment else None

    @property
    def is_other_engine(self) -> bool:
        return bool(self.start and self.start.engine) or bool(self.item and self.item.verdict is NOT_JUDGED)

    @property
    def is_guessed(self) -> bool:
        """True where the figures are those of a GPU that nobody named."""
        return bool(self.assessment and self.assessment.on_gpus and self.assessment.on_gpus.judged_on)

    @property
    def lacking(self) -> tuple[int, int] | None:
        """Bytes that one request of max_model_len needs, and fewer that the log reports before it ends; None where nothing shows that."""
        start, budget = self.start, self.budget
        rank = start.log.tightest if start else None
        there = rank.available_kv_cache_bytes if rank else None
        if (
            start is None
            or budget is None
            or budget.demand is None
            or budget.tightest is None
            or there is None
            or there < 0
        ):
            return None
        log, settings = start.log, budget.request.settings
        is_explained = start.failure is not None and start.failure.row.rank is not Rank.WRAPPER
        went_on = log.is_ready or log.max_concurrency is not None or log.kv_cache_tokens is not None
        is_split = len(log.ranks) > 1 or any(_OF_SEVERAL.search(each.process) for each in log.ranks)
        is_told = (self.item is not None or bool(log.arguments)) and settings.max_model_len != AUTO_MAX_MODEL_LEN
        if is_explained or went_on or not is_told or (is_split and settings.parallelism.num_gpus == 1):
            return None
        needed = budget.demand.startup_blocks * budget.tightest.bytes_per_block
        return (needed, there) if there < needed else None

    @property
    def verdict(self) -> Verdict | None:
        if self.lacking is not None:
            return Verdict.DOES_NOT_FIT
        if self.assessment:
            return self.assessment.verdict
        judged = self.item.verdict if self.item else None
        return judged if isinstance(judged, Verdict) else None

    @property
    def model(self) -> str:
        """The model by the name that was given; empty where none is."""
        if self.item and self.item.spec:
            return self.item.spec.model.name
        return (self.item.engine.model or "") if self.item and self.item.engine else ""

    @property
    def title(self) -> str:
        if self.pasted and self.pasted.text:
            return f"the command in line {self.pasted.line}"
        if self.item:
            return self.item.title if self.pasted else f"{self.item.file}:{self.item.line}: {self.item.title}"
        return f"{self.start.file}{f' {self.start.source}' if self.start.source else ''}" if self.start else ""


class Judging(Struct, kw_only=True):
    """The engines of manifests and commands, judged by the road of `kvgate check`; a fix is judged by the same."""

    options: CheckOptions
    texts: Mapping[str, str]
    """Manifests that stand in no file, by their names."""
    given: GivenFacts

    def on(self, gpu: int | str | None) -> "Judging":
        """Return the same with another GPU where manifests name none."""
        return (
            Judging(options=self.options, texts=self.texts, given=replace(self.given, accelerator=str(gpu)))
            if gpu
            else self
        )

    def items(self, texts: Sequence[tuple[str, bytes]], paths: Sequence[str] = ()) -> list[Item | Broken]:
        engines = engines_in(paths, self.options, self.given, texts)
        judged = judged_with_fetched(
            lambda models: engines.judged(replace(self.given, models=models)),
            self.given.models,
            fetches=self.given.fetches,
            max_seconds=self.options.fetch_seconds,
        )
        return [*judged, *engines.documents.broken]


def cases_of(found: Gathered, options: CheckOptions) -> tuple[list[Case], Judging, list[str]]:
    """Return the engines, the means to judge changes of them, and sentences about what could not be read."""
    starts, notes = starts_in(found.logs), list[str]()
    gpu = _gpu_of(found)
    given = _with_named(given_facts(tuple(found.paths) or (STDIN,), options), gpu, found, starts)
    judging = Judging(options=options, texts=dict(found.texts), given=given)
    whole = "".join(text for _, text in found.texts) + "".join(found.paths)
    commands = {
        f"{name}#{index}{SCRIPT_ENDING if each.text else ''}": each
        for index, (name, each) in enumerate(found.pasted)
        if each.text or (each.kind != "Node" and each.name not in whole)
    }
    texts = [
        *((name, text.encode()) for name, text in found.texts),
        *((name, each.document) for name, each in commands.items()),
    ]
    cases = list[Case]()
    for item in judging.items(texts, found.paths) if texts or found.paths else ():
        if isinstance(item, Broken):
            notes.append(f"{item.file}:{item.position.line}: {item.finding.message}; {item.finding.remediation}")
        elif item.verdict is not None:
            pasted = commands.get(item.document.file)
            cases.append(Case(item=item, pasted=pasted, assessment=item.assessment, plain=item.assessment))
    judged = {case.pasted.line for case in cases if case.pasted}
    for name, each in commands.items():
        if each.line not in judged and (engine := server_in(each.text)):
            cases.append(Case(pasted=each, start=Start(file=name.partition("#")[0], engine=engine)))
    return _paired(cases, starts, judging, gpu), judging, notes


def _gpu_of(found: Gathered) -> str:
    """Return the GPU that programs or labels of nodes name, if they name one."""
    names = {tuple(each.name for each in gpus_in(text)) for text in found.gpus} - {()}
    for node in (each for _, each in found.pasted if each.kind == "Node"):
        hints = list(node_hints(Written(value={"nodeSelector": node.labels})))
        names |= {tuple(each.accelerator.name for each in accelerators_of(hints))} - {()}
    if not names:
        names = {tuple(each.name for each in gpus_in(line)) for line in found.prose} - {()}
    return names.pop()[0] if len(names) == 1 else ""


def _with_named(given: GivenFacts, gpu: str, found: Gathered, starts: Sequence[Start]) -> GivenFacts:
    """Return the facts with the GPU that is named, and the release of vLLM where the logs, or the prose, name one."""
    versions = {_release(start.log.vllm_version) for start in starts} - {""}
    if not versions:
        versions = {match[1] for line in found.prose for match in _RELEASE_IN_PROSE.finditer(line)}
    version = versions.pop() if len(versions) == 1 else None
    return replace(given, accelerator=given.accelerator or gpu or None, vllm_version=given.vllm_version or version)


def _release(version: str | None) -> str:
    match = _RELEASE.match(version or "")
    return match[0] if match else ""


def _paired(cases: list[Case], starts: list[Start], judging: Judging, gpu: str) -> list[Case]:
    """Give every log to its engine: the one of its model, or the only one; the others are engines of their own."""
    loose = [each for each in starts if not each.log.model and not each.engine]
    named = [each for each in starts if each not in loose]
    if len(named) == 1 and len(cases) <= 1:
        named = [_with_causes(named[0], loose)]
    elif not named and len(cases) == 1 and loose:
        named = [_with_causes(loose[0], loose[1:])]
    else:
        named += loose
    left, paired = list(named), list[Case]()
    for case in cases:
        if case.start is not None:
            paired.append(case)
            continue
        own = next((each for each in left if _is_of(each, case, alone=len(cases) == len(named) == 1)), None)
        if own is not None:
            left.remove(own)
        paired.append(_with_start(case, own, judging, gpu) if own else case)
    return [*paired, *(_with_start(Case(), each, judging, gpu) for each in left)]


def _with_causes(start: Start, others: Sequence[Start]) -> Start:
    """Return a start with the cause that events, a status or another piece of the log states, where its own is no root."""
    ranks = list(Rank)
    for other in others:
        is_better = other.failure and (
            start.failure is None or ranks.index(other.failure.row.rank) < ranks.index(start.failure.row.rank)
        )
        if is_better or (start.failure is None and other.ends_in_error and not start.ends_in_error):
            start = replace(
                start,
                failure=other.failure,
                file=other.file,
                line=other.line,
                words=other.words,
                ends_in_error=other.ends_in_error,
            )
    return start


def _is_of(start: Start, case: Case, *, alone: bool) -> bool:
    if start.log.model is None or not case.model:
        return alone
    return start.log.model.rpartition("/")[2] == case.model.rpartition("/")[2]


def _with_start(case: Case, start: Start, judging: Judging, gpu: str) -> Case:
    """Judge a case by what the start printed: its options, its release, the memory of its GPU."""
    case = replace(case, start=start)
    has_item = case.item is not None and case.item.engine is not None and case.item.engine.model is not None
    is_measured = has_item and start.failure is not None and start.failure.is_of_kv_cache
    if start.engine or not (start.log.arguments or start.log.model or is_measured):
        return case
    values = _values(case, start, judging.given, gpu)
    models = judging.given.models
    try:
        plain = assess_request(values, calibration=judging.given.calibration, models=models)
    except BadRequest as error:
        return replace(case, problem=str(error)) if case.assessment is None else case
    observed = _observed(plain.budget, start)
    corrected = (
        assess_request(values, calibration=observed, models=models) if observed is not NOTHING_OBSERVED else plain
    )
    return replace(case, values=values, assessment=corrected, plain=plain, is_observed=corrected is not plain)


def _values(case: Case, start: Start, given: GivenFacts, gpu: str) -> dict[str, Any]:
    log, rank = start.log, start.log.tightest
    settings = case.item.engine.settings if case.item and case.item.engine else {}
    named = given.accelerator or gpu or (case.item.accelerator if case.item else None)
    values = {**settings, **log.arguments, **log.circumstances, "usage_context": "server"}
    values = {key: value for key, value in values.items() if key not in _OF_THE_SERVER}
    facts: dict[str, Any] = {
        "model": log.model or (case.item.engine.model if case.item and case.item.engine else None),
        "vllm_version": given.vllm_version
        or _release(log.vllm_version)
        or (case.item.vllm_version if case.item else None),
        "gpu": named if named and "," not in named else None,
        "gpu_memory_bytes": rank.total_bytes if rank and not named else None,
    }
    if given.model_config is not None and catalogue.find_model(str(facts["model"])) is None:
        from kvgate.hf_config.fields import parse_config_text

        facts["model_config"] = parse_config_text(given.model_config.text)
    return {**values, **{key: value for key, value in facts.items() if value is not None}}


def _observed(budget: Budget | None, start: Start) -> Calibration:
    """Return what the log reports about the KV cache as a start that was observed, so that a fix is computed from it."""
    rank, failure = start.log.tightest, start.failure
    available = rank.available_kv_cache_bytes if rank else None
    if available is None and failure:
        available = failure.available_kv_cache_bytes
    if budget is None or budget.request.accelerator.vendor == "unknown":
        return NOTHING_OBSERVED
    made, cache = None, start.log.circumstances.get("compile_cache", "")
    is_refused = failure is not None and failure.is_of_kv_cache
    if available is not None:
        made = start_of_bytes(budget, available, source=start.file, compile_cache=cache, is_refused=is_refused)
    elif is_refused and failure and failure.max_model_len_that_fits:  # before V1: the tokens that the cache holds
        size = budget.request.settings.block_size or _BLOCK_OF_V0
        made = start_of_blocks(budget, failure.max_model_len_that_fits // size, block_size=size, source=start.file)
    return Calibration(starts=(made,)) if made else NOTHING_OBSERVED

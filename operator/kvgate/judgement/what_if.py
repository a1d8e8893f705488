"""A what-if in vLLM's own words → Assessment. `kvgate explain`, `size` and `sweep` ask it, and manifests of other platforms."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from kvgate.budget import NOTHING_OBSERVED, BudgetRequest, Calibration, Guarantee, Verdict, Workload
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.findings.finding import Finding, Located, Naming, Severity, error_rules, named
from kvgate.judgement import assess, facts
from kvgate.judgement.assessment import Assessment, Judged
from kvgate.judgement.facts import question
from kvgate.rules.command_line import OPTION_NOT_YET, OPTION_REMOVED, OPTION_VALUE
from kvgate.statement.engine import EngineStatement, Gpus
from kvgate.statement.what_if import statement_of_values
from kvgate.vllm.arguments import option_name

REFUSED_VALUES = (OPTION_VALUE, OPTION_NOT_YET, OPTION_REMOVED)


class UnknownFacts(ValueError):
    """A model, GPU or release is not known, so that nothing can be judged."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__(
            "; ".join(f"{f.rule}: {f.message}; {f.remediation}" for f in findings if f.severity is not Severity.INFO)
        )


def assess_request(
    values: Mapping[str, Any],
    *,
    guarantee: Guarantee = Guarantee.STARTUP,
    workload: Workload | None = None,
    calibration: Calibration = NOTHING_OBSERVED,
    naming: Naming = option_name,
    models: PublishedModels = NO_MODELS,
    among: tuple[str, ...] = (),
) -> Assessment:
    """Judge one what-if; where it names no GPU, on those of the catalogue, or `among` these. Raise BadRequest with all problems at once."""
    statement = statement_of_values(values, guarantee=guarantee, workload=workload, naming=naming)
    statement = replace(statement, gpus=replace(statement.gpus, among=among)) if among else statement
    ask = partial(assess_statement, calibration=calibration, naming=naming, models=models)
    if not statement.gpus.is_open:
        return ask(statement)
    from kvgate.judgement.possible_worlds import Worlds  # for questions without a GPU

    def judged_in(release: str, gpu: str | None) -> Judged:
        on_gpu = replace(statement, known={**statement.known, "gpu": gpu}, gpus=Gpus(name=gpu)) if gpu else statement
        answer = ask(on_gpu)
        found = tuple(Located(finding=each, path="") for each in answer.findings)
        return Judged(assessment=answer, verdict=answer.verdict, vllm_version=release, findings=found)

    judged = Worlds(releases=statement.releases, gpus=statement.gpus, judged_in=judged_in).judged()
    answer = judged.assessment or ask(statement)
    return replace(answer, findings=tuple(each.finding for each in judged.findings))


def assess_statement(
    statement: EngineStatement,
    *,
    calibration: Calibration = NOTHING_OBSERVED,
    naming: Naming = option_name,
    models: PublishedModels = NO_MODELS,
) -> Assessment:
    """Judge an engine of one release on one GPU."""
    request, findings = request_of(statement, naming=naming, models=models)
    if request is None:
        of_pod = tuple(named(assess.pod_findings(statement), naming))
        is_refused = any(each.rule in REFUSED_VALUES and each.severity is Severity.ERROR for each in findings)
        verdict = Verdict.DOES_NOT_FIT if is_refused or error_rules(of_pod) else Verdict.UNKNOWN
        return Assessment(verdict=verdict, guarantee=statement.guarantee, findings=(*findings, *of_pod))
    workload = statement.workload
    share = workload.shared_among(request.settings.parallelism.data) if workload else None
    return assess.judge(replace(request, workload=share, calibration=calibration), extra=findings, naming=naming)


def read_request(
    values: Mapping[str, Any],
    *,
    guarantee: Guarantee = Guarantee.STARTUP,
    workload: Workload | None = None,
    is_whole: bool = False,
    models: PublishedModels = NO_MODELS,
    is_parsed: bool = False,
) -> tuple[BudgetRequest | None, tuple[Finding, ...]]:
    """Return the question that the values ask, and the findings about it. The question is None where a fact is missing."""
    statement = statement_of_values(
        values, guarantee=guarantee, workload=workload, is_whole=is_whole, is_parsed=is_parsed
    )
    return request_of(statement, models=models)


def request_of(
    statement: EngineStatement, *, naming: Naming = option_name, models: PublishedModels = NO_MODELS
) -> tuple[BudgetRequest | None, tuple[Finding, ...]]:
    """Return the question of a statement, and the findings about its words and facts. The question is None where a fact is missing."""
    found = facts.gather(statement, models=models)
    findings = tuple(named((*found.findings, *statement.findings), naming))
    return (question(statement, found) if found.is_complete else None), findings

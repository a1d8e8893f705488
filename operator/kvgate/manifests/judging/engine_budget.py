"""The budget of an engine with one release, every finding at the path that it is about."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import NOTHING_OBSERVED, Calibration, Guarantee, Verdict, Workload
from kvgate.budget.host.settings import UNKNOWN_POD, PodMemory
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.documents.launch_files import Form
from kvgate.documents.written import Written
from kvgate.findings.finding import Finding, Located, Place, Severity, Words, any_one, located
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import parse_config_text
from kvgate.judgement.assess import judge, pod_findings
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.what_if import assess_statement
from kvgate.manifests.judging.gpus import RANKS_ELSEWHERE, Chosen, Pools
from kvgate.manifests.judging.line_findings import undecided
from kvgate.manifests.judging.model_names import ModelFound, is_filled_in_later
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.manifests.pods.host_memory import RUNTIME_BYTES
from kvgate.rules.command_line import INVALID_SETTING
from kvgate.rules.facts import MODEL_ASSUMED, SETTING_NOT_UNDERSTOOD, UNKNOWN_ACCELERATOR
from kvgate.rules.host_memory import OVERSUBSCRIBED
from kvgate.rules.manifests import MODEL_NOT_NAMED
from kvgate.rules.memory import (
    GUARANTEE_NOT_MET,
    KV_CACHE_TOO_SMALL,
    MAMBA_CACHE_BLOCKS_EXCEEDED,
    less_demand,
    workload_missing,
)
from kvgate.rules.settings import CONCURRENCY_ABOVE_MAX_NUM_SEQS, REQUEST_ABOVE_MAX_MODEL_LEN
from kvgate.statement.engine import EngineStatement, Releases
from kvgate.statement.what_if import BadRequest, statement_of_values
from kvgate.vllm.arguments import GivenOption, is_open, option_name, shown
from kvgate.vllm.given_settings import read_settings, with_whole_configs
from kvgate.vllm.images import is_own_image
from kvgate.vllm.parser import CommandLine
from kvgate.vllm.variables import ALLOW_LONG

_DECLARE = any_one(
    "declare it in a comment: # kvgate:workload peakConcurrency=8 promptTokens=2000 outputTokens=500",
    "declare it in a mapping of .kvgate.yaml",
)
_OF_OTHER_DOORS = (SETTING_NOT_UNDERSTOOD, MODEL_ASSUMED)
"""Rules about a what-if's own keys, about pods that kvgate renders, and about what an engine lists as assumed."""


class Defaults(Struct, frozen=True, kw_only=True):
    """Facts that a manifest does not state, from the command line or `.kvgate.yaml`."""

    accelerator: str | None = None
    """A name of the catalogue, or several with commas between them: the engine must start on each, unless it `may_be_any`."""
    may_be_any: bool = False
    pools: Pools = field(default_factory=dict)
    vllm_version: str | None = None
    model_config: str | None = None
    """Text of a config.json, for models that the catalogue does not know."""
    guarantee: Guarantee = Guarantee.STARTUP
    workload: Workload | None = None
    """Load that the engine is expected to serve; it replaces max_num_seqs whole requests."""
    calibration: Calibration = NOTHING_OBSERVED
    models: PublishedModels = NO_MODELS
    """Checkpoints that are known beside the catalogue."""


class EngineFacts(Struct, frozen=True, kw_only=True):
    """One engine, and all that is known about it but the release."""

    engine: FoundEngine
    model: ModelFound | None
    chosen: Chosen
    releases: Releases
    given: Defaults
    """Facts from elsewhere; the workload is that of this engine alone."""


def is_partly_seen(engine: FoundEngine, line: CommandLine) -> bool:
    """Options that the input does not hold may change everything."""
    return engine.is_partial or bool(line.open_words)


def ask_budget(facts: EngineFacts, line: CommandLine, version: str) -> tuple[Assessment | None, list[Located]]:
    """(the assessment, its findings); None where the engine cannot be assessed."""
    engine, given = facts.engine, facts.given
    is_missing = given.guarantee is Guarantee.WORKLOAD and given.workload is None
    guarantee = Guarantee.STARTUP if is_missing else given.guarantee
    try:
        values = _values(facts, line, version)
        if values is None:
            return None, [_no_model(engine, line)]
        statement = statement_of_values(
            values,
            guarantee=guarantee,
            workload=given.workload if guarantee is Guarantee.WORKLOAD else None,
            is_whole=True,
            pod=pod_of(engine),
            is_parsed=True,
        )
        assessment = assess_statement(statement, calibration=given.calibration, models=given.models)
        findings = [each.noted() if _is_expected_to_hold(assessment, each) else each for each in assessment.findings]
        if guarantee is Guarantee.STARTUP:
            findings += _oversubscription(assessment, given.workload)
        if is_missing:
            findings.append(workload_missing(_DECLARE))
    except BadRequest as error:
        as_written = sorted(error.problems, key=[*line.given, *error.problems].index)
        return None, [_invalid(engine, line, name, error.problems[name]) for name in as_written]
    except ModelConfigError as error:
        return None, [_invalid(engine, line, "", str(error))]
    # an engine on other hardware has its own finding about it
    left_out = [*_OF_OTHER_DOORS, *([UNKNOWN_ACCELERATOR] if facts.chosen.name is None else ())]
    placed = [_placed(facts, line, finding) for finding in findings if finding.rule not in left_out]
    return assessment, [each.softened() for each in placed] if is_partly_seen(engine, line) else placed


def _is_expected_to_hold(assessment: Assessment, finding: Finding) -> bool:
    """Return whether the KV cache that a finding doubts is expected to hold what it must: the verdict says MayNotFit, and nothing is
    wrong with the manifest."""
    budget = assessment.budget
    if (
        finding.severity is not Severity.WARNING
        or budget is None
        or budget.demand is None
        or budget.usable_blocks is None
    ):
        return False
    needed = {
        KV_CACHE_TOO_SMALL: budget.demand.startup_blocks,
        MAMBA_CACHE_BLOCKS_EXCEEDED: budget.demand.sequence_blocks,
    }.get(finding.rule)
    return needed is not None and needed <= budget.usable_blocks.expected


def _invalid(engine: FoundEngine, line: CommandLine, name: str, problem: str | Words) -> Located:
    at = line.given.get(name) or Place(name=name, path=engine.path)
    return located(INVALID_SETTING, at, problem, "give a value that vLLM takes")


def _no_model(engine: FoundEngine, line: CommandLine) -> Located:
    """Report that there is no model, or only a placeholder for one, which the verdict says too."""
    options = [Written(value=each.text, path=each.path) for each in line.given.values() if each.name == "model"]
    words = [Written(value=word.text, path=word.path) for word in line.positionals[:1]]
    for written in (engine.model, *options, *words, engine.model_name):
        if is_filled_in_later(written.text) and ("$" not in written.text and "{{" not in written.text):
            message = f"{shown(written.text)} is a placeholder and names no model"
            fill_in = "put the model's Hugging Face id in its place"
            return located(MODEL_NOT_NAMED, Place(name="model", path=written.path), message, fill_in)
    for written in (engine.model, *options, *words):
        if is_open(written.text):
            return undecided(GivenOption(name="model", value=None, text=written.text, path=written.path), engine)
    remedies = ["give the model's Hugging Face id"]
    if any(word.text.startswith("`") for word in line.open_words):  # a script that is not in the input
        remedies.append("give its config.json: --model-config, or modelConfig in .kvgate.yaml")
    if not engine.document.kind and engine.is_in_a_pod:
        remedies.append("state the path of its name in .kvgate.yaml: `mappings: [{fields: {model: PATH}}]`")
    place = Place(name="model", path=engine.path)
    return located(MODEL_NOT_NAMED, place, "no model is named where kvgate looks", any_one(*remedies))


def _values(facts: EngineFacts, line: CommandLine, version: str) -> dict[str, Any] | None:
    """The what-if; None where no model is named."""
    name, model_config = facts.model.name if facts.model else "", facts.given.model_config
    if not name and model_config is None:
        return None
    settings = {name: setting.value for name, setting in line.given.items()}
    circumstances = {"usage_context": "server", **_host_values(facts.engine, line), **facts.engine.circumstances}
    if is_own_image(facts.engine.image.text):
        circumstances["installed_by"] = "image"
    values = {**circumstances, **settings, "model": name or "model", "gpu": facts.chosen.name, "vllm_version": version}
    if model_config is not None and catalogue.find_model(name) is None:
        values["model_config"] = parse_config_text(model_config)
    may_be_converted = (facts.model is not None and facts.model.is_place) or "hf_overrides" in settings
    # a folder, or another file, may hold what the published model lacks
    if may_be_converted and "quantization" in settings:
        values["revision"] = settings.get("revision") or "a copy"
    if facts.engine.takes_any_length:
        values[ALLOW_LONG] = True
    part = facts.engine.gpu_part
    if part is None or not part.is_all_it_sees:
        return values
    whole = catalogue.find_accelerator(facts.chosen.name) if facts.chosen.name else None
    if whole is None and part.is_share:
        return values
    return {**values, "gpu_memory_bytes": part.of(whole.memory_bytes if whole else 1 << 60)}


def pod_of(engine: FoundEngine) -> PodMemory:
    """Return the memory of the engine's pods. Without a volume /dev/shm has what the container runtime gives it."""
    room, shm_bytes, is_stated = engine.host, engine.host.shm_bytes, True
    if shm_bytes is None and engine.has_shared_memory is False:
        shm_bytes, is_stated = RUNTIME_BYTES, engine.is_shared_memory_certain
    if room.limit_bytes is None and shm_bytes is None:
        return UNKNOWN_POD
    return PodMemory(
        limit_bytes=room.limit_bytes,
        shm_bytes=shm_bytes,
        is_shm_certain=is_stated,
        num_pods=engine.num_pods,
        num_gpus=engine.num_gpus.count,
    )


def _host_values(engine: FoundEngine, line: CommandLine) -> dict[str, Any]:
    """Return what the engine's surroundings say about the memory of the host; options win over it."""
    values = dict(engine.host.values)
    if any(name in line.given for name in RANKS_ELSEWHERE):
        values["data_parallel_size_local"] = 1
    if engine.is_on_ray:
        values["distributed_executor_backend"] = "ray"
    return values


def _host_paths(engine: FoundEngine) -> dict[str, str]:
    shared = engine.host.shm.path if engine.host.shm.is_set else engine.shared_memory_path
    return {"host_memory_limit_bytes": engine.host.limit.path, "shm_bytes": shared}


_SHARED_MEMORY_OF = {
    Form.QUADLET: "ShmSize",
    Form.SCRIPT: "--shm-size",
    Form.MAKEFILE: "--shm-size",
    Form.UNIT: "--shm-size",
}


class EngineNames(Struct, frozen=True, kw_only=True):
    """The naming of an engine's manifest: the path of a platform's own field, else the option."""

    paths: tuple[tuple[str, str], ...]

    def __call__(self, setting: str) -> str:
        return dict(self.paths).get(setting) or option_name(setting)


def names_of(engine: FoundEngine, line: CommandLine) -> EngineNames:
    """Return the naming of settings, and of the memory of the host, for this engine's manifest."""
    room = engine.host
    form = engine.document.form
    of_containers = _SHARED_MEMORY_OF[form] if form else "shm_size"
    otherwise = "the sizeLimit of an emptyDir with medium: Memory at /dev/shm" if engine.is_in_a_pod else of_containers
    host = {"host_memory_limit_bytes": room.limit.path, "shm_bytes": room.shm.path if room.shm.is_set else otherwise}
    given = [*line.unknown.values(), *line.given.values()]
    written = {option.name: option.path if option.is_field else "" for option in given}
    return EngineNames(paths=tuple({**engine.option_paths, **host, **written}.items()))


def host_findings(engine: FoundEngine, line: CommandLine, version: str) -> list[Located]:
    """Judge the memory of the host where nothing is known about the model or its settings."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size")
    if any(name in line.unknown for name in sizes):
        return []
    values = {**_host_values(engine, line), **{name: option.value for name, option in line.given.items()}}
    known, _ = read_settings(with_whole_configs({**values, "vllm_version": version}))
    found = pod_findings(EngineStatement(values=values, known=known, guarantee=Guarantee.STARTUP, pod=pod_of(engine)))
    placed = [Located(finding=each, path=_host_paths(engine).get(each.field) or engine.path) for each in found]
    return [each.softened() for each in placed] if is_partly_seen(engine, line) else placed


def _placed(facts: EngineFacts, line: CommandLine, finding: Finding) -> Located:
    """The finding at the option that sets its field, or where the model, the GPU or the release is written."""
    setting = line.given.get(finding.field)
    if setting and finding.field != "model":
        return Located(finding=finding, path=setting.path, line=setting.line)
    own = {
        **_host_paths(facts.engine),
        "model": facts.model.path if facts.model else "",
        "gpu": facts.chosen.path,
        "accelerator": facts.chosen.path,
        "vllm_version": version_path(facts.engine),
    }
    return Located(finding=finding, path=own.get(finding.field) or facts.engine.path)


def version_path(engine: FoundEngine) -> str:
    return (engine.version.path if engine.version.text else engine.image.path) or engine.path


def _oversubscription(assessment: Assessment, workload: Workload | None) -> Iterator[Finding]:
    """The declared workload does not fit: preemptions under load. max_num_seqs is a limit of the scheduler, which promises no load."""
    if assessment.verdict not in (Verdict.FITS, Verdict.MAY_NOT_FIT) or assessment.budget is None:
        return
    budget, guarantee = assessment.budget, Guarantee.WORKLOAD if workload else Guarantee.FULL_CONTEXT
    share = workload.shared_among(budget.request.settings.parallelism.data) if workload else None
    for finding in judge(replace(budget.request, guarantee=guarantee, workload=share)).findings:
        if finding.rule == GUARANTEE_NOT_MET:
            worded = finding.with_words("{message}; vLLM preempts requests under such a load")
            severity = Severity.WARNING if workload else Severity.INFO
            yield replace(worded, rule=OVERSUBSCRIBED, severity=severity, remedy=less_demand(budget))
        elif finding.rule in (CONCURRENCY_ABOVE_MAX_NUM_SEQS, REQUEST_ABOVE_MAX_MODEL_LEN):
            yield replace(finding, severity=Severity.WARNING)

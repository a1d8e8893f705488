"""Changes that would make an engine start, each judged as `kvgate check` judges it before it is offered."""

from collections.abc import Callable, Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvgate.api import field_path
from kvgate.budget import AUTO_MAX_MODEL_LEN, Budget, Verdict, parse_patch, plan
from kvgate.cli.reports.report import Item
from kvgate.cli.why.cases import Case, Judging
from kvgate.cli.why.changed_texts import REMOVED, Changes, command_of, with_changes, with_value
from kvgate.documents.positions import Broken
from kvgate.findings.finding import Severity
from kvgate.judgement.advisor import advice
from kvgate.judgement.assessment import Confidence
from kvgate.judgement.what_if import assess_request
from kvgate.manifests.pasted import SCRIPT_ENDING
from kvgate.rules.command_line import OPTION_NOT_YET, OPTION_REMOVED, OPTION_UNKNOWN
from kvgate.rules.settings import MAX_MODEL_LEN_ABOVE_MODEL
from kvgate.sources.start_failure import FailureKind, StartFailure
from kvgate.statement.what_if import BadRequest
from kvgate.vllm.arguments import option_name
from kvgate.vllm.parser import parse_arguments

MAX_FIXES = 4


class Fix(Struct, frozen=True, kw_only=True):
    """One change, as text that can be pasted, and what `kvgate check` says about the result."""

    changes: Mapping[str, int | str | None]
    """vLLM's names of settings → their values; null: leave it out."""
    words: str
    """`set --max-model-len to 28016`."""
    command: str = ""
    """The whole command with the change; empty where none was given."""
    patch: str = ""
    """The change as a patch of the file; empty where kvgate cannot write it."""
    verdict: Verdict | None = None
    """The verdict of `kvgate check` on the result; None where nobody can judge it."""

    @property
    def is_checked(self) -> bool:
        """True where the result was judged and starts."""
        return self.verdict is Verdict.FITS


def fixes_of(case: Case, judging: Judging) -> list[Fix]:
    """Return the changes that start, those from vLLM's own figures first; of the same settings only the first."""
    made: dict[frozenset[str], Fix] = {}
    tried, stated = set[tuple[tuple[str, Any], ...]](), list[Fix]()
    for changes in _candidates(case):
        key, settings = tuple(sorted(changes.items(), key=str)), frozenset(changes)
        if key in tried or (settings in made and made[settings].is_checked) or len(made) + len(stated) == MAX_FIXES:
            continue
        tried.add(key)
        if fix := _fix(case, judging, changes):
            stated += [made[settings]] if settings in made else []  # vLLM's own figure, of which kvgate is less sure
            made[settings] = fix
    return [*stated, *made.values()]


def _candidates(case: Case) -> Iterator[Changes]:
    """Yield what the message names, then each change that gives memory; where a setting is refused, both together."""
    failure = case.start.failure if case.start else None
    own = list(_named_by(failure, case)) if failure else []
    yield from own
    if case.lacking is not None and case.budget and case.budget.kv_cache and len(case.budget.kv_cache.groups) == 1:
        needed, there = case.lacking
        tokens = case.budget.resolved.max_model_len * there // needed
        yield {"max_model_len": max(tokens - tokens % 16, 16)}
    is_refused = failure is not None and failure.kind is FailureKind.INVALID_SETTING
    base = {**_refused_settings(case), **(own[0] if own and is_refused else {})}
    if base and not own:
        yield base
    judged, budget = case.assessment, case.budget
    if budget is None or judged is None or judged.confidence is not Confidence.KNOWN:
        return
    limit = failure.max_model_len_that_fits if failure else None
    plain = case.plain.budget if case.plain and case.plain is not judged else None
    smaller = {each.field: each.value for each in advice(plain.request)} if plain else {}
    # what the advisor says for an engine whose refused settings are corrected already
    corrected = {name: value for name, value in base.items() if name in _LENGTHS and isinstance(value, int)}
    request = budget.request.with_settings(**corrected) if corrected else budget.request
    for each in () if plan(request).verdict is Verdict.FITS else advice(request):
        changes: Changes = {change.field: change.after for change in each.changes}
        if len(changes) == 1 and each.field in ("max_model_len", "max_num_seqs") and isinstance(each.value, int):
            limits = (each.value, smaller.get(each.field), limit if each.field == "max_model_len" else None)
            changes[each.field] = min(size for size in limits if isinstance(size, int))
        yield {**base, **{"gpu" if name == "accelerator" else name: value for name, value in changes.items()}}


_OF_OPTIONS = (OPTION_UNKNOWN, OPTION_REMOVED, OPTION_NOT_YET)
_LENGTHS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")
"""Settings of the budget whose values are whole numbers."""


def _refused_settings(case: Case) -> Changes:
    """Return corrections of what vLLM refuses whatever memory there is: unknown options are left out, a length is the model's own."""
    changes: Changes = {}
    if case.item and case.item.engine and case.item.vllm_version:
        engine = case.item.engine.engine
        line = parse_arguments(engine.arguments, parse_patch(case.item.vllm_version), program=engine.program)
        options = (each.at.text.partition("=")[0] for each in line.problems if each.rule in _OF_OPTIONS)
        changes |= {name.lstrip("-").replace("-", "_"): REMOVED for name in options}
    for each in case.assessment.findings if case.assessment else ():
        limit = each.words.value_of("limit") if each.rule == MAX_MODEL_LEN_ABOVE_MODEL else ""
        if limit.isdigit() and each.severity is Severity.ERROR:
            changes["max_model_len"] = int(limit)
    return changes


_FIXED: Mapping[str, Changes] = {
    "Bfloat16NotSupported": {"dtype": "half"},
    "Fp8KVCacheNotSupported": {"kv_cache_dtype": "auto"},
    "KVCacheDtypeUnknown": {"kv_cache_dtype": "auto"},
    "KVCacheDtypeMismatch": {"kv_cache_dtype": "auto"},
    "QuantizationMismatch": {"quantization": REMOVED},
    "QuantizationUnknown": {"quantization": REMOVED},
    "TrustRemoteCode": {"trust_remote_code": ""},
}
"""Row of the table → the change that helps whatever its figures are."""
_FIGURES = {
    "KVCacheTooSmall": ("max_model_len", "max_model_len_that_fits"),
    "MambaBlocks": ("max_num_seqs", "max_num_seqs_that_fits"),
    "BatchBelowMaxModelLen": ("max_num_batched_tokens", "max_model_len"),
    "EncoderCache": ("max_num_batched_tokens", "item_tokens"),
}
"""Row of the table → the setting, and the figure of the message that becomes its value."""
_OUT_OF_MEMORY = (
    "OutOfMemorySampler", "OutOfMemoryPooler", "OutOfMemoryProfiling", "OutOfMemoryCapture", "OutOfMemoryServing",
    "OutOfMemoryKVCache", "CublasAlloc",
)  # fmt: skip
_RANKS_OF_LORA = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of max_lora_rank that vLLM takes (0.33.0, `LoRAConfig`)."""


def _named_by(failure: StartFailure, case: Case) -> Iterator[Changes]:
    """Yield the changes that the row of a message, or its figures, name."""
    if failure.id in _FIXED:
        yield _FIXED[failure.id]
    elif failure.id in _FIGURES:
        setting, name = _FIGURES[failure.id]
        if figure := getattr(failure, name, failure.found.get(name)):
            yield {setting: figure}
    elif failure.id in _OUT_OF_MEMORY:
        yield from _less_memory(failure, case.budget)
    else:
        yield from _computed(failure)


def _less_memory(failure: StartFailure, budget: Budget | None) -> Iterator[Changes]:
    """Yield less for the KV cache, so that more is left beside it."""
    now = budget.resolved.max_num_seqs if budget else 256
    if failure.id in ("OutOfMemorySampler", "OutOfMemoryPooler", "OutOfMemoryProfiling") and now > 64:
        yield {"max_num_seqs": 256 if now > 256 else now // 2}
    has_large_batch = budget is not None and budget.resolved.max_num_batched_tokens > 2048
    if failure.id in ("OutOfMemoryProfiling", "OutOfMemoryServing") and has_large_batch:
        yield {"max_num_batched_tokens": 2048}
    if failure.id != "OutOfMemoryProfiling":
        share = float(budget.resolved.gpu_memory_utilization) if budget else 0.9
        yield {"gpu_memory_utilization": f"{max(0.1, share - 0.05):.2f}"}


def _computed(failure: StartFailure) -> Iterator[Changes]:
    """Yield the changes that follow from the figures of one row."""
    total, free = failure.total_bytes, failure.available_bytes
    match failure.id, failure.found:
        case "GpuMemoryTaken", _ if total and free and (share := int(free * 100 / total) / 100 - 0.01) >= 0.1:
            yield {"gpu_memory_utilization": f"{share:.2f}"}
        case "MaxModelLenAboveModel", found:
            yield {"max_model_len": found.get("derived_max_model_len", AUTO_MAX_MODEL_LEN)}
        case (("HeadsNotDivisible" | "SizesNotDivisible"), {"heads": int(heads), "tensor_parallel_size": int(now)}):
            for size in (each for each in (8, 4, 2, 1) if each < now and heads % each == 0):
                yield {"tensor_parallel_size": size}
        case "TooFewGpus", {"gpus": int(gpus)}:
            yield {"tensor_parallel_size": max(1, gpus)}
        case "LoraRank", {"lora_rank": int(rank)}:
            yield {"max_lora_rank": next((size for size in _RANKS_OF_LORA if size >= rank), rank)}
        case "UnknownArgument", {"arguments_text": str(words)}:
            names = [word.partition("=")[0] for word in words.split() if word.startswith("--")]
            if names:
                yield {name.lstrip("-").replace("-", "_"): REMOVED for name in names}


# ── judging a change ──


def _fix(case: Case, judging: Judging, changes: Changes) -> Fix | None:
    """Return a change with its texts, if the engine starts with it; what nobody can judge is offered as it is."""
    name_of = field_path if case.item and case.item.spec else option_name
    words = " and ".join(_words(name, value, name_of) for name, value in changes.items())
    written = {name: value for name, value in changes.items() if name != "gpu"}
    command = patch = ""
    if not written:
        verdict = _verdict_with(case, changes)
    elif case.pasted and case.pasted.text:
        command = with_changes(case.pasted.text, written, case.model)
        judged = _verdict(judging.on(changes.get("gpu")).items([(f"fix{SCRIPT_ENDING}", command.encode())]), "")
        verdict = _worse(judged, case, changes)
    elif case.item:
        patch, judged = _patched(case.item, judging.on(changes.get("gpu")), written)
        verdict = _worse(judged, case, changes) if patch else _verdict_with(case, changes)
    else:
        command, verdict = command_of(case, written), _verdict_with(case, changes)
    failure = case.start.failure if case.start else None
    is_stated = failure is not None and changes == {"max_model_len": failure.max_model_len_that_fits}
    words += ", the length that vLLM states" if is_stated else ""
    not_of_bytes = (FailureKind.INVALID_SETTING, FailureKind.ENVIRONMENT)
    was_open = case.verdict is Verdict.MAY_NOT_FIT or (failure is not None and failure.kind in not_of_bytes)
    is_refused = verdict is Verdict.DOES_NOT_FIT or (verdict is Verdict.MAY_NOT_FIT and not was_open)
    if is_refused and not is_stated:  # vLLM measured what kvgate predicts
        return None
    return Fix(changes=changes, words=words, command=command, patch=patch, verdict=verdict)


def _words(name: str, value: int | str | None, name_of: Callable[[str], str]) -> str:
    if name == "gpu":
        return f"use {value}"
    if value is REMOVED:
        return f"leave {name_of(name)} out"
    gpus = f", with {value} GPUs" if name == "tensor_parallel_size" and value != 1 else ""
    return f"add {name_of(name)}" if value in ("", True) else f"set {name_of(name)} to {value}{gpus}"


def _verdict_with(case: Case, changes: Changes) -> Verdict | None:
    """Return the verdict of the start with changed settings; None where the log does not hold them."""
    if case.values is None:
        if case.budget is None:
            return None
        if (
            case.item and case.item.spec
        ):  # the solver's changes keep the promise of an InferenceDeployment; others are not offered
            meant = {"accelerator" if name == "gpu" else name: value for name, value in changes.items()}
            offered = [{change.field: change.after for change in each.changes} for each in advice(case.budget.request)]
            return Verdict.FITS if meant in offered else Verdict.DOES_NOT_FIT
        values = {
            "model": case.budget.request.shape.name,
            "gpu": changes.get("gpu"),
            "vllm_version": case.budget.request.vllm_version,
        }
        values |= case.item.engine.settings if case.item and case.item.engine else {}
    else:
        values = dict(case.values)
    values |= changes
    if "gpu" in changes:
        values.pop("gpu_memory_bytes", None)
    removed = [name for name, value in changes.items() if value is REMOVED]
    try:
        kept = {key: value for key, value in values.items() if key not in removed and value != ""}
        return assess_request(kept).verdict
    except BadRequest:
        return None


def _worse(judged: Verdict | None, case: Case, changes: Changes) -> Verdict | None:
    """Return the worse of two verdicts: of the changed text, and of the start that was logged with the change."""
    logged = _verdict_with(case, changes) if case.values is not None else judged
    return Verdict.DOES_NOT_FIT if Verdict.DOES_NOT_FIT in (judged, logged) else judged


def _verdict(items: list[Item | Broken], name: str) -> Verdict | None:
    found = [each.verdict for each in items if isinstance(each, Item) and name in ("", each.name)]
    return next((each for each in found if isinstance(each, Verdict)), None)


def _patched(item: Item, judging: Judging, changes: Changes) -> tuple[str, Verdict | None]:
    """Return the change as a patch of the engine's file, with the verdict on the result; no patch where it cannot be written."""
    path, before = item.document.file, judging.texts.get(item.document.file, "")
    if not before and Path(path).is_file() and Path(path).stat().st_size <= 1 << 20:
        before = Path(path).read_text(encoding="utf-8", errors="replace")
    after = "" if item.document.origin is not None else before
    # lines are removed last, because the places of the others are those of the file as it is
    for name, value in sorted(changes.items(), key=lambda change: change[1] is REMOVED):
        after = with_value(after, item, name, value) if after else ""
    if after in ("", before):
        return "", None
    verdict = _verdict(judging.items([(path, after.encode())]), item.name)
    name = path.lstrip("/")
    lines = unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}", n=1
    )
    return "".join(lines), verdict

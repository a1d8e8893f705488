"""Changes that would make an engine start, each judged as `kvgate check` judges it before it is offered."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvgate.api import field_path
from kvgate.budget import AUTO_MAX_MODEL_LEN, Alternative, Budget, Verdict, parse_patch, plan
from kvgate.cli.reports.report import Item
from kvgate.cli.why.cases import Case, Judging
from kvgate.documents.positions import Broken
from kvgate.findings.finding import Severity
from kvgate.judge.advisor import advice
from kvgate.judge.assessment import Confidence
from kvgate.judge.what_if import assess_request
from kvgate.manifests.pasted import SCRIPT_ENDING
from kvgate.rules.command_line import OPTION_NOT_YET, OPTION_REMOVED, OPTION_UNKNOWN
from kvgate.rules.settings import MAX_MODEL_LEN_ABOVE_MODEL
from kvgate.sources.start_failure import FailureKind, StartFailure
from kvgate.statement.what_if import BadRequest
from kvgate.vllm.arguments import option_name
from kvgate.vllm.parser import parse_arguments

MAX_FIXES = 4
_REMOVED = None
"""Value of an option that is left out."""


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


Changes = dict[str, int | str | None]


def _candidates(case: Case) -> Iterator[Changes]:
    """Yield what the message names, then each change that gives memory; where a setting is refused, both together."""
    failure = case.start.failure if case.start else None
    own = list(_BY_ROW[failure.id](failure, case)) if failure and failure.id in _BY_ROW else []
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
    for each in _advice(budget, base):
        changes: Changes = {change.field: change.after for change in each.changes}
        if len(changes) == 1 and each.field in ("max_model_len", "max_num_seqs") and isinstance(each.value, int):
            limits = (each.value, smaller.get(each.field), limit if each.field == "max_model_len" else None)
            changes[each.field] = min(size for size in limits if isinstance(size, int))
        yield {**base, **{"gpu" if name == "accelerator" else name: value for name, value in changes.items()}}


def _advice(budget: Budget, base: Changes) -> Sequence[Alternative]:
    """Return the advisor's changes for an engine whose refused settings are corrected already."""
    corrected = {name: value for name, value in base.items() if name in _LENGTHS and isinstance(value, int)}
    request = budget.request.with_settings(**corrected) if corrected else budget.request
    return () if plan(request).verdict is Verdict.FITS else advice(request)


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
        changes |= {name.lstrip("-").replace("-", "_"): _REMOVED for name in options}
    for each in case.assessment.findings if case.assessment else ():
        limit = each.words.value_of("limit") if each.rule == MAX_MODEL_LEN_ABOVE_MODEL else ""
        if limit.isdigit() and each.severity is Severity.ERROR:
            changes["max_model_len"] = int(limit)
    return changes


def _utilization(case: Case) -> float:
    return float(case.budget.resolved.gpu_memory_utilization) if case.budget else 0.9


def _less_memory(failure: StartFailure, case: Case) -> Iterator[Changes]:
    """Yield less for the KV cache, so that more is left beside it."""
    now = case.budget.resolved.max_num_seqs if case.budget else 256
    if failure.id in ("OutOfMemorySampler", "OutOfMemoryPooler", "OutOfMemoryProfiling") and now > 64:
        yield {"max_num_seqs": 256 if now > 256 else now // 2}
    if failure.id in ("OutOfMemoryProfiling", "OutOfMemoryServing") and case.budget:
        batch = case.budget.resolved.max_num_batched_tokens
        if batch > 2048:
            yield {"max_num_batched_tokens": 2048}
    if failure.id != "OutOfMemoryProfiling":
        yield {"gpu_memory_utilization": f"{max(0.1, _utilization(case) - 0.05):.2f}"}


def _own_length(failure: StartFailure, _: Case) -> Iterator[Changes]:
    if failure.max_model_len_that_fits:
        yield {"max_model_len": failure.max_model_len_that_fits}


def _own_sequences(failure: StartFailure, _: Case) -> Iterator[Changes]:
    if failure.max_num_seqs_that_fits:
        yield {"max_num_seqs": failure.max_num_seqs_that_fits}


def _free_share(failure: StartFailure, _: Case) -> Iterator[Changes]:
    if failure.available_bytes and failure.total_bytes:
        share = int(failure.available_bytes * 100 / failure.total_bytes) / 100 - 0.01
        if share >= 0.1:
            yield {"gpu_memory_utilization": f"{share:.2f}"}


def _derived(failure: StartFailure, _: Case) -> Iterator[Changes]:
    yield {"max_model_len": failure.found.get("derived_max_model_len", AUTO_MAX_MODEL_LEN)}


def _heads(failure: StartFailure, _: Case) -> Iterator[Changes]:
    heads, now = failure.found.get("heads"), failure.found.get("tensor_parallel_size")
    for size in (8, 4, 2, 1):
        if isinstance(heads, int) and isinstance(now, int) and size < now and heads % size == 0:
            yield {"tensor_parallel_size": size}


def _fewer_ranks(failure: StartFailure, _: Case) -> Iterator[Changes]:
    gpus = failure.found.get("gpus")
    if isinstance(gpus, int):
        yield {"tensor_parallel_size": max(1, gpus)}


def _without_option(failure: StartFailure, _: Case) -> Iterator[Changes]:
    words = str(failure.found.get("arguments_text", "")).split()
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    if names:
        yield {name.lstrip("-").replace("-", "_"): _REMOVED for name in names}


_RANKS_OF_LORA = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of max_lora_rank that vLLM takes (0.33.0, `LoRAConfig`)."""


def _adapter_rank(failure: StartFailure, _: Case) -> Iterator[Changes]:
    rank = failure.found.get("lora_rank")
    if isinstance(rank, int):
        yield {"max_lora_rank": next((size for size in _RANKS_OF_LORA if size >= rank), rank)}


def _whole_prompts(failure: StartFailure, _: Case) -> Iterator[Changes]:
    if failure.max_model_len:
        yield {"max_num_batched_tokens": failure.max_model_len}


def _items_of_media(failure: StartFailure, _: Case) -> Iterator[Changes]:
    tokens = failure.found.get("item_tokens")
    if isinstance(tokens, int):
        yield {"max_num_batched_tokens": tokens}


_BY_ROW: Mapping[str, Callable[[StartFailure, Case], Iterator[Changes]]] = {
    "KVCacheTooSmall": _own_length,
    "MambaBlocks": _own_sequences,
    "GpuMemoryTaken": _free_share,
    **dict.fromkeys(
        (
            "OutOfMemorySampler", "OutOfMemoryPooler", "OutOfMemoryProfiling", "OutOfMemoryCapture", "OutOfMemoryServing",
            "OutOfMemoryKVCache", "CublasAlloc",
        ),
        _less_memory,
    ),
    "MaxModelLenAboveModel": _derived,
    "HeadsNotDivisible": _heads,
    "SizesNotDivisible": _heads,
    "TooFewGpus": _fewer_ranks,
    "UnknownArgument": _without_option,
    "LoraRank": _adapter_rank,
    "BatchBelowMaxModelLen": _whole_prompts,
    "EncoderCache": _items_of_media,
    "Bfloat16NotSupported": lambda _, __: iter([{"dtype": "half"}]),
    "Fp8KVCacheNotSupported": lambda _, __: iter([{"kv_cache_dtype": "auto"}]),
    "KVCacheDtypeUnknown": lambda _, __: iter([{"kv_cache_dtype": "auto"}]),
    "KVCacheDtypeMismatch": lambda _, __: iter([{"kv_cache_dtype": "auto"}]),
    "QuantizationMismatch": lambda _, __: iter([{"quantization": _REMOVED}]),
    "QuantizationUnknown": lambda _, __: iter([{"quantization": _REMOVED}]),
    "TrustRemoteCode": lambda _, __: iter([{"trust_remote_code": ""}]),
}  # fmt: skip
"""Row of the table → the changes that its message or its figures name."""


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
        command = with_changes(case.pasted.text, written, _model_of(case))
        verdict = _worse(_judged_command(command, judging.on(changes.get("gpu"))), case, changes)
    elif case.item:
        patch, judged = _patched(case, case.item, judging.on(changes.get("gpu")), written)
        verdict = _worse(judged, case, changes) if patch else _verdict_with(case, changes)
    else:
        command, verdict = _command_of(case, written), _verdict_with(case, changes)
    failure = case.start.failure if case.start else None
    is_stated = failure is not None and changes == {"max_model_len": failure.max_model_len_that_fits}
    words += ", the length that vLLM states" if is_stated else ""
    was_open = case.verdict is Verdict.MAY_NOT_FIT or not _is_of_bytes(case)
    is_refused = verdict is Verdict.DOES_NOT_FIT or (verdict is Verdict.MAY_NOT_FIT and not was_open)
    if is_refused and not is_stated:  # vLLM measured what kvgate predicts
        return None
    return Fix(changes=changes, words=words, command=command, patch=patch, verdict=verdict)


def _model_of(case: Case) -> str:
    """Return the model by the name that was given."""
    if case.item and case.item.spec:
        return case.item.spec.model.name
    return (case.item.engine.model or "") if case.item and case.item.engine else ""


def _is_of_bytes(case: Case) -> bool:
    failure = case.start.failure if case.start else None
    return failure is None or failure.kind not in (FailureKind.INVALID_SETTING, FailureKind.ENVIRONMENT)


def _words(name: str, value: int | str | None, name_of: Callable[[str], str]) -> str:
    if name == "gpu":
        return f"use {value}"
    if value is _REMOVED:
        return f"leave {name_of(name)} out"
    gpus = f", with {value} GPUs" if name == "tensor_parallel_size" and value != 1 else ""
    return f"add {name_of(name)}" if value in ("", True) else f"set {name_of(name)} to {value}{gpus}"


def _verdict_with(case: Case, changes: Changes) -> Verdict | None:
    """Return the verdict of the start with changed settings; None where the log does not hold them."""
    if case.values is None:
        if case.budget is None:
            return None
        if case.item and case.item.spec:
            return _verdict_of_solver(case, changes)
        values = {
            "model": case.budget.request.shape.name,
            "gpu": changes.get("gpu"),
            "vllm_version": case.budget.request.vllm_version,
        }
        values |= case.item.engine.settings if case.item and case.item.engine else {}
    else:
        values = dict(case.values)
    for name, value in changes.items():
        values = (
            {**values, name: value}
            if value is not _REMOVED
            else {key: each for key, each in values.items() if key != name}
        )
        if name == "gpu":
            values.pop("gpu_memory_bytes", None)
    try:
        return assess_request({key: value for key, value in values.items() if value != ""}).verdict
    except BadRequest:
        return None


def _verdict_of_solver(case: Case, changes: Changes) -> Verdict | None:
    """Return Fits for a change that the solver found for the promise of an InferenceDeployment; others are not offered."""
    meant = {"accelerator" if name == "gpu" else name: value for name, value in changes.items()}
    found = advice(case.budget.request) if case.budget else ()
    is_found = any({change.field: change.after for change in each.changes} == meant for each in found)
    return Verdict.FITS if is_found else Verdict.DOES_NOT_FIT


def _worse(judged: Verdict | None, case: Case, changes: Changes) -> Verdict | None:
    """Return the worse of two verdicts: of the changed text, and of the start that was logged with the change."""
    logged = _verdict_with(case, changes) if case.values is not None else judged
    return Verdict.DOES_NOT_FIT if Verdict.DOES_NOT_FIT in (judged, logged) else judged


def _judged_command(command: str, judging: Judging) -> Verdict | None:
    return _verdict(judging.items([(f"fix{SCRIPT_ENDING}", command.encode())]), "")


def _verdict(items: list[Item | Broken], name: str) -> Verdict | None:
    found = [each.verdict for each in items if isinstance(each, Item) and name in ("", each.name)]
    return next((each for each in found if isinstance(each, Verdict)), None)


# ── texts ──


_END_OF_COMMAND = re.compile(r"\s*(?:&&|\|\||[|;&>]|2>).*$", re.DOTALL)


def with_changes(command: str, changes: Changes, model: str = "") -> str:
    """Return a command with other values of options: at their place where they are written, else at its end.

    `model`: the name that a change of the model replaces, wherever it stands.
    """
    for name, value in changes.items():
        flag = option_name(name)
        spelled = "--" + flag[2:].replace("-", "[-_]")
        written = re.compile(
            rf"(?P<flag>(?<!\S){spelled})(?P<sign>=|\s+)(?P<value>'[^']*'|\"[^\"]*\"|[^\s-]\S*)|(?<!\S){spelled}(?!\S)"
        )
        if name == "model" and model in command:
            command = command.replace(model, str(value), 1)
        elif written.search(command):
            command = re.sub(r"  +", " ", written.sub(partial(_replaced, value), command)).rstrip()
        elif value is not _REMOVED:
            end = _END_OF_COMMAND.search(command)
            at = end.start() if end and not re.search(r"['\"]", command[end.start() :]) else len(command)
            command = f"{command[:at]} {flag}{_after_option(value)}{command[at:]}"
    return command


def _after_option(value: int | str | None) -> str:
    """Return a value behind its option; nothing for a switch."""
    return "" if value == "" or value is True else f" {_shell(value)}"


def _replaced(value: int | str | None, match: re.Match[str]) -> str:
    if value is _REMOVED:
        return ""
    return (
        f"{match['flag'] or match[0]}{(match['sign'] or '') + _shell(value) if match['sign'] else _after_option(value)}"
    )


def _shell(value: int | str | None) -> str:
    return shlex.quote(str(value))


_LEFT_OUT = (
    "model",
    "gpu",
    "gpu_memory_bytes",
    "vllm_version",
    "usage_context",
    "sampler",
    "compile_cache",
    "model_config",
)


def _command_of(case: Case, changes: Changes) -> str:
    """Return `vllm serve …` of the options that a log printed, with the changes; empty where it printed none."""
    if case.start is None or not case.start.log.arguments or case.values is None:
        return ""
    options = {
        key: value for key, value in case.values.items() if key not in _LEFT_OUT and key in case.start.log.arguments
    }
    if len(options) > 40:  # until 0.8 vLLM printed all options with their defaults
        from kvgate.vllm.settings import SETTINGS

        known = {setting.name for setting in SETTINGS}
        options = {key: value for key, value in options.items() if key in known and value not in ("auto", False, 1)}
    options = {**options, **changes}
    words = ["vllm", "serve", str(options.pop("model", None) or case.values.get("model", "MODEL"))]
    for name, value in options.items():
        if value is _REMOVED or value is False or (value == "auto" and name not in changes):
            continue
        words.append(option_name(name))
        if isinstance(value, dict | list):
            words.append(shlex.quote(json.dumps(value)))
        elif value is not True and value != "":
            words.append(_shell(value))
    return " ".join(words)


def _patched(case: Case, item: Item, judging: Judging, changes: Changes) -> tuple[str, Verdict | None]:
    """Return the change as a patch of the engine's file, with the verdict on the result; no patch where it cannot be written."""
    path, before = item.document.file, judging.texts.get(item.document.file, "")
    if not before and Path(path).is_file() and Path(path).stat().st_size <= 1 << 20:
        before = Path(path).read_text(encoding="utf-8", errors="replace")
    if item.document.origin is not None or not before:
        return "", _verdict_with(case, changes)
    after = before
    # lines are removed last, because the places of the others are those of the file as it is
    for name, value in sorted(changes.items(), key=lambda change: change[1] is _REMOVED):
        after = _with_value(after, item, name, value) if after else ""
    if not after or after == before:
        return "", _verdict_with(case, changes)
    verdict = _verdict(judging.items([(path, after.encode())]), item.name)
    name = path.lstrip("/")
    lines = unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}", n=1
    )
    return "".join(lines), verdict


def _with_value(text: str, item: Item, name: str, value: int | str | None) -> str:
    """Return the file with another value of a setting; empty where its place is not certain."""
    if name == "model":
        old = _model_of(Case(item=item))
        return text.replace(old, str(value), 1) if old and text.count(old) == 1 else ""
    if item.spec is not None:
        field = re.escape(field_path(name).rpartition(".")[2])
        found = list(re.finditer(rf"(?<![\w-]){field}:[ \t]*(?P<value>[^\s,}}#]+)", text))
    else:
        flag = "--" + name.replace("_", "[-_]")
        found = list(re.finditer(rf"{flag}(?:=|[ \t]+|[\"']?,?\s*\n?\s*-?[ \t]*)[\"']?(?P<value>[\w./:-]+)", text))
    if value is _REMOVED:
        return _without_line(text, name) if item.spec is None else ""
    if len(found) == 1:
        begin, end = found[0].span("value")
        return f"{text[:begin]}{value}{text[end:]}"
    if found or item.spec is not None or item.engine is None:
        return ""
    words = [word for word in item.engine.engine.arguments if word.path.endswith("]")]
    if not words:
        return ""
    line = item.document.position_of(words[-1].path).line
    lines = text.split("\n")
    indent = re.match(r"(\s*- )", lines[line - 1]) if line <= len(lines) else None
    if indent is None or "|" in lines[line - 1]:
        return ""
    added = f"{indent[1]}{option_name(name)}" + ("" if value == "" or value is True else f"={value}")
    return "\n".join([*lines[:line], added, *lines[line:]])


def _without_line(text: str, name: str) -> str:
    """Return the text without the element of a list that is one option with its value; empty where it is written in another way."""
    written = re.compile(rf"^[ \t]*- [\"']?--{name.replace('_', '[-_]')}(?:=[^\n]*)?[\"']?[ \t]*\n", re.MULTILINE)
    return written.sub("", text) if len(written.findall(text)) == 1 else ""

"""The adapters that an engine is started with, as far as a lock file or a fetch knows them: those that vLLM refuses."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvgate.budget import LoraSettings, accounting_of
from kvgate.checkpoint.adapter import Adapter, is_of_another_model, read_adapter, refusals
from kvgate.checkpoint.published import PublishedModels, name_key
from kvgate.checkpoint.tensors import CheckpointError
from kvgate.findings.finding import Finding, Severity, any_one, do, words
from kvgate.rules.support import LORA_REFUSED
from kvgate.statement.engine import is_known_release

MOST_ADAPTERS = 100


def look_up_adapters(
    lora_modules: object, *, model: str, max_lora_rank: int | None, version: str, models: PublishedModels
) -> Iterator[Finding]:
    """Yield a finding for each adapter of `--lora-modules` that vLLM refuses, or that was made for another model."""
    if not lora_modules or not is_known_release(version):
        return
    rank, accounting = max_lora_rank or LoraSettings().max_rank, accounting_of(version)
    for name, path in list(named_adapters(lora_modules))[:MOST_ADAPTERS]:
        key = name_key(path)
        published = models.locked.get(key) or models.fetched.get(key)
        if missing := models.missing.get(key):
            message = words("the adapter {name} could not be fetched: {reason}", name=name, reason=missing.message)
            yield LORA_REFUSED.finding("lora_modules", message, any_one(*missing.remedies), severity=Severity.WARNING)
        if published is None or not published.adapter:
            continue
        try:
            adapter = read_adapter(published.adapter)
        except CheckpointError as error:
            message = words(
                "the adapter {name} has a broken adapter_config.json: {problem}", name=name, problem=str(error)
            )
            yield LORA_REFUSED.finding("lora_modules", message, "give another adapter", severity=Severity.WARNING)
            continue
        yield from _findings(adapter, name, model, list(refusals(adapter, max_lora_rank=rank, accounting=accounting)))


def _findings(adapter: Adapter, name: str, model: str, found: Sequence[str]) -> Iterator[Finding]:
    if found:
        message = words("vLLM refuses to load the adapter {name}: {reasons}", name=name, reasons="; ".join(found))
        raise_rank = (do("set {max_lora_rank} to the adapter's rank or more"),) if "--max-lora-rank" in found[0] else ()
        yield LORA_REFUSED.finding("lora_modules", message, any_one(*raise_rank, do("leave the adapter out")))
    if is_of_another_model(adapter, model):
        message = words(
            "the adapter {name} was made for {base}, and {model} is served",
            name=name,
            base=adapter.base_model,
            model=model,
        )
        yield LORA_REFUSED.finding(
            "lora_modules", message, "check that both have the same shapes", severity=Severity.WARNING
        )


def named_adapters(lora_modules: object) -> Iterator[tuple[str, str]]:
    """Yield (name, path) of each adapter, from `name=path`, from JSON, or from an object."""
    for given in lora_modules if isinstance(lora_modules, list | tuple) else [lora_modules]:
        entry = given
        if isinstance(given, str) and given.lstrip().startswith("{"):
            try:
                entry = json.loads(given)
            except (ValueError, RecursionError):
                continue
        if isinstance(entry, Mapping):
            yield _text(entry.get("name")), _text(entry.get("path"))
        elif isinstance(entry, str) and "=" in entry:
            name, _, path = entry.partition("=")
            yield name.strip()[:80], path.strip()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

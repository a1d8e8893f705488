"""Known defects of vLLM's releases that concern an engine, as findings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvgate.budget import Accelerator, Circumstances, ModelShape, accounting_of
from kvgate.budget.engine.settings import runs_on_v2
from kvgate.budget.model.shape import FullAttention, LatentAttention, RecurrentState, has_experts
from kvgate.findings.finding import Finding, Severity, do, words
from kvgate.rules.facts import KNOWN_DEFECT
from kvgate.vllm.advisories import Advisory, advisories_of
from kvgate.vllm.given_settings import circumstances_of

if TYPE_CHECKING:
    from kvgate.statement.engine import EngineStatement


def known_defects(
    statement: EngineStatement, shape: ModelShape | None, accelerator: Accelerator | None
) -> Iterator[Finding]:
    """Yield a note for each defect that the release, the model, the GPU and the settings meet; none where one of them is not known.

    Nothing is computed from it: where a formula of the budget knows the defect, the ledger has it already.
    """
    if shape is None or accelerator is None:
        return
    circumstances = circumstances_of(statement.known)
    for each in _possible(statement.version, shape, accelerator.vendor, accelerator.compute_capability, circumstances):
        if not each.is_met(statement.values):
            continue
        message = words(
            "{reference}, vLLM {releases}: {says}",
            reference=each.reference,
            releases=each.releases,
            says=words(each.says),
        )
        severity = Severity.WARNING if each.decides_start else Severity.INFO
        finding = KNOWN_DEFECT.finding(each.setting or "vllm_version", message, do(each.remedy), severity=severity)
        yield replace(finding, topic=each.id)


@lru_cache(maxsize=1024)
def _possible(
    version: str, shape: ModelShape, vendor: str, capability: tuple[int, int] | None, circumstances: Circumstances
) -> tuple[Advisory, ...]:
    """Return the defects that such a model may meet on such a GPU, whatever its settings are."""
    mixers, is_v2 = shape.mixers, runs_on_v2(shape, accounting_of(version), circumstances, vendor)
    formats = {matrix.format.format for layer in shape.layers for matrix in layer.matrices if matrix.format}
    asked = {
        "v1-runner": not is_v2,
        "v2-runner": is_v2,
        "experts": has_experts(shape, 0, len(shape.layers)),
        "latent": any(isinstance(each, LatentAttention) for each in mixers),
        "states": any(isinstance(each, RecurrentState) for each in mixers),
        "windows": any(isinstance(each, FullAttention) and not each.sees_all_tokens for each in mixers),
        "encoder": bool(shape.encoders),
        "nvfp4": any(name.startswith("nvfp4") for name in formats),
    }
    kinds = frozenset(kind for kind, is_met in asked.items() if is_met)
    return tuple(
        each for each in advisories_of(version) if each.concerns(shape.architecture, kinds, vendor, capability)
    )

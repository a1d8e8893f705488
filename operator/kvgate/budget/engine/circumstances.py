"""Circumstances of a start: facts that move memory and that are no argument of vLLM; as they are told, and as the ledger takes them.

What is not known ends in a mixture: the term expects the likelier mode, and its interval holds both.
"""

from functools import lru_cache
from typing import Literal

from msgspec import Struct

from kvgate.budget.ground.hardware import Accelerator
from kvgate.budget.ground.interval import Fact
from kvgate.budget.releases.accounting import Accounting

Sampler = Literal["flashinfer", "pytorch"]
CompileCache = Literal["warm", "cold"]
Installation = Literal["image", "pip"]
UsageContext = Literal["server", "llm", "engine"]
Links = Literal["nvlink", "pcie", "host"]


class Circumstances(Struct, frozen=True, kw_only=True):
    """Facts of a start as somebody told them; None: not known."""

    sampler: Sampler | None = None
    """Who samples with top-k and top-p: `flashinfer`, or `pytorch` (a sort, or a Triton kernel since 0.17)."""
    use_flashinfer_sampler: bool | None = None
    """VLLM_USE_FLASHINFER_SAMPLER; None: it is not set."""
    use_v2_model_runner: bool | None = None
    """VLLM_USE_V2_MODEL_RUNNER; None: it is not set, and the release decides by the model."""
    compile_cache: CompileCache | None = None
    """`warm`: torch.compile finds the artefacts of an earlier start under VLLM_CACHE_ROOT; `cold`: it compiles."""
    use_v1: bool | None = None
    """VLLM_USE_V1, in releases that have both engines; None: the release chooses."""
    installed_by: Installation | None = None
    """`image`: vLLM's own image, which brings FlashInfer from 0.8.5 on; `pip`: the wheel alone, or another image."""
    usage_context: UsageContext | None = None
    """Which entry point starts the engine, by which vLLM chooses batch limits: `server` (`vllm serve`), `llm` (the class LLM), or
    `engine` (an engine that a program builds itself)."""
    chunks_beside_manager: bool | None = None
    """VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE; None: the release's default."""
    links: Links | None = None
    """Links between the GPUs of an engine, which are a fact about the machine: a product that is sold with NVLink may stand in a virtual
    machine where GPUs cannot reach each other. `host`: they exchange through the host's memory, so that no GPU holds buffers for it."""
    estimates_graphs: bool | None = None
    """VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS; None: the release's default."""
    expandable_segments: bool | None = None
    """PYTORCH_CUDA_ALLOC_CONF has `expandable_segments:True`; None: it is not set."""


NO_CIRCUMSTANCES = Circumstances()


@lru_cache(maxsize=1024)
def sampler_of(circumstances: Circumstances, accounting: Accounting, accelerator: Accelerator) -> Fact:
    """Return who samples with top-k and top-p in the profile run (`TopKTopPSampler.__init__`, 0.8.5 to 0.33).

    Up to 0.11.0 vLLM's image brings FlashInfer (docker/Dockerfile) and the wheel does not require it (requirements/cuda.txt); the variable
    can switch it off, and cannot install it. Of eleven sources of logs up to 0.11.0 that name the sampler, six name PyTorch's, four
    FlashInfer's, and one both.
    """
    value, other, why = _sampler(circumstances, accounting, accelerator)
    return Fact(name="sampler", value=value, other=other, why=why)


def _sampler(circumstances: Circumstances, accounting: Accounting, accelerator: Accelerator) -> tuple[str, str, str]:
    """Return (the sampler that is expected, another that is possible, why)."""
    mode, (least, most) = accounting.flashinfer_samples, accounting.flashinfer_capabilities
    capability = accelerator.compute_capability or accelerator.likely_capability
    if circumstances.sampler is not None:
        return circumstances.sampler, "", "it is stated"
    if mode == "never":
        return "pytorch", "", "this release sorts"
    if (accelerator.likely_vendor or accelerator.vendor) not in ("nvidia", "unknown"):
        return "pytorch", "", "FlashInfer needs a GPU of NVIDIA"
    if capability is not None and not least <= capability <= most:
        return "pytorch", "", "FlashInfer does not run on this compute capability"
    if circumstances.use_flashinfer_sampler is False:
        return "pytorch", "", "VLLM_USE_FLASHINFER_SAMPLER switches FlashInfer off"
    if mode == "requested":
        if circumstances.use_flashinfer_sampler:
            return "flashinfer", "", "VLLM_USE_FLASHINFER_SAMPLER requests it"
        return "pytorch", "", "this release samples with FlashInfer only where VLLM_USE_FLASHINFER_SAMPLER requests it"
    if mode == "default":
        return "flashinfer", "", "this release requires FlashInfer and samples with it by default"
    if circumstances.installed_by == "image" or circumstances.use_flashinfer_sampler:
        return "flashinfer", "", "this release samples with FlashInfer where it is installed, as in vLLM's own image"
    why = "this release samples with FlashInfer where it is installed; vLLM's own image brings it, the wheel does not require it"
    return "pytorch", "flashinfer", why


@lru_cache(maxsize=1024)
def compile_cache_of(circumstances: Circumstances, accounting: Accounting) -> Fact:
    """Return whether torch.compile finds the artefacts of an earlier start."""
    if circumstances.compile_cache is not None:
        return Fact(name="compile cache", value=circumstances.compile_cache, why="it is stated")
    why = "a start compiles unless VLLM_CACHE_ROOT is on a volume that an earlier start has filled"
    expected, other = ("cold", "warm") if accounting.cold_compile_seen else ("warm", "cold")
    return Fact(name="compile cache", value=expected, other=other, why=why)

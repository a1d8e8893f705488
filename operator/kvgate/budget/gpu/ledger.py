"""The ledger of one rank: total → requested → weights, activation, non-torch, CUDA graphs → what the KV cache gets.

Every term has its formula; beside them stand the uncertainty that no term explains and the correction by observed starts.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from math import isqrt

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.engine.circumstances import sampler_of
from kvgate.budget.engine.request import DEFAULT_GRAPHS, NO_OFFLOAD, BudgetRequest, EngineSettings, GraphSettings
from kvgate.budget.engine.run import Run, most_available_bytes, pads_plain_experts, run_of
from kvgate.budget.engine.settings import Resolved, accounting_for, may_run_v0, resolve_settings
from kvgate.budget.gpu.activation import parts_of, peak_activation
from kvgate.budget.gpu.cuda_graphs import cuda_graphs
from kvgate.budget.gpu.layer_activation import loaded_buffer_bytes
from kvgate.budget.gpu.lora import adapters_in_host_memory, lora_term
from kvgate.budget.gpu.non_torch import links_of, non_torch
from kvgate.budget.gpu.offload import Offloaded, offloaded
from kvgate.budget.ground import fitted
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.ground.interval import Fact, Interval, Term
from kvgate.budget.ground.units import share_of
from kvgate.budget.model.draft import Draft, draft_weights, own_ends_bytes
from kvgate.budget.model.shape import CompressedAttention, ModelShape
from kvgate.budget.model.weights import Weights, checkpoint_ratio, rank_weights, unlisted_bytes
from kvgate.budget.observed.calibration import Correction
from kvgate.budget.observed.machine import CIRCUMSTANCES, Values, explained
from kvgate.budget.observed.starts import NextStart, ObservedStart, StartKey, StartToStart
from kvgate.budget.releases.accounting import Accounting
from kvgate.budget.releases.versions import is_newer_than_known

_ADA = (8, 9)
"""Compute capability whose kernels for MXFP4 are Marlin's."""
MAX_SIZES_IN_KEY = 16
"""Longest list of CUDA graph sizes that stands in a key as it is; of longer ones the key has the length and both ends."""


NO_BYTES = Interval.exactly(0)


class Ledger(Struct, frozen=True, kw_only=True, dict=True):
    """Bytes of one GPU; vLLM 0.32, `Worker.determine_available_memory`."""

    total_bytes: int
    requested_bytes: int
    """total × gpu_memory_utilization; all of it where the model keeps no caches, because vLLM then profiles nothing and checks nothing
    (0.32, `EngineCore._initialize_kv_caches`)."""
    lines: tuple[Term, ...]
    """Terms that are subtracted, in vLLM's order: weights, peak activation, non-torch, CUDA graphs; then adapters, where LoRA is on."""
    parameter_bytes: int | None
    """Plain sum of the rank's parameters; None where the user gave the weight bytes."""
    uncertainty_bytes: int = 0
    """Half width that no term explains: drivers, an untried release, memory shared with the CPU."""
    host_bytes: Interval = NO_BYTES
    """Host memory of the rank for weights and adapters that are kept there; other uses are not counted here."""
    correction: Correction | None = None
    """Correction of the remainder by observed starts."""

    @property
    def weights(self) -> Interval:
        """Bytes that vLLM logs as "Model loading took"."""
        return self.lines[0].amount

    @property
    def peak_activation(self) -> Interval:
        """Peak of the profile run above the weights."""
        return self.lines[1].amount

    @property
    def non_torch(self) -> Interval:
        """Bytes outside torch's allocator."""
        return self.lines[2].amount

    @property
    def cuda_graphs(self) -> Interval:
        """The reserve for CUDA graphs; 0 where the release takes none."""
        return self.lines[3].amount

    @property
    def loaded_bytes(self) -> int:
        """Bytes that vLLM logs as loaded: the weights, and the slots of adapters."""
        return self.weights.expected + sum(line.amount.expected for line in self.lines[4:])

    @property
    def terms(self) -> tuple[tuple[str, Interval], ...]:
        return tuple((line.name, line.amount) for line in self.lines)

    @cached_property
    def available(self) -> Interval:
        """Bytes that are left for the KV cache; negative where the budget is overdrawn.

        The terms err independently of each other, so their half widths add up in squares: the sum of all ends would need every term
        to err to the same side.
        """
        if self.correction is not None:
            return self.correction.available
        amounts = [line.amount for line in self.lines]
        expected = self.requested_bytes - sum(amount.expected for amount in amounts)
        below = _joint(self.uncertainty_bytes, *(amount.high - amount.expected for amount in amounts))
        above = _joint(self.uncertainty_bytes, *(amount.expected - amount.low for amount in amounts))
        high = min(expected + above, self.requested_bytes)  # the weights of a small encoder are less than the doubt
        return Interval(low=expected - below, expected=expected, high=max(expected, high))


def _joint(*half_widths: int) -> int:
    """Root of the sum of squares."""
    return isqrt(sum(width * width for width in half_widths))


def ledger_of(request: BudgetRequest, resolved: Resolved, accounting: Accounting, stage: tuple[int, int]) -> Ledger:
    """Return the ledger of any rank of the pipeline stage first ≤ i < last, as observed starts correct it."""
    run = run_of(request, resolved, accounting, stage)
    ledger = _by_formula(run, request, resolved)
    if may_run_v0(request, accounting):
        ledger = _with_older_engine(ledger, request, stage)
    if not request.calibration.starts:
        return ledger

    def overhead_with(max_num_seqs: int) -> int:
        other = _by_formula(replace(run, max_num_seqs=max_num_seqs, other_max_num_seqs=None), request, resolved)
        return other.requested_bytes - other.available.expected

    def under(circumstances: Values) -> tuple[Interval, int]:
        told = {name: value for name, value in circumstances if getattr(request.circumstances, name) is None}
        lasting = {name: value for name, value in told.items() if name != "compile_cache"}
        known = _under(request, resolved, accounting, stage, lasting) if lasting else ledger.available
        both = _under(request, resolved, accounting, stage, told) if told != lasting else known
        return known, both.expected

    upcoming = NextStart(
        max_num_seqs=run.max_num_seqs,
        requested_bytes=ledger.requested_bytes,
        predicted=ledger.available,
        most_bytes=most_available_bytes(run, ledger.requested_bytes, ledger.lines),
        spread=_start_to_start(run, ledger.requested_bytes - ledger.available.expected),
        formula_overhead=overhead_with,
        image_digest=request.image_digest,
        under=under,
    )
    correction = request.calibration.correction(_key_of(run, request, ledger), upcoming)
    return replace(ledger, correction=correction) if correction else ledger


def _under(
    request: BudgetRequest, resolved: Resolved, accounting: Accounting, stage: tuple[int, int], told: Mapping[str, str]
) -> Interval:
    """Return the prediction of the formulas where these circumstances are known."""
    known = replace(request, circumstances=replace(request.circumstances, **told))
    return _by_formula(run_of(known, resolved, accounting, stage), known, resolved).available


def _open_circumstances(run: Run) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield both values of every circumstance that is not known and that moves memory of this run."""
    sampler, cache = sampler_of(run.circumstances, run.accounting, run.accelerator), run.circumstances.compile_cache
    if not sampler.is_known:
        yield ("sampler", sampler.value), ("sampler", sampler.other)
    if run.parallelism.tensor > 1 and not links_of(run).is_known:
        yield ("links", "nvlink"), ("links", "pcie")
    if cache is None and _start_to_start(run, 0).swing_bytes:
        yield ("compile_cache", "cold"), ("compile_cache", "warm")


_EITHER_ENGINE = Fact(
    name="engine",
    value="V1",
    other="V0",
    why="this release has both, and the command and the environment of the start are not known",
)


def _with_older_engine(ledger: Ledger, request: BudgetRequest, stage: tuple[int, int]) -> Ledger:
    """Return the ledger with ranges that hold that of V0 too."""
    older_request = replace(request, circumstances=replace(request.circumstances, use_v1=False))
    accounting = accounting_for(older_request)
    resolved = resolve_settings(older_request, accounting)
    older = _by_formula(run_of(older_request, resolved, accounting, stage), older_request, resolved)
    lines = [
        replace(line, amount=line.amount.spanning(other.amount))
        for line, other in zip(ledger.lines, older.lines, strict=True)
    ]
    lines[1] = replace(lines[1], facts=(_EITHER_ENGINE, *lines[1].facts))
    return replace(ledger, lines=tuple(lines))


def observed_start(
    request: BudgetRequest, resolved: Resolved, accounting: Accounting, stage: tuple[int, int], *,
    available_kv_cache_bytes: int, resolution_bytes: int, source: str, compile_cache: str = "", is_refused: bool = False,
) -> ObservedStart:  # fmt: skip
    """Return the record of a start of this rank that reported so many bytes, with the prediction of the formulas alone.

    Only a start that vLLM refused (is_refused) may have had nothing for its KV cache. compile_cache is the kind that the start itself
    showed: a container that restarts in its pod finds the artefacts of its first start, although the pod was rendered for a cold one.
    """
    run = run_of(request, resolved, accounting, stage)
    ledger = _by_formula(run, request, resolved)
    spread = _start_to_start(run, ledger.requested_bytes - ledger.available.expected)
    told = {name: value for name in CIRCUMSTANCES if (value := getattr(request.circumstances, name))}
    seen = {"compile_cache": compile_cache} if compile_cache else {}
    known = run_of(replace(request, circumstances=replace(request.circumstances, **seen)), resolved, accounting, stage)
    combinations = [
        (values, _under(request, resolved, accounting, stage, {**seen, **dict(values)}).expected)
        for values in product(*_open_circumstances(known))
    ]
    why = explained(available_kv_cache_bytes, combinations)
    least_bytes = -ledger.total_bytes if is_refused else 1
    return ObservedStart(
        key=_key_of(run, request, ledger),
        max_num_seqs=run.max_num_seqs,
        requested_bytes=ledger.requested_bytes,
        available_kv_cache_bytes=available_kv_cache_bytes,
        resolution_bytes=resolution_bytes,
        predicted=ledger.available,
        possible_bytes=(least_bytes, max(least_bytes, most_available_bytes(run, ledger.requested_bytes, ledger.lines))),
        swing_bytes=spread.swing_bytes,
        compile_cache=compile_cache,
        circumstances=tuple(sorted({**dict(why.circumstances), **told, **seen}.items())),
        residue_bytes=None if is_refused else why.residue_bytes,
        scatter_bytes=spread.scatter_bytes,
        source=source,
    )


def _key_of(run: Run, request: BudgetRequest, ledger: Ledger) -> StartKey:
    cut = run.parallelism
    return StartKey(
        architecture=run.shape.architecture,
        weights_bytes=ledger.loaded_bytes,
        accelerator=run.accelerator.name,
        vllm_version=request.vllm_version,
        tensor_parallel_size=cut.tensor,
        pipeline_parallel_size=cut.pipeline,
        data_parallel_size=cut.data,
        enable_expert_parallel=cut.expert,
        decode_context_parallel_size=cut.decode_context,
        first_layer=run.stage[0],
        max_num_batched_tokens=run.max_num_batched_tokens,
        max_model_len=run.max_model_len,
        kv_cache_dtype=request.settings.kv_cache_dtype,
        enforce_eager=not run.is_compiled,
        speculative_tokens=run.draft_tokens,
        modalities="+".join(run.modalities),
        cudagraphs=_graphs_text(run.graphs),
    )


def _graphs_text(graphs: GraphSettings) -> str:
    """Return the settings of CUDA graphs as a short text; empty where vLLM decides.

    It stays short however many sizes the user lists, because a start must fit into a line, and all starts into a ConfigMap.
    """
    if replace(graphs, compiles=None, tries_kernels=None) == DEFAULT_GRAPHS:
        return ""
    sizes: object = graphs.capture_sizes
    if graphs.capture_sizes is not None and len(graphs.capture_sizes) > MAX_SIZES_IN_KEY:
        ordered = sorted(graphs.capture_sizes)
        sizes = f"{len(ordered)} sizes, {ordered[0]} to {ordered[-1]}"
    text = f"{graphs.mode} {sizes} {graphs.max_capture_size}"
    return f"{text} every small size" if graphs.every_small_size else text


def _start_to_start(run: Run, overhead_bytes: int) -> StartToStart:
    expected = parts_of(run).expected_bytes
    either, cold, warm = (
        parts_of(replace(run, circumstances=replace(run.circumstances, compile_cache=kind)))
        for kind in (None, "cold", "warm")
    )
    return StartToStart(
        warm_overhead_bytes=overhead_bytes - expected + either.warm_bytes,
        cold_overhead_bytes=overhead_bytes - expected + either.cold_bytes,
        compile_cache=run.circumstances.compile_cache or "",
        likely_swing_bytes=max(0, cold.expected_bytes - warm.expected_bytes),
        scatter_bytes=(fitted.SCATTER_UNIFIED if run.accelerator.unified_memory else fitted.SCATTER).interval.high,
    )


def _by_formula(run: Run, request: BudgetRequest, resolved: Resolved) -> Ledger:
    accelerator = request.accelerator
    share = resolved.gpu_memory_utilization if request.shape.keeps_caches else Fraction(1)
    # other drivers report another total memory; there are no logs of new releases, and few of other vendors
    spread = max(
        accelerator.memory_high_bytes - accelerator.memory_bytes,
        accelerator.memory_bytes - accelerator.memory_low_bytes,
    )
    uncertainty = share_of(spread, share)
    if is_newer_than_known(request.vllm_version):
        uncertainty += fitted.NEWER_RELEASE.of(accelerator.memory_bytes).high
    if (accelerator.likely_vendor or accelerator.vendor) != "nvidia":
        uncertainty += (fitted.ROCM if accelerator.vendor == "amd" else fitted.OTHER_VENDOR).interval.high
    return _ledger(
        run,
        share_of(accelerator.memory_bytes, share),
        _joint(uncertainty, *(constant.interval.high for constant in _few_sources(run))),
        weights_bytes=request.weights_bytes,
        with_drafts=_holds_drafts(request.settings),
    )


def _few_sources(run: Run) -> Iterator[fitted.Fitted]:
    """Yield the doubt of every class of starts that hardly any source has shown."""
    if run.accelerator.is_slice:
        yield fitted.FEW_SLICES
    if run.lora.enabled:
        yield fitted.FEW_ADAPTERS


@lru_cache(maxsize=4096)
def _ledger(
    run: Run, requested_bytes: int, uncertainty_bytes: int, *, weights_bytes: int | None, with_drafts: bool
) -> Ledger:
    """Return all terms; the same question returns the same object."""
    if weights_bytes is not None:
        error = fitted.GIVEN_WEIGHTS_ERROR.interval.high
        given = Interval.around(weights_bytes, below=error, above=error)
        weights, plain = Term(name="weights", amount=given, formula="as given", source="the request"), None
    else:
        weights, plain = _weights(
            run.shape,
            kernels_capability(run.shape, run.accelerator.compute_capability, run.accounting),
            run.accounting,
            run.parallelism,
            run.stage,
            with_drafts=with_drafts,
            pads_experts=run.pads_experts,
        )
        if buffer := loaded_buffer_bytes(run):
            inputs = (*weights.inputs, ("batch_buffer_bytes", buffer))
            weights = replace(weights, amount=weights.amount + Interval.exactly(buffer), inputs=inputs)
        if run.draft is not None:
            weights, plain = _with_draft(run, run.draft, weights, plain)
    lora, kept = lora_term(run), offloaded(run)
    if weights_bytes is None and run.offload != NO_OFFLOAD:
        weights = _less_offloaded(weights, kept)
    return Ledger(
        total_bytes=run.accelerator.memory_bytes,
        requested_bytes=requested_bytes,
        lines=(weights, peak_activation(run), non_torch(run), cuda_graphs(run), *((lora,) if lora else ())),
        parameter_bytes=plain,
        uncertainty_bytes=uncertainty_bytes,
        host_bytes=kept.host_bytes + adapters_in_host_memory(run),
    )


def kernels_capability(
    shape: ModelShape, capability: tuple[int, int] | None, accounting: Accounting
) -> tuple[int, int] | None:
    """Return the compute capability whose kernels compute the experts: without Triton's, Marlin pads MXFP4 on Hopper as on Ada
    (0.10.2, `get_mxfp4_backend`; gpt-oss-20b and 120b with 0.10.1 on H100 logged 13.72 and 65.97 GiB)."""
    is_mxfp4 = shape.quantization is not None and shape.quantization.method == "mxfp4"
    return _ADA if is_mxfp4 and capability is not None and not accounting.bundles_triton_kernels else capability


def _less_offloaded(weights: Term, kept: Offloaded) -> Term:
    """Return the weights that stay on the GPU; both figures may err, and what is left is never below zero."""
    whole, moved = weights.amount, kept.gpu_bytes
    left = max(0, whole.expected - moved.expected)
    amount = Interval(
        low=min(left, max(0, whole.low - moved.high)), expected=left, high=max(left, whole.high - max(0, moved.low))
    )
    inputs = (*weights.inputs, ("offloaded_bytes", moved.expected))
    return replace(weights, amount=amount, formula=f"{weights.formula} − weights in host memory", inputs=inputs)


@lru_cache(maxsize=1024)
def _weights(
    shape: ModelShape,
    compute_capability: tuple[int, int] | None,
    accounting: Accounting,
    parallelism: Parallelism,
    stage: tuple[int, int],
    *,
    with_drafts: bool,
    pads_experts: bool,
) -> tuple[Term, int]:
    """Return the loaded bytes, and the plain sum of the parameters. They do not depend on lengths and batches, which what-ifs change."""
    weights = rank_weights(
        shape,
        parallelism,
        stage,
        unsplit_large_blocks=accounting.unsplit_large_blocks,
        compute_capability=compute_capability,
        with_drafts=with_drafts,
        pads_experts=pads_experts,
    )
    ratio = checkpoint_ratio(shape)
    has_ends = with_drafts and stage[1] == len(shape.layers) and not shape.pools
    ends = own_ends_bytes(shape, parallelism, shares_head=accounting.mtp_shares_head) if has_ends else 0
    loaded_bytes = int(weights.loaded_bytes * ratio) + ends
    scaled_bytes = abs(loaded_bytes - ends - weights.loaded_bytes)
    margin = _weights_margin(shape, loaded_bytes) + fitted.SCALED_SHARE.of(scaled_bytes).high
    if shape.unmodelled and parallelism.tensor * parallelism.pipeline == 1:
        margin = _weights_margin(shape, loaded_bytes)  # nothing is shared out: the checkpoint is what is loaded
    below, above = margin + unlisted_bytes(shape), margin
    if assumed := shape.assumed:
        below += int(loaded_bytes * (1 - assumed.weights_low))
        above += int(loaded_bytes * (assumed.weights_high - 1))
    term = Term(
        name="weights",
        amount=Interval.around(loaded_bytes, below=below, above=above),
        formula="Σ tensors of the rank, each in the allocator's block + rotary tables + absorbed MLA matrices",
        source="vLLM 0.32, model classes; 11 starts within 4 MiB",
        inputs=(
            ("parameter_bytes", weights.parameter_bytes),
            ("tensor_parallel_size", parallelism.tensor),
            ("layers", stage[1] - stage[0]),
            (
                "quantization",
                ", ".join(shape.unmodelled) or (shape.quantization.method if shape.quantization else "none"),
            ),
            *((("checkpoint_bytes", shape.checkpoint_bytes),) if ratio != 1 else ()),
        ),
    )
    return term, int(weights.parameter_bytes * ratio) + ends


def _with_draft(run: Run, draft: Draft, target: Term, plain: int) -> tuple[Term, int]:
    """Add the draft's weights, of which an embedding and a head like the target's may be shared."""
    least, most = draft_weights(
        draft,
        run.shape,
        run.draft_parallelism,
        tokens=run.draft_tokens,
        alone=run.parallelism.pipeline == 1,
        compares_ends=run.accounting.compares_draft_ends,
        unsplit_large_blocks=run.accounting.unsplit_large_blocks,
        compute_capability=run.accelerator.compute_capability,
    )
    margin = _weights_margin(draft.shape, least.loaded_bytes)
    own = Interval(low=least.loaded_bytes - margin, expected=least.loaded_bytes, high=most.loaded_bytes + margin)
    inputs = (*target.inputs, ("draft", draft.shape.name), ("draft_bytes", least.loaded_bytes))
    return replace(target, amount=target.amount + own, inputs=inputs), plain + least.parameter_bytes


def _weights_margin(shape: ModelShape, loaded_bytes: int) -> int:
    """Return the error of logged weights: a little for dense 16-bit models, more for experts, repacked formats and towers."""
    shares = [fitted.WEIGHTS_SHARE]
    if shape.quantization is not None or shape.is_sparse:
        shares.append(fitted.REPACKED_SHARE)
    if shape.quantization is not None and shape.quantization.method == "mxfp4":
        shares.append(fitted.MXFP4_SHARE)
    if shape.unmodelled or (shape.quantization is not None and not shape.quantization.has_formula):
        shares.append(fitted.UNKNOWN_FORMAT_SHARE)
    if shape.has(CompressedAttention):
        shares.append(fitted.COMPRESSED_SHARE)
    towers = fitted.TOWER_WEIGHTS_ERROR.interval.high if shape.encoders else 0
    return fitted.WEIGHTS_ERROR.interval.high + towers + sum(share.of(loaded_bytes).high for share in shares)


def _holds_drafts(settings: EngineSettings) -> bool:
    return settings.speculation is not None and settings.speculation.uses_own_layers


def weights_of(shape: ModelShape, request: BudgetRequest, accounting: Accounting, stage: tuple[int, int]) -> Weights:
    """Return the weights of a shape, or of a part of one, as the request's engine loads them."""
    return rank_weights(
        shape,
        request.settings.parallelism,
        stage,
        unsplit_large_blocks=accounting.unsplit_large_blocks,
        compute_capability=kernels_capability(shape, request.accelerator.compute_capability, accounting),
        with_drafts=_holds_drafts(request.settings),
        pads_experts=pads_plain_experts(accounting, request.settings),
    )

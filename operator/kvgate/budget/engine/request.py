"""The question to the engine: a model, a GPU, a release of vLLM, its arguments, and a guarantee."""

from enum import StrEnum
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.engine.circumstances import NO_CIRCUMSTANCES, Circumstances
from kvgate.budget.ground.hardware import SINGLE_GPU, Accelerator, Parallelism
from kvgate.budget.host.settings import NO_HOST_SETTINGS, UNKNOWN_POD, HostSettings, PodMemory
from kvgate.budget.model.draft import Draft, of_draft
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.observed.calibration import NOTHING_OBSERVED, Calibration
from kvgate.budget.releases.versions import DEFAULT_VERSION, accounting_of

AUTO_MAX_MODEL_LEN = -1
"""`--max-model-len auto`: the longest length that fits (vLLM 0.14+)."""


class Guarantee(StrEnum):
    """The demand that must fit."""

    STARTUP = "Startup"
    """One request of max_model_len: vLLM's own condition for starting."""
    WORKLOAD = "Workload"
    """The declared peak concurrency at the declared tokens per request."""
    FULL_CONTEXT = "FullContext"
    """max_num_seqs requests of max_model_len: vLLM never preempts one."""


class Capacity(StrEnum):
    """The way in which the size of the KV cache is found."""

    PROFILED = "Profiled"
    """vLLM measures what is left, on every start anew."""
    PINNED = "Pinned"
    """kvgate gives vLLM the low end of the prediction, so that every start has the same size."""


class Workload(Struct, frozen=True, kw_only=True):
    """Requests that run at the same time, in tokens."""

    peak_concurrency: int
    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    """Prompt tokens that all requests share, and which prefix caching keeps once."""
    engines: int = 1
    """Engines that share the load."""
    whole_concurrency: int | None = None
    """Requests of all engines together; None: there is one engine, or nobody knows how many there are."""
    is_output_assumed: bool = False
    """True where nobody said how many tokens are generated."""
    average_concurrency: float | None = None
    """Requests at the same time on average, where the peak was derived from a rate; None where the peak was stated."""
    lengths: tuple[tuple[int, int], ...] = ()
    """(Tokens of a request, how often one is among those that run), ascending; the prompt and the output are those of the longest.
    Empty where all requests are equal."""

    @property
    def request_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def mean_tokens(self) -> int:
        """Tokens of a request that runs, on average, rounded up."""
        lengths = self.lengths or ((self.request_tokens, 1),)
        return -(-sum(tokens * weight for tokens, weight in lengths) // sum(weight for _, weight in lengths))

    def shared_among(self, engines: int) -> "Workload":
        """Return the share of one of several equal engines, rounded up; a number below 1 counts as 1. A share can be shared again."""
        if engines <= 1:
            return self
        whole = self.peak_concurrency if self.whole_concurrency is None else self.whole_concurrency
        share = -(-self.peak_concurrency // engines)
        return replace(self, peak_concurrency=share, engines=self.engines * engines, whole_concurrency=whole)

    def __str__(self) -> str:
        """`8 requests of 2500 tokens`, or `32 of 64 requests of 6500 tokens on each of 2 engines`."""
        assumed = f", {self.output_tokens} of them assumed" if self.is_output_assumed else ""
        up_to = "up to " if self.lengths else ""
        text = f"{self.requests_text} of {up_to}{self.request_tokens} tokens{assumed}"
        return text if self.whole_concurrency is None else f"{text} on each of {self.engines} engines"

    @property
    def requests_text(self) -> str:
        """`8 requests`, or `32 of 64 requests` where several engines share them."""
        whole = "" if self.whole_concurrency is None else f" of {self.whole_concurrency}"
        return f"{self.peak_concurrency}{whole} requests"


WITHOUT_WEIGHTS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that draft from what was already said."""


class Speculation(Struct, frozen=True, kw_only=True):
    """`--speculative-config`: tokens are drafted ahead and verified together."""

    method: str = ""
    """vLLM's name: `mtp`, `eagle`, `eagle3`, `ngram`, `draft_model` …; empty: the draft decides (`SpeculativeConfig.__post_init__`)."""
    num_speculative_tokens: int = 0
    """0: as many as the draft's config states."""
    model: str = ""
    """The draft's name; empty where the model drafts with layers of its own, or without any."""
    revision: str = ""
    quantization: str | None = None
    """Format in which vLLM is asked to load the draft."""
    draft_tensor_parallel_size: int | None = None
    max_model_len: int | None = None
    """The longest sequence for which tokens are drafted."""
    kv_cache_dtype: str | None = None
    """Format of the draft's cache; None: the target's."""
    parallel_drafting: bool = False
    """True where the draft proposes all tokens in one pass."""
    draws_probabilities: bool = False
    """True where drafts are drawn at random, so that their probabilities are kept (`draft_sample_method: probabilistic`)."""
    takes_other_vocabulary: bool = False
    """True where a draft of another vocabulary is wanted (`use_heterogeneous_vocab`)."""

    @property
    def uses_own_layers(self) -> bool:
        """True for multi-token prediction by layers that are part of the model's own checkpoint (`mtp`, `deepseek_mtp` …)."""
        return self.is_mtp and not self.model

    @property
    def is_mtp(self) -> bool:
        return self.method == "mtp" or self.method.endswith("_mtp")

    @property
    def uses_another_model(self) -> bool:
        """True where the draft has weights of its own that the model's config does not describe."""
        return not self.uses_own_layers and self.method not in WITHOUT_WEIGHTS


GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
"""Values of `cudagraph_mode`: graphs of whole steps, of the pieces between attention layers, or both."""


class GraphSettings(Struct, frozen=True, kw_only=True):
    """`--compilation-config`: which CUDA graphs are captured; None means that vLLM decides."""

    mode: str | None = None
    capture_sizes: tuple[int, ...] | None = None
    max_capture_size: int | None = None
    every_small_size: bool = False
    """True for every size up to 32, as in performance mode interactivity; else 1, 2, 4 and steps of 8."""
    tries_kernels: bool | None = None
    """True where torch.compile is told to measure combined kernels, which vLLM leaves as the user sets it; None: the release decides."""
    compiles: bool | None = None
    """True where torch.compile is used, which captured pieces need; None: the optimisation level decides."""


DEFAULT_GRAPHS = GraphSettings()


class LoraSettings(Struct, frozen=True, kw_only=True):
    """`--enable-lora` and the options beside it (vLLM 0.32, `LoRAConfig`)."""

    enabled: bool = False
    max_loras: int = 1
    """Adapters of one batch: each has a slot in GPU memory."""
    max_rank: int = 16
    max_cpu_loras: int | None = None
    """Adapters in host memory; None: as many as there are slots."""
    dtype: str = "auto"
    """Format of the adapters; `auto`: that of the model."""
    fully_sharded: bool = False
    """True where tensor parallelism cuts both matrices of an adapter, and not only one of them."""
    target_modules: tuple[str, ...] = ()
    """Modules that adapters may change; empty: all."""
    extra_vocab_size: int = 256
    """Tokens that an adapter may add, in releases before 0.12."""
    tower_connector: bool = False
    """True where adapters may change the encoders too."""
    specializes_active: bool = False
    """True for CUDA graphs by the number of adapters in use."""
    mixed_moe_format: bool = False
    """True where every adapter of experts is held as three matrices, as checkpoints of single experts have them."""
    moe_shared: bool = False
    """True where the outer matrices of the adapters are the same for all experts."""


NO_LORA = LoraSettings()


class OffloadSettings(Struct, frozen=True, kw_only=True):
    """Weights in host memory (vLLM 0.32, `OffloadConfig`): some bytes of them, or some layers of every group."""

    cpu_bytes: int = 0
    """Bytes of weights of each GPU that stay in host memory, and are read from there (`--cpu-offload-gb`)."""
    cpu_params: tuple[str, ...] = ()
    """Names of the parameters that may; empty: all."""
    group_size: int = 0
    """Layers of a group; 0: no layers are fetched ahead."""
    num_in_group: int = 1
    """Layers of each group that stay in host memory."""
    prefetch_step: int = 1
    """Layers that are fetched ahead, each into a buffer of its own."""
    params: tuple[str, ...] = ()
    """Names of the parameters that are fetched ahead; empty: all of the layer."""
    backend: str = "auto"
    """`uva` reads `cpu_bytes` in place, `prefetch` fetches layers; `auto`: what is set."""


NO_OFFLOAD = OffloadSettings()


class EngineSettings(Struct, frozen=True, kw_only=True):
    """vLLM's arguments under their own names; None means that vLLM decides."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: Fraction | None = None
    dtype: str = "auto"
    """The dtype as the user sets it; the shape has the dtype that results."""
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    kv_cache_memory_bytes: int | None = None
    """Bytes of the KV cache per rank; they bypass the ledger, as in vLLM."""
    num_gpu_blocks_override: int | None = None
    """Blocks of the pool, however much memory there is."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """True where windows and chunks are kept whole, as full attention is; False where that is ruled out, beside a connector too."""
    async_scheduling: bool | None = None
    enable_chunked_prefill: bool | None = None
    """False where a whole prompt must fit into one batch."""
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    """Layers that keep the model dtype: indices, or `sliding_window`."""
    mamba_cache_mode: str | None = None
    """`none` or `align`; None: prefix caching decides."""
    mamba_block_size: int | None = None
    """Tokens of a block of states that are kept once; it changes no bytes."""
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    speculation: Speculation | None = None
    allow_deprecated_quantization: bool = False
    language_model_only: bool = False
    """True where vLLM refuses images and sounds: it does not run their encoders, and releases that can leave them out do not load them."""
    skip_mm_profiling: bool = False
    """True where encoders are loaded and run, but no memory is kept for that."""
    limit_mm_per_prompt: tuple[tuple[str, int], ...] = ()
    """(modality, most items of a prompt); 0 does for one modality what language_model_only does for all."""
    moe_backend: str = "auto"
    """Kernels of the experts by vLLM's name (`--moe-backend`); `auto`: vLLM chooses."""
    mm_encoder_tp_mode: str = "weights"
    """`weights`: tensor parallelism cuts encoders; `data`: every rank holds them whole."""
    graphs: GraphSettings = DEFAULT_GRAPHS
    optimization_level: int | None = None
    """`-O0` to `-O3`, which decide what the compilation config leaves open; None: 2."""
    performance_mode: str = "balanced"
    """`throughput` doubles the default batch limits; `interactivity` captures more CUDA graphs of small batches."""
    parallelism: Parallelism = SINGLE_GPU
    lora: LoraSettings = NO_LORA
    offload: OffloadSettings = NO_OFFLOAD
    host: HostSettings = NO_HOST_SETTINGS

    @property
    def gives_cache_memory(self) -> bool:
        """True where the user gives bytes or blocks, so that the ledger does not decide."""
        return self.kv_cache_memory_bytes is not None or self.num_gpu_blocks_override is not None

    def takes(self, modality: str) -> bool:
        return not self.language_model_only and dict(self.limit_mm_per_prompt).get(modality, 1) > 0


DEFAULT_SETTINGS = EngineSettings()
"""No argument is set: vLLM decides everything."""


class BudgetRequest(Struct, frozen=True, kw_only=True):
    """One question; every answer keeps its question."""

    shape: ModelShape
    accelerator: Accelerator
    draft: Draft | None = None
    """The model that drafts, where `settings.speculation` names one and its config is known."""
    vllm_version: str = DEFAULT_VERSION
    settings: EngineSettings = DEFAULT_SETTINGS
    guarantee: Guarantee = Guarantee.STARTUP
    workload: Workload | None = None
    least_model_len: int | None = None
    """Length in tokens that is promised where max_model_len is `auto`: FullContext is judged at it, and a Workload with one request of
    it beside; None: max_model_len is the promise."""
    shared_by: int = 1
    """Engines that share each GPU, this one included; others are assumed to be like it where nothing else is known."""
    capacity: Capacity = Capacity.PROFILED
    weights_bytes: int | None = None
    """Bytes of the weights per rank, where the user knows them better than the formulas."""
    unmodelled_settings: tuple[str, ...] = ()
    """Arguments that change memory in a way without a formula here (a worker of its own)."""
    unmodelled_variables: tuple[str, ...] = ()
    """Environment variables that do."""
    unmodelled_containers: tuple[str, ...] = ()
    """Containers of the same pod that do."""
    is_stretched: bool = False
    """True where the model's own longest request does not bind: the user overrides its config, or lets vLLM take longer requests."""
    is_whole: bool = False
    """True where nothing was left out, so that None means vLLM's default and not a missing fact."""
    circumstances: Circumstances = NO_CIRCUMSTANCES
    """Facts of the start that are no argument of vLLM, where they are known."""
    calibration: Calibration = NOTHING_OBSERVED
    """Observed starts, which correct the prediction of the formulas."""
    image_digest: str = ""
    """`sha256:…` where the image is named by its digest; starts of another image are only neighbours."""
    alternatives: tuple[EngineSettings, ...] = ()
    """The settings with each value that may stand where one is given that kvgate does not know; empty: it knows all of them."""
    is_one_pod: bool = False
    """True where one pod holds all GPUs of the engine, as kvgate renders it; elsewhere they may stand in several nodes."""
    pod: PodMemory = UNKNOWN_POD
    """Memory of the host that each pod of the engine has."""

    @property
    def promised_workload(self) -> Workload | None:
        """The workload, where the guarantee is about it."""
        return self.workload if self.guarantee is Guarantee.WORKLOAD else None

    @property
    def draft_tokens(self) -> int:
        """Tokens that are drafted at once: as the user sets them, else as another model was made for; 0 without speculative decoding."""
        speculation = self.settings.speculation
        if speculation is None:
            return 0
        return speculation.num_speculative_tokens or (self.draft.n_predict if self.draft else 0)

    @property
    def draft_parallelism(self) -> Parallelism:
        """Cut of the draft, where there is one. Since V1 its layers take the size of the target's group, whatever the user requests."""
        speculation = self.settings.speculation
        is_own = speculation is not None and not accounting_of(self.vllm_version).v1_engine
        requested = speculation.draft_tensor_parallel_size if speculation and is_own else None
        return of_draft(self.settings.parallelism, self.draft, requested) if self.draft else SINGLE_GPU

    @property
    def draft_method(self) -> str:
        """Method of speculative decoding as vLLM runs it; empty without, and where an unknown draft decides it."""
        speculation = self.settings.speculation
        if speculation is None:
            return ""
        if speculation.is_mtp:
            return "mtp"
        if self.draft is None:
            return speculation.method
        return self.draft.method or "draft_model"

    def with_settings(self, **changes: object) -> "BudgetRequest":
        """Return the same question with other arguments, as what-ifs need it."""
        return replace(self, settings=replace(self.settings, **changes))

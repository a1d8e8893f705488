"""Short ways to the engine's inputs: every builder gives something plausible, overrides say what a test is about."""

from fractions import Fraction
from typing import Any

from msgspec.structs import fields, replace

from kvgate import catalogue
from kvgate.budget.engine.request import BudgetRequest, EngineSettings, Guarantee, Workload
from kvgate.budget.engine.run import Run
from kvgate.budget.ground.hardware import Accelerator, Parallelism
from kvgate.budget.ground.units import gib
from kvgate.budget.model.draft import Draft
from kvgate.budget.model.matrix import Units, WeightFormat
from kvgate.budget.model.shape import DenseMlp, FullAttention, LayerShape, Mixer, ModelShape, RecurrentState
from kvgate.budget.releases.versions import accounting_of, parse_release
from kvgate.hf_config import read_config
from kvgate.hf_config.blocks import attention, dense_mlp, vector
from kvgate.hf_config.drafts.reader import read_draft

_PARALLEL = {each.name for each in fields(Parallelism)}
_REQUEST = {
    "circumstances",
    "is_one_pod",
    "is_whole",
    "shape",
    "draft",
    "accelerator",
    "vllm_version",
    "guarantee",
    "workload",
    "capacity",
    "pod",
    "weights_bytes",
    "shared_by",
    "is_stretched",
    "unmodelled_settings",
}


def new_model_shape(
    *, num_layers: int = 32, num_heads: int = 32, num_kv_heads: int = 8, **overrides: Any
) -> ModelShape:
    """A Llama-3-8B; `layer` replaces the layer that all of them are."""
    mixer = FullAttention(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=128)
    layer = overrides.pop("layer", None) or new_layer(mixer)
    values: dict[str, Any] = {
        "name": "test/model", "architecture": "LlamaForCausalLM", "hidden_size": 4096, "vocab_size": 128256,
        "layers": (layer,) * num_layers, "dtype": "bfloat16", "max_model_len": 131072, "last": (vector("norm", 4096),),
        "num_heads": num_heads,
    }  # fmt: skip
    return ModelShape(**{**values, **overrides})


def new_layer(
    mixer: Mixer, *, intermediate_size: int = 14336, hidden_size: int = 4096, stored: WeightFormat | None = None
) -> LayerShape:
    """A dense layer around a mixer, its linears `stored` in a format; only softmax attention brings weights of its own."""
    mlp = DenseMlp(intermediate_size=intermediate_size)
    own = tuple(attention(mixer, hidden_size)) if isinstance(mixer, FullAttention) else ()
    linears = tuple(replace(matrix, format=stored) for matrix in (*own, *dense_mlp(mlp, hidden_size)))
    return LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*linears, vector("layernorm", 2 * hidden_size)))


def catalogue_shape(name: str, **options: str) -> ModelShape:
    """A model of our catalogue."""
    entry = catalogue.find_model(name)
    assert entry is not None, name
    return read_config(entry.config, name=entry.name, **options)


def catalogue_accelerator(name: str) -> Accelerator:
    """A GPU of our catalogue."""
    accelerator = catalogue.find_accelerator(name)
    assert accelerator is not None, name
    return accelerator


def new_gdn() -> RecurrentState:
    """The recurrent state of Qwen3.5-27B and Qwen3.6-27B: 3,207,168 bytes in each of 48 layers."""
    keys, values = Units(count=16, width=128), Units(count=48, width=128)
    return RecurrentState(
        kind="GDN", conv=(keys, keys, values), conv_taps=3, state=Units(count=48, width=128 * 128), state_dtype="float32"
    )  # fmt: skip


def known_draft(name: str, method: str = "") -> Draft:
    """The draft, or the model that drafts, of that name in the catalogue."""
    entry = catalogue.find_draft(name) or catalogue.find_model(name)
    assert entry is not None, name
    return read_draft(entry.config, name=name, method=method)


def new_accelerator(*, memory_gib: float = 79.19, **overrides: Any) -> Accelerator:
    """An H100 of 80 GB whose drivers all report the same memory."""
    memory = gib(memory_gib)
    values: dict[str, Any] = {
        "name": "H100-SXM-80GB", "product": "NVIDIA H100 80GB HBM3", "memory_bytes": memory, "memory_low_bytes": memory,
        "memory_high_bytes": memory, "compute_capability": (9, 0), "vendor": "nvidia", "nvlink": True,
    }  # fmt: skip
    return Accelerator(**{**values, **overrides})


def new_request(**overrides: Any) -> BudgetRequest:
    """Fields of the request, of its settings and of its parallelism, by name; `utilization` is a decimal string."""
    parallelism = {key: overrides.pop(key) for key in _PARALLEL & overrides.keys()}
    request = {key: overrides.pop(key) for key in _REQUEST & overrides.keys()}
    if utilization := overrides.pop("utilization", None):
        overrides["gpu_memory_utilization"] = Fraction(utilization)
    values: dict[str, Any] = {"vllm_version": "0.33.0", "guarantee": Guarantee.STARTUP, **request}
    values.setdefault("shape", new_model_shape())
    values.setdefault("accelerator", new_accelerator())
    return BudgetRequest(**values, settings=EngineSettings(**overrides, parallelism=Parallelism(**parallelism)))


def new_run(*, version: str = "0.33.0", **overrides: Any) -> Run:
    """The profile run of ten tokens for two requests, whose figures can be worked out by hand; further keys are fields of the run."""
    parallelism = Parallelism(**{key: overrides.pop(key) for key in _PARALLEL & overrides.keys()})
    shape = overrides.pop("shape", None) or new_model_shape(hidden_size=100)
    values: dict[str, Any] = {
        "shape": shape, "accelerator": new_accelerator(), "accounting": accounting_of(version), "release": parse_release(version),
        "parallelism": parallelism, "max_model_len": 1, "max_num_seqs": 2, "max_num_batched_tokens": 10, "enforce_eager": False,
        "stage": (0, len(shape.layers)),
    }  # fmt: skip
    return Run(**{**values, **overrides})


def new_workload(
    peak_concurrency: int = 4, prompt_tokens: int = 1000, output_tokens: int = 24, **more: Any
) -> Workload:
    return Workload(peak_concurrency=peak_concurrency, prompt_tokens=prompt_tokens, output_tokens=output_tokens, **more)


def new_document(
    *, name: str = "qwen", model: Any = "Qwen/Qwen3-8B", accelerator: str = "H100-SXM-80GB", **spec: Any
) -> dict[str, Any]:
    """An InferenceDeployment as YAML gives it; further keys are fields of the spec."""
    return {
        "apiVersion": "kvgate.io/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": name, "namespace": "serving"},
        "spec": {
            "model": {"name": model} if isinstance(model, str) else model,
            "accelerator": {"type": accelerator},
            **spec,
        },
    }


def new_llama_config(**overrides: Any) -> dict[str, Any]:
    """A small Llama's config.json; a key set to `...` is left out."""
    values = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 4, "num_key_value_heads": 8,
        "torch_dtype": "bfloat16", "vocab_size": 128256, **overrides,
    }  # fmt: skip
    return {key: value for key, value in values.items() if value is not ...}

"""One config.json mapping → ModelShape. Key names are Hugging Face's, rules are vLLM 0.32's (`config/model.py`)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvgate.budget.model_shape import (
    DTYPE_BYTES,
    LayerShape,
    ModelShape,
    UnmodelledLayer,
)
from kvgate.hf_config.context import default_max_model_len, derived_max_model_len
from kvgate.hf_config.encoders import TIED_BY_WRAPPER
from kvgate.hf_config.families import encoders_of, family_of
from kvgate.hf_config.family import Family, LanguageModel
from kvgate.hf_config.fields import HEADS, HIDDEN, Fields, ModelConfigError
from kvgate.hf_config.layers import headless_stack, uniform_stack, unmodelled_mixer
from kvgate.hf_config.modules import UnknownFormat
from kvgate.hf_config.nesting import language_keys
from kvgate.hf_config.quantization import (
    ModuleFormats,
    Quantization,
    kv_cache_scheme,
    of_argument,
    read_quantization,
)
from kvgate.hf_config.rotary import rotary_tables

MAX_LAYERS = 1024
"""More layers than any model has; a config with more is a mistake or an attack."""

_ENCODER_KEYS = ("vision_config", "audio_config", "vision_tower", "visual", "img_processor")


def read_config(
    config: Mapping[str, Any], *, name: str = "", quantization: str | None = None, dtype: str | None = None
) -> ModelShape:
    """The shape that vLLM would build; kinds without a formula stand in it by name, they are not errors.

    `quantization` and `dtype` are vLLM's arguments where the user sets them. Raises ModelConfigError with all problems
    at once.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelConfigError(("architectures is missing; this is not a model's config.json",))
    architecture = architectures[0]
    fields = Fields(language_keys(config))
    family = family_of(architecture, fields)
    kind = _unmodelled_kind(architecture, family, fields)
    if family is None or kind:
        return _unmodelled_shape(fields, name or architecture, architecture, kind or "")
    unmodelled: list[str] = []
    weights = _quantization(fields, quantization, unmodelled)
    shape = _shape(fields, name or architecture, architecture, family, weights, unmodelled, dtype)
    raw = Fields(config)
    towers = read_towers(raw, shape.hidden_size) if (read_towers := encoders_of(architecture)) else ()
    if fields.problems or raw.problems:
        raise ModelConfigError(tuple(dict.fromkeys((*fields.problems, *raw.problems))))
    ties = architecture in TIED_BY_WRAPPER and not raw.has("tie_word_embeddings")
    return replace(shape, encoders=towers, tied_by_wrapper=ties)


def _unmodelled_kind(architecture: str, family: Family | None, fields: Fields) -> str | None:
    """Name the part that has no formula here: a kind of cache, an encoder, or a class that nobody read yet."""
    kind = unmodelled_mixer(fields) if family is None or family.layers in (uniform_stack, headless_stack) else None
    has_towers = encoders_of(architecture) is None and any(fields.has(key) for key in _ENCODER_KEYS)
    if kind is None and has_towers:
        return "multimodal encoder"  # even of a known class: glm-4v and Qwen-VL share theirs with text models
    return kind or (f"architecture {architecture}" if family is None else None)


def _unmodelled_shape(fields: Fields, name: str, architecture: str, kind: str) -> ModelShape:
    """Only what can be said without a formula: how many layers and heads, and how long a context."""
    num_layers = fields.optional_count("num_hidden_layers", "num_layers", "n_layer", "n_layers", "decoder_layers") or 1
    nothing = LayerShape(mixers=(UnmodelledLayer(kind=kind),))
    return ModelShape(
        name=name,
        architecture=architecture,
        hidden_size=0,
        vocab_size=fields.optional_count("vocab_size"),
        layers=(nothing,) * min(num_layers, MAX_LAYERS),
        dtype=_dtype(fields, None),
        max_model_len=derived_max_model_len(fields, default=0),
        num_heads=fields.optional_count(*HEADS),
    )


def _declared(fields: Fields) -> Any:
    return fields.values.get("quantization_config") or fields.values.get("compression_config") or {}


def _quantization(fields: Fields, asked: str | None, unmodelled: list[str]) -> Quantization | None:
    is_v4 = fields.text("model_type") == "deepseek_v4"
    expert_dtype = fields.text("expert_dtype", default="fp4" if is_v4 else "")
    try:
        declared = read_quantization(_declared(fields), _num_layers(Fields(fields.values)), expert_dtype=expert_dtype)
        return declared or (of_argument(asked) if asked else None)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        unmodelled.append(str(error) if isinstance(error, UnknownFormat) else "an unreadable quantization_config")
        return None


def _shape(
    fields: Fields,
    name: str,
    architecture: str,
    family: Family,
    quantization: Quantization | None,
    unmodelled: list[str],
    dtype: str | None,
) -> ModelShape:
    known = family.known
    model = LanguageModel(
        fields=fields,
        known=known,
        hidden_size=fields.count(*HIDDEN),
        num_layers=_num_layers(fields),
        formats=ModuleFormats(quantization),
    )
    stack = family.layers(model)
    return ModelShape(
        name=name,
        architecture=architecture,
        hidden_size=model.hidden_size,
        vocab_size=fields.count("vocab_size", "padded_vocab_size"),
        layers=stack.layers,
        dtype=_dtype(fields, dtype),
        max_model_len=derived_max_model_len(fields),
        default_max_model_len=default_max_model_len(fields),
        tie_word_embeddings=fields.flag("tie_word_embeddings", "tie_embedding", default=known.tied),
        lm_head_bias=known.lm_head_bias,
        ends_everywhere=known.ends_everywhere,
        first=stack.first,
        last=stack.last,
        everywhere=stack.everywhere,
        draft_layers=stack.drafts,
        rotary=rotary_tables(fields, known, model.hidden_size) if stack.rotary is None else stack.rotary,
        quantization=quantization.main if quantization else None,
        head_format=quantization.head if quantization else None,
        kv_cache_scheme=kv_cache_scheme(_declared(fields)),
        unmodelled=tuple(unmodelled),
        num_heads=fields.count(*HEADS, default=0),
        supports_pipeline=family.supports_pipeline,
        own_ends=family.own_ends,
    )


def _num_layers(fields: Fields) -> int:
    listed = len(fields.sequence("layers_block_type")) or None
    num_layers = fields.count(
        "decoder_layers", "num_hidden_layers", "num_layers", "n_layer", "n_layers", default=listed
    )
    if num_layers <= MAX_LAYERS:
        return num_layers
    fields.problems.append(f"num_hidden_layers is {num_layers}; no model has more than {MAX_LAYERS}")
    return 1


def _dtype(fields: Fields, asked: str | None) -> str:
    """Return the dtype that vLLM runs: a float32 checkpoint is served in bfloat16 unless the user sets float32."""
    if asked and asked != "auto":
        wanted = {"half": "float16", "float": "float32"}.get(asked, asked)
        return wanted if wanted in DTYPE_BYTES else "bfloat16"
    stored = fields.text("dtype", "torch_dtype", default="float32").removeprefix("torch.")
    return stored if stored in ("bfloat16", "float16") else "bfloat16"

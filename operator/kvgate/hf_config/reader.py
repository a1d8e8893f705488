"""One config.json mapping → ModelShape. Key names are Hugging Face's, rules are vLLM 0.32's (`config/model.py`)."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kvgate.budget.model.shape import DTYPE_BYTES, UNREAD_ENCODER, LayerShape, ModelShape, UnmodelledLayer
from kvgate.hf_config.architectures import family_of, multimodal_of, nested_family
from kvgate.hf_config.families.pooling import bidirectional
from kvgate.hf_config.family import Family, LanguageModel
from kvgate.hf_config.fields import HEADS, HIDDEN, Fields, ModelConfigError, language_keys
from kvgate.hf_config.formats.modules import UnknownFormat
from kvgate.hf_config.formats.quantization import (
    ModuleFormats,
    Quantization,
    format_kinds,
    kv_cache_scheme,
    read_quantization,
    requested_quantization,
)
from kvgate.hf_config.layers.attention import source_tests
from kvgate.hf_config.layers.layers import uniform_stack, unmodelled_mixer
from kvgate.hf_config.layers.positions import default_max_model_len, lengths_by_rule, rotary_tables

MAX_LAYERS = 1024
"""More layers than any model has; a config with more is a mistake or an attack."""

_ENCODER_KEYS = ("vision_config", "audio_config", "vision_tower", "visual", "img_processor")


def read_config(
    config: Mapping[str, Any], *, name: str = "", quantization: str | None = None, dtype: str | None = None
) -> ModelShape:
    """Return the shape that vLLM would build; kinds without a formula stand in it by name, they are not errors.

    `quantization` and `dtype` are vLLM's arguments where the user sets them. Raises ModelConfigError with all problems
    at once.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelConfigError(("architectures is missing; this is not a model's config.json",))
    architecture = architectures[0]
    fields, raw = Fields(language_keys(config)), Fields(config)
    family, multimodal = family_of(architecture, fields), multimodal_of(architecture)
    fields = fields.renamed(family.renamed) if family else fields
    kind = _unmodelled_kind(architecture, family, fields, has_reader=multimodal is not None)
    is_unread = family is None and kind == UNREAD_ENCODER
    if is_unread:
        family = nested_family(fields)
        kind = _unmodelled_kind(architecture, family, fields, has_reader=True)
    if family is None or kind:
        return _unmodelled_shape(fields, name or architecture, architecture, kind or "")
    stored, unmodelled = quantization_of(fields, quantization)
    shape = _shape(fields, architecture, family, stored, dtype)
    towers = multimodal.towers(raw, shape.hidden_size) if multimodal else ()
    if fields.problems or raw.problems:
        raise ModelConfigError(tuple(dict.fromkeys((*fields.problems, *raw.problems))))
    ties = multimodal is not None and multimodal.ties_embeddings and raw.flag("tie_word_embeddings", default=True)
    return replace(
        shape,
        name=name or architecture,
        unmodelled=unmodelled,
        format_kinds=format_kinds(declared(fields)) or ((quantization,) if quantization else ()),
        requested_format=quantization or "",
        encoders=towers,
        has_unread_encoder=is_unread,
        tied_by_wrapper=ties,
    )


def _unmodelled_kind(architecture: str, family: Family | None, fields: Fields, *, has_reader: bool) -> str | None:
    """Name the part that has no formula here: a kind of cache, an encoder, or a class that nobody read yet."""
    kind = unmodelled_mixer(fields) if family is None or family.layers is uniform_stack else None
    if kind is None and not has_reader and any(fields.has(key) for key in _ENCODER_KEYS):
        return UNREAD_ENCODER  # even of a known class: glm-4v and Qwen-VL share theirs with text models
    return kind or (f"architecture {architecture}" if family is None else None)


def _unmodelled_shape(fields: Fields, name: str, architecture: str, kind: str) -> ModelShape:
    """Return what is known without a formula: how many layers and heads, and how long a context."""
    num_layers = fields.optional_count("num_hidden_layers", "num_layers", "n_layer", "n_layers", "decoder_layers") or 1
    return ModelShape(
        name=name,
        architecture=architecture,
        hidden_size=0,
        vocab_size=fields.optional_count("vocab_size"),
        layers=(LayerShape(mixers=(UnmodelledLayer(kind=kind),)),) * min(num_layers, MAX_LAYERS),
        dtype=model_dtype(fields, None),
        max_model_len=lengths_by_rule(fields)["yarn_stated"],
        num_heads=fields.optional_count(*HEADS),
    )


def declared(fields: Fields) -> Any:
    """Return the quantisation that config.json states, unread."""
    return fields.values.get("quantization_config") or fields.values.get("compression_config") or {}


def quantization_of(fields: Fields, requested: str | None) -> tuple[Quantization | None, tuple[str, ...]]:
    """Return the quantisation of the checkpoint, else the requested one, and what has no formula in it."""
    expert_dtype = fields.text("expert_dtype", default="fp4" if fields.text("model_type") == "deepseek_v4" else "")
    try:
        stored = read_quantization(declared(fields), _num_layers(Fields(fields.values)), expert_dtype=expert_dtype)
        return stored or (requested_quantization(requested) if requested else None), ()
    except UnknownFormat as error:
        return None, (str(error),)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None, ("an unreadable quantization_config",)


def _shape(
    fields: Fields, architecture: str, family: Family, quantization: Quantization | None, dtype: str | None
) -> ModelShape:
    known = family.known
    model = LanguageModel(
        fields=fields,
        known=known,
        hidden_size=fields.count(*HIDDEN),
        num_layers=_num_layers(fields),
        formats=ModuleFormats(quantization),
    )
    stack = bidirectional(family.layers(model)) if family.both_ways else family.layers(model)
    lengths = lengths_by_rule(fields)
    stated = lengths["yarn_stated"]
    everywhere = (*stack.everywhere, *(matrix for head in family.heads for matrix in head(model)))
    return ModelShape(
        name=architecture,
        architecture=architecture,
        hidden_size=model.hidden_size,
        vocab_size=fields.count("vocab_size", "padded_vocab_size"),
        layers=stack.layers,
        dtype=model_dtype(fields, dtype),
        max_model_len=stated,
        earlier_max_model_lens=tuple((rule, tokens) for rule, tokens in lengths.items() if tokens != stated),
        default_max_model_len=default_max_model_len(fields),
        tie_word_embeddings=fields.flag("tie_word_embeddings", "tie_embedding", default=known.tied),
        lm_head_bias=known.lm_head_bias,
        ends_everywhere=known.ends_everywhere,
        first=stack.first,
        last=stack.last,
        everywhere=everywhere,
        draft_layers=stack.drafts,
        state_chunk_tokens=fields.optional_count("mamba_chunk_size", "chunk_size") or 2048,
        rotary=rotary_tables(fields, known, model.hidden_size) if stack.rotary is None else stack.rotary,
        quantization=quantization.main if quantization else None,
        head_format=quantization.head if quantization else None,
        source_tests=source_tests(fields, architecture),
        kv_cache_scheme=kv_cache_scheme(declared(fields)),
        num_heads=fields.count(*HEADS, default=0),
        supports_pipeline=family.supports_pipeline,
        own_ends=family.own_ends,
        pools=family.pools,
    )


def _num_layers(fields: Fields) -> int:
    names = ("decoder_layers", "num_hidden_layers", "num_layers", "n_layer", "n_layers")
    return num_layers_of(fields, *names, default=len(fields.sequence("layers_block_type")) or None)


def num_layers_of(fields: Fields, *names: str, default: int | None, of: str = "model") -> int:
    """Return the number of layers; 1 with a problem where it is absurd."""
    num_layers = fields.count(*names, default=default)
    if num_layers <= MAX_LAYERS:
        return num_layers
    fields.problems.append(f"num_hidden_layers is {num_layers}; no {of} has more than {MAX_LAYERS}")
    return 1


def model_dtype(fields: Fields, requested: str | None) -> str:
    """Return the dtype that vLLM runs: a float32 checkpoint is served in bfloat16 unless the user sets float32."""
    if requested and requested != "auto":
        wanted = {"half": "float16", "float": "float32"}.get(requested, requested)
        return wanted if wanted in DTYPE_BYTES else "bfloat16"
    stored = fields.text("dtype", "torch_dtype", default="float32").removeprefix("torch.")
    return stored if stored in ("bfloat16", "float16") else "bfloat16"

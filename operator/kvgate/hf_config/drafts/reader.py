"""A draft's config.json → Draft: heads of EAGLE, EAGLE-3, DFlash, Medusa and others, in the formats in which they are published.

Read in vLLM 0.32: `config/speculative.py`, `transformers_utils/configs/{eagle,speculators,medusa,mlp_speculator}` and the classes that
each reader names.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from kvgate.budget.model.draft import Draft
from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import LayerShape, Mixer, ModelShape, SharedCache, UnmodelledLayer
from kvgate.hf_config.blocks import column_parallel, dense_mlp, replicated, row_parallel, vector
from kvgate.hf_config.drafts.layers import DraftFacts, DraftParts, decoder, dflash, dflash2, dspark, vocabulary
from kvgate.hf_config.family import PLAIN, Architecture
from kvgate.hf_config.fields import HEADS, HIDDEN, Fields, ModelConfigError, language_keys
from kvgate.hf_config.formats.quantization import ModuleFormats, kv_cache_scheme
from kvgate.hf_config.layers.attention import dense_of, full_attention, layer_windows
from kvgate.hf_config.layers.positions import lengths_by_rule, rotary_tables
from kvgate.hf_config.reader import declared, model_dtype, num_layers_of, quantization_of, read_config

_SPECULATOR_CLASSES = {
    ("eagle3", "llama"): "Eagle3LlamaForCausalLM",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
    ("dflash", ""): "DFlashDraftModel",
    ("dflash2", ""): "DFlash2DraftModel",
    ("dspark", ""): "Qwen3DSparkModel",
}
"""(algorithm, model_type of its layers) → vLLM's class for a draft in the format of the speculators library."""


def unwrapped(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the draft's layers with the keys around them: EAGLE and the speculators library keep it in a section."""
    algorithm = config.get("speculators_model_type")
    inner = config.get("transformer_layer_config")
    if isinstance(algorithm, str) and isinstance(inner, Mapping):
        kind = str(inner.get("model_type") or "llama")
        known = _SPECULATOR_CLASSES.get((algorithm, kind)) or _SPECULATOR_CLASSES.get((algorithm, ""))
        architecture = known or f"{algorithm} speculator of {kind}"
        around = {key: value for key, value in config.items() if key != "transformer_layer_config"}
        # keys around the section that win over those in it
        names = ("draft_vocab_size", "target_hidden_size", "norm_before_fc", "fc_norm", "aux_hidden_state_layer_ids")
        own = {key: config[key] for key in names if config.get(key) is not None}
        return {**around, **inner, **own, "model_type": kind, "architectures": [architecture]}
    model = config.get("model")
    return {**config, **model} if config.get("model_type") == "eagle" and isinstance(model, Mapping) else config


def method_of(config: Mapping[str, Any], *, name: str, given: str = "") -> str:
    """Return the method that vLLM takes: the given one, else what the name or the config says; empty for a complete model.

    vLLM 0.32, `SpeculativeConfig.__post_init__`.
    """
    kind, architecture = str(config.get("model_type") or ""), first_architecture(config)
    if given in ("eagle", "eagle3", "dflash", "dspark", "medusa", "mlp_speculator"):
        return given
    lower = name.lower()
    for words, method in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark")):
        if words in lower:
            return method
    if architecture in ("MuseGlimmerAssistantModel", "DFlashDraftModel", "DFlash2DraftModel"):
        return "dflash"
    if "Eagle3" in architecture or architecture.startswith(("Peagle", "PEagle")):
        return "eagle3"
    if "DSpark" in architecture:
        return "dspark"
    if architecture.startswith("Eagle"):
        return "eagle"
    if kind in ("medusa", "mlp_speculator"):
        return kind
    is_mtp = kind.endswith("_mtp") or kind in ("gemma4_assistant", "gemma4_unified_assistant")
    return "mtp" if is_mtp or given == "mtp" else ""


def first_architecture(config: Mapping[str, Any]) -> str:
    """Return the first class that the config names; empty where it names none."""
    architectures = config.get("architectures")
    found = architectures[0] if isinstance(architectures, list) and architectures else ""
    return found if isinstance(found, str) else ""


MOST_HEADS = 64
"""More heads than any Medusa head or speculator has."""
_LLAMA = Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias")
_QWEN3 = Architecture(bias_key="attention_bias", head_norms="head")


_Reader = Callable[[DraftFacts], DraftParts]


def read_draft(
    config: Mapping[str, Any],
    *,
    name: str = "",
    method: str = "",
    quantization: str | None = None,
    stored_bytes: int = 0,
) -> Draft:
    """Return the draft that vLLM would build; a kind without a formula stands in its shape by name.

    `method` and `quantization` are those of `--speculative-config` where the user sets them. Raises ModelConfigError with all
    problems at once.
    """
    plain = unwrapped(config)
    method = method_of(plain, name=name, given=method)
    if method in _HEADS_ALONE:
        return _heads_alone(plain, name=name, method=method, stored_bytes=stored_bytes)
    architecture = _architecture(plain, method)
    reader = _READERS.get(architecture)
    if reader is None and (method in ("", "draft_model", "mtp")):
        return _model(plain, name=name, method=method, quantization=quantization, stored_bytes=stored_bytes)
    fields = Fields(language_keys(plain))
    if reader is None:
        nothing = LayerShape(mixers=(UnmodelledLayer(kind=f"drafts by {architecture}"),))
        return Draft(shape=_shape(fields, name, architecture, (nothing,)), method=method)
    known, read = reader
    stored, unmodelled = quantization_of(fields, quantization)
    facts = DraftFacts(
        fields=fields,
        known=known,
        hidden_size=fields.count(*HIDDEN),
        num_layers=num_layers_of(fields, "num_hidden_layers", "num_layers", default=1, of="draft"),
        formats=ModuleFormats(stored),
    )
    parts = read(facts)
    shape = replace(_shape(fields, name, architecture, parts.layers, known=known), unmodelled=unmodelled)
    draft = _with_ends(Draft(shape=replace(shape, last=parts.beside), method=method), fields, parts)
    _raise_problems(fields)
    return replace(draft, buffers=parts.buffers, stored_bytes=0 if stored else stored_bytes)


def _architecture(config: Mapping[str, Any], method: str) -> str:
    """Return vLLM's class, whose name EAGLEConfig makes of the config's."""
    found = first_architecture(config)
    if not found:
        raise ModelConfigError(("architectures is missing; this is not a draft's config.json",))
    if method == "eagle":
        return found if found.startswith("Eagle") else f"Eagle{found}"
    if method == "eagle3" and not found.startswith(("Peagle", "PEagle")):
        return found if found.startswith("Eagle3") or found.endswith("Eagle3") else f"Eagle3{found}"
    if found == "DSparkDraftModel" and config.get("model_type") == "qwen3":
        return "Qwen3DSparkModel"
    return found


def _shape(
    fields: Fields, name: str, architecture: str, layers: tuple[LayerShape, ...], *, known: Architecture = PLAIN
) -> ModelShape:
    hidden_size = fields.optional_count(*HIDDEN)
    num_heads = fields.optional_count(*HEADS)
    return ModelShape(
        name=name or architecture,
        architecture=architecture,
        hidden_size=hidden_size,
        vocab_size=fields.optional_count("vocab_size"),
        layers=layers,
        dtype=model_dtype(fields, None),
        max_model_len=lengths_by_rule(fields)["yarn_stated"],
        rotary=rotary_tables(fields, known, hidden_size) if num_heads else (),
        kv_cache_scheme=kv_cache_scheme(declared(fields)),
        num_heads=num_heads,
        own_ends=True,
    )


def _with_ends(draft: Draft, fields: Fields, parts: DraftParts) -> Draft:
    """Add what depends on vocabularies: the embedding, the head, and the table from the draft's tokens to the target's."""
    vocab = fields.count("vocab_size")
    proposed = fields.optional_count("draft_vocab_size") or vocab
    hidden_size = draft.shape.hidden_size
    table = (vector("draft_id_to_target_id", proposed, element_bytes=8),) if proposed != vocab else ()
    return replace(
        draft,
        shape=replace(draft.shape, last=(*draft.shape.last, *table)),
        embedding=(vocabulary("embed_tokens", vocab, hidden_size),) if parts.embedding else (),
        head=(vocabulary("lm_head", proposed, hidden_size),) if parts.head else (),
        vocab_size=vocab,
        draft_vocab_size=proposed,
        target_hidden_size=parts.target_hidden_size,
        target_states=parts.target_states,
        n_predict=parts.n_predict,
    )


def _eagle(facts: DraftFacts) -> DraftParts:
    """EAGLE of Llama: the layer reads embedding and state through one projection; there is no norm at either end."""
    width = facts.hidden_size
    layers = tuple(decoder(facts, index, norms=1 if index == 0 else 2) for index in range(facts.num_layers))
    fc = replicated("fc", width, columns=2 * width)
    return DraftParts(layers=layers, beside=(fc,), target_hidden_size=width, head=False)


def _eagle_mistral(facts: DraftFacts) -> DraftParts:
    """EAGLE of Mistral: the projection is cut, and a norm stands at the end (`mistral_eagle.py`)."""
    width = facts.hidden_size
    layers = tuple(decoder(facts, index) for index in range(facts.num_layers))
    beside = (row_parallel("fc", width, columns=2 * width), vector("norm", width))
    return DraftParts(layers=layers, beside=beside, target_hidden_size=width, head=False)


def _eagle3(facts: DraftFacts) -> DraftParts:
    """EAGLE-3: three states of the target become one, and the first layer reads it beside the embedding (`llama_eagle3.py`)."""
    fields, width = facts.fields, facts.hidden_size
    windows = layer_windows(fields, facts.known, facts.num_layers) if fields.sequence("layer_types") else ()
    layers = tuple(
        decoder(facts, index, norms=3, first_columns=2 * width, window=windows[index] if windows else 0)
        for index in range(facts.num_layers)
    )
    eagle = fields.section("eagle_config")
    if not eagle.flag("use_aux_hidden_state", default=True):
        return DraftParts(layers=layers, beside=(vector("norm", width),), target_hidden_size=width)
    listed = fields.sequence("eagle_aux_hidden_state_layer_ids") or eagle.sequence("eagle_aux_hidden_state_layer_ids")
    states = fields.optional_count("num_aux_hidden_states") or len(listed) or 3
    target = fields.optional_count("target_hidden_size") or width
    norms = [vector("norm", width)]
    if eagle.flag("norm_before_fc", default=fields.flag("norm_before_fc")):
        norms.append(vector("input_norm", states * target))
    if fields.flag("fc_norm"):
        norms.append(vector("fc_norm", states * target))
    beside = (replicated("fc", width, columns=states * target), *norms)
    return DraftParts(layers=layers, beside=beside, target_hidden_size=target, target_states=states)


def _gemma4_assistant(facts: DraftFacts) -> DraftParts:
    """Gemma 4's assistant: its layers read the target's cache with queries of their own (`gemma4_mtp.py`)."""
    fields, width, count = facts.fields, facts.hidden_size, facts.num_layers
    base = full_attention(fields, width)
    wide = replace(base, head_dim=fields.optional_count("global_head_dim") or base.head_dim)
    backbone = fields.optional_count("backbone_hidden_size") or width
    mlp = dense_of(fields, facts.known)
    layers = []
    for index, window in enumerate(layer_windows(fields, facts.known, count)):
        attends = base if window else wide
        queries = Units(count=attends.num_heads, width=attends.head_dim)
        mixers: tuple[Mixer, ...] = (SharedCache(num_heads=attends.num_heads, target=0),)
        own = (
            column_parallel("qkv_proj", queries, columns=width),
            row_parallel("o_proj", width, columns=queries.elements),
            vector("qk_norm", attends.head_dim),
        )
        matrices = (*own, *dense_mlp(mlp, width), vector("layernorm", 4 * width))
        layers.append(facts.formats.stored(index, LayerShape(mixers=mixers, mlps=(mlp,), matrices=matrices)))
    beside = [
        column_parallel("pre_projection", Units(count=width), columns=2 * backbone),
        row_parallel("post_projection", backbone, columns=width),
        vector("norm", width),
    ]
    if fields.flag("use_ordered_embeddings"):
        beside.append(replicated("centroids", fields.optional_count("num_centroids") or 2048, columns=width))
        beside.append(vector("token_ordering", fields.count("vocab_size"), element_bytes=8))
    # the head is the draft's own embedding, which stays although the target's embedding takes its place
    beside.append(vocabulary("lm_head", fields.count("vocab_size"), width))
    return DraftParts(
        layers=tuple(layers),
        beside=tuple(beside),
        target_hidden_size=backbone,
        embedding=False,
        head=False,
        n_predict=1,
    )


_READERS: dict[str, tuple[Architecture, _Reader]] = {
    "EagleLlamaForCausalLM": (_LLAMA, _eagle),
    "EagleMistralForCausalLM": (_LLAMA, _eagle_mistral),
    **dict.fromkeys(
        (
            "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM",
            "Eagle3Qwen3vlForCausalLM", "PEagleDraftModel", "PeagleLlamaForCausalLM",
        ),
        (_LLAMA, _eagle3),
    ),
    "Eagle3Qwen3ForCausalLM": (_QWEN3, _eagle3),
    "PeagleQwen3ForCausalLM": (_QWEN3, _eagle3),
    "Eagle3DeepseekV2ForCausalLM": (PLAIN, _eagle3),
    "Eagle3DeepseekV3ForCausalLM": (PLAIN, _eagle3),
    "DFlashDraftModel": (_QWEN3, dflash),
    "DFlash2DraftModel": (_QWEN3, dflash2),
    "MuseGlimmerAssistantModel": (_QWEN3, dflash),
    "Qwen3DSparkModel": (_QWEN3, dspark),
    "Qwen3OmniDSparkModel": (_QWEN3, dspark),
    "Gemma4AssistantForCausalLM": (PLAIN, _gemma4_assistant),
    "Gemma4UnifiedAssistantForCausalLM": (PLAIN, _gemma4_assistant),
}  # fmt: skip
"""vLLM's class of a draft → what the class name settles, and its reader."""
DRAFT_CLASSES = frozenset(_READERS)
"""Classes that only draft, beside a target."""


def _model(config: Mapping[str, Any], *, name: str, method: str, quantization: str | None, stored_bytes: int) -> Draft:
    """Return a complete model that drafts, or its layers of multi-token prediction alone.

    vLLM makes a draft of the latter from every config that has such layers, also where no method is set (0.7 to 0.33,
    `SpeculativeConfig.hf_config_override`).
    """
    shape = read_config(config, name=name, quantization=quantization)
    if method == "mtp" or shape.draft_layers:
        drafts = shape.draft_layers or (
            LayerShape(mixers=(UnmodelledLayer(kind="drafts by layers without a formula"),)),
        )
        own = replace(
            shape, layers=drafts, draft_layers=(), first=(), last=(), everywhere=(), encoders=(), own_ends=True
        )
        keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
        counted = Fields(language_keys(config)).optional_count(*keys)
        # vLLM runs one layer of MiMo-V2's, however many there are
        n_predict = 1 if shape.architecture.startswith("MiMoV2") else counted
        return Draft(
            shape=own, method="mtp", vocab_size=shape.vocab_size, draft_vocab_size=shape.vocab_size,
            target_hidden_size=shape.hidden_size, n_predict=n_predict,
        )  # fmt: skip
    whole = replace(shape, draft_layers=(), checkpoint_bytes=stored_bytes)
    return Draft(shape=whole, vocab_size=shape.vocab_size, draft_vocab_size=shape.vocab_size, stored_bytes=stored_bytes)


def _heads_alone(config: Mapping[str, Any], *, name: str, method: str, stored_bytes: int) -> Draft:
    """Return heads without attention; a config that leaves a key out has the value of its config class."""
    fields = Fields(config)
    read = _HEADS_ALONE[method]
    architecture = {"medusa": "MedusaModel", "mlp_speculator": "MLPSpeculatorPreTrainedModel"}[method]
    draft = read(fields, Draft(shape=_shape(fields, name, architecture, ()), method=method, stored_bytes=stored_bytes))
    _raise_problems(fields)
    return draft


def _raise_problems(fields: Fields) -> None:
    """Raise the first problem of each key: a key that is read twice has two."""
    if fields.problems:
        first = {problem.partition(" ")[0]: problem for problem in reversed(fields.problems)}
        raise ModelConfigError(tuple(reversed(first.values())))


def _medusa(fields: Fields, draft: Draft) -> Draft:
    """Medusa: per token a few square matrices and a head over the vocabulary (`medusa.py`)."""
    width, vocab = fields.count("hidden_size", default=4096), fields.optional_count("vocab_size")
    depth = min(fields.count("medusa_num_layers", "num_hidden_layers", default=1), MOST_HEADS)
    bias = fields.flag("medusa_fc_bias")
    head = vocabulary("lm_head", vocab or 32001, width)
    shares = fields.flag("original_lm_head")
    return replace(
        draft,
        shape=replace(draft.shape, hidden_size=width, last=(head,) if shares else ()),
        per_token=(*[replicated("block", width, columns=width, bias=bias)] * depth, *(() if shares else (head,))),
        vocab_size=vocab,
        draft_vocab_size=vocab,
        target_hidden_size=width,
    )


def _mlp_speculator(fields: Fields, draft: Draft) -> Draft:
    """MLP speculator: per token an embedding, a projection and a head, some of them tied (`mlp_speculator.py`)."""
    outer, vocab = fields.count("emb_dim", "hidden_size", default=4096), fields.count("vocab_size", default=32000)
    inner = fields.optional_count("inner_dim") or outer
    ties, n_predict = fields.flag("tie_weights"), min(fields.count("n_predict", default=3), MOST_HEADS)
    embedding, head = (vocabulary(name, vocab, inner) for name in ("emb", "head"))
    first, later = replicated("proj", inner, columns=outer), replicated("proj", inner, columns=inner)
    norm = vector("ln", 2 * inner)
    once: Iterator[Matrix] = iter((first, later, embedding, norm) if ties else (first,))
    again = (head,) if ties else (later, embedding, norm, head)
    return replace(
        draft,
        shape=replace(draft.shape, hidden_size=outer, last=tuple(once)),
        per_token=again,
        vocab_size=vocab,
        draft_vocab_size=vocab,
        target_hidden_size=outer,
        n_predict=n_predict,
    )


_HEADS_ALONE: dict[str, Callable[[Fields, Draft], Draft]] = {"medusa": _medusa, "mlp_speculator": _mlp_speculator}

"""Nemotron-H and Nemotron 3, whose layers are either a mixer or a feed-forward block (vLLM 0.32, `nemotron_h.py`), and Nemotron-NAS."""

from collections.abc import Mapping

from msgspec.structs import replace

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import DenseMlp, LayerShape, Mixer, Mlp, SparseMlp, UnmodelledLayer
from kvgate.hf_config.blocks import Router, column_parallel, dense_mlp, replicated, sparse_mlp, vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers.attention import attention_matrices, attention_of, full_attention, mlp_matrices
from kvgate.hf_config.layers.layers import stack, state_dtype, uniform_stack
from kvgate.hf_config.layers.mamba import mamba2

_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""Words of `layers_block_type`, as the pattern spells them."""


def nemotron_stack(model: LanguageModel) -> Stack:
    """Read Nemotron-H: a layer per letter; a letter that 0.32 does not know becomes a layer without a formula."""
    fields, num_layers = model.fields, model.num_layers
    pattern = _spelled(fields, "hybrid_override_pattern", "layers_block_type")
    if pattern and len(pattern) != num_layers:
        fields.problems.append(
            f"hybrid_override_pattern has {len(pattern)} entries for {num_layers} layers; each layer needs one"
        )
    if len(pattern) != num_layers:
        pattern = ["M"] * num_layers
    made = {letter: _layer(model, letter) for letter in set(pattern)}
    return stack(model, [made[letter] for letter in pattern], drafts=_drafts(model))


def _drafts(model: LanguageModel) -> tuple[LayerShape, ...]:
    """Return the layers of one step of multi-token prediction (vLLM 0.32, `NemotronHMTP`); the first fuses, the last has a norm."""
    fields, hidden_size = model.fields, model.hidden_size
    if not fields.optional_count("num_nextn_predict_layers"):
        return ()
    layers = [
        _layer(model, letter) for letter in _spelled(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    ]
    fusion = (
        column_parallel("eh_proj", Units(count=hidden_size), columns=2 * hidden_size),
        vector("fusion_norms", 2 * hidden_size),
    )
    layers[:1] = [replace(layer, matrices=(*fusion, *layer.matrices)) for layer in layers[:1]]
    layers[-1:] = [
        replace(layer, matrices=(*layer.matrices, vector("final_layernorm", hidden_size))) for layer in layers[-1:]
    ]
    return tuple(model.formats.stored(f"mtp.layers.{index}", layer) for index, layer in enumerate(layers))


def _spelled(fields: Fields, pattern_key: str, list_key: str) -> list[str]:
    """Return one letter per layer, of a pattern or of the list of words that newer configs have; empty where there is neither."""
    if pattern := fields.text(pattern_key):
        return list(pattern)
    return [_LETTERS.get(str(word), str(word)) for word in fields.sequence(list_key)]


def _layer(model: LanguageModel, letter: str) -> LayerShape:
    fields, hidden_size = model.fields, model.hidden_size
    norm = vector("norm", hidden_size)
    match letter:
        case "M":
            # the state is float32 unless config.json says something else (vLLM 0.32, `NemotronHForCausalLMConfig`)
            mixer, own = mamba2(
                hidden_size,
                num_heads=fields.count("mamba_num_heads"),
                head_dim=fields.count("mamba_head_dim"),
                n_groups=fields.count("n_groups", default=8),
                state_size=fields.count("ssm_state_size"),
                conv_kernel=fields.count("conv_kernel", default=4),
                conv_bias=fields.flag("use_conv_bias", default=True),
                bias=fields.flag("use_bias"),
                state_dtype=state_dtype(fields, "mamba_ssm_cache_dtype", default="float32"),
            )
            return LayerShape(mixers=(mixer,), matrices=(*own, norm))
        case "*":
            attention, own = attention_of(fields, model.known, hidden_size)
            return LayerShape(mixers=(attention,), matrices=(*own, norm))
        case "-":
            dense = DenseMlp(intermediate_size=fields.count("intermediate_size"), gated=False)
            block = dense_mlp(dense, hidden_size, bias=fields.flag("mlp_bias"))
            return LayerShape(mlps=(dense,), matrices=(*block, norm))
        case "E":
            sparse, experts = _experts(fields, hidden_size)
            return LayerShape(mlps=(sparse,), matrices=(*experts, norm))
    return LayerShape(mixers=(UnmodelledLayer(kind=f"layers of kind {letter[:40]}"),))


def _experts(fields: Fields, hidden_size: int) -> tuple[SparseMlp, list[Matrix]]:
    """Read experts, which have no gate; in Super and Ultra they work in a narrower, latent space."""
    shared = fields.optional_count("moe_shared_expert_intermediate_size")
    sparse = SparseMlp(
        shared_intermediate_size=shared * fields.optional_count("n_shared_experts"),
        num_experts=fields.count("n_routed_experts"),
        num_experts_per_token=fields.count("num_experts_per_tok"),
        intermediate_size=fields.count("moe_intermediate_size"),
        gated=False,
        hidden_size=fields.optional_count("moe_latent_size"),
    )
    experts = [*sparse_mlp(sparse, hidden_size, Router(bias=True, computes_in_float32=True))]
    if sparse.hidden_size:
        experts.append(replicated("fc1_latent_proj", sparse.hidden_size, columns=hidden_size))
        experts.append(replicated("fc2_latent_proj", hidden_size, columns=sparse.hidden_size))
    return sparse, experts


def nemotron_nas_stack(model: LanguageModel) -> Stack:
    """Read Nemotron-NAS, whose layers each have a block of their own in `block_configs`, or none (`no_op`).

    A block names heads by `n_heads_in_group` and the feed-forward width by `ffn_mult`; a part that does nothing has no norm either.
    """
    blocks = model.fields.per_layer("block_configs", model.num_layers)
    if not blocks:
        return uniform_stack(model)
    base = full_attention(model.fields, model.hidden_size)
    layers = []
    for index, block in enumerate(blocks):
        values = block if isinstance(block, Mapping) else {}
        section = Fields(values, name=f"block_configs[{index}]", problems=model.fields.problems)
        fields, known, hidden_size = model.fields, model.known, model.hidden_size
        attention, ffn = section.section("attention"), section.section("ffn")
        mixers: tuple[Mixer, ...] = ()
        mlps: tuple[Mlp, ...] = ()
        matrices: list[Matrix] = []
        norm = vector("layernorm", hidden_size)
        if attention.flag("replace_with_linear") and not attention.flag("no_op"):
            mixers = (UnmodelledLayer(kind="attention replaced by a linear layer"),)
        elif not attention.flag("no_op"):
            mixer = replace(base, num_kv_heads=max(1, base.num_heads // attention.count("n_heads_in_group")))
            mixers = (mixer,)
            matrices += [*attention_matrices(fields, known, mixer, hidden_size), norm]
        if not ffn.flag("no_op"):
            mlp = _nas_mlp(ffn, hidden_size)
            mlps = (mlp,)
            matrices += [*mlp_matrices(fields, known, mlp, hidden_size), norm]
        layers.append(LayerShape(mixers=mixers, mlps=mlps, matrices=tuple(matrices)))
    return stack(model, layers)


def _nas_mlp(ffn: Fields, hidden_size: int) -> DenseMlp:
    """Two thirds of the multiple, rounded up to 256 (vLLM 0.32, `_ffn_mult_to_intermediate_size`)."""
    if not ffn.has("ffn_mult"):
        return DenseMlp(intermediate_size=ffn.count("intermediate_size"))
    width = int(2 * ffn.number("ffn_mult", most=1000) * hidden_size / 3)
    return DenseMlp(intermediate_size=round_up(max(1, width), 256))

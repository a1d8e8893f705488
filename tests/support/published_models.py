"""Models that exist nowhere, published on a loopback hub as people publish such models: variants of Qwen3-8B."""

from collections.abc import Iterable, Mapping
from typing import Any

from kvgate import catalogue
from support.checkpoints import Store, awq, gguf_bytes, header_of, new_tensors, plain, qwen3_gguf
from support.hub_server import LargeFile, LoopbackHub

HIDDEN, INNER, VOCABULARY, LAYERS = 4096, 12288, 151936, 36
_MODULES = {
    "self_attn.q_proj": (4096, HIDDEN), "self_attn.k_proj": (1024, HIDDEN), "self_attn.v_proj": (1024, HIDDEN),
    "self_attn.o_proj": (HIDDEN, 4096), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}  # fmt: skip
_SHARDS = 4


def base_config() -> dict[str, Any]:
    entry = catalogue.find_model("Qwen/Qwen3-8B")
    assert entry is not None
    return dict(entry.config)


def weights(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> LargeFile:
    """A file of weights of which only the header is there."""
    header, size = header_of(new_tensors(tensors), metadata={"format": "pt"})
    file = LargeFile(len(header).to_bytes(8, "little") + header)
    file.size = size
    return file


def _layer(number: int, store: Store) -> list[tuple[str, str, tuple[int, ...]]]:
    layer = f"model.layers.{number}"
    found = [entry for name, size in _MODULES.items() for entry in store(f"{layer}.{name}", *size)]
    found += [(f"{layer}.{norm}_layernorm.weight", "BF16", (HIDDEN,)) for norm in ("input", "post_attention")]
    return [*found, *((f"{layer}.self_attn.{norm}_norm.weight", "BF16", (128,)) for norm in "qk")]


def model_files(config: Mapping[str, Any], store: Store) -> dict[str, bytes | Mapping[str, Any]]:
    """The files of a repository, in a few shards with their index."""
    shards: list[list[tuple[str, str, tuple[int, ...]]]] = [[] for _ in range(_SHARDS)]
    shards[0] += plain("model.embed_tokens", VOCABULARY, HIDDEN)
    for number in range(LAYERS):
        shards[number * _SHARDS // LAYERS] += _layer(number, store)
    shards[-1] += [("model.norm.weight", "BF16", (HIDDEN,)), *plain("lm_head", VOCABULARY, HIDDEN)]
    names = [f"model-{number + 1:05d}-of-{_SHARDS:05d}.safetensors" for number in range(_SHARDS)]
    places = {tensor[0]: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    files: dict[str, bytes | Mapping[str, Any]] = {
        "config.json": config,
        "model.safetensors.index.json": {"metadata": {}, "weight_map": places},
        "README.md": b"# A model",
        "modeling_own.py": b"raise SystemExit('code of a repository is never run')",
    }
    return files | {name: weights(shard) for name, shard in zip(names, shards, strict=True)}


def adapter_files() -> dict[str, bytes | Mapping[str, Any]]:
    pairs = [
        (f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{end}.weight", "BF16", size)
        for layer in range(LAYERS)
        for module in ("q_proj", "v_proj")
        for end, size in (("A", (32, HIDDEN)), ("B", (4096 if module == "q_proj" else 1024, 32)))
    ]
    config = {
        "peft_type": "LORA", "r": 32, "lora_alpha": 64, "target_modules": ["q_proj", "v_proj"], "bias": "none",
        "base_model_name_or_path": "Qwen/Qwen3-8B",
    }  # fmt: skip
    return {"adapter_config.json": config, "adapter_model.safetensors": weights(pairs)}


def draft_files() -> dict[str, bytes | Mapping[str, Any]]:
    """An EAGLE3 draft: one layer, a smaller vocabulary, and no embedding of its own."""
    config = {
        **base_config(), "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "draft_vocab_size": 32000, "tie_word_embeddings": False,
    }  # fmt: skip
    layer = "midlayer"
    tensors = [
        *plain("fc", HIDDEN, 3 * HIDDEN), *plain("lm_head", 32000, HIDDEN), ("norm.weight", "BF16", (HIDDEN,)),
        ("d2t", "I64", (32000,)), ("t2d", "BOOL", (VOCABULARY,)),
        *plain(f"{layer}.self_attn.q_proj", 4096, 2 * HIDDEN), *plain(f"{layer}.self_attn.k_proj", 1024, 2 * HIDDEN),
        *plain(f"{layer}.self_attn.v_proj", 1024, 2 * HIDDEN), *plain(f"{layer}.self_attn.o_proj", HIDDEN, 4096),
        *plain(f"{layer}.mlp.gate_proj", INNER, HIDDEN), *plain(f"{layer}.mlp.up_proj", INNER, HIDDEN),
        *plain(f"{layer}.mlp.down_proj", HIDDEN, INNER), (f"{layer}.input_layernorm.weight", "BF16", (HIDDEN,)),
        (f"{layer}.hidden_norm.weight", "BF16", (HIDDEN,)), (f"{layer}.post_attention_layernorm.weight", "BF16", (HIDDEN,)),
    ]  # fmt: skip
    return {"config.json": config, "model.safetensors": weights(tensors)}


def gguf_file() -> LargeFile:
    """A small Qwen3 as llama.cpp writes it."""
    data, size = gguf_bytes(*qwen3_gguf(num_layers=28))
    file = LargeFile(data)
    file.size = size
    return file


QUANTIZED = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def publish_examples(hub: LoopbackHub) -> None:
    """Publish what docs/examples/models names."""
    config = base_config()
    hub.add("acme/Qwen3-8B-int4", model_files({**config, "quantization_config": QUANTIZED}, awq))
    hub.add("acme/support-assistant", model_files(config, plain), is_private=True)
    hub.add("acme/Qwen3-small-GGUF", {"Qwen3-small-Q4_K_M.gguf": gguf_file(), "README.md": b""})
    hub.add("acme/support-lora", adapter_files())
    hub.add("acme/Qwen3-8B-eagle3", draft_files())

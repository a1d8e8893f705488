"""Published checkpoints in small: the names, dtypes and shapes of their tensors, and files that hold their headers."""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping

from kvgate.checkpoint.gguf import GGML_TYPES
from kvgate.checkpoint.tensors import StoredTensor, TensorGroup, summarize

Tensors = Iterator[tuple[str, str, tuple[int, ...]]]
Store = Callable[[str, int, int], Tensors]


def new_tensors(entries: Iterable[tuple[str, str, tuple[int, ...]]]) -> list[StoredTensor]:
    """Tensors from (name, dtype, shape)."""
    return [StoredTensor(name=name, dtype=dtype, shape=shape) for name, dtype, shape in entries]


def header_of(tensors: Iterable[StoredTensor], *, metadata: dict[str, str] | None = None) -> tuple[bytes, int]:
    """The header of a file that holds the tensors, and the bytes of the whole file."""
    entries: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.size_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    return header, 8 + len(header) + end


def plain(name: str, rows: int, columns: int) -> Tensors:
    """A plain linear layer."""
    yield f"{name}.weight", "BF16", (rows, columns)


def fp8_block(name: str, rows: int, columns: int) -> Tensors:
    """As DeepSeek-V3 stores it: blocks of 128 × 128."""
    yield f"{name}.weight", "F8_E4M3", (rows, columns)
    yield f"{name}.weight_scale_inv", "F32", (-(-rows // 128), -(-columns // 128))


def awq(name: str, rows: int, columns: int) -> Tensors:
    """As AutoAWQ stores it: 4 bits, groups of 128."""
    yield f"{name}.qweight", "I32", (columns, rows // 8)
    yield f"{name}.qzeros", "I32", (columns // 128, rows // 8)
    yield f"{name}.scales", "F16", (columns // 128, rows)


def nvfp4(name: str, rows: int, columns: int) -> Tensors:
    """As ModelOpt stores it."""
    yield f"{name}.weight", "U8", (rows, columns // 2)
    yield f"{name}.weight_scale", "F8_E4M3", (rows, columns // 16)
    yield f"{name}.weight_scale_2", "F32", ()
    yield f"{name}.input_scale", "F32", ()


def nf4(name: str, rows: int, columns: int) -> Tensors:
    """As bitsandbytes stores it, with scales that are quantised too."""
    blocks = rows * columns // 64
    yield f"{name}.weight", "U8", (rows * columns // 2, 1)
    yield f"{name}.weight.absmax", "U8", (blocks,)
    yield f"{name}.weight.nested_absmax", "F32", (-(-blocks // 256),)
    yield f"{name}.weight.nested_quant_map", "F32", (256,)
    yield f"{name}.weight.quant_map", "F32", (16,)
    yield f"{name}.weight.quant_state.bitsandbytes__nf4", "U8", (90,)


def gpt_oss_layer(layer: str) -> Tensors:
    """A layer of gpt-oss-20b: attention and router in BF16, 32 experts of 2880 × 2880 in MXFP4."""
    for name, size in {
        "q_proj": (4096, 2880),
        "k_proj": (512, 2880),
        "v_proj": (512, 2880),
        "o_proj": (2880, 4096),
    }.items():
        yield from plain(f"{layer}.self_attn.{name}", *size)
        yield f"{layer}.self_attn.{name}.bias", "BF16", (size[0],)
    yield f"{layer}.self_attn.sinks", "BF16", (64,)
    yield from plain(f"{layer}.mlp.router", 32, 2880)
    yield f"{layer}.mlp.router.bias", "BF16", (32,)
    for name, rows in {"gate_up_proj": 5760, "down_proj": 2880}.items():
        yield f"{layer}.mlp.experts.{name}_blocks", "U8", (32, rows, 90, 16)
        yield f"{layer}.mlp.experts.{name}_scales", "U8", (32, rows, 90)
        yield f"{layer}.mlp.experts.{name}_bias", "BF16", (32, rows)
    for norm in ("input", "post_attention"):
        yield f"{layer}.{norm}_layernorm.weight", "BF16", (2880,)


def unknown_6_bits(name: str, rows: int, columns: int) -> Tensors:
    """A format that nobody described: 6 bits, one exponent for 32 elements."""
    yield f"{name}.packed", "F6_E2M3", (rows, columns)
    yield f"{name}.exponents", "F8_E8M0", (rows, columns // 32)


def deepseek_v3() -> list[StoredTensor]:
    """DeepSeek-V3 with its layer of multi-token prediction: 91,991 tensors."""
    entries = [*plain("model.embed_tokens", 129280, 7168), *plain("lm_head", 129280, 7168)]
    entries.append(("model.norm.weight", "BF16", (7168,)))
    for index in range(62):
        entries += _deepseek_layer(f"model.layers.{index}", is_dense=index < 3)
    draft = "model.layers.61"
    entries += [*plain(f"{draft}.embed_tokens", 129280, 7168), *plain(f"{draft}.shared_head.head", 129280, 7168)]
    entries += [*plain(f"{draft}.eh_proj", 7168, 14336)]
    entries += [(f"{draft}.{norm}.weight", "BF16", (7168,)) for norm in ("enorm", "hnorm", "shared_head.norm")]
    return new_tensors(entries)


def _deepseek_layer(layer: str, *, is_dense: bool) -> Tensors:
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{layer}.{norm}.weight", "BF16", (7168,)
    attention = f"{layer}.self_attn"
    yield f"{attention}.q_a_layernorm.weight", "BF16", (1536,)
    yield f"{attention}.kv_a_layernorm.weight", "BF16", (512,)
    sizes = {"q_a_proj": (1536, 7168), "q_b_proj": (24576, 1536), "kv_a_proj_with_mqa": (576, 7168)}
    sizes |= {"kv_b_proj": (32768, 512), "o_proj": (7168, 16384)}
    for name, size in sizes.items():
        yield from fp8_block(f"{attention}.{name}", *size)
    if is_dense:
        yield from _gated(f"{layer}.mlp", 18432)
        return
    yield f"{layer}.mlp.gate.weight", "BF16", (256, 7168)
    yield f"{layer}.mlp.gate.e_score_correction_bias", "F32", (256,)
    for expert in (*(f"experts.{index}" for index in range(256)), "shared_experts"):
        yield from _gated(f"{layer}.mlp.{expert}", 2048)


def _gated(block: str, width: int) -> Tensors:
    yield from fp8_block(f"{block}.gate_proj", width, 7168)
    yield from fp8_block(f"{block}.up_proj", width, 7168)
    yield from fp8_block(f"{block}.down_proj", 7168, width)


def llama(
    store: Store = plain, *, exceptions: Mapping[str, Store] | None = None, head: Store = plain
) -> tuple[TensorGroup, ...]:
    """Tensors of `new_llama_config`; `exceptions` are modules (`0.self_attn.q_proj`) that another function stores."""
    entries = [*plain("model.embed_tokens", 128256, 4096), *head("lm_head", 128256, 4096)]
    entries.append(("model.norm.weight", "BF16", (4096,)))
    modules = {"self_attn.q_proj": (4096, 4096), "self_attn.k_proj": (1024, 4096), "self_attn.v_proj": (1024, 4096)}
    modules |= {"self_attn.o_proj": (4096, 4096), "mlp.gate_proj": (14336, 4096), "mlp.up_proj": (14336, 4096)}
    modules |= {"mlp.down_proj": (4096, 14336)}
    for layer in range(4):
        entries += [
            (f"model.layers.{layer}.{norm}_layernorm.weight", "BF16", (4096,)) for norm in ("input", "post_attention")
        ]
        for name, size in modules.items():
            stored = (exceptions or {}).get(f"{layer}.{name}", store)
            entries += stored(f"model.layers.{layer}.{name}", *size)
    return summarize(new_tensors(entries))


def gguf_bytes(
    metadata: Mapping[str, object],
    entries: Iterable[tuple[str, str, tuple[int, ...]]],
    *,
    order: str = "<",
    version: int = 3,
) -> tuple[bytes, int]:
    """The header of a GGUF file as the package `gguf` writes it, and the bytes of the whole file."""
    tensors = new_tensors(entries)
    data = b"GGUF" + struct.pack(f"{order}IQQ", version, len(tensors), len(metadata))
    data += b"".join(_gguf_text(key, order) + _gguf_value(value, order) for key, value in metadata.items())
    numbers, offset = {name: number for number, name in GGML_TYPES.items()}, 0
    for tensor in tensors:
        sizes = struct.pack(f"{order}I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        data += _gguf_text(tensor.name, order) + sizes + struct.pack(f"{order}IQ", numbers[tensor.dtype], offset)
        offset += -(-tensor.size_bytes // 32) * 32
    return data, -(-len(data) // 32) * 32 + offset


def _gguf_text(text: str, order: str) -> bytes:
    return struct.pack(f"{order}Q", len(text.encode())) + text.encode()


def _gguf_value(value: object, order: str) -> bytes:
    if isinstance(value, bool):
        return struct.pack(f"{order}I?", 7, value)
    if isinstance(value, int):
        return struct.pack(f"{order}II", 4, value)
    if isinstance(value, float):
        return struct.pack(f"{order}If", 6, value)
    if isinstance(value, str):
        return struct.pack(f"{order}I", 8) + _gguf_text(value, order)
    assert isinstance(value, list)
    body = b"".join(_gguf_value(entry, order)[4:] for entry in value)
    kind = _gguf_value(value[0], order)[:4] if value else struct.pack(f"{order}I", 4)
    return struct.pack(f"{order}I", 9) + kind + struct.pack(f"{order}Q", len(value)) + body


def qwen3_gguf(
    *, num_layers: int = 2, value_type: str = "Q6_K"
) -> tuple[dict[str, object], list[tuple[str, str, tuple[int, ...]]]]:
    """Metadata and tensors of a small Qwen3 as llama.cpp writes Q4_K_M: values and down projections have more bits."""
    metadata: dict[str, object] = {
        "general.architecture": "qwen3", "general.name": "Qwen3 0.6B", "qwen3.context_length": 40960, "qwen3.block_count": num_layers,
        "qwen3.embedding_length": 1024, "qwen3.feed_forward_length": 3072, "qwen3.attention.head_count": 16,
        "qwen3.attention.head_count_kv": 8, "qwen3.attention.key_length": 128, "qwen3.rope.freq_base": 1e6,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6, "tokenizer.ggml.tokens": [f"t{i}" for i in range(5120)],
        "tokenizer.chat_template": "x" * 5000,
    }  # fmt: skip
    entries: list[tuple[str, str, tuple[int, ...]]] = [("token_embd.weight", "Q6_K", (5120, 1024))]
    for layer in range(num_layers):
        block = f"blk.{layer}"
        entries += [
            (f"{block}.attn_q.weight", "Q4_K", (2048, 1024)),
            (f"{block}.attn_k.weight", "Q4_K", (1024, 1024)),
            (f"{block}.attn_v.weight", value_type, (1024, 1024)),
            (f"{block}.attn_output.weight", "Q4_K", (1024, 2048)),
            (f"{block}.ffn_gate.weight", "Q4_K", (3072, 1024)),
            (f"{block}.ffn_up.weight", "Q4_K", (3072, 1024)),
            (f"{block}.ffn_down.weight", "Q6_K", (1024, 3072)),
            *((f"{block}.{norm}_norm.weight", "F32", (1024,)) for norm in ("attn", "ffn")),
            *((f"{block}.{norm}_norm.weight", "F32", (128,)) for norm in ("attn_q", "attn_k")),
        ]
    entries.append(("output_norm.weight", "F32", (1024,)))
    return metadata, entries

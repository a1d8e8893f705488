"""Weight bytes of two small models in every format that vLLM 0.32.0 declares, against its own model classes on the meta device.

Each line of quantized_bytes.jsonl holds a `quantization_config` and the sum of the parameters that the class then declares.
"""

import json
from pathlib import Path
from typing import Any

from kvgate.budget.ground.hardware import SINGLE_GPU
from kvgate.budget.model.weights import rank_weights
from kvgate.catalogue import find_accelerator
from kvgate.hf_config import read_config
from support.tables import table

COMMON = {
    "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **COMMON},
    "moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "moe_intermediate_size": 512, "num_experts": 8,
        "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [], **COMMON,
    },
}  # fmt: skip
ROWS = [json.loads(line) for line in Path(__file__).with_name("quantized_bytes.jsonl").read_text().splitlines()]


def test_the_table_has_every_method_that_is_modelled() -> None:
    methods = {row["quantization_config"]["quant_method"] for row in ROWS}
    assert methods >= {
        "awq", "gptq", "auto-round", "inc", "compressed-tensors", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed",
        "quark", "fp8", "fbgemm_fp8", "fp_quant", "mxfp4", "mxfp8", "experts_int8",
    }  # fmt: skip


@table("row", ROWS, ids=[f"{row['model']} {row['quantization_config']['quant_method']}" for row in ROWS])
def test_a_format_has_the_bytes_that_vllm_declares(row: dict[str, Any]) -> None:
    shape = read_config({**MODELS[row["model"]], "quantization_config": row["quantization_config"]})
    assert shape.unmodelled_kinds == ()
    accelerator = find_accelerator(row["gpu"])
    assert accelerator is not None
    capability = accelerator.compute_capability
    weights = rank_weights(shape, SINGLE_GPU, (0, 2), unsplit_large_blocks=False, compute_capability=capability)
    assert weights.parameter_bytes == row["parameter_bytes"]

"""GGUF files and Mistral's own format from a hub on loopback."""

from collections.abc import Mapping

import pytest

from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published, shape_of
from kvgate.fetching.fetch import fetch
from kvgate.fetching.hub import Hub
from kvgate.fetching.limits import Limits
from support.checkpoints import gguf_bytes, qwen3_gguf
from support.hub_server import LargeFile, LoopbackHub, safetensors

LIMITS = Limits(pause_seconds=0, max_seconds=20, request_seconds=5)
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 1024}


def gguf(metadata: Mapping[str, object] | None = None, part: slice | None = None) -> LargeFile:
    """A file of a small Qwen3, or a part of its tensors."""
    own, entries = qwen3_gguf()
    header, size = gguf_bytes({**own, **(metadata or {})}, entries[part] if part else entries)
    file = LargeFile(header)
    file.size = size
    return file


def found(answer: Published | NotFetched) -> Published:
    assert isinstance(answer, Published), answer
    return answer


def refused(answer: Published | NotFetched) -> NotFetched:
    assert isinstance(answer, NotFetched), answer
    return answer


def test_a_file_by_its_type(server: LoopbackHub, hub: Hub) -> None:
    server.add("o/m-GGUF", {"m-Q4_K_M.gguf": gguf(), "m-Q8_0.gguf": b"GGUF"})
    model = found(fetch("o/m-GGUF:Q4_K_M", hub=hub, limits=LIMITS))
    assert model.config["architectures"] == ["Qwen3ForCausalLM"]
    assert model.config["quantization_config"] == {"quant_method": "gguf"}
    shape = shape_of(model)
    assert shape.quantization is not None
    assert (shape.quantization.method, shape.unmodelled_kinds) == ("gguf", ())
    assert {request.path for request in server.requests if "Q8_0" in request.path} == set()


def test_a_config_beside_the_file_counts_where_the_type_is_named(server: LoopbackHub, hub: Hub) -> None:
    server.add("o/m-GGUF", {"m-Q4_K_M.gguf": gguf(), "config.json": {**CONFIG, "vocab_size": 7}})
    assert found(fetch("o/m-GGUF:Q4_K_M", hub=hub, limits=LIMITS)).config["vocab_size"] == 7
    assert found(fetch("o/m-GGUF/m-Q4_K_M.gguf", hub=hub, limits=LIMITS)).config["vocab_size"] == 5120


def test_a_file_in_parts(server: LoopbackHub, hub: Hub) -> None:
    halves = {0: slice(0, 8), 1: slice(8, None)}
    parts = {
        f"Q4_K_M/m-Q4_K_M-0000{number + 1}-of-00002.gguf": gguf({"split.no": number, "split.count": 2}, half)
        for number, half in halves.items()
    }
    server.add("o/m-GGUF", parts)
    model = found(fetch("o/m-GGUF:Q4_K_M", hub=hub, limits=LIMITS))
    assert sum(group.count for group in model.tensors) == len(qwen3_gguf()[1])
    server.add("o/half-GGUF", dict(list(parts.items())[:1]))
    answer = refused(fetch("o/half-GGUF:Q4_K_M", hub=hub, limits=LIMITS))
    assert "is one of 2 files" in answer.message


@pytest.mark.parametrize("kept", [3, 30, 5000])
def test_a_truncated_file(server: LoopbackHub, hub: Hub, kept: int) -> None:
    server.add("o/m-GGUF", {"m-Q4_K_M.gguf": bytes(gguf())[:kept]})
    answer = refused(fetch("o/m-GGUF:Q4_K_M", hub=hub, limits=LIMITS))
    assert answer.reason is Reason.BROKEN
    assert "truncated" in answer.message


def test_a_file_that_is_none(server: LoopbackHub, hub: Hub) -> None:
    server.add("o/m-GGUF", {"m-Q4_K_M.gguf": b"<html>" * 100})
    assert "does not begin with GGUF" in refused(fetch("o/m-GGUF:Q4_K_M", hub=hub, limits=LIMITS)).message


def test_mistrals_own_format(server: LoopbackHub, hub: Hub) -> None:
    params = {
        "dim": 256, "n_layers": 1, "head_dim": 64, "hidden_dim": 512, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-05, "vocab_size": 1024,
    }  # fmt: skip
    weights = {
        "tok_embeddings.weight": ("BF16", (1024, 256)), "output.weight": ("BF16", (1024, 256)), "norm.weight": ("BF16", (256,)),
        "layers.0.attention.wq.weight": ("BF16", (256, 256)), "layers.0.feed_forward.w1.weight": ("BF16", (512, 256)),
    }  # fmt: skip
    files = {"params.json": params, "consolidated.safetensors": safetensors(weights), "config.json": CONFIG}
    server.add("mistralai/m", files)
    model = found(fetch("mistralai/m", hub=hub, limits=LIMITS))
    assert model.config["architectures"] == ["MistralForCausalLM"]
    assert "model.layers.{}.self_attn.q_proj.weight" in {group.name for group in model.tensors}
    assert shape_of(model).unmodelled_kinds == ()

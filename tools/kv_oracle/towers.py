"""Ask the vLLM that is importable here how much memory its vision and audio towers take: questions and answers are JSON lines.

A question is `{"config": PATH, "arguments": {EngineArgs …}, "modality": …, "positions": N}`. The class is built as its config says, and
its own `embed_multimodal` encodes so many positions of the tower. Nothing large is ever written: each operator gives the shape of its
output, and only lifetimes are real. The answer is the peak of live bytes beside weights and inputs.
"""

import kv_oracle.asking as asked  # isort: skip  # first: it makes this process look as if it had a card
import contextlib
import importlib
import json
import math
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import vllm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.model_loader.utils import initialize_model

LARGE = 1 << 15
"""Elements from which on a tensor of floats is a shape alone."""
MEMORY_BYTES = 80 * 2**30
PREPROCESSOR = {
    "processor_class": "Any", "do_rescale": True, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "rescale_factor": 1 / 255,
}  # fmt: skip
VIEWS = ("aten::_unsafe_view", "aten::_reshape_alias")
"""Operators that share their input's memory without being declared as views."""
Inputs = dict[str, Any]


def tensors_in(values: object) -> list[torch.Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


def is_large(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() >= LARGE


class Lifetimes(TorchDispatchMode):
    """Counts the bytes of tensors that are alive, from the operator that makes them until the last reference is gone."""

    paused = 0
    """Above 0 while a kernel runs that Inductor fuses."""

    def __init__(self, ignored: Iterable[torch.Tensor] = ()) -> None:
        """Weights and inputs, which are there before, do not count."""
        super().__init__()
        self.live = self.peak = 0
        self.known: dict[int, Any] = {tensor.untyped_storage()._cdata: tensor for tensor in ignored}

    def __torch_dispatch__(self, function: Any, kinds: Any, arguments: Any = (), named: Any = None) -> Any:
        if is_composite(function):
            with self:
                return function.decompose(*arguments, **(named or {}))
        out = computed(function, arguments, dict(named or {}))
        for tensor in () if Lifetimes.paused else tensors_in(out):
            self.count(tensor.untyped_storage())
        return out

    def count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return

        def gone(_: object) -> None:
            self.known.pop(key, None)
            self.live -= size

        self.known[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)


def is_composite(function: Any) -> bool:
    """True for an operator that consists of others on a card too."""
    name = function.name()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    return bool(has_kernel) and not name.startswith(("aten::upsample", "aten::_upsample"))


def computed(function: Any, arguments: Any, named: dict[str, Any]) -> Any:
    """Run an operator for real, or for its output's shape alone where a large tensor takes part."""
    schema, given = function._schema, tensors_in((arguments, named))
    if getattr(function, "is_view", False) or function.name() in VIEWS:
        return function(*arguments, **named)
    if schema.is_mutable:
        if not any(map(is_large, given)):
            return function(*arguments, **named)
        values = {argument.name: value for argument, value in zip(schema.arguments, arguments, strict=False)} | named
        written = [
            values[each.name]
            for each in schema.arguments
            if each.alias_info and each.alias_info.is_write and each.name in values
        ]
        return written[0] if len(schema.returns) == 1 else tuple(written)[: len(schema.returns)] or None
    try:
        shapes, keys = tree_map_only(torch.Tensor, shape_of, (arguments, named))
        if "device" in keys or (not given and any(each.name == "device" for each in schema.arguments)):
            keys = {**keys, "device": "meta"}
        out = function(*shapes, **keys)
    except Exception:
        return function(*arguments, **named)  # its shape depends on values
    if not any(map(is_large, [*given, *tensors_in(out)])):
        return function(*arguments, **named)
    return tree_map_only(torch.Tensor, unwritten, out)


def shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def unwritten(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    return torch.zeros(tensor.size(), dtype=tensor.dtype)


class CardToHost(TorchFunctionMode):
    """Tensors that a model puts on the card are created in main memory."""

    def __torch_function__(self, function: Any, kinds: Any, arguments: Any = (), named: Any = None) -> Any:
        named = dict(named or {})
        if named.get("device") is not None and not str(named["device"]).startswith(("cpu", "meta")):
            named["device"] = "cpu"
        named.pop("pin_memory", None)
        match getattr(function, "__name__", ""):
            case "cuda" | "pin_memory":
                return arguments[0]
            case "to" if len(arguments) > 1 and str(arguments[1]).startswith("cuda"):
                arguments = (arguments[0], "cpu", *arguments[2:])
        return function(*arguments, **named)


@contextlib.contextmanager
def on_host(engine: Any, mode: Lifetimes) -> Iterator[None]:
    with set_current_vllm_config(engine), torch.no_grad(), torch.device("cpu"), CardToHost(), mode:
        yield


def alike(tensor: torch.Tensor, *_: object, **named: object) -> torch.Tensor:
    """Attention and rotation give a tensor like their first argument."""
    return torch.empty_like(tensor)


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that Inductor compiles on its own: only its outputs are allocated."""

    def run(*arguments: Any, **named: Any) -> Any:
        Lifetimes.paused += 1
        try:
            out = function(*arguments, **named)
        finally:
            Lifetimes.paused -= 1
        return tree_map_only(torch.Tensor, lambda tensor: tensor.clone() if is_large(tensor) else tensor, out)

    return run


def give_kernels() -> None:
    """Kernels of the CUDA wheel that towers call: their outputs."""
    for name in (
        "vllm.vllm_flash_attn",
        "vllm.vllm_flash_attn.layers.rotary",
        "vllm.vllm_flash_attn.ops.triton.rotary",
    ):
        module: Any = importlib.import_module(name)
        module.flash_attn_varlen_func = module.apply_rotary_emb = module.apply_rotary = alike
    if hasattr(CustomOp, "maybe_compile"):
        torch.compile = lambda function=None, **_: fused(function) if function else fused  # type: ignore[assignment]
    one_hot = torch.nn.functional.one_hot
    torch.nn.functional.one_hot = lambda values, num_classes=-1: (
        torch.empty(*values.shape, num_classes, dtype=torch.int64)
        if num_classes >= LARGE // 8
        else one_hot(values, num_classes)
    )  # transformers 5.8 makes Gemma 4's positions one-hot: gigabytes, of which only the size matters
    torch.accelerator.get_memory_info = lambda *_: (MEMORY_BYTES, MEMORY_BYTES)
    with contextlib.suppress(ImportError, AttributeError):
        from vllm.model_executor.models import qwen3_vl

        qwen3_vl.triton_pos_embed_interpolate = lambda table, t, h, w, *_: torch.empty(
            t * h * w, table.shape[1], dtype=table.dtype
        )


def grid(positions: int, merge: int) -> tuple[int, int]:
    """Height and width of a picture of about so many patches, in whole groups that are merged."""
    side = max(merge, math.isqrt(positions) // merge * merge)
    return side, max(merge, positions // side // merge * merge)


def patches_of_frames(config: Any, positions: int, dtype: torch.dtype, modality: str) -> Inputs:
    """Qwen-VL and GLM-4V: flattened patches of two frames, with a grid for each item."""
    vision = getattr(config, "thinker_config", config).vision_config
    height, width = grid(positions, vision.spatial_merge_size)
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
    columns = channels * vision.temporal_patch_size * vision.patch_size**2
    pixels, sizes = torch.empty(height * width, columns, dtype=dtype), torch.tensor([[1, height, width]])
    if modality == "video":
        return {"pixel_values_videos": pixels, "video_grid_thw": sizes}
    return {"pixel_values": pixels, "image_grid_thw": sizes}


def squares(config: Any, positions: int, dtype: torch.dtype, modality: str) -> Inputs:
    """Pictures of one size: SigLIP, CLIP and Llama 4's tiles."""
    vision = config.vision_config
    count = max(1, positions // (vision.image_size // vision.patch_size) ** 2)
    pixels, ones = torch.empty(count, 3, vision.image_size, vision.image_size, dtype=dtype), torch.ones(count).long()
    match type(config).__name__[:6]:
        case "Llama4":
            tiles = torch.tensor([count])
            return {"pixel_values": pixels, "patches_per_image": tiles, "aspect_ratios": torch.tensor([[1, count]])}
        case "Gemma3":
            return {"pixel_values": pixels, "num_patches": ones}
    return {"pixel_values": pixels}


def one_picture(config: Any, positions: int, dtype: torch.dtype, modality: str) -> Inputs:
    """Pixtral: pictures of any size."""
    height, width = grid(positions, config.spatial_merge_size)
    patch = config.vision_config.patch_size
    return {"pixel_values": [torch.empty(3, height * patch, width * patch, dtype=dtype)]}


def moonvit(config: Any, positions: int, dtype: torch.dtype, modality: str) -> Inputs:
    patch, (height, width) = config.vision_config.patch_size, grid(positions, 2)
    pixels = torch.empty(height * width, 3, patch, patch, dtype=dtype)
    if type(config).__name__.startswith("KimiVL"):
        return {"pixel_values": pixels, "image_grid_hws": torch.tensor([[height, width]])}
    return {"pixel_values": pixels, "grid_thws": torch.tensor([[1, height, width]])}


def gemma4(config: Any, positions: int, dtype: torch.dtype, modality: str) -> Inputs:
    """Pictures of 280 tokens, or one video with frames of 70."""
    vision = config.vision_config
    pooled = vision.pooling_kernel_size**2
    patches = (70 if modality == "video" else vision.default_output_length) * pooled
    count, side = max(1, positions // patches), vision.pooling_kernel_size * 7
    pixels = torch.empty(count, patches, 3 * vision.patch_size**2, dtype=dtype)
    places = torch.stack([torch.arange(patches) % side, torch.arange(patches) // side], dim=-1).repeat(count, 1, 1)
    if modality == "video":
        frames = torch.tensor([count])
        return {
            "pixel_values_videos": pixels, "pixel_position_ids_videos": places, "video_frame_counts": frames,
        }  # fmt: skip
    return {"pixel_values": pixels, "pixel_position_ids": places}


def sounds(config: Any, positions: int, dtype: torch.dtype, modality: str) -> Inputs:
    """Whisper: spectra of thirty seconds, of which two frames make a position."""
    spectrum = torch.empty(config.num_mel_bins, 2 * config.max_source_positions, dtype=dtype)
    return {"input_features": [spectrum] * max(1, positions // config.max_source_positions)}


INPUTS: dict[str, Callable[[Any, int, torch.dtype, str], Inputs]] = {
    "Qwen": patches_of_frames, "Glm": patches_of_frames, "Exaone4_5": patches_of_frames, "Gemma3For": squares, "Llava": squares,
    "Llama4": squares, "Mistral3": one_picture, "Kimi": moonvit, "Gemma4For": gemma4, "Whisper": sounds,
}  # fmt: skip
"""First letters of a class → inputs for so many positions of its tower."""


def engine_of(question: dict[str, Any]) -> Any:
    folder = tempfile.mkdtemp()  # models read the preprocessor's config from it later
    (Path(folder) / "config.json").write_bytes(Path(question["config"]).read_bytes())
    (Path(folder) / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    more = {"swap_space": 0} if hasattr(EngineArgs, "swap_space") else {}
    arguments = {"max_model_len": 4096, **more, **question["arguments"]}
    return EngineArgs(
        model=folder, tokenizer=folder, skip_tokenizer_init=True, load_format="dummy", **arguments
    ).create_engine_config()


def answer(question: dict[str, Any]) -> dict[str, Any]:
    engine = engine_of(question)
    asked.stand_in_stage(0, engine.parallel_config)
    asked.renew_workspace("cpu")
    dtype, before = engine.model_config.dtype, torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with on_host(engine, Lifetimes()):
            model = initialize_model(vllm_config=engine, model_config=engine.model_config)
    finally:
        torch.set_default_dtype(before)
    name = engine.model_config.architecture
    make = next(make for start, make in INPUTS.items() if name.startswith(start))
    inputs = make(engine.model_config.hf_config, question["positions"], dtype, question["modality"])
    mode = Lifetimes([*tensors_in(inputs), *model.parameters(), *model.buffers()])
    embed = getattr(model, "embed_multimodal", None) or model.get_multimodal_embeddings
    with on_host(engine, mode):
        embed(**inputs)
    pixels = sum(tensor.nbytes for tensor in set(tensors_in(inputs)) if tensor.is_floating_point())
    return {"architecture": name, "peak_bytes": mode.peak, "input_bytes": pixels}


def forget() -> None:
    """Drop what vLLM keeps from one engine to the next, activations with the kernels of the last one too."""
    asked.forget()
    for module in ("vllm.config", "vllm.config.vllm", "vllm.model_executor.custom_op"):
        cached = getattr(sys.modules.get(module), "get_cached_compilation_config", None)
        if cached:
            cached.cache_clear()
    registry = getattr(sys.modules.get("vllm.model_executor.layers.activation"), "_ACTIVATION_REGISTRY", None)
    getattr(registry, "_dict", {}).clear()


def main() -> None:
    parallel_state.in_the_same_node_as = lambda group, **_: [True] * group.size()
    give_kernels()
    for line in sys.stdin:
        question = json.loads(line)
        forget()
        try:
            found = answer(question)
        except Exception as error:  # vLLM may raise anything, and transformers too
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = {
                "error": f"{type(error).__name__}: {error}"[:600],
                "where": f"{Path(where.filename).name}:{where.lineno}",
            }
        found["version"] = vllm.__version__.partition("+")[0]
        print(json.dumps(question | found), file=asked.ANSWERS, flush=True)


if __name__ == "__main__":
    main()

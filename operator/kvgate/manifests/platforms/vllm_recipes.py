"""Recipes of vLLM's own project: one engine for each variant of a model, on as many GPUs as its deployer has.

Fields: github.com/vllm-project/recipes, models/ and strategies/single_node_tp.yaml.
"""

import itertools
from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import Kind, Program

_MAX_VARIANTS = 50
_SIZE, _MOST_GPUS = "--tensor-parallel-size", 8
_GPU_GB = 80
"""Memory of a GPU, of which as many are assumed as `vram_minimum_gb` needs where a recipe leaves the number to who deploys it."""


def is_recipe(root: Written) -> bool:
    model = root.get("model")
    return bool(model.get("model_id").text) and model.get("min_vllm_version").is_set and root.get("variants").is_set


def read_recipe(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield an engine for each variant: arguments of the model, of the features that are not opt-in, and of the variant."""
    root, model = given.root, given.root.get("model")
    opted = {each.text for each in root.get("opt_in_features").items()}
    features = [each.get("args") for name, each in root.get("features").fields() if name not in opted]
    is_omni = root.get("omni").is_set
    for name, variant in itertools.islice(root.get("variants").fields(), _MAX_VARIANTS):
        lists = (model.get("base_args"), *features, variant.get("extra_args"))
        items = [item for each in lists for item in each.items()]
        # an option and its value may stand in one item, for recipes are joined to one line
        words = [
            Argument(text=word, path=item.path)
            for item in items
            for word in (item.text.split(maxsplit=1) if item.text.startswith("--") else [item.text])
        ]
        size = _first(variant.get("tp"), root.get("strategy_overrides", "single_node_tp", "tp"))
        assumed: tuple[str, ...] = ()
        if not any(word.text.startswith(_SIZE) for word in words):
            if not size.count:  # none, or one for each kind of hardware
                memory = variant.get("vram_minimum_gb")
                enough = (number for number in (1, 2, 4) if number * _GPU_GB >= (memory.count or 0))
                size = replace(memory, value=next(enough, _MOST_GPUS))
                assumed = (f"{size.text} GPUs for each engine: the recipe leaves the number to who deploys it",)
            words.append(Argument(text=f"{_SIZE}={size.text}", path=size.path, is_field=True))
        yield FoundEngine(
            platform="vllm-recipes",
            document=given.document,
            root=root,
            name=f"{root.get('meta', 'slug').text or model.get('model_id').text} ({name})",
            path=variant.path,
            arguments=tuple(words),
            model=_first(variant.get("model_id"), model.get("model_id")),
            image=_first(variant.get("docker_image"), model.get("docker_image")),
            num_gpus=size,
            assumed=assumed,
            is_partial=bool(assumed),
            program=Program(kind=Kind.SERVE, own_options="vllm-omni" if is_omni else ""),
            is_wrapped=is_omni,
            has_shared_memory=True,  # recipes start vLLM on the machine itself, or with --ipc=host
        )


def _first(*fields: Written) -> Written:
    return next((each for each in fields if each.is_set), NOTHING)

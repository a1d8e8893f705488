"""Ray Serve LLM: a serve configuration, by itself or in a RayService."""

from collections.abc import Iterator

import yaml

from kvgate.manifests.engine_found import FoundEngine, Hint
from kvgate.manifests.fields_as_options import any_options
from kvgate.manifests.pods import Input
from kvgate.manifests.vllm_args import Argument
from kvgate.manifests.written import NOTHING, Written

_ACCELERATORS = {
    "A100-40G": "A100-SXM-40GB", "A100-80G": "A100-SXM-80GB", "A100": "A100-SXM-40GB", "H100": "H100-SXM-80GB",
    "H200": "H200-SXM-141GB", "T4": "T4-16GB", "L4": "L4-24GB", "L40S": "L40S-48GB", "A10G": "A10G-24GB",
    "V100": "V100-SXM-16GB", "B200": "B200-SXM-180GB",
}  # fmt: skip
"""Ray's `accelerator_type` → ours (`ray.util.accelerators`)."""


def is_serve_config(root: Written) -> bool:
    return any(_configs(application) for application in root.get("applications").items())


def read_serve_config(given: Input) -> Iterator[FoundEngine]:
    """One engine per llm_config of every application."""
    for application in given.root.get("applications").items():
        for config in _configs(application):
            yield _engine(given, config, config.path)


def read_ray_service(given: Input) -> Iterator[FoundEngine]:
    """`serveConfigV2` holds the same as text: its findings stand at that field."""
    field = given.root.get("spec", "serveConfigV2")
    try:
        loaded = yaml.safe_load(field.text)
    except yaml.YAMLError as error:
        yield FoundEngine(platform="ray-serve", document=given.document, root=given.root, name=given.name, path=field.path,
                          remarks=((field.path, f"serveConfigV2 is not YAML: {error}"),))  # fmt: skip
        return
    for application in Written(value=loaded).get("applications").items():
        for config in _configs(application):
            yield _engine(given, config, field.path, at=field.path)


def _configs(application: Written) -> list[Written]:
    return application.get("args", "llm_configs").items()


def _engine(given: Input, config: Written, path: str, *, at: str = "") -> FoundEngine:
    """`at`: where everything stands whose own path leads into a text."""
    kwargs, loading = config.get("engine_kwargs"), config.get("model_loading_config")
    source = loading.get("model_source") if loading.get("model_source").text else loading.get("model_id")
    accelerator = config.get("accelerator_type")
    arguments = tuple(Argument(text=word.text, path=at or word.path) for word in any_options(kwargs))
    hint = Hint(
        name="accelerator", value=_ACCELERATORS.get(accelerator.text, accelerator.text), path=at or accelerator.path
    )
    return FoundEngine(
        platform="ray-serve",
        document=given.document,
        root=given.root,
        name=loading.get("model_id").text or given.name,
        path=path,
        arguments=arguments,
        model=Written(value=source.value, path=at or source.path),
        num_gpus=NOTHING,
        hints=(hint,) if accelerator.text else (),
    )

"""Ray Serve LLM: a serve configuration, by itself or in a RayService, or a file of one model."""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import any_options
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpus_of
from kvgate.text.patterns import pattern

_PIPED = pattern(r"vllm==(\d+\.\d+\.\d+\S*)")


def is_serve_config(root: Written) -> bool:
    return any(True for application in root.get("applications").items() for _ in _configs(application))


def is_llm_config(root: Written) -> bool:
    return root.get("model_loading_config").is_set


def read_serve_config(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield one engine per LLM config of every application."""
    for application in given.root.get("applications").items():
        for config in _configs(application):
            yield from _engine(given, config, application)


def read_llm_config(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine of a file that `llm_configs` names."""
    yield from _engine(given, given.root, NOTHING)


def read_ray_service(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of `serveConfigV2`, which holds a serve configuration as text, on the GPUs of the workers."""
    given = given.with_texts_read(("spec", "serveConfigV2"))
    field = given.root.get("spec", "serveConfigV2")
    try:
        value_of(field.text)  # only what is no object is a text still
    except YamlError as error:
        remark = (field.path, f"serveConfigV2 cannot be read: {error}")
        yield FoundEngine(
            platform="ray-serve",
            document=given.document,
            root=given.root,
            name=given.name,
            path=field.path,
            remarks=(remark,),
        )
        return
    cluster = given.root.get("spec", "rayClusterConfig")
    templates = (group.get("template", "spec") for group in cluster.get("workerGroupSpecs").items())
    workers = [
        pod for pod in templates if any(gpus_of(each.get("resources"))[1] for each in pod.get("containers").items())
    ]
    hints = [hint for pod in workers for hint in node_hints(pod)]
    pods = (*workers, cluster.get("headGroupSpec", "template", "spec"))
    images = (container.get("image") for pod in pods for container in pod.get("containers").items())
    image = next((image for image in images if image.text), NOTHING)
    for application in field.get("applications").items():
        for config in _configs(application):
            for engine in _engine(given, config, application):
                yield replace(engine, hints=(*engine.hints, *hints), image=image)


def _configs(application: Written) -> Iterator[Written]:
    """Return the configurations of an OpenAI application, or of one that separates prefill and decode."""
    arguments = application.get("args")
    yield from arguments.get("llm_configs").items()
    for side in ("prefill_config", "decode_config"):
        if arguments.get(side).is_set:
            yield arguments.get(side)


def _engine(given: ReaderInput, config: Written, application: Written) -> Iterator[FoundEngine]:
    """Yield the engine of one LLM config; a config in a file of its own is read as a document of the input."""
    if config.get("llm_engine").text.lower() not in ("", "vllm"):
        return
    bundles = config.get("placement_group_config", "bundles")
    num_gpus = sum(bundle.get("GPU").count or 0 for bundle in bundles.items())
    loading, accelerator = config.get("model_loading_config"), config.get("accelerator_type")
    source = loading.get("model_source")
    source = source.get("bucket_uri") if source.get("bucket_uri").text else source
    hint = Hint(name="ray accelerator_type", value=accelerator.text, path=accelerator.path)
    elsewhere = (
        ((config.path, f"{config.text} is read as a document of its own, where it is in the input"),)
        if config.text
        else ()
    )
    yield FoundEngine(
        platform="ray-serve",
        document=given.document,
        root=given.root,
        name=loading.get("model_id").text or given.name,
        path=config.path,
        arguments=tuple(any_options(config.get("engine_kwargs"))),
        model=source if source.text else loading.get("model_id"),
        version=_release_of_packages(config, application),
        num_gpus=Written(value=num_gpus, path=bundles.path) if num_gpus else NOTHING,
        hints=(hint,) if accelerator.text else (),
        remarks=elsewhere,
        is_wrapped=True,
    )


def _release_of_packages(*fields: Written) -> Written:
    """Return the release in `vllm==0.11.0` among the packages of the runtime environment."""
    for field in fields:
        for package in field.get("runtime_env", "pip").items():
            if match := _PIPED.fullmatch(package.text.strip()):
                return Written(value=match[1], path=package.path)
    return NOTHING

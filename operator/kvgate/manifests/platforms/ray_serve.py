"""Ray Serve LLM: a serve configuration, by itself or in a RayService, or a file of one model."""

import re
from collections.abc import Iterator
from dataclasses import replace

from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import any_options
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpus_of

_PIPED = re.compile(r"vllm==(\d+\.\d+\.\d+\S*)")


def is_serve_config(root: Written) -> bool:
    return any(True for application in root.get("applications").items() for _ in _configs(application))


def is_llm_config(root: Written) -> bool:
    return root.get("model_loading_config").is_set


def read_serve_config(given: ReaderInput) -> Iterator[FoundEngine]:
    """One engine per LLM config of every application."""
    for application in given.root.get("applications").items():
        for config in _configs(application):
            yield from _engine(given, config, application)


def read_llm_config(given: ReaderInput) -> Iterator[FoundEngine]:
    """A file that `llm_configs` names."""
    yield from _engine(given, given.root, NOTHING)


def read_ray_service(given: ReaderInput) -> Iterator[FoundEngine]:
    """`serveConfigV2` holds the same as text; GPUs are the workers'."""
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
    workers = tuple(_worker_hints(given.root.get("spec", "rayClusterConfig")))
    image = _worker_image(given.root.get("spec", "rayClusterConfig"))
    for application in field.get("applications").items():
        for config in _configs(application):
            for engine in _engine(given, config, application):
                yield replace(engine, hints=(*engine.hints, *workers), image=image)


def _configs(application: Written) -> Iterator[Written]:
    """Return the configurations of an OpenAI application, or of one that separates prefill and decode."""
    arguments = application.get("args")
    yield from arguments.get("llm_configs").items()
    for side in ("prefill_config", "decode_config"):
        if arguments.get(side).is_set:
            yield arguments.get(side)


def _engine(given: ReaderInput, config: Written, application: Written) -> Iterator[FoundEngine]:
    """A config may stand in a file of its own, which is read as a document of the input."""
    if config.get("llm_engine").text.lower() not in ("", "vllm"):
        return
    loading, accelerator = config.get("model_loading_config"), config.get("accelerator_type")
    source = loading.get("model_source")
    source = source.get("bucket_uri") if source.get("bucket_uri").text else source
    hint = Hint(name="ray accelerator_type", value=accelerator.text, path=accelerator.path)
    elsewhere = ((config.path, f"{config.text} is read where it is in the input"),) if config.text else ()
    yield FoundEngine(
        platform="ray-serve",
        document=given.document,
        root=given.root,
        name=loading.get("model_id").text or given.name,
        path=config.path,
        arguments=tuple(any_options(config.get("engine_kwargs"))),
        model=source if source.text else loading.get("model_id"),
        version=_piped(config, application),
        num_gpus=_bundled_gpus(config),
        hints=(hint,) if accelerator.text else (),
        remarks=elsewhere,
        is_wrapped=True,
    )


def _piped(*fields: Written) -> Written:
    """`vllm==0.11.0` among the packages that the application brings."""
    for field in fields:
        for package in field.get("runtime_env", "pip").items():
            if match := _PIPED.fullmatch(package.text.strip()):
                return Written(value=match[1], path=package.path)
    return NOTHING


def _bundled_gpus(config: Written) -> Written:
    """GPUs of a placement group, where one is written."""
    bundles = config.get("placement_group_config", "bundles")
    counts = [bundle.get("GPU").count or 0 for bundle in bundles.items()]
    return Written(value=sum(counts), path=bundles.path) if any(counts) else NOTHING


def _worker_hints(cluster: Written) -> Iterator[Hint]:
    """Return hints about the nodes of the GPU workers."""
    for pod in _gpu_workers(cluster):
        yield from node_hints(pod)


def _worker_image(cluster: Written) -> Written:
    pods = [*_gpu_workers(cluster), cluster.get("headGroupSpec", "template", "spec")]
    return next((c.get("image") for pod in pods for c in pod.get("containers").items() if c.get("image").text), NOTHING)


def _gpu_workers(cluster: Written) -> Iterator[Written]:
    for group in cluster.get("workerGroupSpecs").items():
        pod = group.get("template", "spec")
        if any(gpus_of(container.get("resources"))[1] for container in pod.get("containers").items()):
            yield pod

"""Ray: serve configurations, by themselves or in a RayService, files of one model, and clusters whose containers start vLLM."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import any_options
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpus_of
from kvgate.manifests.pods.pod_engines import engines_of_container
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument

_CLUSTERS = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayClusterFleet": ("spec", "template", "spec"),
    "RayClusterReplicaSet": ("spec", "template", "spec"),
}
"""Kind → the place of the cluster; the last two are AIBrix's."""
_MAX_GROUPS = 100
"""Groups of workers of one cluster; nobody has more."""
_MODEL_VARIABLE = pattern(r"(?:\w+_)?MODEL(?:_ID|_NAME)?")
_SIZE_VARIABLES = {
    "TENSOR_PARALLELISM": "--tensor-parallel-size",
    "TENSOR_PARALLEL_SIZE": "--tensor-parallel-size",
    "PIPELINE_PARALLELISM": "--pipeline-parallel-size",
    "PIPELINE_PARALLEL_SIZE": "--pipeline-parallel-size",
    "MAX_MODEL_LEN": "--max-model-len",
}
"""Variables of applications, as KubeRay's and Google's samples have them, and the options that they mean."""
_PIPED = pattern(r"vllm==(\d+\.\d+\.\d+\S*)")


def is_serve_config(root: Written) -> bool:
    return any(True for application in root.get("applications").items() for _ in _configs(application))


def is_llm_config(root: Written) -> bool:
    return root.get("model_loading_config").is_set


def read_serve_config(given: ReaderInput) -> Iterator[FoundEngine]:
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
    pods = _pods_of_cluster(given.root.get("spec", "rayClusterConfig"))
    with_gpus = [pod for pod in pods if pod.num_gpus != 0]
    hints = [hint for each in with_gpus for hint in (each.resource, *node_hints(each.pod)) if hint]
    in_order = (*with_gpus, *(pod for pod in pods if pod.num_gpus == 0))
    images = (container.get("image") for each in in_order for container in each.pod.get("containers").items())
    image = next((image for image in images if image.text), NOTHING)
    for application in field.get("applications").items():
        configs = list(_configs(application))
        engines = [engine for config in configs for engine in _engine(given, config, application)]
        for engine in engines if configs else _engines_of_code(given, application, image):
            yield replace(engine, hints=(*engine.hints, *hints), image=image)


def _configs(application: Written) -> Iterator[Written]:
    """Return the configurations of an OpenAI application, of a data-parallel one, or of one that separates prefill and decode."""
    arguments = application.get("args")
    yield from arguments.get("llm_configs").items()
    for side in ("llm_config", "prefill_config", "decode_config"):
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


def _engines_of_code(given: ReaderInput, application: Written, image: Written) -> Iterator[FoundEngine]:
    """Yield one engine per model that the variables of an application name, whose own Python code starts vLLM.

    The code may set anything else, so that nothing is certain.
    """
    path, runtime = application.get("import_path"), application.get("runtime_env")
    if (
        not path.text
        or "vllm" not in f"{path.text} {runtime.value} {application.get('deployments').value} {image.text}".lower()
    ):
        return
    variables = dict(runtime.get("env_vars").fields())
    sizes = {name: option for name, option in _SIZE_VARIABLES.items() if name in variables}
    remark = (path.path, f"{path.text} is Python, which is not read: it may set more options")
    for name, model in variables.items():
        if not _MODEL_VARIABLE.fullmatch(name) or not model.text:
            continue
        words = ", ".join(f"{each} is {option}" for each, option in {name: "--model", **sizes}.items())
        yield FoundEngine(
            platform="ray-serve",
            document=given.document,
            root=given.root,
            name=given.name or application.get("name").text,
            path=application.path,
            arguments=tuple(
                Argument(text=f"{option}={variables[each].text}", path=variables[each].path)
                for each, option in sizes.items()
            ),
            model=model,
            version=_release_of_packages(application),
            remarks=(remark,),
            assumed=(f"{words}, by the names of the variables",),
            is_partial=True,
            is_wrapped=True,
        )


class _PodOfCluster(Struct, frozen=True, kw_only=True):
    pod: Written
    num_pods: int | None = 1
    """None where it is not known."""
    num_gpus: int | None
    resource: Hint | None


def _pods_of_cluster(cluster: Written) -> list[_PodOfCluster]:
    pods = []
    for group in (cluster.get("headGroupSpec"), *cluster.get("workerGroupSpecs").items()[:_MAX_GROUPS]):
        pod = group.get("template", "spec")
        found = [gpus_of(container.get("resources")) for container in pod.get("containers").items()]
        amount, resource = next(((amount, hint) for amount, hint in found if amount.is_set), (NOTHING, None))
        replicas = next((each for each in (group.get("replicas"), group.get("minReplicas")) if each.is_set), NOTHING)
        hosts = group.get("numOfHosts").count or 1
        is_head = group.path.endswith("headGroupSpec")
        num_pods = 1 if is_head or not replicas.is_set else None if replicas.count is None else replicas.count * hosts
        num_gpus = amount.count if amount.is_set else 0
        pods.append(_PodOfCluster(pod=pod, num_pods=num_pods, num_gpus=num_gpus, resource=resource))
    return pods


def read_ray_cluster(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines that containers start with `vllm serve`, over the GPUs of all pods of the cluster; and a RayJob's entrypoint.

    A container that says no command runs nothing but Ray, which KubeRay starts in it.
    """
    cluster = given.root.get(*_CLUSTERS[given.document.kind])
    pods = _pods_of_cluster(cluster)
    with_gpus = [each for each in pods if each.num_gpus != 0]
    counts, sizes = [each.num_pods for each in with_gpus], {each.num_gpus for each in with_gpus}
    num_pods = sum(count or 0 for count in counts) or 1
    is_alike = len(sizes) == 1 and None not in (*sizes, *counts)
    requested = next((each.resource.path for each in with_gpus if each.resource), cluster.path)
    num_gpus = Written(value=with_gpus[0].num_gpus, path=requested) if is_alike else NOTHING
    hints = tuple(hint for each in with_gpus for hint in (each.resource, *node_hints(each.pod)) if hint)
    entrypoint = given.root.get("spec", "entrypoint")
    image = pods[0].pod.get("containers").items()[:1]
    of_head = image[0].get("image").value if image else None
    job = Written(
        value={"containers": [{"image": of_head, "command": ["sh", "-c", entrypoint.text]}]}, path=entrypoint.path
    )
    for pod in (*(each.pod for each in pods), *([job] if entrypoint.text else [])):
        for container in pod.get("containers").items():
            if not container.get("command").is_set:
                continue
            for engine in engines_of_container(given, container, pod=pod, platform="kuberay"):
                yield replace(
                    engine.with_words_of(f"{container.path}.command[2]", entrypoint.path) if pod is job else engine,
                    path=entrypoint.path if pod is job else engine.path,
                    name=given.name,
                    num_pods=num_pods if is_alike else 1,
                    num_gpus=num_gpus,
                    hints=hints,
                    is_on_ray=True,
                )

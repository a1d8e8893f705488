"""OME: an InferenceService with its serving runtime, base model and accelerator class, and a serving runtime by itself.

Fields: github.com/sgl-project/ome, `pkg/apis/ome/v1beta1`; variables: `components/engine.go` of its `inferenceservice` controller.
"""

import itertools
from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.judgement.siblings import sibling_of
from kvgate.manifests.platforms.kserve import merged, names_its_model, not_in_the_input
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpus_of
from kvgate.manifests.pods.pod_engines import engines_of_container

_GROUP = "ome.io/"
_BASE_MODELS = ("BaseModel", "ClusterBaseModel")
_SIDES = {"engine": "engineConfig", "decoder": "decoderConfig"}
"""Field of a service → the field of its runtime that it is merged over."""
_MAX_SERVICES = 200
"""Services of one input that a runtime is compared with."""


def read_service(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine and the decoder that run vLLM, each with the runtime's fields under its own."""
    spec = given.root.get("spec")
    runtime_name, name = spec.get("runtime", "name"), spec.get("model", "name")
    runtime, base = (
        _find(given, ("ServingRuntime", "ClusterServingRuntime"), runtime_name.text),
        _find(given, _BASE_MODELS, name.text),
    )
    model = replace(base.get("spec", "storage", "storageUri"), path=name.path) if base.is_set else NOTHING
    is_missing = runtime_name.text and not runtime.is_set
    missing = (not_in_the_input("ServingRuntime", runtime_name),) if is_missing else ()
    for side, config in _SIDES.items():
        own = spec.get(side)
        whole = replace(own, value=merged(runtime.get("spec", config).value, own.value))
        for engine in _engines(given, whole, model):
            yield replace(
                engine,
                name=given.name if side == "engine" else f"{given.name} ({side})",
                model=model,
                model_name=name,
                hints=(*engine.hints, *_classes(given, spec, own, runtime)),
                remarks=(*engine.remarks, *missing),
                is_partial=bool(missing),
            )


def read_runtime(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of a runtime that no service of the input names, for the model that it names or is named after.

    A service may override every field.
    """
    spec, written = given.root.get("spec"), given.root.get("metadata", "name")
    used = itertools.islice(given.collected(_names_of_runtimes), _MAX_SERVICES)
    if spec.get("disabled").value is True or any(each.text == given.name for each in used):
        return
    # OME calls its runtimes of vLLM so, with the base model behind it
    name = given.name.removeprefix("vllm-")
    base = _find(given, _BASE_MODELS, name)
    stated = base.get("spec", "storage", "storageUri").text or (name if sibling_of(name) else "")
    model = Written(value=stated, path=written.path) if stated else NOTHING
    for side, config in _SIDES.items():
        for engine in _engines(given, spec.get(config), model):
            if not stated and not names_its_model(engine):
                continue
            yield replace(
                engine,
                name=given.name if side == "engine" else f"{given.name} ({side})",
                model=model,
                assumed=(*engine.assumed, f"the model {name}, by the runtime's name") if stated else engine.assumed,
                hints=(*engine.hints, *_classes(given, NOTHING, NOTHING, given.root)),
                is_partial=True,
            )


def _names_of_runtimes(root: Written) -> Iterator[Written]:
    if root.get("apiVersion").text.startswith(_GROUP) and root.get("kind").text == "InferenceService":
        yield root.get("spec", "runtime", "name")


def _find(given: ReaderInput, kinds: tuple[str, ...], name: str) -> Written:
    found = (given.find(kind, name) for kind in kinds if name)
    return next((each for each in found if each and each.get("apiVersion").text.startswith(_GROUP)), NOTHING)


def _engines(given: ReaderInput, side: Written, model: Written) -> Iterator[FoundEngine]:
    """Yield the engines of the runner, or of the leader over all pods of its group; containers beside a runner hold none.

    `MODEL_PATH` is the folder of the model there, whose source says more.
    """
    leader, workers = side.get("leader"), side.get("worker", "size")
    pod = leader if leader.is_set else side
    num_pods = 1 + (workers.count or 0) if leader.is_set else 1
    runner = pod.get("runner")
    listed = [runner] if runner.is_set else pod.get("containers").items()
    for container in listed:
        gpus = gpus_of(container.get("resources"))[0].count
        added = {"MODEL_PATH": model}
        if gpus:
            added["PARALLELISM_SIZE"] = Written(value=str(gpus * num_pods), path=runner.path)
        for engine in engines_of_container(given, container, pod=pod, platform="ome", added=added):
            is_known = not workers.is_set or workers.count is not None
            yield replace(engine, num_pods=num_pods, num_gpus=engine.num_gpus if is_known else NOTHING)


def _classes(given: ReaderInput, spec: Written, side: Written, runtime: Written) -> Iterator[Hint]:
    """Yield the node labels of the accelerator class that is selected, else of those that the runtime requires one of."""
    selected = (side.get("acceleratorOverride"), spec.get("acceleratorSelector"))
    own = [name for each in selected if (name := each.get("acceleratorClass")).text]
    required = runtime.get("spec", "acceleratorRequirements", "acceleratorClasses").items()
    for term, name in enumerate(own[:1] or required):
        found = _find(given, ("AcceleratorClass",), name.text)
        for hint in node_hints(found.get("spec", "discovery")):
            yield replace(hint, path=name.path, term=term if len(required) > 1 and not own else None)

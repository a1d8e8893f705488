"""KServe: an InferenceService with its serving runtime, and an LLMInferenceService with its base configurations."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from kvgate.api.quantity import parse_quantity
from kvgate.documents.written import NOTHING, Written
from kvgate.findings.finding import Located
from kvgate.manifests.fields import as_options, ignored_fields
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpus_of
from kvgate.manifests.pods.pod_engines import engines_of_container, engines_of_pod
from kvgate.manifests.pods.which_engine import is_simulator, server_in
from kvgate.shell.environment import variables_of
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument

_WORKER_SIZES = {"tensorParallelSize": "--tensor-parallel-size", "pipelineParallelSize": "--pipeline-parallel-size"}
_SERVER_VALUES = frozenset({
    "--model-name", "--model-id", "--model-dir", "--model-revision", "--backend", "--task", "--http-port", "--grpc-port", "--workers",
    "--max-log-len", "--predictor-host", "--predictor-protocol", "--max-asyncio-workers", "--log-config-file", "--tensor-input-names",
    "--enable-docs-url", "--enable-grpc", "--enable-latency-logging", "--configure-logging", "--access-log-format",
})  # fmt: skip
"""Options of KServe's Hugging Face server that it keeps for itself, each with a value."""
_SERVER_SWITCHES = frozenset({
    "--disable-lower-case", "--disable-special-tokens", "--return-token-type-ids", "--return-probabilities", "--disable-log-requests",
    "--predictor-use-ssl",
})  # fmt: skip
_SERVER_ALIASES = {"--max-length": "--max-model-len"}
_PARALLELISM = {
    "tensor": "--tensor-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "data": "--data-parallel-size",
    "expert": "--enable-expert-parallel",
}
_ID = pattern(r"(?:hf://)?[A-Za-z0-9][\w.\-]*/[\w.\-]+")
_CONFIG_KIND = "LLMInferenceServiceConfig"
_UNKNOWN = "this command is not understood: it is judged as vLLM without options"
_POD_WRAPPERS = ("podSpec", "podTemplate", "template", "spec")
_KEYS = ("name", "mountPath", "containerPort")
"""Fields that identify the items of a list, where all of them have one as a text."""


def read_inference_service(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of a model with KServe's or a vLLM runtime, or of a predictor with containers of its own."""
    predictor = given.root.get("spec", "predictor")
    model = predictor.get("model")
    if model.is_set:
        yield from _engines_of_model(given, predictor, model)
    for container in predictor.get("containers").items():
        # what KServe downloads for a user's own container
        storage = variables_of(container, given.config_data, shared=given.shared).get("STORAGE_URI", NOTHING)
        for engine in engines_of_container(given, container, pod=predictor, platform="kserve"):
            yield replace(engine, model=storage, findings=(*engine.findings, *_wrapped_pods(predictor)))


def _wrapped_pods(predictor: Written) -> Iterator[Located]:
    """Yield a finding for each object around fields of a pod, which stand in the predictor itself (v1beta1, `PredictorSpec`)."""
    fields = replace(
        predictor, value={name: predictor.value[name] for name in _POD_WRAPPERS if name in predictor.value}
    )
    yield from ignored_fields(fields, (), _POD_WRAPPERS, "KServe's predictor")


def _engines_of_model(given: ReaderInput, predictor: Written, model: Written) -> Iterator[FoundEngine]:
    named_runtime = model.get("runtime")
    kinds = ("ServingRuntime", "ClusterServingRuntime") if named_runtime.text else ()
    runtime = next((found for kind in kinds if (found := given.find(kind, named_runtime.text))), NOTHING)
    containers = runtime.get("spec", "containers").items()
    named = (container for container in containers if container.get("name").text == "kserve-container")
    base = next(named, containers[0] if containers else NOTHING)
    container = Written(value=_over_runtime(base.value, model.value), path=model.path)
    words_of_format = f"{model.get('modelFormat', 'name').text} {named_runtime.text}".lower()
    is_server = "huggingface" in words_of_format and "vllm" not in words_of_format
    if not (is_server or "vllm" in words_of_format or runtime.is_set):
        return
    # those that KServe installs add nothing that decides
    is_missing = named_runtime.text and not runtime.is_set and not named_runtime.text.startswith("kserve-")
    missing = (not_in_the_input("ServingRuntime", named_runtime),) if is_missing else ()
    stored = next((field for field in (model.get("storageUri"), model.get("storage", "path")) if field.is_set), NOTHING)
    for engine in engines_of_container(
        given, container, pod=predictor, platform="kserve", own_program=not runtime.is_set
    ):
        words = [_own_place(word, model, len(base.get("args").items())) for word in engine.arguments]
        kept, of_server = _split_options(words)
        is_wrapped = is_server or engine.is_wrapped
        # KServe's server without vLLM
        if is_wrapped and of_server.get("--backend", NOTHING).text == "huggingface":
            continue
        yield replace(
            engine,
            path=model.path,
            stated=NOTHING if runtime.is_set else named_runtime,
            arguments=(*as_options(predictor.get("workerSpec"), _WORKER_SIZES), *(kept if is_wrapped else words)),
            model=of_server.get("--model-id", stored) if is_wrapped else stored,
            model_name=of_server.get("--model-name", NOTHING),
            image=container.get("image"),
            num_pods=predictor.get("workerSpec", "pipelineParallelSize").count or 1,
            is_wrapped=is_wrapped,
            remarks=(*engine.remarks, *missing),
            is_partial=bool(missing),
            has_shared_memory=None,
            findings=(*engine.findings, *_wrapped_pods(predictor)),
        )


def read_runtime(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of a runtime that no service of the input names, where it names its model; a service may override every field."""
    own, names = given.name, given.collected(_names_of_runtimes)
    if given.root.get("spec", "disabled").value is True or any(each.value == own for each in names):
        return
    for engine in engines_of_pod(given, given.root.get("spec"), platform="kserve"):
        if names_its_model(engine):
            yield replace(engine, is_partial=True)


def _names_of_runtimes(root: Written) -> Iterator[Written]:
    if root.get("kind").text == "InferenceService":
        yield root.get("spec", "predictor", "model", "runtime")


def names_its_model(engine: FoundEngine) -> bool:
    """Return whether the words of a runtime name a model of the hub, and no folder that a service fills."""
    words = [part for word in engine.arguments for part in word.text.split("=", 1)]
    named = {
        after for word, after in pairwise(["--model", *words]) if word.replace("_", "-") in ("--model", "--model-id")
    }
    return any(_ID.fullmatch(each) for each in named)


def _over_runtime(container: Any, model: Any) -> Any:
    """Merge the model's fields over the runtime's container; the runtime's arguments come first, the model's after them."""
    if not isinstance(container, Mapping) or not isinstance(model, Mapping):
        return model
    sides = [side.get("args") for side in (container, model)]
    arguments = [word for side in sides if isinstance(side, list) for word in side]
    return {**merged(container, {key: value for key, value in model.items() if key != "args"}), "args": arguments}


def _own_place(word: Argument, model: Written, num_inherited: int) -> Argument:
    """Give a word of the runtime the place of the field that names the runtime, and count the model's own words from 0."""
    head, _, rest = word.path.rpartition(".args[")
    index = rest.removesuffix("]")
    if head != model.path or not index.isdecimal():
        return word
    own = int(index) - num_inherited
    return replace(word, path=f"{head}.args[{own}]" if own >= 0 else model.get("runtime").path)


def _split_options(arguments: Iterable[Argument]) -> tuple[list[Argument], dict[str, Written]]:
    """Return (vLLM's words, the values of the server's own options)."""
    kept: list[Argument] = []
    own: dict[str, Written] = {}
    words = iter(arguments)
    for word in words:
        written, equals, value = word.text.partition("=")
        name = written.replace("_", "-")
        if name in _SERVER_VALUES:
            value = value if equals else next((after.text for after in words), "")
            own[name] = Written(value=value, path=word.path)
        elif name in _SERVER_ALIASES:
            kept.append(replace(word, text=f"{_SERVER_ALIASES[name]}{equals}{value}"))
        elif name not in _SERVER_SWITCHES:
            kept.append(word)
    return kept, own


def read_llm_inference_service(given: ReaderInput) -> Iterator[FoundEngine]:
    value: Any = {}
    missing: list[tuple[str, str]] = []
    for reference in given.root.get("spec", "baseRefs").items():
        name = reference.get("name")
        if base := given.find(_CONFIG_KIND, name.text):
            value = merged(value, _without_scripts(base.get("spec").value))
        else:
            missing.append(not_in_the_input(_CONFIG_KIND, name))
    spec = Written(value=merged(value, given.root.get("spec").value), path="spec")
    sides = {given.name: spec, f"{given.name} (prefill)": spec.get("prefill")}
    for name_of_side, side in sides.items():
        container = _main(_pod(side))
        image = container.get("image").text
        line = f"{container.get('command').value} {container.get('args').value}".partition("--")[0]
        words = f"{spec.get('runtime').text} {image} {line}"  # a value of an option may name an engine, as flashinfer_trtllm
        if side.is_set and not is_simulator(image) and not server_in(words):
            yield _engine_of_side(given, spec, side, name_of_side, missing)


def _engine_of_side(
    given: ReaderInput, spec: Written, side: Written, name: str, missing: Iterable[tuple[str, str]]
) -> FoundEngine:
    pod = _pod(side)
    container = _main(pod)
    engines = engines_of_container(given, container, pod=pod, platform="kserve", own_program=True)
    plain = FoundEngine(platform="kserve", document=given.document, root=given.root, name=name, path=side.path)
    found = next(engines, plain)
    is_unknown = found is plain and container.get("command").is_set
    doubts = (*missing, *([(container.get("command").path, _UNKNOWN)] if is_unknown else []))
    # KServe's own template, which mounts shared memory, lies under a container without an image or mounts of its own.
    is_on_template = not found.image.text or not container.get("volumeMounts").is_set
    return replace(
        found,
        name=name,
        path=side.path,
        arguments=(
            *as_options(side.get("parallelism"), _PARALLELISM),
            *_extras(spec),
            *_offloading(spec, side),
            *found.arguments,
        ),
        model=spec.get("model", "uri"),
        model_name=spec.get("model", "name"),
        remarks=(*found.remarks, *doubts),
        is_partial=bool(doubts),
        num_pods=_num_pods(side),
        has_shared_memory=is_on_template or found.has_shared_memory,
    )


def _without_scripts(spec: Any) -> Any:
    """Remove the commands of KServe's own configurations: they are templates around `vllm serve … $@`, whose parts are read instead."""
    if isinstance(spec, Mapping):
        kept = {key: value for key, value in spec.items() if key != "command" or "{{" not in str(value)}
        return {key: _without_scripts(value) for key, value in kept.items()}
    if isinstance(spec, list):
        return [_without_scripts(item) for item in spec if not (isinstance(item, str) and "{{" in item)]
    return spec


def not_in_the_input(kind: str, name: Written) -> tuple[str, str]:
    """Return the remark about an object that adds options."""
    return name.path, f"{kind} {name.text} is not in the input: the options that it adds are not known"


def _pod(side: Written) -> Written:
    """Return the leader's pod, where it has one of its own, else the workers'."""
    return next((pod for pod in (side.get("template"), side.get("worker")) if _main(pod).is_set), side.get("template"))


def _main(pod: Written) -> Written:
    """Return the main container by its name, else the first one that requests GPUs, else the first."""
    containers = pod.get("containers").items()
    named = [container for container in containers if container.get("name").text == "main"]
    with_gpus = [container for container in containers if gpus_of(container.get("resources"))[0].is_set]
    return next(iter((*named, *with_gpus, *containers)), NOTHING)


def _num_pods(side: Written) -> int:
    """Count the pods: data parallel ranks beyond `dataLocal` are in further ones, and so are pipeline stages where there are workers."""
    parallelism = side.get("parallelism")
    data, local = parallelism.get("data").count, parallelism.get("dataLocal").count
    if data and local:
        return max(1, data // local)
    return (parallelism.get("pipeline").count or 1) if side.get("worker").is_set else 1


def _extras(spec: Written) -> Iterator[Argument]:
    """Yield the options for adapters and the speculator, as the controller passes them to vLLM."""
    lora = spec.get("model", "lora")
    active = [adapter for adapter in lora.get("adapters").items() if adapter.get("disabled").value is not True]
    if active:
        ranks = lora.get("maxAdapters").count or len(active)
        yield Argument(text="--enable-lora", path=lora.path)
        yield Argument(text=f"--max-loras={ranks}", path=lora.get("maxAdapters").path)
        yield from as_options(lora, {"maxRank": "--max-lora-rank"})
    speculator = spec.get("speculator")  # its `config` is vLLM's speculative_config with every value as text
    for name, field in speculator.get("config").fields():
        yield Argument(text=f"--speculative-config.{name}={field.text}", path=field.path)
    model = speculator.get("model", "uri").text.removeprefix("hf://")
    if model:
        yield Argument(text=f"--speculative-config.model={model}", path=speculator.get("model").path)


def _offloading(spec: Written, side: Written) -> Iterator[Argument]:
    """Yield the connector that the controller makes of `kvCacheOffloading`, of the side or of all (v1alpha2; `workload` before)."""
    places = (side, spec, spec.get("workload"))
    size = next((cpu for each in places if (cpu := each.get("kvCacheOffloading", "cpu")).is_set), NOTHING)
    amount = parse_quantity(size.text)
    if amount:
        connector = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": int(amount)},
        }
        yield Argument(text=f"--kv-transfer-config={json.dumps(connector)}", path=size.path, is_field=True)


def merged(base: Any, own: Any) -> Any:
    """Merge as Kubernetes' strategic merge does: own values win, items of one name are one item, own items come first."""
    if isinstance(base, Mapping) and isinstance(own, Mapping):
        return {**base, **{key: merged(base.get(key), value) for key, value in own.items()}}
    items = [*base, *own] if isinstance(base, list) and isinstance(own, list) else []
    for key in _KEYS if items else ():
        if all(isinstance(item, Mapping) and isinstance(item.get(key), str) for item in items):
            named, taken = {item[key]: item for item in base}, {item[key] for item in own}
            mine = [merged(named.get(item[key]), item) for item in own]
            return [*mine, *(item for item in base if item[key] not in taken)]
    return base if own is None else own

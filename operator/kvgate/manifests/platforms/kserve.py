"""KServe's InferenceService with its serving runtime."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import as_options
from kvgate.manifests.platforms.merged import merged
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.pod_engines import engines_of_container
from kvgate.shell.environment import variables_of
from kvgate.vllm.arguments import Argument

_STORAGE_VARIABLE = "STORAGE_URI"
"""Variable of the model that KServe downloads for a user's own container."""
_OWN_RUNTIMES = "kserve-"
"""Beginning of the names of runtimes that KServe installs."""
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
_OTHER_BACKEND = "huggingface"
"""Backend of KServe's server without vLLM."""
_SERVER_ALIASES = {"--max-length": "--max-model-len"}


def read_inference_service(given: ReaderInput) -> Iterator[FoundEngine]:
    """A model with KServe's or a vLLM runtime, or a predictor with containers of its own."""
    predictor = given.root.get("spec", "predictor")
    model = predictor.get("model")
    if model.is_set:
        yield from _of_model(given, predictor, model)
    for container in predictor.get("containers").items():
        storage = variables_of(container, given.config_data, shared=given.shared).get(_STORAGE_VARIABLE, NOTHING)
        for engine in engines_of_container(given, container, pod=predictor, platform="kserve"):
            yield replace(engine, model=storage)


def _of_model(given: ReaderInput, predictor: Written, model: Written) -> Iterator[FoundEngine]:
    runtime = _runtime(given, model.get("runtime").text)
    base = _kserve_container(runtime)
    container = Written(value=_under(base.value, model.value), path=model.path)
    told = f"{model.get('modelFormat', 'name').text} {model.get('runtime').text}".lower()
    is_server = "huggingface" in told and "vllm" not in told
    if not (is_server or "vllm" in told or "huggingface" in told or runtime.is_set):
        return
    for engine in engines_of_container(
        given, container, pod=predictor, platform="kserve", own_program=not runtime.is_set
    ):
        words = [_own_place(word, model, len(base.get("args").items())) for word in engine.arguments]
        kept, named = _split_options(words)
        storage = next(
            (field for field in (model.get("storageUri"), model.get("storage", "path")) if field.is_set), NOTHING
        )
        wrapped = is_server or engine.is_wrapped
        if wrapped and named.get("--backend", NOTHING).text == _OTHER_BACKEND:
            continue
        missing = tuple(_missing_runtime(model.get("runtime"), runtime))
        yield replace(
            engine,
            path=model.path,
            arguments=(*_worker_sizes(predictor), *(kept if wrapped else words)),
            model=named.get("--model-id", storage) if wrapped else storage,
            model_name=named.get("--model-name", NOTHING),
            image=container.get("image"),
            num_pods=predictor.get("workerSpec", "pipelineParallelSize").count or 1,
            is_wrapped=wrapped,
            remarks=(*engine.remarks, *missing),
            is_partial=bool(missing),
            has_shared_memory=None,
        )


def _runtime(given: ReaderInput, name: str) -> Written:
    """The serving runtime, where it is in the same input."""
    kinds = ("ServingRuntime", "ClusterServingRuntime")
    return next((found for kind in kinds if name and (found := given.find(kind, name))), NOTHING)


def _missing_runtime(name: Written, runtime: Written) -> Iterator[tuple[str, str]]:
    """KServe's own ones add nothing that decides."""
    if name.text and not runtime.is_set and not name.text.startswith(_OWN_RUNTIMES):
        yield name.path, f"ServingRuntime {name.text} is not in the input: what it adds is not known"


def _kserve_container(runtime: Written) -> Written:
    containers = runtime.get("spec", "containers").items()
    named = (container for container in containers if container.get("name").text == "kserve-container")
    return next(named, containers[0] if containers else NOTHING)


def _under(container: Any, model: Any) -> Any:
    """The runtime's container with the model's fields; its arguments come first, the model's after them."""
    if not isinstance(container, Mapping) or not isinstance(model, Mapping):
        return model
    arguments = [word for side in (container, model) for word in _listed(side.get("args"))]
    return {**merged(container, {key: value for key, value in model.items() if key != "args"}), "args": arguments}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _own_place(word: Argument, model: Written, num_inherited: int) -> Argument:
    """Words of the runtime stand at the field that names it; the model's own count from 0."""
    head, _, rest = word.path.rpartition(".args[")
    index = rest.removesuffix("]")
    if head != model.path or not index.isdecimal():
        return word
    own = int(index) - num_inherited
    return replace(word, path=f"{head}.args[{own}]" if own >= 0 else model.get("runtime").path)


def _worker_sizes(predictor: Written) -> Iterator[Argument]:
    sizes = {"tensorParallelSize": "--tensor-parallel-size", "pipelineParallelSize": "--pipeline-parallel-size"}
    yield from as_options(predictor.get("workerSpec"), sizes)


def _split_options(arguments: Iterable[Argument]) -> tuple[list[Argument], dict[str, Written]]:
    """(vLLM's words, values of the server's own options)."""
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

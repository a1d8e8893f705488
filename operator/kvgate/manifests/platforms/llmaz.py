"""llmaz: a Playground whose backend is vLLM, with the OpenModel that it claims and its BackendRuntime.

Fields: github.com/InftyAI/llmaz, `api/inference/v1alpha1`, `api/core/v1alpha1/model_types.go`; what its own backend passes to vLLM, and
2 GiB of /dev/shm: `chart/templates/backends/vllm.yaml`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import words_of
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpus_of
from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import Kind, Program

_DEFAULT_BACKEND = "vllm"
_MAX_FLAVORS = 8


def read_playground(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine of a playground; several flavors of its model are alternatives, and GPUs count where all have as many."""
    spec = given.root.get("spec")
    config, models = spec.get("backendRuntimeConfig"), spec.get("modelClaims", "models").items()
    main = next((each for each in models if each.get("role").text in ("", "main")), NOTHING)
    claim = main.get("name") if models else spec.get("modelClaim", "modelName")
    backend = config.get("backendName").text or config.get("name").text or _DEFAULT_BACKEND
    runtime = (given.find("BackendRuntime", backend) or NOTHING).get("spec")
    if backend != _DEFAULT_BACKEND and "vllm" not in str(
        [runtime.get(name).value for name in ("command", "commands", "image")]
    ):
        return
    found = given.find("OpenModel", claim.text) or NOTHING
    source, flavors = found.get("spec", "source"), _flavors_of(spec, found)
    model = next((each for each in (source.get("modelHub", "modelID"), source.get("uri")) if each.text), NOTHING)
    counted = [gpus_of(replace(each, value={"limits": {}, **each.value})) for each in flavors]
    counts = {gpus.count for gpus, _ in counted}
    num_gpus = Written(value=next(iter(counts)), path=claim.path) if len(counts) == 1 else NOTHING
    resources: list[Hint] = [hint for _, hint in counted[:1] if hint]
    message = f"OpenModel {claim.text} is not in the input: what it downloads and its GPUs are not known"
    args = config.get("args")
    yield FoundEngine(
        platform="llmaz",
        document=given.document,
        root=given.root,
        name=given.name,
        path="spec",
        arguments=(*_options_of(runtime, config), *words_of(args if args.items() else args.get("flags"))),
        model=replace(model, path=claim.path),
        model_name=NOTHING if found.is_set else claim,
        image=replace(runtime.get("image"), path=config.path),
        version=next((each for each in (config.get("version"), runtime.get("version")) if each.is_set), NOTHING),
        num_gpus=num_gpus,
        hints=tuple(replace(hint, path=claim.path) for hint in (*resources, *_nodes(flavors))),
        program=Program(kind=Kind.API_SERVER),
        remarks=() if found.is_set or not claim.text else ((claim.path, message),),
        is_partial=not runtime.is_set,
        assumed=() if runtime.is_set else ("the BackendRuntime, which may add options, as llmaz's chart has it",),
        has_shared_memory=True,
    )


def _nodes(flavors: Sequence[Written]) -> Iterator[Hint]:
    """Yield the hints of the flavors, which are alternatives where they are several."""
    for number, each in enumerate(flavors):
        for hint in node_hints(each):
            yield replace(hint, term=number if len(flavors) > 1 else None)


def _options_of(runtime: Written, config: Written) -> Iterator[Argument]:
    """Yield the options of the backend's configuration that a playground names, else of the one called `default`.

    Those that llmaz fills in for each model (`{{ .ModelPath }}`) are left out with their names.
    """
    wanted, known = config.get("configName").text or "default", runtime.get("recommendedConfigs").items()
    recommended = next((each for each in known if each.get("name").text == wanted), NOTHING)
    words = [replace(word, path=config.path) for word in words_of(recommended.get("args"))]
    for word, after in pairwise([*words, Argument(text="", path="")]):
        is_filled = "{{" in word.text or (word.text.startswith("-") and "{{" in after.text)
        if not is_filled:
            yield word


def _flavors_of(spec: Written, model: Written) -> list[Written]:
    """Return the flavors of a model that a playground takes, all of them where it names none."""
    claim = spec.get("modelClaims") if spec.get("modelClaims").is_set else spec.get("modelClaim")
    names = {each.text for name in ("inferenceFlavors", "inferenceFlavorClaims") for each in claim.get(name).items()}
    flavors = [each for each in model.get("spec", "inferenceConfig", "flavors").items() if isinstance(each.value, dict)]
    return [each for each in flavors if not names or each.get("name").text in names][:_MAX_FLAVORS]

"""READERS: who recognises which document; the first one wins."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvgate.manifests import compose, dynamo, kaito, kserve, kubeai, llm_d, pods, production_stack, ray_serve
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.pods import Input


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """How one kind of document becomes engines."""

    platform: str
    recognises: Callable[[Input], bool]
    read: Callable[[Input], Iterator[FoundEngine]]


def _of_kind(kind: str, group: str) -> Callable[[Input], bool]:
    return lambda given: given.document.kind == kind and given.document.api_version.startswith(f"{group}/")


READERS: tuple[Reader, ...] = (
    Reader(
        platform="production-stack",
        recognises=_of_kind("VLLMRuntime", "production-stack.vllm.ai"),
        read=production_stack.read_runtime,
    ),
    Reader(
        platform="kserve",
        recognises=_of_kind("LLMInferenceService", "serving.kserve.io"),
        read=kserve.read_llm_inference_service,
    ),
    Reader(
        platform="kserve",
        recognises=_of_kind("InferenceService", "serving.kserve.io"),
        read=kserve.read_inference_service,
    ),
    Reader(platform="kubeai", recognises=_of_kind("Model", "kubeai.org"), read=kubeai.read_model),
    Reader(platform="kaito", recognises=_of_kind("Workspace", "kaito.sh"), read=kaito.read_workspace),
    Reader(platform="dynamo", recognises=_of_kind("DynamoGraphDeployment", "nvidia.com"), read=dynamo.read_graph),
    Reader(platform="ray-serve", recognises=_of_kind("RayService", "ray.io"), read=ray_serve.read_ray_service),
    Reader(
        platform="kubernetes",
        recognises=lambda given: pods.is_workload(given.document.kind, given.document.api_version),
        read=pods.read_workload,
    ),
    Reader(
        platform="production-stack",
        recognises=lambda given: production_stack.is_values(given.root),
        read=production_stack.read_values,
    ),
    Reader(platform="llm-d", recognises=lambda given: llm_d.is_values(given.root), read=llm_d.read_values),
    Reader(
        platform="ray-serve",
        recognises=lambda given: ray_serve.is_serve_config(given.root),
        read=ray_serve.read_serve_config,
    ),
    Reader(
        platform="docker-compose", recognises=lambda given: compose.is_compose(given.root), read=compose.read_compose
    ),
)


def engines_in(given: Input) -> tuple[FoundEngine, ...] | None:
    """The engines of a document; None where nobody recognises it."""
    reader = next((reader for reader in READERS if reader.recognises(given)), None)
    return tuple(reader.read(given)) if reader else None

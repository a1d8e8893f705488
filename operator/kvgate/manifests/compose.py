"""docker-compose: services that run vLLM."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.manifests.containers import looks_like_vllm
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.pods import Input, engine_of_container
from kvgate.manifests.written import NOTHING, Written


def is_compose(root: Written) -> bool:
    services = root.get("services")
    return not root.get("kind").is_set and any(looks_like_vllm(_container(service)) for _, service in services.fields())


def read_compose(given: Input) -> Iterator[FoundEngine]:
    """`entrypoint` and `command` are a container's command and args."""
    for name, service in given.root.get("services").fields():
        container = _container(service)
        if looks_like_vllm(container):
            engine = engine_of_container(given, container, platform="docker-compose")
            yield replace(engine, name=name, path=service.path, num_gpus=_gpus(service))


def _container(service: Written) -> Written:
    """The same service with the names of a container; its parts keep the paths that they are written at."""
    value = service.value if isinstance(service.value, dict) else {}
    renamed = {
        "image": value.get("image"),
        "command": value.get("entrypoint"),
        "args": value.get("command"),
        "env": _environment(value.get("environment")),
    }
    return Written(value=renamed, path=service.path)


def _environment(value: object) -> list[dict[str, str]]:
    if isinstance(value, dict):
        return [{"name": str(name), "value": str(text)} for name, text in value.items()]
    lines = value if isinstance(value, list) else []
    return [{"name": name, "value": text} for name, _, text in (str(line).partition("=") for line in lines)]


def _gpus(service: Written) -> Written:
    """A device reservation with a count; `all` says nothing about how many there are."""
    devices = service.get("deploy", "resources", "reservations", "devices").items()
    gpus = next((d for d in devices if "gpu" in str(d.get("capabilities").value)), NOTHING)
    ids = gpus.get("device_ids").items()
    return Written(value=len(ids), path=gpus.path) if ids else gpus.get("count")

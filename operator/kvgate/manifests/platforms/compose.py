"""docker-compose: services that run vLLM."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.documents.written import NOTHING, Written, total
from kvgate.manifests.platforms.compose_variables import (
    Interpolation,
    env_files,
    interpolation_of,
    read_variables,
    variables_of_service,
)
from kvgate.manifests.pods.containers import Start, is_vllm_image, starts_of
from kvgate.manifests.pods.engine_found import COMPOSE, FoundEngine, ReaderInput
from kvgate.manifests.pods.gpu_requests import visible_gpus
from kvgate.shell.environment import takes_any_length
from kvgate.vllm.arguments import is_open

_FROM_DOTENV = "variables as .env has them, where the caller's environment does not set them"


def is_compose(given: ReaderInput) -> bool:
    """Also where only `.env` names the image."""
    if given.root.get("kind").is_set or not given.root.get("services").is_set:
        return False
    project = interpolation_of(given.document.file)
    services = ((name, _with_values(service, project)) for name, service in given.root.get("services").fields())
    return any(_mentions(service) or _is_built(name, service) for name, service in services)


def _mentions(service: Written) -> bool:
    words = str([service.get(name).value for name in ("image", "command", "entrypoint")])
    return "vllm" in words.lower()


def _is_built(name: str, service: Written) -> bool:
    """An image of vLLM that is built here and has no name but its service's; options alone are for vLLM's own program."""
    is_nameless = service.get("build").is_set and not service.get("image").text
    command = service.get("command").text or next((word.text for word in service.get("command").items()), "")
    return is_nameless and is_vllm_image(name) and command.startswith("-")


def read_compose(given: ReaderInput) -> Iterator[FoundEngine]:
    """`entrypoint` and `command` are a container's command and args."""
    project = interpolation_of(given.document.file)
    for name, service in given.root.get("services").fields():
        yield from _engines(given, name, service, project)


def _with_values(service: Written, project: Interpolation) -> Written:
    return replace(service, value=project.filled(service.value))


def _engines(given: ReaderInput, name: str, written: Written, project: Interpolation) -> Iterator[FoundEngine]:
    service = _with_values(written, project)
    variables = variables_of_service(service, given.document.file, project, given.shared)
    image = service.get("image")
    is_built = _is_built(name, service)
    own_program = is_built or is_vllm_image(image.text)
    for start in starts_of(
        service.get("entrypoint"),
        service.get("command"),
        variables,
        image.text,
        own_program=own_program,
        shared=given.shared,
    ):
        yield FoundEngine(
            platform=COMPOSE,
            document=given.document,
            root=given.root,
            name=name,
            path=service.path,
            arguments=start.arguments,
            image=image,
            num_gpus=_gpus(service),
            visible_gpus=visible_gpus(start, variables, service.get("entrypoint"), service.get("command")),
            assumed=() if service == _with_values(written, Interpolation({})) else (_FROM_DOTENV,),
            remarks=(
                *start.remarks,
                *_unread(service, start, given.document.file),
                *_built(service, is_built=is_built),
            ),
            is_partial=is_built,
            is_wrapped=start.is_wrapped,
            takes_any_length=takes_any_length(variables),
            has_shared_memory=_has_shared_memory(service),
            shared_memory_path=service.path,
        )


def _has_shared_memory(service: Written) -> bool:
    """More than 64 MiB: a size of its own, something mounted there, or that of the host or another container."""
    mounts = str([service.get(name).value for name in ("volumes", "tmpfs")])
    shared = service.get("ipc").text not in ("", "none", "private", "shareable")
    return service.get("shm_size").is_set or shared or "/dev/shm" in mounts  # noqa: S108 - the path in the container


def _gpus(service: Written) -> Written:
    """Count the GPUs of all requests for devices; `all` does not state a number."""
    if service.get("gpus").count is not None:
        return service.get("gpus")
    reserved = service.get("deploy", "resources", "reservations", "devices").items()
    requests = service.get("gpus").items() or [
        each for each in reserved if "gpu" in str(each.get("capabilities").value)
    ]
    counts = [_count(request) for request in requests]
    if len(counts) < 2:
        return counts[0] if counts else NOTHING
    return Written(value=total([count.count for count in counts]), path=counts[0].path)


def _count(request: Written) -> Written:
    """Devices by name, several in one text as Docker takes them, or so many of them."""
    ids = request.get("device_ids")
    if not ids.items():
        return request.get("count")
    names = [name for each in ids.items() for name in each.text.split(",")]
    is_known = "all" not in names and not any(map(is_open, names))
    return Written(value=len(names) if is_known else None, path=ids.path)


def _built(service: Written, *, is_built: bool) -> Iterator[tuple[str, str]]:
    if is_built:
        yield service.get("build").path, "the image is built here: what it adds to the options is not known"


def _unread(service: Written, start: Start, file: str) -> Iterator[tuple[str, str]]:
    """A file of variables matters where the command line has some that nobody else sets."""
    if any(is_open(word.text) for word in start.arguments):
        for field, name in env_files(service):
            if read_variables(file, name) is None:
                yield field.path, f"{name} is not read: the variables that it sets are not known here"

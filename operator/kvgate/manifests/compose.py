"""docker-compose: services that run vLLM."""

import re
from collections.abc import Iterator

from kvgate.command_line.arguments import is_open
from kvgate.manifests.containers import Start, is_vllm_image, starts_of
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.environment import takes_any_length
from kvgate.manifests.pods import Input
from kvgate.manifests.written import NOTHING, Written

_INTERPOLATED = re.compile(r"\$(?:(\$)|\{(\w+)(?::?-([^}]*))?[^}]*\}|(\w+))")
"""`$$` for one `$`, `${NAME}`, `${NAME:-default}`, `$NAME`: compose fills them in, from a file that is not looked at."""


def is_compose(root: Written) -> bool:
    return not root.get("kind").is_set and any(_mentions(service) for _, service in root.get("services").fields())


def _mentions(service: Written) -> bool:
    words = str([service.get(name).value for name in ("image", "command", "entrypoint")])
    return "vllm" in words.lower()


def read_compose(given: Input) -> Iterator[FoundEngine]:
    """`entrypoint` and `command` are a container's command and args."""
    for name, service in given.root.get("services").fields():
        yield from _engines(given, name, service)


def _engines(given: Input, name: str, service: Written) -> Iterator[FoundEngine]:
    variables = dict(_variables(service.get("environment")))
    command, args = _filled(service.get("entrypoint")), _filled(service.get("command"))
    image = _filled(service.get("image"))
    for start in starts_of(command, args, variables, image.text, own_program=is_vllm_image(image.text)):
        yield FoundEngine(
            platform="docker-compose",
            document=given.document,
            root=given.root,
            name=name,
            path=service.path,
            arguments=start.arguments,
            image=image,
            num_gpus=_gpus(service),
            remarks=(*start.remarks, *_unread(service, start)),
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


def _variables(environment: Written) -> Iterator[tuple[str, Written]]:
    """A map, or lines of `NAME=value`; a line without a value is the caller's own."""
    for name, field in environment.fields():
        yield name, Written(value=_fill(field.text) if field.is_set else None, path=field.path)
    for line in environment.items():
        name, equals, value = line.text.partition("=")
        yield name, Written(value=_fill(value) if equals else None, path=line.path)


def _filled(field: Written) -> Written:
    """With the defaults of variables; compose knows of no container's variables."""
    if isinstance(field.value, list):
        return Written(value=[_fill(item.text) for item in field.items()], path=field.path)
    return Written(value=_fill(field.text), path=field.path) if field.text else field


def _fill(text: str) -> str:
    def value_of(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        return match[3] if match[3] is not None else match[0]

    return _INTERPOLATED.sub(value_of, text)


def _gpus(service: Written) -> Written:
    """Of all requests for devices; `all` says nothing about how many there are."""
    if service.get("gpus").count is not None:
        return service.get("gpus")
    reserved = service.get("deploy", "resources", "reservations", "devices").items()
    requests = service.get("gpus").items() or [
        each for each in reserved if "gpu" in str(each.get("capabilities").value)
    ]
    counts = [_count(request) for request in requests]
    if len(counts) < 2:
        return counts[0] if counts else NOTHING
    known = [count.count for count in counts if count.count is not None]
    return Written(value=sum(known) if len(known) == len(counts) else None, path=counts[0].path)


def _count(request: Written) -> Written:
    """Devices by name, or so many of them."""
    ids = request.get("device_ids")
    return Written(value=len(ids.items()), path=ids.path) if ids.items() else _filled(request.get("count"))


def _unread(service: Written, start: Start) -> Iterator[tuple[str, str]]:
    """A file of variables matters where the command line has some that nobody else sets."""
    files = service.get("env_file")
    if files.is_set and any(is_open(word.text) for word in start.arguments):
        yield files.path, "env_file is not read: the variables that it sets are not known here"

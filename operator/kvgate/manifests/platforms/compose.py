"""docker-compose: services that run vLLM, with the variables of `.env` and `env_file`.

Rules: docs.docker.com, "Interpolation" of the Compose file reference, and "Environment variables precedence".
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.documents.bounded_files import read_text
from kvgate.documents.reading import STDIN_NAME
from kvgate.documents.written import NOTHING, Written, total
from kvgate.manifests.pods.containers import Start, installed_release, starts_of
from kvgate.manifests.pods.engine_found import COMPOSE, FoundEngine, ReaderInput, SeenGpus
from kvgate.manifests.pods.gpu_requests import (
    NVIDIA_DEVICES,
    devices_in,
    seen_by_start,
    visible_gpus,
)
from kvgate.manifests.pods.host_memory import OWN_SHARED_MEMORY, mounts_shared_memory, room_of_service
from kvgate.manifests.pods.volumes import FileText
from kvgate.manifests.pods.which_engine import is_vllm_image
from kvgate.shell.environment import Room, SharedRoom, circumstances_of, cpu_variable, takes_any_length
from kvgate.shell.words import compose_words, split
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import is_open
from kvgate.vllm.options import Option, newest_read
from kvgate.vllm.parser import find_option
from kvgate.vllm.values import takes_no_value

_FROM_DOTENV = "variables as .env has them, where the caller's environment does not set them"
_PLAIN = r"(?P<dollar>\$)|(?P<plain>\w+)"
_UNBRACED = pattern(rf"\$(?:{_PLAIN})")
_OPERAND = r"(?:[^}$]|\$(?!\{)|\$\{[^{}]{0,200}\})*"
_INTERPOLATED = pattern(rf"\$(?:{_PLAIN}|\{{(?P<braced>\w+)(?:(?P<operator>:?[-?+])(?P<operand>{_OPERAND}))?\}})")
"""`$$` for one `$`, `$NAME`, `${NAME}`, and with a default (`-`), a replacement (`+`) or a complaint (`?`); `:` for empty ones too."""
_EMPTY_DEFAULT = pattern(r"\$\{(\w+):?-\}")
_OPTION_BEFORE = pattern(r"(--\w[\w.\-]{0,60})[ =]{0,10}\Z")
_GPU_DEVICES = ("nvidia", "/dev/kfd", "/dev/dri")
_MOST_GPUS = 64
"""GPUs of a host that have names here."""
_MOST_SERVICES = 256
"""Services of a file whose order of starts is worked out."""
_MOST_BEFORE = 80
"""Characters before a variable in which the option stands that it is the value of."""
_MAX_BYTES = 1 << 16


def is_compose(given: ReaderInput) -> bool:
    """Return whether a service may run vLLM, also where only `.env` names its image."""
    if given.root.get("kind").is_set or not given.root.get("services").is_set:
        return False
    project = interpolation_of(given.document.file)
    for name, written in given.root.get("services").fields():
        service = _with_values(written, project)
        words = str([service.get(field).value for field in ("image", "command", "entrypoint")])
        if "vllm" in words.lower() or _is_built(name, service):
            return True
    return False


def _with_values(service: Written, project: "Interpolation") -> Written:
    return replace(service, value=project.filled(service.value))


def _is_built(name: str, service: Written) -> bool:
    """Return True for an image of vLLM that is built here and has no name but its service's; options alone are for vLLM's program."""
    is_nameless = service.get("build").is_set and not service.get("image").text
    command = service.get("command").text or next((word.text for word in service.get("command").items()), "")
    return is_nameless and is_vllm_image(name) and command.startswith("-")


def read_compose(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of every service: `entrypoint` and `command` are a container's command and args."""
    project = interpolation_of(given.document.file)
    written_services = list(given.root.get("services").fields())
    waits_for = _waits_for({name: _with_values(written, project) for name, written in written_services})
    for name, written in written_services:
        service = _with_values(written, project)
        variables = variables_of_service(service, given.document.file, project.known, given.shared, project.room)
        seen = _seen_gpus(given, name, service, variables, waits_for[name])
        is_from_dotenv = service != _with_values(written, Interpolation({}))
        for engine in engines_of_service(given, name, service, variables, seen=seen):
            yield replace(engine, assumed=(_FROM_DOTENV,)) if is_from_dotenv else engine


def engines_of_service(
    given: ReaderInput,
    name: str,
    service: Written,
    variables: Mapping[str, Written],
    *,
    platform: str = COMPOSE,
    seen: SeenGpus | None = None,
) -> Iterator[FoundEngine]:
    """Yield the engines of a service whose variables are filled in."""
    file = given.document.file
    image, is_built = service.get("image"), _is_built(name, service)
    script = (service.get("entrypoint"), service.get("command"))
    file_text = _files_of(service, file)
    starts = starts_of(
        *script,
        variables,
        image.text,
        own_program=is_built,
        file_text=file_text,
        shared=given.shared,
        has_gpus=_has_gpus(service),
        place_of=lambda _: "",
        is_whole=not service.get("extends").is_set and not is_built,
        words_of_text=lambda text: compose_words(text) or split(text),
    )
    for start in starts:
        yield FoundEngine(
            platform=platform,
            document=given.document,
            root=given.root,
            name=name,
            path=service.path,
            arguments=start.arguments,
            image=image,
            version=installed_release(*script),
            num_gpus=_gpus(service),
            visible_gpus=visible_gpus(start, variables, *script),
            seen_gpus=seen_by_start(seen, start, variables, *script, is_alone=len(starts) == 1),
            remarks=(*start.remarks, *_not_known(file, service, start, is_built=is_built)),
            is_partial=is_built,
            program=start.program,
            is_wrapped=start.is_wrapped,
            takes_any_length=takes_any_length(variables, *script),
            circumstances=circumstances_of(variables, *script),
            cpu_variable=cpu_variable(variables),
            has_shared_memory=_has_shared_memory(service),
            shared_memory_path=service.path,
            host=room_of_service(service, variables, file_text),
        )


def _not_known(file: str, service: Written, start: Start, *, is_built: bool) -> Iterator[tuple[str, str]]:
    """Yield (path, remark) for what is not known of an image that is built here, and of a file of variables that the words use."""
    if any(is_open(word.text) for word in start.arguments):
        for entry, name in _env_files(service):
            if _read_variables(file, name) is None:
                yield entry.path, f"{name} is not read: the variables that it sets are not known here"
    if is_built:
        yield service.get("build").path, "the image is built here: the options that it adds are not known"


def _has_shared_memory(service: Written) -> bool:
    """Return whether it is more than 64 MiB: a size of its own, something mounted there, or that of the host or another container."""
    is_of_others = service.get("ipc").text not in ("none", *OWN_SHARED_MEMORY)
    return service.get("shm_size").is_set or is_of_others or mounts_shared_memory(service)


def _gpus(service: Written) -> Written:
    """Count the GPUs of all requests for devices; `all` does not state a number."""
    if service.get("gpus").count is not None:
        return service.get("gpus")
    counts: list[Written] = []
    for request in _device_requests(service):
        names = _device_ids(request)
        is_known = "all" not in names and not any(map(is_open, names))
        by_name = replace(request.get("device_ids"), value=len(names) if is_known else None)
        counts.append(by_name if names else request.get("count"))
    if len(counts) < 2:
        return counts[0] if counts else NOTHING
    return Written(value=total([count.count for count in counts]), path=counts[0].path)


def _has_gpus(service: Written) -> bool:
    devices = str(service.get("devices").value).lower()
    is_shown = service.get("runtime").text == "nvidia" or any(each in devices for each in _GPU_DEVICES)
    return is_shown or service.get("gpus").is_set or bool(_device_requests(service))


def _device_requests(service: Written) -> list[Written]:
    if service.get("gpus").count is not None:
        return [Written(value={"count": service.get("gpus").count}, path=service.get("gpus").path)]
    reserved = service.get("deploy", "resources", "reservations", "devices").items()
    return service.get("gpus").items() or [each for each in reserved if "gpu" in str(each.get("capabilities").value)]


def _device_ids(request: Written) -> list[str]:
    return [name.strip() for each in request.get("device_ids").items() for name in each.text.split(",")]


def _seen_gpus(
    given: ReaderInput, name: str, service: Written, variables: Mapping[str, Written], waits_for: frozenset[str]
) -> SeenGpus | None:
    """Return the GPUs of the host that a service sees; None where they are not known.

    Docker turns a count into the first GPUs of the host, `0,1,…`, for every container anew (moby, daemon/nvidia_linux.go).
    """
    names = _names_of_gpus(service, variables)
    replicas = service.get("deploy", "replicas")
    copies = (replicas if replicas.is_set else service.get("scale")).count
    if names == ():
        return None
    # with device requests Docker sets this variable once more: which of both counts depends on the runtime
    named = devices_in(variables[NVIDIA_DEVICES].text) if NVIDIA_DEVICES in variables else None
    return SeenGpus(
        pool=f"{given.document.file}:{given.document.position.line}",
        names=names,
        place="the host",
        label=name,
        copies=1 if copies is None else copies,
        starts_after=waits_for,
        profiles=frozenset(each.text for each in service.get("profiles").items()),
        may_be_apart=service.get("deploy", "placement").is_set or named not in (None, names),
    )


def _names_of_gpus(service: Written, variables: Mapping[str, Written]) -> tuple[str, ...] | None:
    """Return the host's names of the GPUs; None for all of them, and nothing where it has none or they are not known."""
    requests = _device_requests(service)
    if service.get("gpus").text == "all":
        return None
    if not requests:
        if service.get("runtime").text != "nvidia":
            return ()
        # vLLM's image is made from one of CUDA, which sets the variable to `all`
        default = "all" if is_vllm_image(service.get("image").text) else ""
        shown = variables[NVIDIA_DEVICES].text if NVIDIA_DEVICES in variables else default
        return None if shown == "all" else devices_in(shown) or ()
    found = list[str]()
    for request in requests:
        named, count = _device_ids(request), request.get("count")
        if "all" in named or count.text in ("all", "-1") or (not named and not count.is_set):
            return None
        names = devices_in(",".join(named)) if named else tuple(map(str, range(min(count.count or 0, _MOST_GPUS))))
        if not names:
            return ()
        found += names
    return tuple(dict.fromkeys(found))


def _waits_for(services: Mapping[str, Written]) -> Mapping[str, frozenset[str]]:
    """Return for each service those that are healthy, or have ended, before it starts; also those that these wait for."""
    direct = {
        name: {
            other
            for other, dependency in service.get("depends_on").fields()
            if dependency.get("condition").text == "service_healthy"
            and services.get(other, NOTHING).get("healthcheck").is_set
        }
        for name, service in services.items()
    }
    found = dict.fromkeys(services, frozenset[str]())
    for name in services if len(services) <= _MOST_SERVICES else ():
        known, left = set[str](), list(direct[name])
        while left:
            other = left.pop()
            if other not in known:
                known.add(other)
                left += direct.get(other, ())
        found[name] = frozenset(known)
    return found


class Interpolation(Struct, frozen=True):
    """Fills in the variables that are known; the text that it adds is bounded."""

    known: Mapping[str, str]
    room: Room = field(default_factory=Room)

    def filled(self, value: Any) -> Any:
        """Return a value of the file with its variables; an unknown one is its default, else it stays as it is written."""
        if isinstance(value, str):
            if "$" not in value:
                return value
            # No brace is closed behind the last one: a search from each that opens there would take long.
            end = value.rfind("}") + 1
            return _INTERPOLATED.sub(self._text_for, value[:end]) + _UNBRACED.sub(self._text_for, value[end:])
        if isinstance(value, list):
            before = ["", *value]
            return [
                self.filled(_left_to_caller(item, str(word)) or item) for word, item in zip(before, value, strict=False)
            ]
        if isinstance(value, Mapping):
            return {name: self.filled(item) for name, item in value.items()}
        return value

    def _text_for(self, match: re.Match[str]) -> str:
        found = match.groupdict(default="")
        if found["dollar"]:
            return "$"
        text = self.known.get(found.get("braced") or found["plain"])
        operator, operand = found.get("operator", ""), found.get("operand", "")
        is_empty = text == "" and operator.startswith(":")
        if operator.endswith("-") and (text is None or is_empty):
            before = match.string[max(0, match.start() - _MOST_BEFORE) : match.start()]
            text = self.filled(operand) if operand else _left_to_caller(match[0], before)
        elif operator.endswith("+") and text is not None:
            text = "" if is_empty else self.filled(operand)
        return text if text is not None and self.room.takes(text) else match[0]


def _left_to_caller(written: Any, before: str) -> str:
    """Return `${NAME}` of `${NAME:-}` that is the value of an option that needs one: whoever starts it gives another; else nothing."""
    default = _EMPTY_DEFAULT.fullmatch(written) if isinstance(written, str) else None
    match, newest = _OPTION_BEFORE.search(before), newest_read()
    option = find_option(match[1], newest) if match and default else None
    if not default or not isinstance(option, Option):
        return ""
    can_be_bare = any(takes_no_value(kind) or "bare" in kind for kind in option.types_in(newest))
    return "" if can_be_bare else f"${{{default[1]}}}"


def interpolation_of(file: str) -> Interpolation:
    """Read the variables of `.env` beside the file, each of which may use those before it."""
    known: dict[str, str] = {}
    interpolation = Interpolation(known)
    for name, value in (_read_variables(file, ".env") or {}).items():
        known[name] = interpolation.filled(value)
    return interpolation


def variables_of_service(
    service: Written, file: str, outside: Mapping[str, str], shared: SharedRoom, room: Room | None = None
) -> dict[str, Written]:
    """Return variables by name: those of env_file, later over earlier, then `environment`; None where only the caller knows the value.

    `outside`: variables of whoever starts it, which a name without a value takes.
    """
    values: dict[str, Written] = {}
    known = dict(outside)
    interpolation = Interpolation(known, room or Room())
    for entry, name_of_file in _env_files(service):
        for name, text in (_read_variables(file, name_of_file) or {}).items():
            shared.take(name, text)
            known[name] = interpolation.filled(text)
            values[name] = Written(value=known[name], path=entry.path)
    environment = service.get("environment")
    for name, value in environment.fields():
        values[name] = Written(value=value.text if value.is_set else outside.get(name), path=value.path)
    for line in environment.items():
        name, equals, text = line.text.partition("=")
        values[name] = Written(value=text if equals else outside.get(name), path=line.path)
    return values


def _env_files(service: Written) -> list[tuple[Written, str]]:
    """Return (the entry of `env_file`, the name of the file); it is one name, or a list of names or of objects."""
    named = service.get("env_file")
    entries = named.items() or ([named] if named.is_set else [])
    return [(entry, entry.text or entry.get("path").text) for entry in entries]


def _files_of(service: Written, file: str) -> FileText:
    """Return what reads a file in the folder of the compose file, or below, that a service sees by a bind mount."""
    mounts = dict[str, str]()
    for each in service.get("volumes").items():
        source, _, rest = each.text.partition(":")
        source, target = each.get("source").text or source, each.get("target").text or rest.partition(":")[0]
        if source.startswith("."):
            mounts[target.rstrip("/")] = source

    def text_at(path: str) -> str | None:
        top = path
        while top and top not in mounts:
            top = top.rpartition("/")[0]
        return text_beside(file, mounts[top] + path[len(top) :]) if top else None

    return text_at


@lru_cache(maxsize=64)
def text_beside(file: str, name: str) -> str | None:
    """Read a file in the folder of the compose file or below; None where it is elsewhere, or cannot be read."""
    if file == STDIN_NAME:
        return None
    try:
        folder = Path(file).parent
        return read_text(folder / name, max_bytes=_MAX_BYTES, inside=folder)
    except (OSError, ValueError):  # missing, refused, or no text
        return None


@lru_cache(maxsize=64)
def _read_variables(file: str, name: str) -> Mapping[str, str] | None:
    """Read the variables of such a file."""
    text = text_beside(file, name)
    if text is None:
        return None
    from dotenv.parser import parse_stream  # few compose files have one beside them

    # A line that is no assignment has no key or no value.
    return {each.key: each.value for each in parse_stream(StringIO(text)) if each.key and each.value is not None}

"""Commands that start vLLM outside of a cluster, by themselves or in a container of Docker or Podman, as services of docker-compose.

Options: docs.docker.com, "docker container run"; docs.podman.io, "podman-run"; `--device`: github.com/cncf-tags/container-device-interface.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace

from kvgate.documents.written import Written
from kvgate.manifests.platforms.compose import engines_of_service, variables_of_service
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.which_engine import is_vllm_image, vllm_program
from kvgate.shell.branches import RESERVED
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument, is_variable, variable_in

_PROGRAMS = frozenset({"docker", "podman", "nerdctl", "nvidia-docker"})
_RUN = frozenset({"run", "create"})
_OTHER_COMMANDS = frozenset({"compose", "buildx", "model", "exec", "build", "service", "machine", "pod"})
_MAX_PREFIX = 12
_MAX_LINE = 1 << 30
_MAX_WORDS = 2000
"""Words of one command that are read: each is looked up in the options of every release."""
_BEFORE = pattern(r"sudo|exec|nohup|time|env|command|nice|timeout|\d+[smh]?|-\w+|[A-Za-z_]\w*=[^(]*")
"""Words before the program: other programs that run it, their options, and variables."""
_NAMES_PROGRAMS = frozenset({"echo", "printf", "pgrep", "pkill", "killall", "grep", "which"})
"""Programs that print, find or end others, and start none."""
_IMAGES_IN_VARIABLES = ("image", "img", "container", "tag")
_SWITCHES = frozenset({
    "detach", "interactive", "tty", "rm", "privileged", "init", "read-only", "no-healthcheck", "oom-kill-disable", "publish-all",
    "sig-proxy", "disable-content-trust", "quiet", "use-api-socket", "replace", "no-hosts", "rmi", "rootfs", "env-host", "http-proxy",
    "tls-verify", "passwd", "read-only-tmpfs", "no-hostname", "unsetenv-all",
})  # fmt: skip
"""Options without a value, or with one only behind `=`; each other one takes the next word."""
_SHORT_SWITCHES = frozenset("ditqP")
_SHORT = {"e": "env", "v": "volume", "m": "memory"}
_FIELDS = {
    "entrypoint": "entrypoint", "env": "environment", "env-file": "env_file", "volume": "volumes", "mount": "volumes",
    "tmpfs": "tmpfs", "shm-size": "shm_size", "ipc": "ipc", "runtime": "runtime", "memory": "mem_limit", "name": "container_name",
    "device": "devices", "gpus": "gpus", "platform": "platform",
}  # fmt: skip
"""Option → the field of docker-compose that says the same."""
_LISTS = frozenset({"environment", "env_file", "volumes", "tmpfs", "devices", "entrypoint"})
_CDI = pattern(r"(?:nvidia|amd)\.com/gpu=(.+)")
_HERE = pattern(r"(?:\$\(pwd\)|\$\{?PWD\}?|`pwd`)(?=/|:|$)")
_MOUNT_PART = pattern(r"(?:^|,)(?:source|src|target|destination|dst)=([^,]*)")


class Launched(Struct, frozen=True, kw_only=True):
    """One command that may start vLLM."""

    name: str
    service: Mapping[str, Any]
    """Fields of a service of docker-compose; each text is an Argument with its line."""
    variables: Mapping[str, Written]
    """Variables around the command. A container gets those that it names, and a program all of them."""

    @property
    def is_container(self) -> bool:
        return "image" in self.service


def launched(words: Sequence[Argument], name: str, variables: Mapping[str, Written]) -> Launched | None:
    """Return a command that starts a container, or vLLM itself; None for any other."""
    words = list(dropwhile(lambda word: word.text in RESERVED, words))
    if len(words) > _MAX_WORDS:
        words[_MAX_WORDS:] = [replace(words[_MAX_WORDS], text=f"`the words after the first {_MAX_WORDS}`")]
    prefix = [*takewhile(lambda word: _BEFORE.fullmatch(word.text), words[:_MAX_PREFIX])]
    at = len(prefix) if words[len(prefix) :] and words[len(prefix)].text.rpartition("/")[2] in _PROGRAMS else None
    before = [word.text for word in words[at : at + 4]] if at is not None else []
    run = next((i for i, text in enumerate(before) if text in _RUN), None)
    if at is not None and run and not _OTHER_COMMANDS.intersection(before[:run]):
        service = container_of(words[at + run + 1 :])
        named = service.get("container_name") if service else None
        if isinstance(named, Argument) and "$" not in named.text:
            name = named.text
        return Launched(name=name, service=service, variables=variables) if service else None
    ends = [end for end, *_ in vllm_program(words)]
    if ends and not any(word.text.rpartition("/")[2] in _NAMES_PROGRAMS for word in words[: ends[0]]):
        return Launched(name=name, service={"command": words}, variables=variables)
    return None


def container_of(words: Sequence[Argument]) -> dict[str, Any] | None:
    """Return the container that the words behind `docker run` ask for; None where they name no image."""
    fields: dict[str, Any] = {}
    waiting = list(words)
    while waiting and (waiting[0].text.startswith("-") or _holds_options(waiting)) and waiting[0].text != "--":
        word = waiting.pop(0)
        if not word.text.startswith("-"):
            continue
        flag, equals, value = word.text.lstrip("-").partition("=")
        if not word.text.startswith("--"):
            letters = word.text[1:].lstrip("".join(_SHORT_SWITCHES))
            flag, value = _SHORT.get(letters[:1], letters[:1]), letters[1:].removeprefix("=")
            equals = value
        if flag and flag not in _SWITCHES:
            given = replace(word, text=value) if equals else waiting.pop(0) if waiting else None
            _set(fields, _FIELDS.get(flag, ""), given)
    waiting = waiting[1:] if waiting and waiting[0].text == "--" else waiting
    return {**fields, "image": waiting[0], "command": waiting[1:]} if waiting else None


def _holds_options(words: Sequence[Argument]) -> bool:
    """Return whether the first word is a variable before the image: one that is not called an image, with an image after it."""
    if not is_variable(words[0].text) or _is_called_image(words[0].text):
        return False
    images = (each.text for each in words[1:] if ":" in each.text or "vllm-openai" in each.text)
    return any(map(is_vllm_image, images)) or any(_is_called_image(each.text) for each in words[1:])


def _is_called_image(word: str) -> bool:
    return is_variable(word) and any(each in variable_in(word).lower() for each in _IMAGES_IN_VARIABLES)


def _set(fields: dict[str, Any], name: str, given: Argument | None) -> None:
    """Add one option under the name that docker-compose has for it."""
    if not name or given is None:
        return
    device = _CDI.fullmatch(given.text) if name == "devices" else None
    if name == "gpus" or device:
        request = _gpus(device[1] if device else given.text, given, by_name=device is not None)
        before = fields.get("gpus")
        is_more = isinstance(before, list) and isinstance(request, list)
        fields["gpus"] = before + request if is_more else request
    elif name == "volumes" and "=" in given.text:
        fields.setdefault(name, []).append(replace(given, text=":".join(_MOUNT_PART.findall(given.text))))
    elif name in _LISTS:
        fields.setdefault(name, []).append(replace(given, text=_HERE.sub(".", given.text, count=1)))
    else:
        fields[name] = given


def _gpus(text: str, given: Argument, *, by_name: bool) -> Any:
    """Return the GPUs as docker-compose has them: `all`, a number, or requests by number or name (`device=0,1`)."""
    text = text.strip("\"'")
    count = next(
        (part.removeprefix("count=") for part in text.split(",") if part.removeprefix("count=").isdecimal()), ""
    )
    if by_name and text != "all":
        return [{"device_ids": [replace(given, text=text)]}]
    if "device=" in text:
        names = text.partition("device=")[2].partition(",capabilities")[0]
        return [{"device_ids": [replace(given, text=each.strip("\"' ")) for each in names.split(",")]}]
    if count:
        return [{"count": replace(given, text=count)}]
    return replace(given, text="all" if text.startswith("all") else text)


def engines_of(given: ReaderInput, starts: Sequence[Launched], platform: str) -> Iterator[FoundEngine]:
    """Yield the engines of commands, in a document whose nodes stand at the lines of their words."""
    node = _node({"commands": [each.service for each in starts]})
    document = replace(given.document, node=node)
    root = Written(value=document.load())
    inside = replace(given, document=document, root=root, values=root)
    for start, service in zip(starts, root.get("commands").items(), strict=True):
        known = {name: value.text for name, value in start.variables.items() if value.value is not None}
        variables = variables_of_service(service, given.document.file, known, given.shared)
        if not start.is_container:
            outside = {name: replace(value, path=service.path) for name, value in start.variables.items()}
            variables = {**outside, **variables}
        for engine in engines_of_service(inside, start.name, service, variables, platform=platform):
            is_host = not start.is_container
            yield replace(engine, has_shared_memory=True) if is_host else engine


def _node(value: Any) -> yaml.Node:
    """Make nodes of a value; one of several parts stands where its first part does. Parts of variables have no line of their own."""
    if isinstance(value, Argument):
        at = yaml.Mark("", 0, value.line, 0, None, 0)
        return yaml.ScalarNode("tag:yaml.org,2002:str", value.text, at, at)
    named = [(name, _node(each)) for name, each in value.items()] if isinstance(value, Mapping) else []
    nodes = [node for _, node in named] or [_node(each) for each in value]
    at = min(
        (node.start_mark for node in nodes),
        key=lambda mark: mark.line or _MAX_LINE,
        default=yaml.Mark("", 0, 0, 0, None, 0),
    )
    if not isinstance(value, Mapping):
        return yaml.SequenceNode("tag:yaml.org,2002:seq", nodes, at, at)
    keys = [(yaml.ScalarNode("tag:yaml.org,2002:str", name, node.start_mark, at), node) for name, node in named]
    return yaml.MappingNode("tag:yaml.org,2002:map", keys, at, at)

"""Commands and descriptions that people paste → documents: `docker run …`, `vllm serve …`, and what `kubectl describe` prints.

Nothing is run: a command becomes a script, and a description the object that it describes; the readers of both judge them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.json import encode

Lines = Sequence[tuple[int, str]]
"""Lines of a text with their numbers."""
SCRIPT_ENDING = ".sh"
"""End of the name of a text that is read as a script."""
MAX_COMMAND_LINES = 200
_RUN = r"(?:docker|podman|nerdctl)\s+(?:container\s+)?run\b"
_SERVERS = (
    r"(?:[^\s`]{0,200}/)?vllm\s+(?:serve|run-batch)\b|(?:[^\s`]{0,200}/)?python[\d.]*\s+(?:-u\s+)?-m\s+(?:vllm|sglang|tensorrt_llm|lmdeploy)\b"
    r"|ollama\s+(?:serve|run)\b|text-generation-launcher\b|trtllm-serve\b|llama-server\b|lmdeploy\s+serve\b"
)
_COMMAND = re.compile(
    r"(?:^|(?<=`))[\s>]{0,20}(?:[\w@:~./-]{0,60}[$#]\s+)?"
    rf"(?P<command>(?:[A-Za-z_]\w{{0,60}}=\S{{0,400}}\s+){{0,20}}(?:(?:sudo|nohup|exec|time|command|env)\s+(?:-\w\s+)?){{0,4}}(?:{_RUN}|{_SERVERS})[^`\n]*)"
)
_ASSIGNMENT = re.compile(r"\s*(?:[\w@:~./-]{0,60}[$#]\s+)?(?:export\s+)?[A-Za-z_]\w*=\S*\s*;?\s*$")


class Pasted(Struct, frozen=True, kw_only=True):
    """One command as a script, or one description as the manifest that says the same."""

    document: bytes
    kind: str
    """`script`, or the kind of the object."""
    labels: Mapping[str, str] = {}
    """Labels of the object."""
    name: str = ""
    text: str = ""
    """The command as it was pasted, on one line; empty for a description."""
    line: int
    """Its first line."""
    numbers: frozenset[int]
    """All of its lines."""


def commands_in(lines: Lines) -> Iterator[Pasted]:
    """Yield the commands that start a model server."""
    index = 0
    while index < len(lines):
        match = _COMMAND.search(lines[index][1]) if len(lines[index][1]) < MAX_COMMAND_LINES * 1000 else None
        if match is None:
            index += 1
            continue
        first, parts = index, [match["command"]]
        while _is_open("\n".join(parts)) and index + 1 < len(lines) and len(parts) < MAX_COMMAND_LINES:
            index += 1
            parts.append(lines[index][1])
        index += 1
        before = first
        while before > 0 and _ASSIGNMENT.fullmatch(lines[before - 1][1]):
            before -= 1
        numbers = frozenset(number for number, _ in lines[before:index])
        command = re.sub(r"[ \t]*\\[ \t]*\r?\n[ \t]*", " ", "\n".join(parts)).strip().rstrip("\\").rstrip()
        script = "\n".join([*(line.strip() for _, line in lines[before:first]), command])
        yield Pasted(document=script.encode(), kind="script", text=command, line=lines[first][0], numbers=numbers)


def _is_open(text: str) -> bool:
    """Return whether a command goes on in the next line."""
    if text.rstrip().endswith("\\"):
        return True
    plain = re.sub(r"\\.", "", text, flags=re.DOTALL)
    without_single = re.sub(r"'[^']*'", "", plain)
    return without_single.count("'") % 2 == 1 or re.sub(r"'[^']*'", "", plain).count('"') % 2 == 1


# ── kubectl describe ──

_FIELD = re.compile(r"(?P<indent> *)(?P<name>[A-Z][\w ()/.-]{0,60}?):(?: +(?P<value>.*?))? *$")
_CONTAINERS = ("Containers", "Init Containers")
_DESCRIBED = re.compile(r"^Name: {2,}\S", re.MULTILINE)


def is_description(text: str) -> bool:
    return _DESCRIBED.search(text) is not None


def described_in(lines: Lines) -> Iterator[Pasted]:
    """Yield the pods, and the nodes with their labels, that `kubectl describe` printed."""
    starts = [index for index, (_, line) in enumerate(lines) if _DESCRIBED.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        found = _described([line for _, line in lines[start:end]])
        if found:
            numbers = frozenset(number for number, _ in lines[start:end])
            yield pasted_object(found, line=lines[start][0], numbers=numbers)


def pasted_object(manifest: Mapping[str, Any], *, line: int = 1, numbers: frozenset[int] = frozenset()) -> Pasted:
    """Return an object as a document."""
    metadata = manifest["metadata"]
    name, labels = str(metadata.get("name") or ""), metadata.get("labels") or {}
    return Pasted(
        document=encode(manifest), kind=manifest["kind"], name=name, labels=labels, line=line, numbers=numbers
    )


def _described(lines: Sequence[str]) -> dict[str, Any] | None:
    top: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        match = _FIELD.match(line)
        if match and not match["indent"]:
            name = match["name"]
            top.setdefault(name, [])
            if match["value"]:
                top[name].append(match["value"])
        elif name:
            top[name].append(line)
    labels = dict(_pairs(top.get("Labels", ())))
    metadata = {"name": " ".join(top["Name"][:1]), "labels": labels}
    if "Namespace" in top:
        metadata["namespace"] = " ".join(top["Namespace"][:1])
    if "Containers" not in top:
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata} if "Capacity" in top else None
    spec: dict[str, Any] = {"nodeSelector": dict(_pairs(top.get("Node-Selectors", ())))}
    if node := " ".join(top.get("Node", ())[:1]).partition("/")[0]:
        spec["nodeName"] = node
    spec["containers"] = list(_containers(top["Containers"]))
    volumes = list(_volumes(top.get("Volumes", ())))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "volumes": volumes}}


def _pairs(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, equals, value = line.strip().partition("=")
        if equals and " " not in name:
            yield name, value


def _blocks(lines: Sequence[str], indent: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (name, value, lines below) of the fields at one depth."""
    name, value, below = "", "", list[str]()
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if line.strip() and depth <= indent:
            if name:
                yield name, value, below
            name, _, value = line.strip().partition(":")
            value, below = value.strip(), []
        else:
            below.append(line)
    if name:
        yield name, value, below


def _containers(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name, _, inside in _blocks(lines, 2):
        fields = {field: (value, below) for field, value, below in _blocks(inside, 4)}
        container: dict[str, Any] = {"name": name, "image": fields.get("Image", ("", []))[0]}
        for field, key in (("Command", "command"), ("Args", "args")):
            if words := _words(fields.get(field, ("", []))[1]):
                container[key] = words
        resources = {
            key: {each: value for each, value, _ in _blocks(fields[field][1], 6)}
            for field, key in (("Limits", "limits"), ("Requests", "requests"))
            if field in fields
        }
        container["resources"] = resources
        variables = ((each, value) for each, value, _ in _blocks(fields.get("Environment", ("", []))[1], 6))
        container["env"] = [
            {"name": each, "value": value} for each, value in variables if not value.startswith("<set to")
        ]
        mounts = (line.split(" from ") for line in fields.get("Mounts", ("", []))[1] if " from " in line)
        container["volumeMounts"] = [
            {"name": rest[0].split(" ")[0], "mountPath": path.strip()} for path, *rest in mounts
        ]
        yield container


def _words(lines: Sequence[str]) -> list[str]:
    """Return one word per line; a script of several lines is printed with deeper or no indentation, and is one word."""
    words: list[str] = []
    depth = next((len(line) - len(line.lstrip()) for line in lines if line.strip()), 0)
    for line in lines:
        is_new = line.strip() and len(line) - len(line.lstrip()) == depth
        is_of_script = words and (words[-1].endswith("\\") or (len(words) > 1 and words[-2] in ("-c", "-lc", "-ec")))
        if is_new and not is_of_script:
            words.append(line.strip())
        elif words:
            words[-1] += "\n" + line.strip()
    return [word.rstrip("\n") for word in words]


def _volumes(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name, _, inside in _blocks(lines, 2):
        fields = {field: value for field, value, _ in _blocks(inside, 4)}
        if fields.get("Type", "").startswith("EmptyDir"):
            size = fields.get("SizeLimit", "")
            given = {"medium": fields.get("Medium", ""), **({} if size in ("", "<unset>") else {"sizeLimit": size})}
            yield {"name": name, "emptyDir": given}

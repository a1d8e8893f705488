"""Variables of docker-compose: what fills in `${NAME}` in the file, and what `env_file` hands to a container.

Rules: docs.docker.com, "Interpolation" of the Compose file reference, and "Environment variables precedence".
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from kvgate.documents.bounded_files import read_text
from kvgate.documents.reading import STDIN_NAME
from kvgate.documents.written import Written
from kvgate.shell.environment import Room, SharedRoom

_PLAIN = r"(?P<dollar>\$)|(?P<plain>\w+)"
_UNBRACED = re.compile(rf"\$(?:{_PLAIN})")
_INTERPOLATED = re.compile(rf"\$(?:{_PLAIN}|\{{(?P<braced>\w+)(?:(?P<operator>:?[-?+])(?P<operand>[^}}]*))?\}})")
"""`$$` for one `$`, `$NAME`, `${NAME}`, and with a default (`-`), a replacement (`+`) or a complaint (`?`); `:` for empty ones too."""
_MAX_BYTES = 1 << 16
"""Size of a file of variables."""


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Fills in what is known; the text that it adds is bounded."""

    known: Mapping[str, str]
    room: Room = field(default_factory=Room)

    def filled(self, value: Any) -> Any:
        """A value of the file with its variables; of those that nobody knows, the default, else as it is written."""
        if isinstance(value, str):
            return self._filled(value) if "$" in value else value
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if isinstance(value, Mapping):
            return {name: self.filled(item) for name, item in value.items()}
        return value

    def _filled(self, text: str) -> str:
        """Behind the last brace none is closed: looking for its end would take long for each that opens."""
        end = text.rfind("}") + 1
        return _INTERPOLATED.sub(self._text_for, text[:end]) + _UNBRACED.sub(self._text_for, text[end:])

    def _text_for(self, match: re.Match[str]) -> str:
        found = match.groupdict(default="")
        if found["dollar"]:
            return "$"
        value = self.known.get(found.get("braced") or found["plain"])
        text = _chosen(value, found.get("operator", ""), found.get("operand", ""))
        return text if text is not None and self.room.takes(text) else match[0]


def _chosen(value: str | None, operator: str, operand: str) -> str | None:
    """None where that depends on a value which nobody knows."""
    is_empty = value == "" and operator.startswith(":")
    if operator.endswith("-"):
        return operand if value is None or is_empty else value
    if operator.endswith("+") and value is not None:
        return "" if is_empty else operand
    return value


def interpolation_of(file: str) -> Interpolation:
    """Read the variables of `.env` beside the file, each of which may use those before it."""
    known: dict[str, str] = {}
    interpolation = Interpolation(known)
    for name, value in (read_variables(file, ".env") or {}).items():
        known[name] = interpolation.filled(value)
    return interpolation


def variables_of_service(
    service: Written, file: str, project: Interpolation, shared: SharedRoom | None = None
) -> dict[str, Written]:
    """Return variables by name: those of env_file, later over earlier, then `environment`; None where only the caller knows the value."""
    values = dict(_of_env_files(service, file, project, shared or SharedRoom()))
    environment = service.get("environment")
    for name, value in environment.fields():
        values[name] = Written(value=value.text if value.is_set else project.known.get(name), path=value.path)
    for line in environment.items():
        name, equals, text = line.text.partition("=")
        values[name] = Written(value=text if equals else project.known.get(name), path=line.path)
    return values


def _of_env_files(
    service: Written, file: str, project: Interpolation, shared: SharedRoom
) -> Iterator[tuple[str, Written]]:
    known = dict(project.known)
    interpolation = Interpolation(known, project.room)
    for entry, name_of_file in env_files(service):
        for name, value in (read_variables(file, name_of_file) or {}).items():
            shared.take(name, value)
            known[name] = interpolation.filled(value)
            yield name, Written(value=known[name], path=entry.path)


def env_files(service: Written) -> list[tuple[Written, str]]:
    """(where it stands, name of the file); one name, or a list of names or of objects."""
    named = service.get("env_file")
    entries = named.items() or ([named] if named.is_set else [])
    return [(entry, entry.text or entry.get("path").text) for entry in entries]


@lru_cache(maxsize=64)
def read_variables(file: str, name: str) -> Mapping[str, str] | None:
    """Read a file in the folder of the compose file or below; None where it is elsewhere, or cannot be read."""
    if file == STDIN_NAME:
        return None
    try:
        folder = Path(file).parent
        return dict(_parsed(read_text(folder / name, max_bytes=_MAX_BYTES, inside=folder)))
    except (OSError, ValueError):  # not there, not to be read, not text
        return None


def _parsed(text: str) -> Iterator[tuple[str, str]]:
    """A line that is no assignment is passed over."""
    from dotenv.parser import parse_stream

    for binding in parse_stream(StringIO(text)):
        if binding.key and binding.value is not None:
            yield binding.key, binding.value

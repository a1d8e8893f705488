"""Environment variables of a container: what the input says they are, and which of them something else sets."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.documents.written import Written
from kvgate.text import expansion
from kvgate.vllm.memory_settings import ALLOW_LONG, allows_any_length

ConfigData = Callable[[str], Mapping[str, Any] | None]
"""Name of a ConfigMap → its data, where it is in the same input."""
_CHARACTERS_OF_AN_ENTRY = 8
"""A variable of few characters takes time too."""


@dataclass(slots=True)
class Room:
    """Characters that variables may still add: values that double each other would fill the memory, and Linux starts no such program."""

    left: int = 2 << 20

    def takes(self, text: str) -> bool:
        """False where it is too long: then the variable stays as it is written."""
        fits = len(text) <= self.left
        self.left -= len(text) if fits else 0
        return fits


class OutOfRoom(ValueError):
    """Containers of one input share texts so often that reading each of them would take too long."""


@dataclass(slots=True)
class SharedRoom:
    """Characters that the scripts and variables of all containers of one input may have together.

    A ConfigMap, a file of variables or an anchor is written once, and counts for every container that gets it.
    """

    left: int = 4 << 20

    def take(self, *texts: str) -> None:
        """Raises OutOfRoom, from then on for every text: no container is passed over in silence."""
        self.left -= sum(map(len, texts)) + _CHARACTERS_OF_AN_ENTRY
        if self.left < 0:
            raise OutOfRoom("scripts and variables that containers share are too long, counted for each that gets them")


def variables_of(
    container: Written,
    config_data: ConfigData,
    added: Mapping[str, Written] | None = None,
    shared: SharedRoom | None = None,
) -> dict[str, Written]:
    """Return variables by name; a value outside the input (a Secret's, a field of the pod) is None. Later entries may use earlier ones.

    `added`: variables that the platform sets in every container. `shared`: for what all containers of the input get.
    """
    shared = shared or SharedRoom()
    values, room = {**(added or {}), **dict(_from_sources(container.get("envFrom"), config_data, shared))}, Room()
    for entry in container.get("env").items():
        name = entry.get("name").text
        if name:
            values[name] = _value(entry, config_data, values, room)
    return values


def takes_any_length(variables: Mapping[str, Written]) -> bool:
    """Also where nobody knows the value here."""
    given = variables.get(ALLOW_LONG)
    return given is not None and allows_any_length(given.text)


def _from_sources(sources: Written, config_data: ConfigData, shared: SharedRoom) -> Iterator[tuple[str, Written]]:
    """Every key of the ConfigMaps that `envFrom` names."""
    for source in sources.items():
        data = config_data(source.get("configMapRef", "name").text) or {}
        for key, text in data.items():
            shared.take(key, str(text))
            yield f"{source.get('prefix').text}{key}", Written(value=str(text), path=source.path)


def _value(entry: Written, config_data: ConfigData, values: Mapping[str, Written], room: Room) -> Written:
    source = entry.get("valueFrom")
    if not source.is_set:
        value = entry.get("value")
        return Written(value=expanded(value.text, values, room), path=value.path)
    reference = source.get("configMapKeyRef")
    data = config_data(reference.get("name").text) if reference.is_set else None
    text = (data or {}).get(reference.get("key").text)
    return Written(value=text if isinstance(text, str) else None, path=source.path)


def expanded(text: str, values: Mapping[str, Written], room: Room) -> str:
    """Expand as Kubernetes does in command, args and env; a variable for which there is no room stays as it is written."""

    def value_of(name: str) -> str | None:
        known = values.get(name)
        is_known = known is not None and known.value is not None
        return known.text if known and is_known and room.takes(known.text) else None

    return expansion.expanded(text, value_of)

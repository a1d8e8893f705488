"""Environment variables of a container: their values as far as the input holds them, and the names of the others."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from kvgate.documents.written import NOTHING, Written
from kvgate.text import expansion
from kvgate.text.patterns import pattern
from kvgate.vllm.variables import ALLOW_LONG, allows_any_length, circumstances_by

ConfigData = Callable[[str], Mapping[str, Any] | None]
"""Name of a ConfigMap → its data, where it is in the same input."""
_ALLOWS_LONG = pattern(rf"{ALLOW_LONG}[= ]['\"]?(?:[1-9]|[Tt]rue|TRUE|\$)")
_UNKNOWN_SOURCE = "*"
"""Name of no variable: it stands for all variables of a ConfigMap that the input does not hold."""
_CHARACTERS_OF_AN_ENTRY = 8
"""A variable of few characters takes time too."""


class Room(Struct):
    """Characters that variables may still add. Values that double each other would fill the memory, and Linux starts no such program."""

    left: int = 2 << 20

    def takes(self, text: str) -> bool:
        """Take the text; False where it is too long, and then the variable stays as it is written."""
        fits = len(text) <= self.left
        self.left -= len(text) if fits else 0
        return fits


class OutOfRoom(ValueError):
    """Containers of one input share texts so often that reading each of them would take too long."""


class SharedRoom(Struct):
    """Characters that the scripts and variables of all containers of one input may have together.

    A ConfigMap, a file of variables or an anchor is written once, and counts for every container that gets it.
    """

    left: int = 4 << 20

    def take(self, *texts: str) -> None:
        """Take texts. Raises OutOfRoom, from then on for every text, so that no container is skipped without a finding."""
        self.left -= sum(map(len, texts)) + _CHARACTERS_OF_AN_ENTRY
        if self.left < 0:
            raise OutOfRoom(
                "scripts and variables that containers share are too long in total, each counted once per container"
            )


def variables_of(
    container: Written,
    config_data: ConfigData,
    added: Mapping[str, Written] | None = None,
    shared: SharedRoom | None = None,
) -> dict[str, Written]:
    """Return variables by name; a value outside the input (of a Secret, a field of the pod) is None. Later entries may use earlier ones.

    `added`: variables that the platform sets in every container. `shared`: room for texts that several containers get.
    """
    shared = shared or SharedRoom()
    values, room = dict(added or {}), Room()
    for source in container.get("envFrom").items():
        name = source.get("configMapRef", "name").text
        data = config_data(name)
        if name and data is None:
            values[_UNKNOWN_SOURCE] = Written(value=None, path=source.path)
        for key, text in (data or {}).items():
            shared.take(key, str(text))
            values[f"{source.get('prefix').text}{key}"] = Written(value=str(text), path=source.path)
    for entry in container.get("env").items():
        name = entry.get("name").text
        if name:
            values[name] = _value(entry, config_data, values, room)
    return values


def takes_any_length(variables: Mapping[str, Written], *scripts: Written) -> bool:
    """Return whether vLLM takes requests of any length, by the variable; True also where its value is not known here.

    `scripts`: command and arguments, which may set it too.
    """
    if _UNKNOWN_SOURCE in variables:
        return True
    given = variables.get(ALLOW_LONG)
    if given is not None and allows_any_length(given.text):
        return True
    return any(_ALLOWS_LONG.search(str(script.value)) is not None for script in scripts if script.is_set)


def cpu_variable(variables: Mapping[str, Written]) -> Written:
    """Return a variable that only vLLM's platform for CPUs reads (`VLLM_CPU_KVCACHE_SPACE` and others), where one is set."""
    return next((value for name, value in variables.items() if name.startswith("VLLM_CPU_")), NOTHING)


def circumstances_of(variables: Mapping[str, Written], *scripts: Written) -> dict[str, Any]:
    """Return the circumstances of a start that variables tell, by the names of `vllm/settings.py`.

    A variable that `scripts`, command and arguments, name tells nothing: they may set it otherwise.
    """
    told = {name: value.text for name, value in variables.items() if name.startswith(("VLLM_", "PYTORCH_"))}
    texts = [str(script.value) for script in scripts if script.is_set]
    return circumstances_by({name: text for name, text in told.items() if not any(name in each for each in texts)})


def _value(entry: Written, config_data: ConfigData, values: Mapping[str, Written], room: Room) -> Written:
    """Return the value of one entry of `env`, as written or from a key of a ConfigMap of the input."""
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

    return expansion.expand_references(text, value_of)

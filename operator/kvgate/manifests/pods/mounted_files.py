"""Files that a container sees through volumes of ConfigMaps in the same input: scripts, and configurations of vLLM."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from kvgate.documents.written import NOTHING, Written
from kvgate.shell.environment import ConfigData

FileText = Callable[[str], str | None]
"""Absolute path in the container → the text there; None where the input does not hold it."""
_MAX_PATH_CHARACTERS = 4096
"""Linux opens no longer one."""


def no_files(path: str) -> None:
    """Find no file: the container has no volumes."""


def files_of(pod: Written, container: Written, config_data: ConfigData) -> FileText:
    """Return the files that the container's volume mounts show; of nested mounts the innermost counts.

    The mounts are put in order once: every command of every script of the container asks for a file.
    """

    @cache
    def mounts() -> Mapping[str, tuple[Written, Mapping[str, str], str]]:
        volumes = {volume.get("name").text: volume.get("configMap") for volume in reversed(pod.get("volumes").items())}
        keys = {name: _keys(config_map) for name, config_map in volumes.items()}
        return {
            top: (volumes.get(name, NOTHING), keys.get(name, {}), mount.get("subPath").text.strip("/"))
            for mount in reversed(container.get("volumeMounts").items())
            if (top := mount.get("mountPath").text.rstrip("/"))
            for name in (mount.get("name").text,)
        }

    def text_at(path: str) -> str | None:
        if len(path) > _MAX_PATH_CHARACTERS:
            return None
        top = next((folder for folder in _folders(path) if folder in mounts()), None)
        if top is None:
            return None
        config_map, keys, below = mounts()[top]
        name = "/".join(part for part in (below, path[len(top) + 1 :]) if part)
        text = (config_data(config_map.get("name").text) or {}).get(keys.get(name, "" if keys else name))
        return text if isinstance(text, str) else None

    return text_at


def _folders(path: str) -> Iterator[str]:
    """The path itself, and the folders that it is in, the innermost first."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def _keys(config_map: Written) -> Mapping[str, str]:
    """A file is called as its key, unless `items` say otherwise; `subPath` mounts one file of the volume."""
    return {item.get("path").text: item.get("key").text for item in config_map.get("items").items()}

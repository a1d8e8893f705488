"""Files that a container sees through volumes of ConfigMaps in the same input: scripts, and configurations of vLLM."""

from collections.abc import Callable

from kvgate.manifests.environment import ConfigData
from kvgate.manifests.written import NOTHING, Written

FileText = Callable[[str], str | None]
"""Absolute path in the container → the text there; None where the input does not hold it."""


def no_files(path: str) -> None:
    """Find no file: the container has no volumes."""


def files_of(pod: Written, container: Written, config_data: ConfigData) -> FileText:
    """Return the files that the container's volume mounts show; of nested mounts the innermost counts."""

    def text_at(path: str) -> str | None:
        mounts = [mount for mount in container.get("volumeMounts").items() if _below(mount, path) is not None]
        if not mounts:
            return None
        mount = max(mounts, key=lambda mount: len(mount.get("mountPath").text))
        config_map = _volume(pod, mount.get("name").text).get("configMap")
        text = (config_data(config_map.get("name").text) or {}).get(_key(config_map, mount, path))
        return text if isinstance(text, str) else None

    return text_at


def _below(mount: Written, path: str) -> str | None:
    """The path within the mount: empty where the mount is the file itself."""
    top = mount.get("mountPath").text.rstrip("/")
    if not top or path == top:
        return "" if top else None
    return path.removeprefix(f"{top}/") if path.startswith(f"{top}/") else None


def _volume(pod: Written, name: str) -> Written:
    return next((volume for volume in pod.get("volumes").items() if volume.get("name").text == name), NOTHING)


def _key(config_map: Written, mount: Written, path: str) -> str:
    """A file is called as its key, unless `items` say otherwise; `subPath` mounts one file of the volume."""
    parts = (mount.get("subPath").text.strip("/"), _below(mount, path) or "")
    name = "/".join(part for part in parts if part)
    renamed = {item.get("path").text: item.get("key").text for item in config_map.get("items").items()}
    return renamed.get(name, "" if renamed else name)

"""Volumes of a pod: where weights are downloaded to, and whether /dev/shm is more than the runtime's 64 MiB."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.engine_found import Store
from kvgate.vllm.arguments import Argument

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the path in the container
_CACHE_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")
"""Variables for the folder of Hugging Face's downloads, the closest first."""
_CACHE = "/root/.cache/huggingface"
_MODEL_OPTIONS = ("--download-dir", "--download_dir", "--model")


def has_shared_memory(pod: Written, container: Written) -> bool:
    """A volume at /dev/shm, or the host's."""
    mounts = (mount.get("mountPath").text.rstrip("/") for mount in container.get("volumeMounts").items())
    return pod.get("hostIPC").value is True or _SHARED_MEMORY in mounts


def stores_of(
    pod: Written,
    container: Written,
    variables: Mapping[str, Written],
    arguments: Sequence[Argument],
    templates: Written = NOTHING,
) -> tuple[Store, ...]:
    """The volume that holds the weights, where it is one with a size. `templates`: a StatefulSet's volume claims."""
    target = _target(variables, arguments)
    mounts = [
        mount
        for mount in container.get("volumeMounts").items()
        if _holds(mount.get("mountPath").text.rstrip("/"), target)
    ]
    if not mounts:
        return ()
    name = max(mounts, key=lambda mount: len(mount.get("mountPath").text)).get("name").text
    volume = next((volume for volume in pod.get("volumes").items() if volume.get("name").text == name), NOTHING)
    template = next((item for item in templates.items() if item.get("metadata", "name").text == name), NOTHING)
    return tuple(_stores(volume, template))


def _stores(volume: Written, template: Written) -> Iterator[Store]:
    """An emptyDir is as large as its limit; the claim of another document is looked up by the reader of the input."""
    limit = volume.get("emptyDir", "sizeLimit")
    if limit.is_set:
        yield Store(name="the emptyDir", size=limit)
    claim = volume.get("persistentVolumeClaim", "claimName")
    if claim.text:
        yield Store(name=f"PersistentVolumeClaim {claim.text}", size=NOTHING, path=claim.path, claim=claim.text)
    for source in (volume.get("ephemeral", "volumeClaimTemplate"), template):
        size = source.get("spec", "resources", "requests", "storage")
        if size.is_set:
            yield Store(name="the volume claim", size=size)


def _target(variables: Mapping[str, Written], arguments: Sequence[Argument]) -> str:
    """The folder of the model where it is one, else the cache."""
    words = [word.text for word in arguments]
    for option in _MODEL_OPTIONS:
        given = [w.partition("=")[2] for w in words if w.startswith(f"{option}=")]
        given += [after for word, after in pairwise(words) if word == option]
        if given and given[-1].startswith("/"):
            return given[-1]
    if words and words[0].startswith("/"):
        return words[0]
    return next(
        (variables[name].text for name in _CACHE_VARIABLES if name in variables and variables[name].text), _CACHE
    )


def _holds(mount: str, target: str) -> bool:
    return bool(mount) and (target == mount or target.startswith(f"{mount}/"))

"""Volumes of a pod: the files of ConfigMaps that a container sees, and the volume of the weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

from kvgate.documents.written import NOTHING, Written
from kvgate.findings.finding import Located
from kvgate.manifests.fields import ignored_fields
from kvgate.manifests.pods.engine_found import FindObject, Store
from kvgate.shell.environment import ConfigData
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument

FileText = Callable[[str], str | None]
"""Absolute path in the container → the text there; None where the input does not hold it."""
FileSource = Callable[[str], tuple[str, str] | None]
"""Absolute path in the container → (ConfigMap, key); None where no volume is mounted there."""
_MAX_PATH_CHARACTERS = 4096
"""Linux opens no longer path."""
_CACHE_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")
"""Variables for the folder of Hugging Face's downloads, the closest first."""
_CLAIMED_SIZE = ("spec", "resources", "requests", "storage")


def no_files(path: str) -> None:
    """Find no file: the container has no volumes."""


def file_sources(pod: Written, container: Written) -> FileSource:
    """Return what finds the ConfigMap behind a file of the container's volume mounts; of nested mounts the innermost counts.

    The mounts are put in order once, because every command of every script of the container looks for a file.
    """

    @cache
    def mounts() -> Mapping[str, tuple[Written, Mapping[str, str], str]]:
        """Index the mounts by folder: the ConfigMap, the key of each file that `items` name, and `subPath`."""
        volumes = {volume.get("name").text: volume.get("configMap") for volume in reversed(pod.get("volumes").items())}
        keys = {
            name: {item.get("path").text: item.get("key").text for item in config_map.get("items").items()}
            for name, config_map in volumes.items()
        }
        return {
            top: (volumes.get(name, NOTHING), keys.get(name, {}), mount.get("subPath").text.strip("/"))
            for mount in reversed(container.get("volumeMounts").items())
            if (top := mount.get("mountPath").text.rstrip("/"))
            for name in (mount.get("name").text,)
        }

    def source_of(path: str) -> tuple[str, str] | None:
        if len(path) > _MAX_PATH_CHARACTERS:
            return None
        top = path
        while top and top not in mounts():
            top = top.rpartition("/")[0]
        if not top:
            return None
        config_map, keys, below = mounts()[top]
        name = "/".join(part for part in (below, path[len(top) + 1 :]) if part)
        return config_map.get("name").text, keys.get(name, "" if keys else name)

    return source_of


def files_of(sources: FileSource, config_data: ConfigData) -> FileText:
    def text_at(path: str) -> str | None:
        name, key = sources(path) or ("", "")
        text = (config_data(name) or {}).get(key)
        return text if isinstance(text, str) else None

    return text_at


def stores_of(
    pod: Written, container: Written, folder: str, find_claim: FindObject, templates: Written = NOTHING
) -> Iterator[Store]:
    """Yield the volume that holds a folder, where it has a size or a claim. `templates`: volume claims of a StatefulSet."""
    mounts = [
        (mount.get("mountPath").text.rstrip("/"), mount.get("name").text)
        for mount in container.get("volumeMounts").items()
    ]
    around = [(len(top), name) for top, name in mounts if top and f"{folder}/".startswith(f"{top}/")]
    if not around:
        return
    name = max(around, key=lambda each: each[0])[1]
    volume = next((volume for volume in pod.get("volumes").items() if volume.get("name").text == name), NOTHING)
    template = next((item for item in templates.items() if item.get("metadata", "name").text == name), NOTHING)
    limit = volume.get("emptyDir", "sizeLimit")
    if limit.is_set:
        yield Store(name="the emptyDir", size=limit)
    claim = volume.get("persistentVolumeClaim", "claimName")
    if claim.text:
        found = find_claim("PersistentVolumeClaim", claim.text) or NOTHING
        claimed = NOTHING if _is_elastic(found.get("spec")) else found.get(*_CLAIMED_SIZE)
        size = Written(value=claimed.text or None, path=claim.path)
        yield Store(name=f"PersistentVolumeClaim {claim.text}", size=size, path=claim.path)
    for source in (volume.get("ephemeral", "volumeClaimTemplate"), template):
        size = source.get(*_CLAIMED_SIZE)
        if size.is_set and not _is_elastic(source.get("spec")):
            yield Store(name="the volume claim", size=size)


_ELASTIC = pattern(r"(?i)(?:^|[^a-z])(?:efs|s3|gcs|gcsfuse|blob|blobfuse|juicefs|nfs|hostpath|local-path)(?:[^a-z]|$)")
"""Classes of volumes that hold no more and no less than what is behind them: their drivers do not use the size of a claim (README.md of
aws-efs-csi-driver, gcs-fuse-csi-driver and mountpoint-s3-csi-driver, of nfs-subdir-external-provisioner and local-path-provisioner)."""


def _is_elastic(claim: Written) -> bool:
    return _ELASTIC.search(claim.get("storageClassName").text) is not None


_LOST_WITH_THE_POD = ("emptyDir", "configMap", "secret", "projected", "downwardAPI")
"""Kinds of volumes that are new in every pod."""


def stated_compile_cache(pod: Written, container: Written, variables: Mapping[str, Written]) -> dict[str, str]:
    """Say that the compile cache is cold where its folder is lost with the pod; a volume that stays may be warm or new (vLLM 0.8.5 to
    0.33, envs.py: VLLM_CACHE_ROOT, else `vllm` in XDG_CACHE_HOME, else `.cache/vllm` in HOME)."""
    root, shared, home = (
        variables[name].text if name in variables else "" for name in ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "HOME")
    )
    folder = root or (f"{shared}/vllm" if shared else f"{home or '/root'}/.cache/vllm")
    names = {
        mount.get("name").text
        for mount in container.get("volumeMounts").items()
        if (top := mount.get("mountPath").text.rstrip("/")) and f"{folder}/".startswith(f"{top}/")
    }
    lost = {
        volume.get("name").text
        for volume in pod.get("volumes").items()
        if any(kind in _LOST_WITH_THE_POD for kind, _ in volume.fields())
    }
    return {} if names - lost else {"compile_cache": "cold"}


def folder_of_weights(variables: Mapping[str, Written], arguments: Sequence[Argument]) -> str:
    """Return the folder that the model's option or the first argument names, else the cache of Hugging Face."""
    words = [word.text for word in arguments]
    for option in ("--download-dir", "--download_dir", "--model"):
        given = [w.partition("=")[2] for w in words if w.startswith(f"{option}=")]
        given += [after for word, after in pairwise(words) if word == option]
        if given and given[-1].startswith("/"):
            return given[-1]
    if words and words[0].startswith("/"):
        return words[0]
    return next(
        (variables[name].text for name in _CACHE_VARIABLES if name in variables and variables[name].text),
        "/root/.cache/huggingface",
    )


def volume_fields(pod: Written) -> Iterator[Located]:
    """Yield a finding for each field of an emptyDir that Kubernetes does not have: without `sizeLimit` it has no limit of its own."""
    for volume in pod.get("volumes").items():
        yield from ignored_fields(volume.get("emptyDir"), ("medium", "sizeLimit"), ("size", "limit"), "Kubernetes")

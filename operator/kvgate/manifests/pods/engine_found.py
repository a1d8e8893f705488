"""One vLLM engine in somebody's document: the words of its command line, and what it runs on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import yaml

from kvgate.documents.positions import Broken, with_texts_read
from kvgate.documents.reading import Document
from kvgate.documents.written import NOTHING, Written
from kvgate.record import record
from kvgate.shell.environment import ConfigData, SharedRoom
from kvgate.vllm.arguments import Argument, Located

COMPOSE = "docker-compose"
"""The platform without a cluster."""


FindObject = Callable[[str, str], Written | None]
"""(kind, name) → another object of the same input."""


@record
class ReaderInput:
    """One document for a reader, and everything that the reader may look up in the same input."""

    document: Document
    root: Written
    """The whole document."""
    values: Written
    """Values of a chart where the document holds them; else the whole document."""
    config_data: ConfigData
    find: FindObject
    find_claim: FindObject
    """Finds claims of volumes and of devices, and templates of them."""
    collected: Callable[[Callable[[Written], Iterable[Written]]], Sequence[Written]]
    """Everything that a function finds in the documents of the input, each of which it is given once."""
    shared: SharedRoom
    """Room that the containers of all documents share."""

    @property
    def name(self) -> str:
        return self.root.get("metadata", "name").text

    def with_texts_read(self, *paths: Sequence[str]) -> "ReaderInput":
        """Return the same input, with the YAML that stands as text at these paths in its place; what is no YAML stays a text."""
        node, read = self.document.node, dict[int, yaml.Node]()
        for path in paths:
            node = with_texts_read(node, path, read)
        document = replace(self.document, node=node)
        value = document.load()
        if isinstance(value, Broken):
            return self
        root = Written(value=value)
        return replace(self, document=document, root=root, values=root)


@record
class Hint:
    """Something that tells the accelerator: a node label, a resource name, a platform's own field."""

    name: str
    """`nvidia.com/gpu.product`, `cloud.google.com/gke-accelerator`, `resource`, `instance type` …"""
    value: str
    path: str
    term: int | None = None
    """Number of the alternative: hints of one term go together; None where it holds for all."""
    one_of: str = ""
    """Path of the list that the value stands in, one of which it is: several lists of one label hold together."""


@record
class Store:
    """A volume that the weights are downloaded to."""

    name: str
    """`PersistentVolumeClaim cache`, `emptyDir`, `storageConfig` …"""
    size: Written
    path: str = ""
    """Path for findings about it, if it is not the size's."""


@record
class FoundEngine:
    """An engine that a reader found in a document; there are several where prefill and decode are separate."""

    platform: str
    """`deployment`, `production-stack`, `kserve` …: what a finding calls it."""
    document: Document
    root: Written = NOTHING
    """The whole document."""
    name: str
    path: str
    """Path of the engine in the document."""
    arguments: tuple[Argument, ...] = ()
    """Arguments after `vllm serve`; a platform's own fields come first, as the platform puts them."""
    model: Written = NOTHING
    """Model where the platform has a field for it: an id, `hf://…`, `pvc://…`."""
    model_name: Written = NOTHING
    """Name of the model where `model` is only a place."""
    image: Written = NOTHING
    version: Written = NOTHING
    """Release where it stands apart from the image's tag."""
    num_gpus: Written = NOTHING
    """GPUs of one pod."""
    visible_gpus: Written = NOTHING
    """GPUs among those that CUDA shows to vLLM."""
    num_pods: int = 1
    """Pods that one engine spans (LeaderWorkerSet)."""
    hints: tuple[Hint, ...] = ()
    gpu_memory: Written = NOTHING
    """MiB of each GPU that the container may use, where a device plugin shares GPUs out (HAMi)."""
    remarks: tuple[tuple[str, str], ...] = ()
    """(path, what was not understood there)."""
    is_partial: bool = False
    """Something that the input does not hold may set more options."""
    is_overridden: bool = False
    """Something that the input does not hold may take the place of what is written."""
    findings: tuple[Located, ...] = ()
    """Findings of the reader itself."""
    assumed: tuple[str, ...] = ()
    """Additions of the platform to what is written."""
    takes_any_length: bool = False
    """vLLM's environment lets it take requests longer than the model was made for."""
    is_wrapped: bool = False
    """Another program takes the options and hands on vLLM's: one that vLLM does not know may be that program's."""
    is_on_ray: bool = False
    """Its container joins a Ray cluster first, whose GPUs vLLM takes where its own are too few."""
    probes: tuple[Written, ...] = ()
    """Probes that kill the container where it does not answer: startup, else liveness."""
    has_shared_memory: bool | None = None
    """True where /dev/shm has more than the container runtime's 64 MiB; None where it is not known."""
    shared_memory_path: str = ""
    """Path for a finding about it."""
    stores: tuple[Store, ...] = ()

    @property
    def is_in_a_pod(self) -> bool:
        """Services of docker-compose have no nodes and no volumes of Kubernetes."""
        return self.platform != COMPOSE

    @property
    def namespace(self) -> str:
        """Namespace of the object; empty in values files."""
        metadata = self.root.get("metadata")
        return metadata.get("namespace").text or ("default" if metadata.is_set else "")

"""One vLLM engine in a document, its command line and its hardware; and the input that readers make engines of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.documents.positions import Broken, steps_of, with_texts_read
from kvgate.documents.reading import Document
from kvgate.documents.written import NOTHING, Written
from kvgate.findings.finding import Located
from kvgate.manifests.pods.host_memory import NO_ROOM, HostRoom
from kvgate.shell.environment import ConfigData, SharedRoom
from kvgate.statement.engine import GpuPart
from kvgate.vllm.arguments import Argument, is_variable, with_values
from kvgate.vllm.options import UNKNOWN_PROGRAM, Program

COMPOSE = "docker-compose"
"""The platform without a cluster."""


_REPLICAS = ("minReplicas", "min_replicas", "replicas", "replicaCount", "replica_count")
"""Fields of Kubernetes and of platforms that say how many there are; the least, where a range is written."""
FindObject = Callable[[str, str], Written | None]
"""(kind, name) → another object of the same input."""


class MappedFields(Struct, frozen=True, kw_only=True):
    """Paths of facts among the values of a chart that nobody knows, as the user states them; a step `*` is every entry."""

    origin: str
    """The place where they are stated, for messages: `mappings[0].fields`."""
    facts: Mapping[str, str]
    """`engines`, `model`, `image`, `gpus`, `arguments`, `accelerator`, `vllmVersion` → its path."""
    options: Mapping[str, str]
    """Option of vLLM, as `max_model_len` → its path."""


class ReaderInput(Struct, frozen=True, kw_only=True):
    """One document for a reader, and everything that the reader may look up in the same input."""

    document: Document
    root: Written
    values: Written
    """Values of a chart where the document holds them; else the whole document."""
    config_data: ConfigData
    config_document: Callable[[str], Document | None]
    """Name of a ConfigMap → its document, where it is in the same input."""
    find: FindObject
    find_claim: FindObject
    """Finds claims of volumes and of devices, and templates of them."""
    find_service: Callable[[str], tuple[Written, bool] | None]
    """Name → a Service that pods of this document see, in its file or folder, and whether it stands in the file."""
    collected: Callable[[Callable[[Written], Iterable[Written]]], Sequence[Written]]
    """Everything that a function finds in the documents of the input, each of which it is given once."""
    shared: SharedRoom
    """Room that the containers of all documents share."""
    mapped: MappedFields | None = None
    """Paths of facts, where the user states them for this document."""

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


class Hint(Struct, frozen=True, kw_only=True):
    """A fact that names the accelerator: a node label, a resource name, a platform's own field."""

    name: str
    """`nvidia.com/gpu.product`, `cloud.google.com/gke-accelerator`, `resource`, `instance type` …"""
    value: str
    path: str
    term: int | None = None
    """Number of the alternative: hints of one term belong together; None for a hint of all alternatives."""
    one_of: str = ""
    """Path of the list that the value stands in; one value of a list holds, and several lists of one label hold together."""


class SeenGpus(Struct, frozen=True, kw_only=True):
    """GPUs that an engine sees by names which other engines of the input may use as well."""

    pool: str
    """Identity of the place where the names mean the same GPUs: a host's compose file, a claim of devices."""
    names: tuple[str, ...] | None
    """In the order in which vLLM takes them; None: all from 0 on."""
    place: str
    """The owner of the GPUs, for messages: `the host`, `the pod`, `ResourceClaim x`."""
    label: str
    """Name of the container or the service, for messages."""
    copies: int = 1
    """Engines that are started from this description, all with the same GPUs."""
    starts_after: frozenset[str] | None = frozenset()
    """Labels of those that have started before; None where nobody knows who starts it when."""
    may_be_apart: bool = False
    """True where they need not meet: starts in branches of a script, services that Swarm places, two settings that name the GPUs."""
    profiles: frozenset[str] = frozenset()
    """Profiles of compose with one of which it runs; empty: it always runs."""


class Store(Struct, frozen=True, kw_only=True):
    """A volume that the weights are downloaded to."""

    name: str
    """`PersistentVolumeClaim cache`, `emptyDir`, `storageConfig` …"""
    size: Written
    path: str = ""
    """Path for findings about the volume, where it is not that of the size."""


class MountedText(Struct, frozen=True, kw_only=True):
    """A text of another document that the container sees as a file, and whose options are among its arguments."""

    document: Document
    path: str


_PLACE = "ConfigMap "


def place_of_text(name: str, key: str) -> str:
    """Return the path that arguments from a ConfigMap have; it is the path of no field."""
    return f"{_PLACE}{name}/{key}" if name else ""


def mounted_texts(given: ReaderInput, arguments: Iterable[Argument]) -> dict[str, MountedText]:
    """Return the texts that arguments come from, by the paths that `place_of_text` gave them."""
    found = {}
    for path in {word.path for word in arguments if word.path.startswith(_PLACE)}:
        name, _, key = path.removeprefix(_PLACE).partition("/")
        if document := given.config_document(name):
            found[path] = MountedText(document=document, path=f'data["{key}"]')
    return found


class FoundEngine(Struct, frozen=True, kw_only=True):
    """An engine that a reader found in a document; there are several where prefill and decode are separate."""

    platform: str
    """Name of the platform in findings: `deployment`, `production-stack`, `kserve` …"""
    document: Document
    root: Written = NOTHING
    name: str
    path: str
    arguments: tuple[Argument, ...] = ()
    """Arguments after `vllm serve`; a platform's own fields come first, as the platform puts them."""
    model: Written = NOTHING
    """Model where the platform has a field for it: an id, `hf://…`, `pvc://…`."""
    model_name: Written = NOTHING
    """Name of the model where `model` is only a place."""
    image: Written = NOTHING
    version: Written = NOTHING
    """Release of vLLM, where a field other than the image has it."""
    stated: Written = NOTHING
    """Field that names the engine; it may be another one than vLLM."""
    num_gpus: Written = NOTHING
    """GPUs of one pod."""
    visible_gpus: Written = NOTHING
    """GPUs among those that CUDA shows to vLLM."""
    num_pods: int = 1
    """Pods that one engine spans (LeaderWorkerSet)."""
    hints: tuple[Hint, ...] = ()
    gpu_part: GpuPart | None = None
    """Part of each GPU that the container may use, where a scheduler or a device plugin shares GPUs out."""
    seen_gpus: SeenGpus | None = None
    """None where no other engine of the input can have the same GPUs by what is written."""
    remarks: tuple[tuple[str, str], ...] = ()
    """(path, a sentence about something there that was not understood)."""
    is_partial: bool = False
    """True where something outside the input may set more options."""
    is_overridden: bool = False
    """True where something outside the input may replace values of the input, or make another engine of them."""
    findings: tuple[Located, ...] = ()
    assumed: tuple[str, ...] = ()
    """Sentences about options and numbers that the platform adds."""
    takes_any_length: bool = False
    """True where vLLM's environment allows requests longer than the model was made for."""
    cpu_variable: Written = NOTHING
    """A variable that only vLLM on CPUs reads, where one is set."""
    loading: Mapping[str, Written] = field(default_factory=dict)
    """Variables of known value by which vLLM's process loads what was not judged."""
    circumstances: Mapping[str, Any] = field(default_factory=dict)
    """Circumstances of the start that its surroundings tell, by the names of `vllm/settings.py`."""
    program: Program = UNKNOWN_PROGRAM
    """The program that gets the arguments, as far as it is known."""
    is_wrapped: bool = False
    """True where another program takes the options and passes vLLM's on: an option that vLLM does not know may be that program's."""
    is_on_ray: bool = False
    """True where the container joins a Ray cluster first, whose GPUs vLLM uses where its own are too few."""
    probes: tuple[Written, ...] = ()
    """Probes that end a container which does not answer: startup, then liveness."""
    has_shared_memory: bool | None = None
    """True where /dev/shm has more than the container runtime's 64 MiB; None where it is not known."""
    shared_memory_path: str = ""
    is_shared_memory_certain: bool = False
    """True where nothing outside the input gives the container another /dev/shm."""
    host: HostRoom = NO_ROOM
    stores: tuple[Store, ...] = ()
    files: Mapping[str, MountedText] = field(default_factory=dict)
    """Texts of other documents, by the path that arguments from them have."""
    option_paths: Mapping[str, str] = field(default_factory=dict)
    """Paths of the platform's own fields for options, by vLLM's names; findings name a setting by them."""

    def with_words_of(self, place: str, written: str) -> "FoundEngine":
        """Return the engine with the words of one place under the path at which the platform has them, for messages."""
        words = (replace(word, path=written) if word.path == place else word for word in self.arguments)
        return replace(self, arguments=tuple(words))

    def with_variables(self, values: Mapping[str, str]) -> "FoundEngine":
        """Return the engine with values in the place of variables; one that is a whole word may hold several words."""
        arguments = list[Argument]()
        for word in self.arguments:
            text = with_values(word.text, values)
            parts = text.split() if is_variable(word.text) else [text]
            arguments += (replace(word, text=each) for each in parts)
        fields = {name: getattr(self, name) for name in ("model", "model_name", "image", "version", "num_gpus")}
        texts = {
            name: with_values(field.text, values) for name, field in fields.items() if isinstance(field.value, str)
        }
        return replace(
            self,
            arguments=tuple(arguments),
            **{name: replace(fields[name], value=text) for name, text in texts.items()},
        )

    @property
    def replicas(self) -> int:
        """Number of equal engines, by the nearest field around the engine that says it, at its least; 1 where nothing does, or 0 stands."""
        around = [self.root]
        for step in steps_of(self.path):
            inner = around[-1].items() if isinstance(step, int) else [around[-1].get(step)]
            around += inner[step : step + 1] if isinstance(step, int) else inner
        counts = (each.get(name).count for each in reversed(around) for name in _REPLICAS if each.get(name).is_set)
        return max(1, next(counts, None) or 1)

    @property
    def is_in_a_pod(self) -> bool:
        return self.platform != COMPOSE and self.document.form is None

    @property
    def namespace(self) -> str:
        """Namespace of the object; empty in values files."""
        metadata = self.root.get("metadata")
        return metadata.get("namespace").text or ("default" if metadata.is_set else "")

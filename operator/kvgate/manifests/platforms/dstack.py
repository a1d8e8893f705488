"""dstack: the services and tasks of a YAML file whose commands start vLLM.

Fields, variables and the words of `gpu`: dstack.ai/docs, "service", "task" and "Resources"; examples: github.com/dstackai/dstack.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.containers import installed_release
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.pod_engines import engines_of_container
from kvgate.text.patterns import pattern

_KINDS = ("service", "task")
_VENDORS = frozenset({"nvidia", "amd", "google", "intel", "tenstorrent", "tpu"})
_COUNT, _MEMORY = pattern(r"\d{1,3}"), pattern(r"(?i)(?:\d+GB)?(?:\.\.)?(?:\d+GB)?|\d*\.\.\d*")


def is_configuration(root: Written) -> bool:
    """Return True for a service or a task whose commands name vLLM, and that asks for resources."""
    return (
        root.get("type").text in _KINDS and "vllm" in str(root.get("commands").value) and root.get("resources").is_set
    )


def read_configuration(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of the commands, which one shell runs, on the GPUs of one node; several names are alternatives."""
    root = given.root
    names, count = _gpu_of(root.get("resources", "gpu"))
    nodes, at = root.get("nodes").count or 1, root.get("resources", "gpu")
    variables = {name: replace(value, value=value.text or None) for name, value in root.get("env").fields()}
    for line in root.get("env").items():
        name, equals, text = line.text.partition("=")
        variables[name] = replace(line, value=text if equals else None)
    settings = {"DSTACK_GPUS_NUM": count and count * nodes, "DSTACK_GPUS_PER_NODE": count, "DSTACK_NODES_NUM": nodes}
    variables |= {name: Written(value=str(value) if value else None, path=at.path) for name, value in settings.items()}
    script = "\n".join(each.text for each in root.get("commands").items())
    place = Written(value={"image": root.get("image").text, "command": ["sh", "-c", script]}, path="commands")
    for engine in engines_of_container(given, place, pod=NOTHING, platform="dstack", added=variables):
        yield replace(
            engine.with_words_of("commands.command[2]", "commands"),
            name=root.get("name").text or given.document.file.rpartition("/")[2].partition(".")[0],
            image=root.get("image"),
            version=NOTHING if root.get("image").is_set else installed_release(root.get("commands")),
            num_gpus=Written(value=count, path=at.path) if count else NOTHING,
            hints=tuple(Hint(name="accelerator", value=name, path=at.path, one_of=at.path) for name in names),
            has_shared_memory=None,
        )


def _gpu_of(gpu: Written) -> tuple[list[str], int | None]:
    """Return (names, number of GPUs): `H100:80GB:8`, `nvidia:4:16GB`, `8:H200`, `24GB..`, or an object; a range has no number."""
    named = gpu.get("name")
    words = [*([each.text for each in named.items()] or [named.text]), gpu.get("memory").text, gpu.get("count").text]
    words = [word for word in words if word] if isinstance(gpu.value, dict) else gpu.text.split(":")
    counts = [int(word) for word in words if _COUNT.fullmatch(word)]
    memory = next(
        (word for word in words if _MEMORY.fullmatch(word) and ".." not in word and not _COUNT.fullmatch(word)), ""
    )
    is_range = any(".." in word and "GB" not in word.upper() for word in words)
    others = (word for word in words if not _COUNT.fullmatch(word) and not _MEMORY.fullmatch(word))
    names = [each for word in others for each in word.split(",") if each.lower() not in _VENDORS]
    number = None if is_range else counts[0] if counts else 1 if gpu.is_set else None
    return [f"{name}-{memory}" if memory and "GB" not in name else name for name in names], number

"""SkyPilot: the task of a YAML file whose `run` starts vLLM.

Fields and variables: docs.skypilot.co, "SkyPilot YAML" and "Environment Variables".
"""

import itertools
from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.containers import installed_release
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.pod_engines import engines_of_container

_MAX_ACCELERATORS = 100
"""Alternatives of one task; nobody has more."""
_DOCKER = "docker:"


def is_task(root: Written) -> bool:
    """Return True for a task with a script that names vLLM, and with accelerators or a place for them."""
    return "vllm" in root.get("run").text and isinstance(root.get("resources").value, dict | list)


def read_task(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of the script, on the accelerators of one node; several names or resources are alternatives."""
    root, gpus = given.root, list(itertools.islice(_accelerators(given.root.get("resources")), _MAX_ACCELERATORS))
    counts, nodes = {count for _, count, _ in gpus}, root.get("num_nodes").count or 1
    num_gpus = counts.pop() if len(counts) == 1 else None
    at = next((path for _, _, path in gpus), "")
    settings = {
        "SKYPILOT_NUM_NODES": str(nodes),
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NUM_GPUS_PER_NODE": str(num_gpus or "") or None,
    }
    variables = {name: Written(value=value, path=at) for name, value in settings.items()}
    for field in (root.get("envs"), root.get("secrets")):
        variables |= {name: replace(value, value=value.text or None) for name, value in field.fields()}
    image = root.get("resources", "image_id")
    container = {
        "image": image.text.removeprefix(_DOCKER) if image.text.startswith(_DOCKER) else "",
        "command": ["sh", "-c", root.get("run").text],
    }
    installed = installed_release(root.get("setup"), root.get("run"))
    place = Written(value=container, path="run")
    for engine in engines_of_container(given, place, pod=NOTHING, platform="skypilot", added=variables):
        yield replace(
            engine.with_words_of("run.command[2]", "run"),
            name=root.get("name").text or given.document.file.rpartition("/")[2].rpartition(".")[0],
            image=replace(image, value=container["image"] or None),
            version=NOTHING if container["image"] else installed,
            num_gpus=Written(value=num_gpus, path=at) if num_gpus else NOTHING,
            num_pods=nodes if engine.is_on_ray else 1,
            hints=tuple(Hint(name="skypilot accelerators", value=name, path=path, one_of=at) for name, _, path in gpus),
            has_shared_memory=None,
        )


def _accelerators(resources: Written) -> Iterator[tuple[str, int, str]]:
    """Yield (name, number, path): `L4`, `L4:8`, a list or set of these, names with numbers; of `any_of` and `ordered` too."""
    for choice in (*resources.get("any_of").items(), *resources.get("ordered").items()):
        yield from _accelerators(choice)
    field = resources.get("accelerators")
    written = [(replace(value, value=name), value.text or "1") for name, value in field.fields()]
    for each, count in written or [(item, "") for item in field.items() or [field]]:
        name, _, number = each.text.partition(":")
        number = number or count or "1"
        if name and number.isdecimal() and len(number) < 5:
            yield name, int(number), each.path

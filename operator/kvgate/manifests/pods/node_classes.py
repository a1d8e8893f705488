"""Classes and pools of nodes that pods select by name, whose objects stand in the same input: ComputeClass (GKE), NodePool (Karpenter)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvgate.documents.written import Written
from kvgate.manifests.pods.engine_found import FindObject, Hint

COMPUTE_CLASS, NODE_POOL = "ComputeClass", "NodePool"
_KINDS: Mapping[str, str] = {
    "cloud.google.com/compute-class": COMPUTE_CLASS,
    "karpenter.sh/nodepool": NODE_POOL,
}
"""Label by which a pod selects nodes → the kind of the object that describes them."""
_FIELDS: Sequence[tuple[tuple[str, ...], str]] = (
    (("gpu", "type"), "cloud.google.com/gke-accelerator"),
    (("machineType",), "node.kubernetes.io/instance-type"),
    (("machineFamily",), "cloud.google.com/machine-family"),
)
"""Field of a priority of a ComputeClass → the label that says the same of a node, the surest first."""


def class_hints(hints: Iterable[Hint], find: FindObject) -> Iterator[Hint]:
    """Yield the labels of the nodes that the selected classes and pools have; each stands at the selector that names the class."""
    for hint in hints:
        kind = _KINDS.get(hint.name)
        found = find(kind, hint.value) if kind and hint.value else None
        if found:
            yield from _of_compute_class(found, hint) if kind == COMPUTE_CLASS else _of_node_pool(found, hint)


def _of_compute_class(found: Written, hint: Hint) -> Iterator[Hint]:
    """Yield one field of the priorities, which are alternatives; nothing where they are not all described by the same field."""
    priorities = found.get("spec", "priorities").items()
    for field, label in _FIELDS:
        values = [each.get(*field).text for each in priorities]
        if values and all(values):
            yield from (_with(hint, label, value) for value in dict.fromkeys(values))
            return


def _of_node_pool(found: Written, hint: Hint) -> Iterator[Hint]:
    """Yield the requirements of the pool's nodes; only the operator `In` names labels that they have."""
    for requirement in found.get("spec", "template", "spec", "requirements").items():
        if requirement.get("operator").text == "In":
            for value in requirement.get("values").items():
                yield _with(hint, requirement.get("key").text, value.text)
    for name, value in found.get("spec", "template", "metadata", "labels").fields():
        yield _with(hint, name, value.text)


def _with(hint: Hint, name: str, value: str) -> Hint:
    return Hint(name=name, value=value, path=hint.path, term=hint.term, one_of=f"{hint.path} {name}")

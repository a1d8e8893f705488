"""GPUs of a container: those that it requests or claims, and those that `CUDA_VISIBLE_DEVICES` shows to vLLM."""

from collections.abc import Iterator, Mapping

from kvgate.documents.written import NOTHING, Written, total
from kvgate.manifests.pods.containers import Start
from kvgate.manifests.pods.engine_found import FindObject, Hint
from kvgate.text.patterns import pattern

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_DEVICE = pattern(r"\d+|(?:GPU|MIG)-[\w\-/]+")
_RESOURCE = pattern(
    r"(?:nvidia\.com/(?:gpu(?:\.shared)?|mig-.*)|amd\.com/gpu|gpu\.intel\.com/(?:xe|i915)|habana\.ai/gaudi"
    r"|google\.com/tpu|aws\.amazon\.com/neuron\w*|huawei\.com/Ascend.*|rebellions\.ai/.*)"
)
"""Extended resources that are whole accelerators, or slices of one."""
_SHARED_MEMORY = "nvidia.com/gpumem"
"""MiB of every GPU that HAMi lets the container have."""
_REFERENCES = {
    "resourceClaimName": ("ResourceClaim", ("spec",)),
    "resourceClaimTemplateName": ("ResourceClaimTemplate", ("spec", "spec")),
}
"""Field of a pod's claim → the kind of the object that it names, and the place of the requests there."""
_GPU_CLASSES = pattern(r"(?:gpu|mig)\.nvidia\.com|gpu\.amd\.com|gpu\.intel\.com")
_PRODUCT = pattern(r"""productName\s*==\s*(['"])([^'"]+)\1""")
_PROFILE = pattern(r"""\bprofile\s*==\s*(['"])([^'"]+)\1""")
"""Attributes of NVIDIA's driver in an expression of CEL."""
_NEGATION = pattern(r"!(?!=)|!=")


def gpus_of(resources: Written) -> tuple[Written, Hint | None]:
    """Return (GPUs that a container requests, the name of the resource as a hint); limits win over requests."""
    for side in ("limits", "requests"):
        for name, amount in resources.get(side).fields():
            if _RESOURCE.fullmatch(name):
                return amount, Hint(name="resource", value=name, path=amount.path)
    return Written(value=None, path=resources.path), None


def gpu_memory_of(resources: Written) -> Written:
    """Return the MiB of every GPU that the container may use, where GPUs are shared."""
    limit = resources.get("limits", _SHARED_MEMORY)
    return limit if limit.is_set else resources.get("requests", _SHARED_MEMORY)


def claimed_gpus(pod: Written, container: Written, find: FindObject) -> tuple[Written, tuple[Hint, ...]]:
    """Return (the number of GPUs, hints about their kind) of the container's device claims (Dynamic Resource Allocation).

    Both stand at the claims; there is nothing where no claim in the input is for GPUs.
    """
    claims = container.get("resources", "claims")
    requests = [request for claim in claims.items() for request in _requests(pod, claim, find)]
    gpus = [request for request in requests if _GPU_CLASSES.fullmatch(request.get("deviceClassName").text)]
    if not gpus:
        return NOTHING, ()
    counts = [
        None
        if request.get("allocationMode").text == "All"
        else (request.get("count").count if request.get("count").is_set else 1)
        for request in gpus
    ]
    hints = tuple(hint for request in gpus for hint in _hints(request, claims.path))
    return Written(value=total(counts), path=claims.path), hints


def _requests(pod: Written, claim: Written, find: FindObject) -> Iterator[Written]:
    """Yield the requests of a claim; of alternatives (`firstAvailable`) it is not known which will be used."""
    name, only = claim.get("name").text, claim.get("request").text
    for reference in pod.get("resourceClaims").items():
        for field, (kind, spec) in _REFERENCES.items():
            target = reference.get(field).text
            found = find(kind, target) if target and reference.get("name").text == name else None
            for request in found.get(*spec, "devices", "requests").items() if found else ():
                if only in ("", request.get("name").text):
                    yield request.get("exactly") if request.get("exactly").is_set else request


def _hints(request: Written, path: str) -> Iterator[Hint]:
    """Yield the product and the MIG profile of a request; an expression that negates something tells neither."""
    for selector in request.get("selectors").items():
        expression = selector.get("cel", "expression").text
        if not _NEGATION.search(expression):
            for _, product in _PRODUCT.findall(expression):
                yield Hint(name="accelerator", value=product, path=path)
            for _, profile in _PROFILE.findall(expression):
                yield Hint(name="resource", value=f"nvidia.com/mig-{profile}", path=path)


def visible_gpus(start: Start, variables: Mapping[str, Written], *fields: Written) -> Written:
    """Count the visible GPUs by the command's variable, else the container's; unknown where a script in `fields` may set it."""
    prefix = f"{VISIBLE_DEVICES}="
    for word in reversed(start.before):
        if word.text.startswith(prefix):
            return Written(value=_num_devices(word.text.removeprefix(prefix)), path=word.path)
    if VISIBLE_DEVICES not in variables or any(VISIBLE_DEVICES in str(field.value) for field in fields):
        return NOTHING
    known = variables[VISIBLE_DEVICES]
    return Written(value=_num_devices(known.text) if known.value is not None else None, path=known.path)


def _num_devices(text: str) -> int | None:
    """Count the devices of a list; None where one of them is not known."""
    devices = [device.strip() for device in text.split(",")]
    return len(devices) if all(map(_DEVICE.fullmatch, devices)) else None

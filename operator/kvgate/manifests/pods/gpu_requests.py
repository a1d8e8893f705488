"""GPUs of a container: those that it requests or claims, and those that `CUDA_VISIBLE_DEVICES` shows to vLLM."""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written, total
from kvgate.manifests.pods.containers import Start
from kvgate.manifests.pods.engine_found import FindObject, Hint, SeenGpus
from kvgate.statement.engine import ACCELERATOR_RESOURCE, GpuPart
from kvgate.text.patterns import pattern

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NVIDIA_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_DEVICE = pattern(r"\d+|(?:GPU|MIG)-[\w\-/]+")
_MIB, _GIB, _PERCENT = Fraction(1), Fraction(1024), Fraction(1, 100)
_MEMORY_CLAIMS: Mapping[str, tuple[Fraction, bool, bool]] = {
    "nvidia.com/gpumem": (_MIB, False, True),
    "nvidia.com/gpumem-percentage": (_PERCENT, True, True),
    "volcano.sh/vgpu-memory": (_MIB, False, True),
    "volcano.sh/vgpu-memory-percentage": (_PERCENT, True, True),
    "volcano.sh/gpu-memory": (_MIB, False, False),
    "aliyun.com/gpu-mem": (_GIB, False, False),
}
"""Extended resource → (MiB or share of one unit, it is a share, CUDA shows the container no more).

HAMi and volcano's vGPU plugin load a library that answers cudaMemGetInfo with the claim; volcano's gpu-share and Alibaba's gpushare
place pods by it and limit nothing by themselves.
"""
_ANNOTATIONS: Mapping[str, tuple[Fraction, bool, bool]] = {
    "gpu-fraction": (_MIB, True, False),
    "gpu-memory": (_MIB, False, False),
}
"""The same for annotations of Run:ai and the KAI scheduler, which place pods by them."""
_REFERENCES = {
    "resourceClaimName": ("ResourceClaim", ("spec",)),
    "resourceClaimTemplateName": ("ResourceClaimTemplate", ("spec", "spec")),
}
"""Field of a pod's claim → the kind of the object that it names, and the place of the requests there."""
_GPU_CLASSES = pattern(r"(?:gpu|mig)\.nvidia\.com|gpu\.amd\.com|gpu\.intel\.com")
_PRODUCT = pattern(r"""productName\s*==\s*(['"])([^'"]+)\1""")
_PRODUCT_LIKE = pattern(r"""productName(?:\.lowerAscii\(\))?\.(?:matches|contains|startsWith)\(\s*r?(['"])([^'"]+)\1""")
_DRIVER = pattern(r"""device\.driver\s*==\s*(['"])(gpu\.(?:nvidia|amd|intel)\.com)\1""")
_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/xe"}
"""Vendor of a driver of devices → the resource that means the same."""
_PROFILE = pattern(r"""\bprofile\s*==\s*(['"])([^'"]+)\1""")
"""Attributes of NVIDIA's driver in an expression of CEL."""
_DECIMAL = pattern(r"\d{1,9}(?:\.\d{1,9})?")
_MOST_MIB = 1 << 24
_NEGATION = pattern(r"!(?!=)|!=")


def gpus_of(resources: Written) -> tuple[Written, Hint | None]:
    """Return (GPUs that a container requests, the name of the resource as a hint); limits win over requests."""
    for side in ("limits", "requests"):
        for name, amount in resources.get(side).fields():
            if ACCELERATOR_RESOURCE.fullmatch(name):
                return amount, Hint(name="resource", value=name, path=amount.path)
    return Written(value=None, path=resources.path), None


def gpu_part_of(resources: Written, annotations: Written = NOTHING) -> GpuPart | None:
    """Return the part of every GPU that the container may use; None where it has no claim to one, or to whole GPUs."""
    places = (
        (resources.get("limits"), _MEMORY_CLAIMS),
        (resources.get("requests"), _MEMORY_CLAIMS),
        (annotations, _ANNOTATIONS),
    )
    for fields, claims in places:
        for name, (unit, is_share, is_all) in claims.items():
            if part := memory_part(name, fields.get(name), unit, is_share=is_share, is_all=is_all):
                return part
    return None


def memory_part(
    name: str, amount: Written, unit: Fraction = _MIB, *, is_share: bool = False, is_all: bool = True
) -> GpuPart | None:
    """Return a claim as a part of a GPU; None where it is not a number that means one."""
    text = amount.text.strip()
    if not _DECIMAL.fullmatch(text) or not 0 < Fraction(text) * unit <= (1 if is_share else _MOST_MIB):
        return None
    claim = f"{name}: {text}"
    return GpuPart(
        amount=Fraction(text) * unit, is_share=is_share, path=amount.path, claim=claim, is_all_it_sees=is_all
    )


def claimed_gpus(pod: Written, container: Written, find: FindObject) -> tuple[Written, tuple[Hint, ...]]:
    """Return (the number of GPUs, hints about their kind) of the container's device claims (Dynamic Resource Allocation).

    Both stand at the claims; there is nothing where no claim in the input is for GPUs.
    """
    claims = container.get("resources", "claims")
    requests = [request for claim in claims.items() for request in _requests(pod, claim, find)]
    drivers = [(request, _driver_of(request.get("deviceClassName").text, find)) for request in requests]
    gpus = [request for request, driver in drivers if driver]
    if not gpus:
        return NOTHING, ()
    amounts = [(request.get("allocationMode").text, request.get("count")) for request in gpus]
    counts = [None if mode == "All" else count.count if count.is_set else 1 for mode, count in amounts]
    hints = tuple(hint for request, driver in drivers if driver for hint in _hints(request, driver, claims.path, find))
    return Written(value=total(counts), path=claims.path), hints


def claim_of(pod: Written, container: Written) -> tuple[str, str] | None:
    """Return (the ResourceClaim that other pods may name too, or nothing, the claim's name in the pod) where a container has one claim."""
    claims = container.get("resources", "claims").items()
    if len(claims) != 1:
        return None
    name, request = claims[0].get("name").text, claims[0].get("request").text
    for reference in pod.get("resourceClaims").items():
        if name and reference.get("name").text == name:
            target = reference.get("resourceClaimName").text
            return f"ResourceClaim {target} {request}".rstrip() if target else "", f"{name} {request}".rstrip()
    return None


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


def _driver_of(class_name: str, find: FindObject) -> str:
    """Return the driver of a class of GPUs, which the class names itself or its object's expressions do; else nothing."""
    if _GPU_CLASSES.fullmatch(class_name):
        return class_name
    drivers = (_DRIVER.search(each.get("cel", "expression").text) for each in _selectors(class_name, find))
    return next((match[2] for match in drivers if match), "")


def _selectors(class_name: str, find: FindObject) -> list[Written]:
    found = find("DeviceClass", class_name) if class_name else None
    return found.get("spec", "selectors").items() if found else []


def _hints(request: Written, driver: str, path: str, find: FindObject) -> Iterator[Hint]:
    """Yield the vendor, the product and the MIG profile of a request and its class; an expression that negates something tells nothing."""
    yield Hint(name="resource", value=_RESOURCES[driver.partition(".")[2].partition(".")[0]], path=path)
    selectors = [*request.get("selectors").items(), *_selectors(request.get("deviceClassName").text, find)]
    for expression in (each.get("cel", "expression").text for each in selectors):
        if not _NEGATION.search(expression):
            for _, product in (*_PRODUCT.findall(expression), *_PRODUCT_LIKE.findall(expression)):
                yield Hint(name="accelerator", value=product, path=path)
            for _, profile in _PROFILE.findall(expression):
                yield Hint(name="resource", value=f"nvidia.com/mig-{profile}", path=path)


def visible_gpus(start: Start, variables: Mapping[str, Written], *fields: Written) -> Written:
    shown = visible_devices(start, variables, *fields)
    return replace(shown, value=len(shown.value) if shown.value else None)


def visible_devices(start: Start, variables: Mapping[str, Written], *fields: Written) -> Written:
    """Return the GPUs that CUDA shows by the command's variable, else the container's; unknown where a script in `fields` may set it.

    The value is None where it is not known, and NOTHING stands for a variable that is not set.
    """
    prefix = f"{VISIBLE_DEVICES}="
    for word in reversed(start.before):
        if word.text.startswith(prefix):
            return Written(value=devices_in(word.text.removeprefix(prefix)), path=word.path)
    if any(VISIBLE_DEVICES in str(field.value) for field in fields):
        return Written(value=None, path=VISIBLE_DEVICES)
    if VISIBLE_DEVICES not in variables:
        return NOTHING
    known = variables[VISIBLE_DEVICES]
    return Written(value=devices_in(known.text) if known.value is not None else None, path=known.path)


def devices_in(text: str) -> tuple[str, ...] | None:
    """Return the devices of a list; None where one of them is not known."""
    devices = tuple(device.strip() for device in text.split(","))
    return devices if all(map(_DEVICE.fullmatch, devices)) else None


_BACKGROUND = pattern(r"(?:^|[^&>|])&(?:[^&>\d]|$)")


def seen_by_start(
    seen: SeenGpus | None, start: Start, variables: Mapping[str, Written], *fields: Written, is_alone: bool
) -> SeenGpus | None:
    """Return those of a container's GPUs that a start sees; of several in a script only where it starts some in the background."""
    if seen is None or not (is_alone or any(_BACKGROUND.search(str(field.value)) for field in fields)):
        return None
    if not is_alone:
        model = next((word.text for word in start.arguments if not word.text.startswith("-")), "")
        label = f"{seen.label} {model}".rstrip()
        seen = replace(seen, label=label, copies=1, starts_after=None, may_be_apart=True)
    return shown_by_cuda(seen, visible_devices(start, variables, *fields))


def shown_by_cuda(seen: SeenGpus, shown: Written) -> SeenGpus | None:
    """Return the GPUs that are left where CUDA shows some of those that a container sees; None where they are not known."""
    if shown is NOTHING:
        return seen
    devices, all_names = shown.value or (), seen.names
    if not devices or all_names is None:
        return replace(seen, names=devices) if devices else None
    if any(device.isdecimal() and int(device) >= len(all_names) for device in devices):
        return None
    names = (all_names[int(device)] if device.isdecimal() else device for device in devices)
    return replace(seen, names=tuple(names))

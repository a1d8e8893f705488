"""GPUs that a container claims (Dynamic Resource Allocation, resource.k8s.io): how many, and which, where the claim is in the input."""

import re
from collections.abc import Iterator

from kvgate.documents.written import NOTHING, Written, total
from kvgate.manifests.pods.engine_found import FindObject, Hint

_REFERENCES = {
    "resourceClaimName": ("ResourceClaim", ("spec",)),
    "resourceClaimTemplateName": ("ResourceClaimTemplate", ("spec", "spec")),
}
"""Field of a pod's claim → the kind that it names, and where that says what it asks for."""
_GPU_CLASSES = re.compile(r"(?:gpu|mig)\.nvidia\.com|gpu\.amd\.com|gpu\.intel\.com")
_PRODUCT = re.compile(r"""productName\s*==\s*(['"])([^'"]+)\1""")
_PROFILE = re.compile(r"""\bprofile\s*==\s*(['"])([^'"]+)\1""")
"""Attributes of NVIDIA's driver in an expression of CEL; one that negates something says nothing here."""


def claimed_gpus(pod: Written, container: Written, find: FindObject) -> tuple[Written, tuple[Hint, ...]]:
    """(how many, what tells which they are), at the container's claims; nothing where none of them is known to be of GPUs."""
    claims = container.get("resources", "claims")
    requests = [request for claim in claims.items() for request in _requests(pod, claim, find)]
    gpus = [request for request in requests if _GPU_CLASSES.fullmatch(request.get("deviceClassName").text)]
    number = Written(value=total([_count(request) for request in gpus]), path=claims.path)
    return number if gpus else NOTHING, tuple(hint for request in gpus for hint in _hints(request, claims.path))


def _requests(pod: Written, claim: Written, find: FindObject) -> Iterator[Written]:
    """Those that the claim is for; of alternatives (`firstAvailable`) nobody knows which it will be."""
    name, only = claim.get("name").text, claim.get("request").text
    for reference in pod.get("resourceClaims").items():
        for field, (kind, spec) in _REFERENCES.items():
            target = reference.get(field).text
            found = find(kind, target) if target and reference.get("name").text == name else None
            for request in found.get(*spec, "devices", "requests").items() if found else ():
                if only in ("", request.get("name").text):
                    yield request.get("exactly") if request.get("exactly").is_set else request


def _count(request: Written) -> int | None:
    if request.get("allocationMode").text == "All":
        return None
    return request.get("count").count if request.get("count").is_set else 1


def _hints(request: Written, path: str) -> Iterator[Hint]:
    for selector in request.get("selectors").items():
        expression = selector.get("cel", "expression").text
        if re.search(r"!(?!=)|!=", expression):
            continue
        for _, product in _PRODUCT.findall(expression):
            yield Hint(name="accelerator", value=product, path=path)
        for _, profile in _PROFILE.findall(expression):
            yield Hint(name="resource", value=f"nvidia.com/mig-{profile}", path=path)

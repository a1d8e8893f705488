"""Parts of a pod that the administrator must allow: `pods` in the chart's values and in `.kvgate.yaml`, and what of a spec they refuse."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import Field

from kvgate.api.base import ApiModel, Document, Switch
from kvgate.api.v1alpha1 import InferenceDeployment, InferenceDeploymentSpec
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.calibration.trust import image_repository
from kvgate.findings.finding import Finding
from kvgate.rules.repository import NOT_ALLOWED

Patterns = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Field(max_length=100)]


class AllowedPods(ApiModel):
    """Parts of a pod that a spec may have. By default none of them."""

    allow_host_path: Switch = False
    """Volumes of the kind hostPath, which are folders of the node."""
    allowed_service_accounts: Patterns = ()
    """Names of ServiceAccounts; * stands for any part of a name."""
    allowed_init_images: Patterns = ()
    """Images of init containers, without tag; * stands for any part, as in vllm/*."""
    allowed_sidecar_images: Patterns = ()
    """Images of containers that run beside vLLM: further containers, and init containers with restartPolicy Always."""


NOTHING_ALLOWED = AllowedPods.model_construct()


def parse_allowed(document: Mapping[str, Any], allowed: AllowedPods) -> InferenceDeployment:
    """Return the typed object. Raise InvalidDocument where it cannot be read, or has a part that the administrator does not allow."""
    deployment = parse_document(document)
    if refused := tuple(disallowed(deployment.spec, allowed)):
        raise InvalidDocument(refused)
    return deployment


def disallowed(spec: InferenceDeploymentSpec, allowed: AllowedPods) -> Iterator[Finding]:
    """Yield one finding for each part that the administrator does not allow."""
    template, path = spec.template, "spec.template"
    for index, volume in enumerate(template.volumes or ()):
        if "hostPath" in volume and not allowed.allow_host_path:
            what = "is a folder of the node, which the administrator does not allow"
            remedy = "use a PersistentVolumeClaim, csi or an emptyDir"
            yield _finding(f"{path}.volumes[{index}].hostPath", what, "allowHostPath", remedy)
    account = template.service_account_name
    if account is not None and not _matches(account, allowed.allowed_service_accounts):
        what = f"is {account}, which is not among the ServiceAccounts that the administrator allows"
        yield _finding(f"{path}.serviceAccountName", what, "allowedServiceAccounts", "leave it out")
    for field, containers in (("initContainers", template.init_containers), ("containers", template.containers)):
        for index, container in enumerate(containers or ()):
            yield from _about_image(f"{path}.{field}[{index}].image", container, allowed, is_init=field[0] == "i")


def _about_image(path: str, container: Document, allowed: AllowedPods, *, is_init: bool) -> Iterator[Finding]:
    ends_first = is_init and container.get("restartPolicy") != "Always"
    key, images = (
        ("allowedInitImages", allowed.allowed_init_images)
        if ends_first
        else ("allowedSidecarImages", allowed.allowed_sidecar_images)
    )
    image = str(container.get("image", ""))
    known = (each if each.startswith("*") else image_repository(each) for each in images)
    if not image or not _matches(image_repository(image), tuple(known)):
        kind = "init containers" if ends_first else "containers beside vLLM"
        what = f"is {image[:120] or 'missing'}, which is not among the images that the administrator allows for {kind}"
        yield _finding(path, what, key, "put its work into the image of vLLM, or leave it out")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


def _finding(path: str, what: str, key: str, remedy: str) -> Finding:
    setting = f"pods.{key} in the values of kvgate's chart, and in .kvgate.yaml for `kvgate check`"
    return NOT_ALLOWED.finding(path, f"{path} {what}", f"{remedy}; or have it allowed: {setting}")

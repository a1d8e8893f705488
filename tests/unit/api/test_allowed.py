"""Parts of a pod that the administrator must allow."""

from typing import Any

import pytest

from kvgate.api.allowed import NOTHING_ALLOWED, AllowedPods, disallowed, parse_allowed
from kvgate.api.validation import InvalidDocument, parse_document
from support.builders import new_document
from support.tables import table

PARTS: dict[str, Any] = {
    "volumes": [{"name": "a", "emptyDir": {}}, {"name": "node", "hostPath": {"path": "/mnt"}}],
    "serviceAccountName": "weights",
    "initContainers": [
        {"name": "download", "image": "busybox:1"},
        {"name": "proxy", "image": "registry.example/team/proxy@sha256:" + "a" * 64, "restartPolicy": "Always"},
    ],
    "containers": [{"name": "logs", "image": "registry.example/team/logs:3"}, {"name": "none"}],
}
PATHS = {
    "volumes[1].hostPath": "pods.allowHostPath",
    "serviceAccountName": "pods.allowedServiceAccounts",
    "initContainers[0].image": "pods.allowedInitImages",
    "initContainers[1].image": "pods.allowedSidecarImages",
    "containers[0].image": "pods.allowedSidecarImages",
    "containers[1].image": "pods.allowedSidecarImages",
}


def refused(allowed: dict[str, Any]) -> list[str]:
    spec = parse_document(new_document(template=PARTS)).spec
    found = list(disallowed(spec, AllowedPods.from_document(allowed)))
    return [each.field.removeprefix("spec.template.") for each in found]


def test_each_part_is_refused_with_the_name_of_its_setting() -> None:
    with pytest.raises(InvalidDocument) as error:
        parse_allowed(new_document(template=PARTS), NOTHING_ALLOWED)
    found = {each.field.removeprefix("spec.template."): each.remediation for each in error.value.findings}
    assert found.keys() == PATHS.keys()
    assert [path for path, setting in PATHS.items() if setting not in found[path]] == []


@table(
    ("allowed", "left"),
    [
        ({}, list(PATHS)),
        ({"allowHostPath": True}, [path for path in PATHS if "hostPath" not in path]),
        ({"allowedServiceAccounts": ["weigh*"]}, [path for path in PATHS if path != "serviceAccountName"]),
        ({"allowedServiceAccounts": ["weight"]}, list(PATHS)),
        ({"allowedInitImages": ["busybox"]}, [path for path in PATHS if path != "initContainers[0].image"]),
        ({"allowedInitImages": ["docker.io/library/*"]}, [path for path in PATHS if path != "initContainers[0].image"]),
        ({"allowedInitImages": ["registry.example/*"]}, list(PATHS)),
        (
            {"allowedSidecarImages": ["registry.example/team/*"]},
            [path for path in PATHS if path not in ("initContainers[1].image", "containers[0].image")],
        ),
        (
            {"allowedSidecarImages": ["*"]},
            [path for path in PATHS if path not in ("initContainers[1].image", "containers[0].image")],
        ),
    ],
)  # fmt: skip
def test_what_is_allowed_passes_and_nothing_else(allowed: dict[str, Any], left: list[str]) -> None:
    assert refused(allowed) == [path for path in PATHS if path in left]


def test_a_spec_without_such_parts_needs_nobody() -> None:
    assert (
        parse_allowed(new_document(template={"volumes": [{"name": "a", "emptyDir": {}}]}), NOTHING_ALLOWED).name
        == "qwen"
    )

"""Fields of Kubernetes' own types: what is wrong in them is said with its place, and what kvgate owns is refused by name."""

from typing import Any

import pytest

from kvgate.api.kubernetes_types import MAX_ITEMS, MAX_TEXT, structural
from kvgate.api.validation import InvalidDocument, parse_document
from support.builders import new_document
from support.tables import table


def findings(**template: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidDocument) as error:
        parse_document(new_document(template=template))
    return [(each.field, f"{each.message} ({each.remediation})") for each in error.value.findings]


TERM = {"topologyKey": "zone"}
SCRATCH = {"name": "scratch", "emptyDir": {}}
LOGS = {"name": "logs", "image": "registry/logs:1"}


@table(
    ("template", "path", "words"),
    [
        ({"affinity": {"nodeAfinity": {}}}, "spec.template.affinity.nodeAfinity", "did you mean nodeAffinity?"),
        ({"affinity": []}, "spec.template.affinity", "must be an object"),
        (
            {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": "9", "podAffinityTerm": TERM}]}}},
            "spec.template.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
            "must be a whole number",
        ),
        ({"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "lots"}}]}, "spec.template.volumes[0].emptyDir.sizeLimit", "quantity"),
        ({"volumes": [{"name": "a", "nfs": {"server": "x"}}]}, "spec.template.volumes[0].nfs", "PersistentVolumeClaim"),
        ({"containers": [{**LOGS, "securityContext": {}}]}, "spec.template.containers[0].securityContext", "every container of the pod"),
        ({"containers": [{"image": "x"}]}, "spec.template.containers[0].name", "is required"),
        ({"tolerations": [{"effect": "Never"}]}, "spec.template.tolerations[0].effect", "'NoSchedule'"),
        ({"lifecycle": {"preStop": {"httpGet": {"port": 1.5}}}}, "spec.template.lifecycle.preStop.httpGet.port", "whole number, or text"),
        ({"envFrom": [{"prefix": "x" * (MAX_TEXT + 1)}]}, "spec.template.envFrom[0].prefix", "longer than"),
        (
            {"containers": [{**LOGS, "args": ["x"] * (MAX_ITEMS + 1)}]}, "spec.template.containers[0].args", "longer than",
        ),
        ({"containers": [{**LOGS, "env": [{"name": "A", "value": 5}]}]}, "spec.template.containers[0].env[0].value", "must be text"),
    ],
)  # fmt: skip
def test_what_does_not_pass_is_named_with_its_place(template: dict[str, Any], path: str, words: str) -> None:
    ((field, text),) = findings(**template)
    assert field == path
    assert words in text


@table(
    ("template", "path", "words"),
    [
        ({"volumes": [{"name": "shm", "emptyDir": {}}]}, "spec.template.volumes", "kvgate's: template.cacheClaimName"),
        ({"volumes": [{"name": "a", "emptyDir": {}, "secret": {}}]}, "spec.template.volumes", "exactly one source"),
        (
            {"containers": [{**LOGS, "name": "vllm"}]},
            "spec.template.containers",
            "follow from spec.model and spec.vllm",
        ),
        (
            {"initContainers": [{**LOGS, "name": "vllm"}]},
            "spec.template.initContainers",
            "its GPUs from the parallel sizes",
        ),
        (
            {"initContainers": [LOGS], "containers": [LOGS]},
            "spec.template.containers",
            "stands in containers and in initContainers: logs",
        ),
        (
            {"volumeMounts": [{"name": "scratch", "mountPath": "/s"}]},
            "spec.template.volumeMounts",
            "does not have: scratch",
        ),
        (
            {"volumes": [SCRATCH], "volumeMounts": [{"name": "scratch", "mountPath": "/dev/shm"}]},
            "spec.template.volumeMounts",
            ": /dev/shm",
        ),
    ],
)
def test_what_kvgate_owns_is_refused_by_name(template: dict[str, Any], path: str, words: str) -> None:
    ((field, text),) = findings(**template)
    assert field == path
    assert words in text


def test_a_value_that_may_be_a_secret_is_not_repeated() -> None:
    found = findings(containers=[{**LOGS, "env": [{"name": "KEY", "value": ["hunter2"]}]}], envFrom="hunter2")
    assert len(found) == 2
    assert "hunter2" not in str(found)


def test_every_error_of_a_value_is_told_at_once() -> None:
    fields = [field for field, _ in findings(affinity={"x": 1, "nodeAffinity": {"y": 2}}, tolerations=[{"key": 1}])]
    assert fields == [
        "spec.template.tolerations[0].key",
        "spec.template.affinity.x",
        "spec.template.affinity.nodeAffinity.y",
    ]


def test_nulls_are_dropped_as_the_api_server_does() -> None:
    template = {"affinity": {"podAffinity": None}, "volumes": [{"name": "a", "emptyDir": {"medium": None}}]}
    parsed = parse_document(new_document(template=template)).spec.template
    assert (parsed.affinity, parsed.volumes) == ({}, ({"name": "a", "emptyDir": {}},))


def test_the_types_are_read_when_a_document_has_one() -> None:
    """The command line starts without them."""
    import subprocess
    import sys

    code = (
        "from kvgate.api import kubernetes_types as k; from kvgate.api.validation import parse_document as p;"
        "p({'apiVersion': 'kvgate.io/v1alpha1', 'kind': 'InferenceDeployment', 'metadata': {'name': 'a'},"
        "'spec': {'model': {'name': 'gpt2'}, 'accelerator': {'type': 'L4-24GB'}%s}});print(k._types.cache_info().currsize)"
    )
    for more, loaded in (("", "0"), (", 'template': {'affinity': {}}", "1")):
        done = subprocess.run([sys.executable, "-c", code % more], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == loaded


def test_a_type_stands_in_the_crd_with_the_types_inside_it() -> None:
    schema = structural("Volume")
    assert schema["properties"]["emptyDir"]["properties"]["sizeLimit"]["x-kubernetes-int-or-string"]
    assert "nfs" not in schema["properties"]
    assert schema["required"] == ["name"]

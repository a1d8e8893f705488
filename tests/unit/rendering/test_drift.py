"""What counts as a difference between the cluster and what was rendered."""

from typing import Any

import pytest

from kvgate.rendering.live_deployment import additions, differences, has_key
from support.tables import table


@table(
    ("live", "wanted"),
    [
        ({"a": 1, "default": 2}, {"a": 1}),
        ({"resources": {"limits": {"cpu": "500m"}}}, {"resources": {"limits": {"cpu": "0.5"}}}),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1024Mi"}}),
        ({"resources": {"requests": {"cpu": "1m"}}}, {"resources": {"requests": {"cpu": "0.0001"}}}),
        ([{"name": "a", "protocol": "TCP"}, {"name": "sidecar"}], [{"name": "a"}]),
        ([{"key": "x", "effect": "NoSchedule"}], [{"key": "x"}]),
        ({"name": "X"}, {"name": "X", "value": ""}),
        (["--a"], ["--a"]),
    ],
)
def test_defaults_other_spellings_and_other_peoples_fields_are_no_difference(live: Any, wanted: Any) -> None:
    assert not list(differences(live, wanted))


@table(
    ("live", "wanted"),
    [
        ({"a": 2}, {"a": 1}),
        ({}, {"a": 1}),
        (None, {"a": 1}),
        ({"resources": {"cpu": "1"}}, {"resources": {"cpu": "500m"}}),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "1000m"}]}),
        ([{"name": "b"}], [{"name": "a"}]),
        (["--a", "--b"], ["--a"]),
        ([{"key": "x"}, {"key": "y"}], [{"key": "x"}]),
        ("ab", ["ab"]),
        ([{"key": "x"}], [{"name": "a"}]),
        (["a"], [{"name": "a"}]),
        ([{"name": "a"}], ["a"]),
    ],
)
def test_what_is_missing_or_other_is_a_difference(live: Any, wanted: Any) -> None:
    assert list(differences(live, wanted))


def test_what_differs_is_named_by_its_path() -> None:
    wanted = {
        "spec": {
            "replicas": 1,
            "template": {"containers": [{"name": "vllm", "image": "a", "env": [{"name": "A", "value": "1"}]}]},
        }
    }
    live = {"spec": {"replicas": 2, "template": {"containers": [{"name": "vllm", "image": "b", "env": []}]}}}
    assert list(differences(live, wanted)) == [
        "spec.replicas",
        "spec.template.containers[vllm].image",
        "spec.template.containers[vllm].env[A]",
    ]


WANTED: dict[str, Any] = {"kind": "Deployment", "spec": {"template": {"spec": {}}}}
OURS = {
    "f:containers": {
        'k:{"name":"vllm"}': {
            ".": {}, "f:name": {}, "f:args": {}, "f:image": {}, "f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
        }
    },
    "f:tolerations": {},
}  # fmt: skip


def live_deployment(theirs: dict[str, Any], pod: dict[str, Any], **entry: Any) -> dict[str, Any]:
    def managed(fields: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:template": {"f:spec": fields}}}, **more}

    entries = [managed(OURS, manager="kvgate", operation="Apply"), managed(theirs, **entry)]
    return {"metadata": {"managedFields": entries}, "spec": {"template": {"spec": pod}}}


POD = {
    "containers": [
        {"name": "shell"},
        {"name": "vllm", "env": [{"name": "X"}, {"name": "A"}, {"name": "B/~"}], "securityContext": {"privileged": True}},
        {"name": "more"},
    ],
    "hostNetwork": True, "nodeName": "n", "dnsPolicy": "Default",
}  # fmt: skip


@table(
    ("theirs", "pointers"),
    [
        ({"f:hostNetwork": {}}, ["/hostNetwork"]),
        ({"f:tolerations": {}}, []),
        ({"f:containers": {'k:{"name":"vllm"}': {".": {}, "f:args": {}}}}, []),
        ({"f:containers": {'k:{"name":"vllm"}': {"f:env": {'k:{"name":"A"}': {"f:value": {}}}}}}, []),
        ({"f:containers": {'k:{"name":"vllm"}': {"f:env": {".": {}, 'k:{"name":"A"}': {".": {}, "f:value": {}}}}}}, []),
        ({"f:containers": {'k:{"name":"vllm"}': {"f:env": {'k:{"name":"X"}': {".": {}}, 'k:{"name":"B/~"}': {".": {}}}}}},
         ["/containers/1/env/2", "/containers/1/env/0"]),
        ({"f:containers": {'k:{"name":"vllm"}': {"f:securityContext": {"f:privileged": {}}}}}, ["/containers/1/securityContext"]),
        ({"f:containers": {'k:{"name":"shell"}': {".": {}}, 'k:{"name":"more"}': {".": {}}}, "f:nodeName": {}},
         ["/containers/2", "/containers/0", "/nodeName"]),
        ({"f:containers": {'k:{"name":"gone"}': {".": {}}}, "f:volumes": {}}, []),
        ({"f:containers": {'k:{"name":"more"}': {"f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}}}}}},
         ["/containers/2"]),
        ({"f:containers": {'k:{"name":"vllm"}': {".": {}, "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}}}}}}, []),
        ({"f:initContainers": {'k:{"name":"a"}': {".": {}}}, "v:1": {}, "i:0": {}}, []),
    ],
)  # fmt: skip
def test_what_other_field_managers_set_in_the_pods_spec_is_added(theirs: dict[str, Any], pointers: list[str]) -> None:
    found = additions(live_deployment(theirs, POD, operation="Update"), WANTED)
    assert list(found) == [f"/spec/template/spec{pointer}" for pointer in pointers]


def test_what_webhooks_add_to_our_writes_and_what_the_status_holds_is_no_addition() -> None:
    theirs = {"f:hostNetwork": {}}
    assert additions(live_deployment(theirs, POD, operation="Update", manager="kvgate"), WANTED) == ()
    assert additions(live_deployment(theirs, POD, subresource="status"), WANTED) == ()
    assert additions({"spec": {"template": {"spec": POD}}}, WANTED) == (), "nobody says who set what"


def test_a_paused_deployment_and_more_keys_in_a_selector_are_additions() -> None:
    assert additions({"spec": {"paused": True}}, WANTED) == ("/spec/paused",)
    wanted = {"kind": "Service", "spec": {"selector": {"a": "b"}}}
    assert additions({"spec": {"selector": {"a": "b", "x/y~z": "c", "n": "o"}}}, wanted) == (
        "/spec/selector/n", "/spec/selector/x~1y~0z",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("port", "is_found"),
    [({"containerPort": 80}, True), ({"containerPort": 80, "protocol": "UDP"}, False), ({"containerPort": 81}, False), ("80", False)],
)  # fmt: skip
def test_the_protocol_of_a_port_has_a_default(port: Any, *, is_found: bool) -> None:
    assert has_key(port, {"containerPort": 80, "protocol": "TCP"}) is is_found

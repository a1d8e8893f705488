"""An answer of the API server → what it means for us."""

import json

import pytest

from kvgate.cluster.errors import (
    ApiError,
    Conflict,
    Denied,
    Forbidden,
    NotFound,
    OverQuota,
    Rejected,
    Unavailable,
    error_of,
)
from support.tables import table


@table(
    ("status", "kind"),
    [
        (None, Unavailable), (0, Unavailable), (401, Unavailable), (429, Unavailable), (500, Unavailable),
        (503, Unavailable), (409, Conflict), (403, Denied), (404, NotFound), (400, Rejected), (422, Rejected),
    ],
)  # fmt: skip
def test_every_status_has_one_meaning(status: int | None, kind: type[ApiError]) -> None:
    error = error_of("patch", "deployments.apps", status, b'{"message": "said so"}')
    assert type(error) is kind
    assert str(error) == "patch deployments.apps: said so"


@pytest.mark.parametrize(
    ("body", "message"), [(b"<html>", "<html>"), (None, "HTTP status 502"), (b"[]", "[]"), ("", "HTTP status 502")]
)
def test_an_answer_of_a_proxy_is_told_as_it_is(body: object, message: str) -> None:
    assert error_of("get", "services", 502, body).message == message


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ('deployments.apps "q" is forbidden: User "u" cannot patch resource "deployments" in API group "apps" in the namespace "a"',
         Forbidden),
        ('forbidden: User "u" cannot get path "/version"', Forbidden),
        ('deployments.apps "q" is forbidden: exceeded quota: few, requested: count/deployments.apps=1, used: 1, limited: 1', OverQuota),
        ('pods "q" is forbidden: failed quota: compute: must specify limits.cpu', OverQuota),
        ('admission webhook "policy.example.com" denied the request: no images from there', Denied),
        ("deployments.apps \"q\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", Denied),
        ('services "q" is forbidden: unable to create new content in namespace a because it is being terminated', Denied),
    ],
)  # fmt: skip
def test_a_403_is_of_the_role_of_a_quota_or_of_somebodys_admission_control(message: str, kind: type[ApiError]) -> None:
    """Messages as Kubernetes 1.36 writes them; tests/cluster/test_refusals.py asks the real one."""
    error = error_of("patch", "deployments.apps", 403, json.dumps({"message": message}))
    assert type(error) is kind
    assert isinstance(error, Forbidden)

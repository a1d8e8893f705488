"""An answer of the API server → what it means for us."""

import pytest

from kvgate.cluster.errors import ApiError, Conflict, Forbidden, NotFound, Rejected, Unavailable, error_of


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (None, Unavailable), (0, Unavailable), (401, Unavailable), (429, Unavailable), (500, Unavailable),
        (503, Unavailable), (409, Conflict), (403, Forbidden), (404, NotFound), (400, Rejected), (422, Rejected),
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

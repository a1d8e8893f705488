"""Errors of requests, into which the client's own exceptions are translated.

ClusterError
├── NoConfiguration     no kubeconfig, and not in a cluster
└── ApiError            an answer that is not a success, or none
    ├── Unavailable     no answer, too slow, overloaded, 401: the same request may succeed later
    ├── Conflict        409: the object is another one than we read, or changed meanwhile
    ├── Forbidden       403
    │   ├── OverQuota   a ResourceQuota has no room
    │   └── Denied      an admission policy, plugin or webhook of the cluster says no
    ├── NotFound        404
    └── Rejected        400, 422 and the rest: the same request will never succeed
"""

import json
import re
from contextlib import suppress


class ClusterError(Exception):
    """Base of all errors of this package."""


class NoConfiguration(ClusterError):
    """There is no cluster to talk to."""


class ApiError(ClusterError):
    """A request failed; `verb` and `resource` are RBAC's names, and `message` is the server's."""

    def __init__(self, verb: str, resource: str, message: str) -> None:
        super().__init__(f"{verb} {resource}: {message}")
        self.verb = verb
        self.resource = resource
        self.message = message


class Unavailable(ApiError):
    """There was no usable answer; the same request may succeed later."""


class Conflict(ApiError):
    """The object has changed: read it again and decide again."""


class Forbidden(ApiError):
    """kvgate's role lacks a rule; an administrator must add it."""


class OverQuota(Forbidden):
    """A ResourceQuota has no room."""


class Denied(Forbidden):
    """Admission control of the cluster refuses; either the object or the policy must change."""


class NotFound(ApiError):
    """The object, or its whole kind, does not exist."""


class Rejected(ApiError):
    """The API server rejects the object; the same request will never succeed."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unavailable,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    429: Unavailable,
}


def error_of(verb: str, resource: str, status: int | None, body: object) -> ApiError:
    """Return the exception for an answer; without a status there was no answer."""
    kind = Unavailable if not status or status >= 500 else _BY_STATUS.get(status, Rejected)
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    message = text[:500]
    with suppress(ValueError, KeyError, TypeError):  # not a metav1.Status: the text as it came
        message = str(json.loads(text)["message"])
    message = message or f"HTTP status {status}"
    return (_of_403(message) if kind is Forbidden else kind)(verb, resource, message)


_QUOTA = re.compile(r"\bexceeded quota: |\bfailed quota: ")
_NO_RULE = re.compile(r'\bUser "[^"]*" cannot [a-z]+ resource |^forbidden: User |^Forbidden$')


def _of_403(message: str) -> type[Forbidden]:
    """Return the kind of a 403, which the API server marks by the message alone.

    The messages of the authorizer and of the ResourceQuota plugin are fixed (k8s.io/apiserver, `responsewriters.ForbiddenMessage`;
    `resourcequota.CheckRequest`); all others come from admission control.
    """
    if _QUOTA.search(message):
        return OverQuota
    return Forbidden if _NO_RULE.search(message) else Denied

"""Errors of requests; the client's own exceptions end here.

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


class ClusterError(Exception):
    """Base of everything this package raises."""


class NoConfiguration(ClusterError):
    """There is no cluster to talk to."""


class ApiError(ClusterError):
    """`verb` and `resource` as RBAC names them; `message` in the server's words."""

    def __init__(self, verb: str, resource: str, message: str) -> None:
        super().__init__(f"{verb} {resource}: {message}")
        self.verb = verb
        self.resource = resource
        self.message = message


class Unavailable(ApiError):
    """No answer that counts."""


class Conflict(ApiError):
    """Read again, decide again."""


class Forbidden(ApiError):
    """Needs a change by an administrator: our role lacks a rule."""


class OverQuota(Forbidden):
    """Needs room in a ResourceQuota."""


class Denied(Forbidden):
    """Needs a change of what was sent, or of a policy that is not ours."""


class NotFound(ApiError):
    """The object, or its whole kind."""


class Rejected(ApiError):
    """Needs a change of what was sent."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unavailable,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    429: Unavailable,
}


def error_of(verb: str, resource: str, status: int | None, body: object) -> ApiError:
    """The exception for an answer; no status means that there was none."""
    kind = Unavailable if not status or status >= 500 else _BY_STATUS.get(status, Rejected)
    message = _message(body) or f"HTTP status {status}"
    return (_of_403(message) if kind is Forbidden else kind)(verb, resource, message)


_QUOTA = re.compile(r"\bexceeded quota: |\bfailed quota: ")
_NO_RULE = re.compile(r'\bUser "[^"]*" cannot [a-z]+ resource |^forbidden: User |^Forbidden$')


def _of_403(message: str) -> type[Forbidden]:
    """The API server marks no 403 by anything but its words, those of the authorizer and those of the plugin ResourceQuota are fixed
    (k8s.io/apiserver, `responsewriters.ForbiddenMessage`; `resourcequota.CheckRequest`): the rest is somebody's admission control."""
    if _QUOTA.search(message):
        return OverQuota
    return Forbidden if _NO_RULE.search(message) else Denied


def _message(body: object) -> str:
    """The message of a metav1.Status, or the text as it came."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]

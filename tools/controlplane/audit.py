"""The audit log of the API server: its policy, and the requests that it tells of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],  # one event per request
    "rules": [{"level": "Metadata"}],
}
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, kw_only=True)
class AuditEvent:
    """One answered request, as the API server's audit log has it."""

    user: str
    user_agent: str
    verb: str
    code: int
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    time: str
    """When it arrived, in UTC to the microsecond."""

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES

    @classmethod
    def parse(cls, line: bytes) -> AuditEvent:
        event = json.loads(line)
        target = event.get("objectRef", {})
        return cls(
            user=event["user"].get("username", ""),
            user_agent=event.get("userAgent", ""),
            verb=event["verb"],
            code=event.get("responseStatus", {}).get("code", 0),
            group=target.get("apiGroup", ""),
            **{key: target.get(key, "") for key in ("resource", "subresource", "namespace", "name")},
            time=event["requestReceivedTimestamp"],
        )


class AuditLog:
    """The API server's log, of which each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._events: list[AuditEvent] = []

    def events(self) -> Sequence[AuditEvent]:
        """Every request that the log has in whole."""
        with self._path.open("rb") as log:
            log.seek(self._read_bytes)
            added = log.read()
        whole = added[: added.rfind(b"\n") + 1]  # what follows is being written
        self._read_bytes += len(whole)
        self._events += map(AuditEvent.parse, whole.splitlines())
        return self._events

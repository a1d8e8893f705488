"""controlplane/audit.py of tools/: the API server's log is read once, line by line, while it grows."""

import json
from pathlib import Path

from controlplane.audit import AuditLog


def line(name: str, verb: str = "patch") -> str:
    event = {
        "user": {"username": "somebody"}, "verb": verb, "requestReceivedTimestamp": "2026-11-28T09:00:00.000000Z",
        "objectRef": {"resource": "configmaps", "namespace": "default", "name": name},
    }  # fmt: skip
    return json.dumps(event) + "\n"


def test_a_line_is_read_once_and_not_before_it_is_whole(tmp_path: Path) -> None:
    path, second = tmp_path / "audit.log", line("second", "get")
    path.write_text(line("first") + second[:20], encoding="utf-8")
    log = AuditLog(path)
    assert [event.name for event in log.events()] == ["first"]
    with path.open("a", encoding="utf-8") as more:
        more.write(second[20:] + line("third"))
    assert [(event.name, event.is_write) for event in log.events()] == [
        ("first", True),
        ("second", False),
        ("third", True),
    ]
    path.write_text("", encoding="utf-8")
    assert len(log.events()) == 3, "nothing is read twice"

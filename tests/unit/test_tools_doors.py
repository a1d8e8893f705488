"""fleet/doors.py of tools/ with stand-ins for `kvgate`: ready, slow, dead and hanging."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.programs import ControlPlaneError, free_port
from fleet import doors
from fleet.doors import DoorError, door, wait_ready
from support.processes import place

pytestmark = pytest.mark.slow

SERVES = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Ready).serve_forever()
"""
SLOWLY = "import time\nfor _ in range(60): print('reading tables', flush=True); time.sleep(0.1)\n"


@contextmanager
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> Iterator[subprocess.Popen[bytes]]:
    """The door of this code, waited for."""
    program = place(tmp_path / "kvgate")
    program.write_text(f"#!{sys.executable}\n{code}")
    monkeypatch.setattr(doors, "KVGATE", program)
    monkeypatch.setattr(doors, "IDLE_SECONDS", 4.0)
    port, log = free_port(), tmp_path / "log"
    with door("webhook", log, str(port)) as process:
        wait_ready("webhook", process, log, port)
        yield process


@pytest.mark.parametrize("code", [SERVES, SLOWLY + SERVES], ids=["at once", "slowly"])
def test_a_door_that_logs_has_the_time_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    with opened(tmp_path, monkeypatch, code) as process:
        assert process.poll() is None


def test_a_door_that_ends_before_it_is_ready_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(DoorError, match="kvgate webhook ended by itself with 1") as raised,
        opened(tmp_path, monkeypatch, "import sys; sys.exit('no certificate')"),
    ):
        pass
    assert "no certificate" in "\n".join(raised.value.__notes__)


def test_a_door_that_is_idle_and_not_ready_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntime.sleep(600)"
    with (
        pytest.raises(ControlPlaneError, match="the last 4 s idle: kvgate webhook is ready"),
        opened(tmp_path, monkeypatch, hangs),
    ):
        pass

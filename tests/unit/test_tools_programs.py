"""controlplane/programs.py and guard.py of tools/ with a stand-in for a real server: ports, readiness, and no survivors."""

import contextlib
import itertools
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane import programs
from controlplane.certificates import write_certificates
from controlplane.guard import guarded
from controlplane.programs import ControlPlaneError, Program, free_port, free_ports, wait_until, work_of
from support.processes import command_lines

pytestmark = pytest.mark.slow

IP_LOCAL_PORT_RANGE = 51
"""Of linux/in.h, since Linux 6.3; an older kernel refuses the option, and the port is chosen from the usual range."""
SERVER = """
import http.server, os, ssl, sys
try:
    server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)
except OSError:
    sys.exit("listen tcp 127.0.0.1: bind: address already in use")
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(os.environ["HOME"] + "/tls.crt", os.environ["HOME"] + "/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
HOLDER = """
import subprocess, sys, threading, time
from controlplane.guard import guarded
def start(): subprocess.Popen(guarded(["sleep", "600.125"], sys.argv[1]), start_new_session=True)
thread = threading.Thread(target=start)
thread.start(); thread.join()
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    """Makes a Program of a Python script, and ends it after the test."""
    made = []
    write_certificates(tmp_path)
    (tmp_path / "logs").mkdir()

    def program(script: str) -> Program:
        binary = tmp_path / "server"
        binary.write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
        binary.chmod(0o755)
        tls = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        made.append(Program(binary=binary, flags=lambda port: [str(port)], health_path="/", folder=tmp_path, tls=tls))
        return made[0]

    yield program
    for each in made:
        each.kill()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


def test_a_program_keeps_its_port_when_it_comes_back(make: Callable[[str], Program]) -> None:
    program = make(SERVER)
    program.start()
    program.wait_ready()
    port = program.port
    program.kill()
    program.start()
    program.wait_ready()
    assert program.port == port


def test_a_program_which_loses_the_race_for_its_port_takes_another(
    make: Callable[[str], Program], taken_port: int
) -> None:
    program = make(SERVER)
    program.port = taken_port
    program.start()
    program.wait_ready()
    assert program.port != taken_port


def test_ports_are_not_tried_for_ever(
    make: Callable[[str], Program], taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "free_port", lambda: taken_port)
    program = make(SERVER)
    program.start()
    with pytest.raises(ControlPlaneError, match="address already in use"):
        program.wait_ready()


def test_a_death_is_told_with_the_end_of_the_log(make: Callable[[str], Program]) -> None:
    program = make("import sys; sys.exit('no stages found')")
    program.start()
    with pytest.raises(
        ControlPlaneError, match=r"server ended with status 1; the end of .*server\.log:\nno stages found"
    ):
        program.wait_ready()


def test_a_program_that_is_idle_and_never_answers_is_given_up(
    make: Callable[[str], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make("import time; print('thinking', flush=True); time.sleep(60)")
    monkeypatch.setattr(programs, "IDLE_SECONDS", 0.5)
    program.start()
    with pytest.raises(ControlPlaneError, match=r"the last 0\.5 s idle: server is ready; .*\nthinking"):
        program.wait_ready()


def test_a_slow_program_that_logs_has_the_time_that_it_needs(
    make: Callable[[str], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = "import time\nfor _ in range(60): print('migrating', flush=True); time.sleep(0.1)\n"
    monkeypatch.setattr(programs, "IDLE_SECONDS", 4.0)
    program = make(slowly + SERVER)
    program.start()
    program.wait_ready()


def test_a_process_shows_that_it_works_by_its_log_and_by_cpu_of_its_own_or_of_its_children(tmp_path: Path) -> None:
    log, burn = tmp_path / "log", "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
    in_a_child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    for code, works in ((burn, True), (in_a_child, True), ("import time; time.sleep(600)", False)):
        process = subprocess.Popen(guarded([sys.executable, "-c", code], tmp_path))
        try:
            wait_until(lambda pid=process.pid, works=works: (work_of(pid, log)[1] > 0) is works, "it burns CPU")
        finally:
            process.terminate()
            process.wait()
    log.write_text("said")
    assert work_of(process.pid, log) == (4, 0, 0)


def test_waiting_says_for_what() -> None:
    with pytest.raises(ControlPlaneError, match=r"not within 0\.1 s: the moon is full"):
        wait_until(lambda: False, "the moon is full", within_seconds=0.1)


def test_progress_prolongs_a_wait_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    wait_until(
        lambda: time.monotonic() > began + 0.5, "it is done", within_seconds=0.2, progress=itertools.count().__next__
    )
    monkeypatch.setattr(programs, "GIVE_UP_SECONDS", 0.3)
    with pytest.raises(ControlPlaneError, match=r"the last 0\.2 s idle: it is done"):
        wait_until(lambda: False, "it is done", within_seconds=0.2, progress=itertools.count().__next__)


def test_a_free_port_is_given_to_nobody_else_and_servers_can_bind_it() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", port << 16 | port))
            other.bind(("127.0.0.1", 0))
        assert other.getsockname()[1] != port, "even where no other port is left"
    with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
        assert len({*free_ports(20), port}) == 21


def test_a_program_survives_the_thread_that_started_it_but_not_the_killed_process(tmp_path: Path) -> None:
    folder = tmp_path / "plane"
    folder.mkdir()
    tools = str(Path(programs.__file__).parents[1])
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], env=os.environ | {"PYTHONPATH": tools}, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"started\n"
        wait_until(lambda: len(command_lines("sleep 600.125")) == 2, "the guard and the program run", within_seconds=10)
        holder.send_signal(signal.SIGKILL)
    wait_until(lambda: not command_lines("sleep 600.125"), "nothing is left", within_seconds=10)
    wait_until(lambda: not folder.exists(), "the folder is gone too", within_seconds=10)


def test_a_killed_guard_takes_its_program_along(tmp_path: Path) -> None:
    guard = subprocess.Popen(guarded(["sleep", "600.25"], tmp_path))
    wait_until(lambda: len(command_lines("sleep 600.25")) == 2, "the guard and the program run", within_seconds=10)
    guard.kill()
    guard.wait()
    wait_until(lambda: not command_lines("sleep 600.25"), "nothing is left", within_seconds=10)


def test_a_guard_reports_the_status_of_its_program(tmp_path: Path) -> None:
    assert subprocess.run(guarded(["sh", "-c", "exit 7"], tmp_path)).returncode == 7

"""controlplane/programs.py and guard.py of tools/ with a stand-in for a real server: ports, readiness, and no survivors."""

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane import programs
from controlplane.certificates import write_certificates
from controlplane.guard import guarded
from controlplane.programs import ControlPlaneError, Program, wait_until
from support.processes import command_lines

pytestmark = pytest.mark.slow

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


def test_a_program_that_never_answers_is_given_up(
    make: Callable[[str], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make("import time; print('thinking', flush=True); time.sleep(60)")
    monkeypatch.setattr(programs, "READY_WITHIN_SECONDS", 0.5)
    program.start()
    with pytest.raises(ControlPlaneError, match=r"not within 0\.5 s: server is ready; .*\nthinking"):
        program.wait_ready()


def test_waiting_says_for_what() -> None:
    with pytest.raises(ControlPlaneError, match=r"not within 0\.1 s: the moon is full"):
        wait_until(lambda: False, "the moon is full", within_seconds=0.1)


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

"""controlplane/plane.py of tools/ with stand-ins for etcd and the API server: starts that fail, what is kept of them, and pod networks."""

import re
import socket
import sys
from pathlib import Path

import pytest

from controlplane import plane as plane_module
from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError
from support.processes import command_lines, place

pytestmark = pytest.mark.slow

SERVER = """\
import http.server, os, pathlib, re, ssl, sys
FOLDER = pathlib.Path(sys.argv[0]).parent
FLAGS = " ".join(sys.argv[1:])
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", int(re.search(r"(?:secure-port=|127.0.0.1:)(\\d+)", FLAGS)[1])), Ready)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(os.environ["HOME"] + "/tls.crt", os.environ["HOME"] + "/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
"""
DIES_ONCE = """\
if not (FOLDER / "died").exists():
    (FOLDER / "died").touch()
    sys.exit("the machine is busy")
"""
BREAKS_OFF = """\
class Tired(Ready):
    def do_GET(self):
        count = len(list(FOLDER.glob("asked-*")))
        if "namespaces" in self.path and count < 3:
            (FOLDER / f"asked-{count}").touch()
            self.connection.close()
            return
        super().do_GET()
server.RequestHandlerClass = Tired
"""
DIES_WHEN_ASKED = """\
class Mortal(Ready):
    def do_GET(self):
        if "namespaces" in self.path:
            print("out of memory", file=sys.stderr, flush=True)
            os._exit(9)
        super().do_GET()
server.RequestHandlerClass = Mortal
"""


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for control planes and their logs."""
    folder = tmp_path / "logs of the run"
    folder.mkdir()
    monkeypatch.setenv("KVGATE_LOGS", str(folder))
    return folder


def binaries(folder: Path, apiserver: str = "") -> Path:
    """Stand-ins for a plane without controllers; this code is run by the API server before it serves."""
    for name, code in (("etcd", ""), ("kube-apiserver", apiserver), ("kubectl", "")):
        place(folder / "assets" / name).write_text(f"#!{sys.executable}\n{SERVER}{code}server.serve_forever()\n")
    return folder / "assets"


def test_a_start_that_fails_is_tried_once_more_and_its_logs_are_kept(
    tmp_path: Path, logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ControlPlane(binaries(tmp_path, DIES_ONCE), full=False):
        assert len(list(logs.iterdir())) == 2
    (kept,) = logs.iterdir()
    assert [path.name for path in kept.iterdir()] == ["logs"]
    assert (kept / "logs" / "kube-apiserver.log").read_text() == "the machine is busy\n"
    told = capfd.readouterr().err
    assert "started once more" in told
    assert "the machine is busy" in told
    assert str(kept / "logs") in told


def test_a_start_that_fails_twice_names_the_logs_of_both(tmp_path: Path, logs: Path) -> None:
    with pytest.raises(ControlPlaneError, match="the machine is broken") as raised:
        ControlPlane(binaries(tmp_path, "sys.exit('the machine is broken')\n"), full=False).__enter__()
    named = re.findall(r"logs of the control plane: (.*)", "\n".join(raised.value.__notes__))
    assert sorted(named) == sorted(str(each / "logs") for each in logs.iterdir())
    assert len(named) == 2
    assert not command_lines(str(tmp_path))


def test_a_connection_that_breaks_off_while_it_starts_is_asked_again(tmp_path: Path, logs: Path) -> None:
    with ControlPlane(binaries(tmp_path, BREAKS_OFF), full=False):
        assert len(list(logs.iterdir())) == 1, "the first start went well"
    assert not list(logs.iterdir())


def test_a_death_while_it_starts_is_told_at_once(tmp_path: Path, logs: Path) -> None:
    with pytest.raises(ControlPlaneError, match=r"(?s)kube-apiserver ended with status 9; .*\nout of memory"):
        ControlPlane(binaries(tmp_path, DIES_WHEN_ASKED), full=False).__enter__()
    assert len(list(logs.iterdir())) == 2


def test_logs_are_kept_where_a_test_asks_for_them(tmp_path: Path, logs: Path) -> None:
    with ControlPlane(binaries(tmp_path), full=False) as plane:
        plane.keeps_logs = True
    assert [path.name for path in plane.logs.iterdir()]
    assert [path.name for path in plane.logs.parent.iterdir()] == ["logs"]


def test_planes_side_by_side_have_pod_networks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_module, "POD_NETWORKS", plane_module.POD_NETWORKS[:2])
    with plane_module._claimed_network() as one, plane_module._claimed_network() as other:
        assert {one.getsockname()[0], other.getsockname()[0]} == set(plane_module.POD_NETWORKS)
        with pytest.raises(ControlPlaneError, match="is taken on every pod network"):
            plane_module._claimed_network()
    with plane_module._claimed_network() as again:
        assert isinstance(again, socket.socket)

"""The webhook's port and a real API server: it shows its certificate, and asks again where there was no room."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError, free_port
from fleet.local_webhook import webhook_configuration
from support.doors import running
from support.inference import inference_deployment

pytestmark = pytest.mark.cluster


def folder_of(plane: ControlPlane) -> Path:
    return plane.kubeconfig.parent


def register(plane: ControlPlane, port: int) -> None:
    plane.apply(webhook_configuration(ca_pem=plane.ca_pem, port=port))


@pytest.mark.parametrize(("name", "is_let_in"), [("localhost", True), ("somebody-else", False)])
def test_an_api_server_shows_its_certificate_and_is_let_in_by_its_name(
    plane: ControlPlane, name: str, *, is_let_in: bool
) -> None:
    folder, port = folder_of(plane), free_port()
    files = (f"--tls-cert={folder / 'tls.crt'}", f"--tls-key={folder / 'tls.key'}", f"--client-ca={folder / 'ca.crt'}")
    address = ("--host=127.0.0.1", f"--port={port}", "--linger-seconds=0")
    with running("webhook", *files, *address, f"--client-name={name}") as door:
        register(plane, port)
        if is_let_in:
            plane.apply(inference_deployment("let-in"))
            assert door.count("kvgate_admission_reviews_total") == 1
        else:
            with pytest.raises(ControlPlaneError, match="failed calling webhook"):
                plane.apply(inference_deployment("kept-out"))
            assert door.count("kvgate_admission_reviews_total") == 0


class Busy(BaseHTTPRequestHandler):
    """No room for the first review; then it is allowed."""

    asked: list[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body["request"]["uid"])
        status = 429 if len(self.asked) == 1 else 200
        response = {"uid": body["request"]["uid"], "allowed": True}
        text = json.dumps({"apiVersion": body["apiVersion"], "kind": body["kind"], "response": response}).encode()
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


def test_an_api_server_asks_again_after_429_and_the_review_is_answered(plane: ControlPlane) -> None:
    Busy.asked = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder_of(plane) / "tls.crt", folder_of(plane) / "tls.key")
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            register(plane, server.server_address[1])
            plane.apply(inference_deployment("patient"))
        finally:
            server.shutdown()
            thread.join()
    assert len(Busy.asked) == 2
    assert len(set(Busy.asked)) == 1

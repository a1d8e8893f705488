"""The process: what it says when it cannot start, and that it ends without dropping a review."""

import http.client
import json
import logging
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from controlplane.programs import wait_until
from kvgate.runtime.service import JsonLines
from kvgate.webhook.command import webhook
from support.hostile import TEXTS

pytestmark = pytest.mark.slow

NewReview = Callable[..., dict[str, Any]]


class Process:
    """`kvgate webhook` on ports of its own choice; `log` is what it wrote so far."""

    def __init__(self, secret: Path, *more: str) -> None:
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--metrics-host",
            "127.0.0.1",
            "--metrics-port",
            "0",
            "--linger-seconds",
            "0",
        ]
        files = ["--tls-cert", str(secret / "tls.crt"), "--tls-key", str(secret / "tls.key")]
        command = [sys.executable, "-m", "kvgate", "webhook", *options, *files, *more]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = self._lines_until("listening")
        self.ports = json.loads(self.log[-1])
        self.trust = ssl.create_default_context(cafile=secret / "ca.crt")

    def _lines_until(self, event: str) -> list[str]:
        lines: list[str] = []
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            lines.append(line)
            if json.loads(line)["event"] == event:
                return lines
        pytest.fail(f"it ended before it was {event}: {lines}")

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self.ports["port"], timeout=10, context=self.trust)

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """(exit code, the rest of the log)."""
        _, rest = self.popen.communicate(timeout=20)
        return self.popen.returncode, [json.loads(line) for line in rest.splitlines()]


@pytest.fixture
def process(secret: Path) -> Iterator[Process]:
    running = Process(secret)
    yield running
    if running.popen.poll() is None:
        running.popen.kill()
        running.popen.communicate()


def test_sigterm_lets_a_review_finish_and_ends_with_0(process: Process, new_review: NewReview) -> None:
    body = json.dumps(new_review()).encode()
    idle, slow = process.connect(), process.connect()
    idle.request("POST", "/validate", body)
    assert json.loads(idle.getresponse().read())["response"]["allowed"] is True
    slow.putrequest("POST", "/validate")
    slow.putheader("Content-Length", str(len(body)))
    slow.putheader("Expect", "100-continue")
    slow.endheaders()
    assert slow.sock.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n", "its headers are read"
    slow.send(body[:100])
    process.popen.send_signal(signal.SIGTERM)
    readyz = f"http://127.0.0.1:{process.ports['metrics_port']}/readyz"
    wait_until(lambda: _status(readyz) == 503, "it is leaving", within_seconds=20)
    with pytest.raises(ConnectionRefusedError):
        process.connect().connect()
    slow.send(body[100:])
    answer = slow.getresponse()
    assert (answer.status, json.loads(answer.read())["response"]["allowed"]) == (200, True)
    code, log = process.end()
    for connection in (idle, slow):
        connection.close()
    assert code == 0
    assert [line["event"] for line in log][-1] == "stopped"
    assert {line["decision"] for line in log if line["event"] == "review"} == {"Admit"}


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tls-cert", "absent/tls.crt", "--tls-key", "absent/tls.key"], "Error: absent/tls.crt cannot be read"),
        (["--tls-cert", "absent/tls.crt"], "Missing option '--tls-key'"),
        (["--port", "70000"], "70000 is not in the range"),
    ],
)
def test_what_cannot_be_served_ends_with_2_and_says_why(options: list[str], words: str) -> None:
    ended = CliRunner().invoke(webhook, options)
    assert ended.exit_code == 2
    assert words in ended.output


def test_a_port_that_is_taken_ends_with_2_and_says_so(secret: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listening = ["--host", "127.0.0.1", "--port", str(taken.getsockname()[1])]
        probes = ["--metrics-host", "127.0.0.1", "--metrics-port", "0"]
        files = ["--tls-cert", str(secret / "tls.crt"), "--tls-key", str(secret / "tls.key")]
        ended = CliRunner().invoke(webhook, [*listening, *probes, *files])
    assert ended.exit_code == 2
    assert "Error: cannot listen: " in ended.output
    assert "address already in use; choose another --host, --port" in ended.output


def test_a_line_of_the_log_is_one_object_whatever_it_says() -> None:
    record = logging.LogRecord("kvgate", logging.ERROR, __file__, 1, "review", None, None)
    record.fields = {"name": "a\n\ud800"}
    record.exc_info = (ZeroDivisionError, ZeroDivisionError("a defect"), None)
    line = JsonLines().format(record)
    assert line.isascii()
    assert "\n" not in line
    parsed = json.loads(line)
    assert (parsed["event"], parsed["level"], parsed["name"]) == ("review", "error", "a\\n\\ud800")
    assert parsed["traceback"].endswith("ZeroDivisionError: a defect")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_line_of_the_log_passes_nothing_on_to_whoever_reads_its_fields(text: str) -> None:
    record = logging.LogRecord("kvgate", logging.ERROR, __file__, 1, "%s", (text,), None)
    record.fields = {"said": [text], text: {"set": {text}}, "share": float("nan")}
    record.exc_info = (ValueError, ValueError(text), None)
    line = JsonLines().format(record)
    assert line.isascii()
    parsed = json.loads(line, parse_constant=pytest.fail)
    shown = [parsed["event"], *parsed["said"], *parsed, *parsed["traceback"].split("\n")]
    assert all(each.isprintable() for each in shown)
    assert parsed["share"] == "NaN"


def test_the_door_does_not_import_kubernetes() -> None:
    program = (
        "import sys, kvgate.webhook.command; "
        "print(sorted({'kubernetes', 'aiohttp'} & {name.partition('.')[0] for name in sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "['aiohttp']"


def test_it_pushes_its_metrics_where_it_is_told_to_and_ends_as_fast_as_before(secret: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otlp` is not installed")
    from support.otlp import attributes, receiving

    with receiving() as receiver:  # it takes the request and hangs
        process = Process(secret, f"--otlp-endpoint={receiver.address}")
        try:
            receiver.wait()
            process.popen.send_signal(signal.SIGTERM)
            assert process.popen.wait(timeout=20) == 0
        finally:
            process.popen.kill()
            process.popen.communicate()
    resource = dict(attributes(receiver.requests[0].resource_metrics[0].resource))
    assert resource["service.name"] == "kvgate-webhook"
    assert "kvgate_webhook_certificate_expiry_timestamp_seconds" in receiver.metrics

"""What a test does about Prometheus: use the line it asks for, or skip so that nobody overlooks it.

With KVGATE_REQUIRE_PROMETHEUS=1 (CI) a missing line is a failure and never a skip.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from controlplane.prometheus import find_prometheus
from support.assets import say_loudly


def require_prometheus(config: pytest.Config, line: str) -> Path:
    """The folder with prometheus and promtool of this line."""
    folder = find_prometheus(line)
    if folder:
        return folder
    missing = f"Prometheus {line} is missing: `make tools` provides it, once"
    if os.environ.get("KVGATE_REQUIRE_PROMETHEUS") == "1":
        pytest.fail(f"KVGATE_REQUIRE_PROMETHEUS=1, but {missing}", pytrace=False)
    say_loudly(config, f"NOT TESTED: {missing}")
    pytest.skip(missing)


@contextmanager
def exporting(*expositions: str, content_type: str = "text/plain; version=0.0.4") -> Iterator[int]:
    """The port of a page of metrics which shows these texts one after the other, the last one for ever."""
    left = list(expositions)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write((left.pop(0) if len(left) > 1 else left[0]).encode())

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def scrape_configuration(*ports: int, rule_files: tuple[str, ...] = ()) -> str:
    """One job `test` that scrapes these ports of the loopback four times a second."""
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    return f"""\
global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}
rule_files: [{", ".join(rule_files)}]
scrape_configs:
  - job_name: test
    static_configs:
      - targets: [{targets}]
"""

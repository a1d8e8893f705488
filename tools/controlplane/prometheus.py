"""A Prometheus on the loopback, of either line, asked through its HTTP API; and promtool.

    with serving(ensure_prometheus("3"), "scrape_configs: …", files={"rules.yaml": "groups: …"}) as prometheus:
        prometheus.until('up{job="vllm"} == 1')

Nothing outlives the block or this Python process (see guard.py); its storage goes with it.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from controlplane.build import ensure_assets, find_assets
from controlplane.certificates import write_certificates
from controlplane.debian_prometheus import ensure_debian, find_debian
from controlplane.programs import PATIENCE_SECONDS, ControlPlaneError, Program, http_answer, wait_until

LINES = ("3", "2")
"""Major releases: 3 is built from its Go module, 2 is Debian's package (which has no `kubernetes_sd_configs`)."""
BINARIES = ("prometheus", "promtool")
ANSWER_WITHIN_SECONDS = 30.0


class PrometheusError(Exception):
    """Prometheus or promtool refused something; the message is its own."""


def find_prometheus(line: str) -> Path | None:
    """The folder with prometheus and promtool of this line, or None. Builds and fetches nothing."""
    return find_assets(BINARIES) if line == "3" else find_debian()


def ensure_prometheus(line: str) -> Path:
    """Return the folder after building or fetching what is missing. Raises BuildError where that is impossible."""
    return ensure_assets(BINARIES) if line == "3" else ensure_debian()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One element of an instant vector."""

    labels: Mapping[str, str]
    value: float

    @classmethod
    def parse(cls, element: Mapping[str, Any]) -> Self:
        return cls(labels=element["metric"], value=float(element["value"][1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One element of a range vector."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    """Unix seconds and value."""

    @classmethod
    def parse(cls, element: Mapping[str, Any]) -> Self:
        points = tuple((float(seconds), float(value)) for seconds, value in element["values"])
        return cls(labels=element["metric"], points=points)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prometheus:
    """A running server, and its HTTP API."""

    program: Program

    @property
    def url(self) -> str:
        """Address of the server; only `program.tls` trusts its certificate."""
        return f"https://127.0.0.1:{self.program.port}"

    def query(self, expression: str, *, at_seconds: float | None = None) -> list[Sample]:
        """Now, or at this Unix time; a scalar is one sample without labels."""
        at = {} if at_seconds is None else {"time": at_seconds}
        data = self.get("query", query=expression, **at)
        if data["resultType"] == "scalar":
            return [Sample(labels={}, value=float(data["result"][1]))]
        return [Sample.parse(element) for element in data["result"]]

    def query_range(
        self, expression: str, *, start_seconds: float, end_seconds: float, step_seconds: float
    ) -> list[Series]:
        """Return the series over a range of time, as a panel of Grafana requests them."""
        data = self.get("query_range", query=expression, start=start_seconds, end=end_seconds, step=step_seconds)
        return [Series.parse(element) for element in data["result"]]

    def until(self, expression: str, *, within_seconds: float = PATIENCE_SECONDS) -> list[Sample]:
        """The first answer that is not empty."""
        found: list[Sample] = []
        wait_until(
            lambda: found.extend(self.query(expression)) or found,
            f"{expression} finds something; targets: {self.targets()}",
            within_seconds=within_seconds,
        )
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules of every group, each with its health and lastError; an alert also has its state."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing, each with labels, annotations and state."""
        return list(self.get("alerts")["alerts"])

    def targets(self) -> list[dict[str, Any]]:
        """The active ones, each with labels, scrapeUrl, health and lastError."""
        return list(self.get("targets", state="active")["activeTargets"])

    def get(self, path: str, **parameters: str | float) -> Any:
        """`data` of what /api/v1/PATH answers; a refusal is raised with what was asked."""
        asked = f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        tls = self.program.tls
        status, body = http_answer(self.program.port, asked, tls=tls, timeout_seconds=ANSWER_WITHIN_SECONDS)
        if status != 200:
            raise PrometheusError(f"{path} {parameters}: {status} {body.decode(errors='replace')}")
        return json.loads(body)["data"]


@contextmanager
def serving(
    assets: Path, configuration: str, *, files: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> Iterator[Prometheus]:
    """A server until the block ends. `files` (name: text) lie beside its configuration: `rule_files: [rules.yaml]`."""
    with tempfile.TemporaryDirectory(prefix="kvgate-prometheus-") as name:
        folder = Path(name)
        _write(folder, {**(files or {}), "prometheus.yml": configuration})
        program = Program(
            binary=assets / "prometheus",
            flags=lambda port: [*_command_line(folder, port), *flags],
            health_path="/-/ready",
            folder=folder,
            tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
        )
        try:
            program.start()
            program.wait_ready()
            yield Prometheus(program=program)
            _expect_running(program)
        except BaseException as error:
            error.add_note(program.last_words())
            raise
        finally:
            program.kill()


def _expect_running(program: Program) -> None:
    if program.died:
        raise ControlPlaneError(program.death())


def _write(folder: Path, files: Mapping[str, str]) -> None:
    (folder / "logs").mkdir()
    write_certificates(folder)
    tls = {"tls_server_config": {"cert_file": "tls.crt", "key_file": "tls.key"}}
    for name, text in {**files, "web.json": json.dumps(tls)}.items():
        (folder / name).write_text(text, encoding="utf-8")


def _command_line(folder: Path, port: int) -> list[str]:
    return [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--web.config.file={folder / 'web.json'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--log.level=warn",
    ]


def promtool(assets: Path, *arguments: str | Path, text: str = "", limit_seconds: float = 60) -> str:
    """Run promtool with this text on standard input and return its output. Raises PrometheusError for a failure."""
    command = [str(assets / "promtool"), *map(str, arguments)]
    run = subprocess.run(
        command,
        input=text,
        text=True,
        capture_output=True,
        check=False,
        timeout=limit_seconds,
        env={**os.environ, "GOGC": "400"},
    )  # fmt: skip - it lives for seconds: half a GiB of garbage costs less than collecting it
    said = run.stdout + run.stderr
    if run.returncode:
        raise PrometheusError(f"promtool {' '.join(command[1:])} ended with {run.returncode}:\n{said}")
    return said


def check_rules(assets: Path, *paths: Path) -> str:
    """Syntax, and as errors what promtool's linter says (rules that are there twice)."""
    return promtool(assets, "check", "rules", "--lint-fatal", *paths)


def check_configuration(assets: Path, path: Path) -> str:
    """Check a configuration and the rule files that it names."""
    return promtool(assets, "check", "config", "--lint-fatal", path)


def check_metrics(assets: Path, exposition: str) -> str:
    """A page of metrics: names, units, help texts."""
    return promtool(assets, "check", "metrics", text=exposition)


def run_rule_tests(assets: Path, *paths: Path, limit_seconds: float = 60) -> str:
    """Unit tests of rules, in promtool's own format; they name their rule files beside themselves."""
    return promtool(assets, "test", "rules", *paths, limit_seconds=limit_seconds)

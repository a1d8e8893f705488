"""`kvgate webhook` and `kvgate controller` as the processes that they are in a pod, with what they count."""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from controlplane.programs import free_port, wait_until
from fleet.doors import answers, door, scrape


@dataclass(frozen=True, kw_only=True)
class Door:
    """One running process."""

    metrics_port: int

    def count(self, metric: str) -> float:
        """The sum over all labels; 0 before the first."""
        samples = re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", scrape(self.metrics_port), re.MULTILINE)
        return sum(map(float, samples))

    def count_of(self, series: str) -> float:
        """One series, by its name and labels as they are served; 0 while it is not there."""
        lines = scrape(self.metrics_port).splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{series} ")), 0.0)

    def has(self, text: str) -> bool:
        """Whether any sample has this text, such as a label and its value."""
        return text in scrape(self.metrics_port)


@contextmanager
def running(
    name: str, *options: str, kubeconfig: Path | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[Door]:
    """The door from its readiness to the end of the `with`."""
    port = free_port()
    environment = {**os.environ, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}), **(variables or {})}
    with (
        tempfile.TemporaryDirectory(prefix="kvgate-door-") as folder,
        door(
            name,
            Path(folder) / "log",
            *options,
            f"--metrics-port={port}",
            "--metrics-host=127.0.0.1",
            environment=environment,
        ) as process,
    ):
        wait_until(
            lambda: process.poll() is not None or answers(port, "/readyz"), f"kvgate {name} is ready", within_seconds=30
        )
        assert process.poll() is None, f"kvgate {name} ended before it was ready"
        yield Door(metrics_port=port)

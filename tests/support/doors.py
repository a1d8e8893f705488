"""`kvgate webhook` and `kvgate controller` as the processes that they are in a pod, with what they count."""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from controlplane.programs import free_port
from fleet.doors import door, scrape, started, wait_ready
from support.forked import Forked


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
    """The door from its readiness to the end of the `with`; with variables of its own as users start it, because its workers need them."""
    port = free_port()
    kept = kubeconfig.parent / "logs" if kubeconfig else None
    environment = {**os.environ, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}), **(variables or {})}
    with (
        nullcontext(kept) if kept else tempfile.TemporaryDirectory(prefix="kvgate-door-") as folder,
        door(
            name,
            log := Path(folder) / f"{name}-{port}.log",
            *options,
            f"--metrics-port={port}",
            "--metrics-host=127.0.0.1",
            environment=environment,
            start=started if variables else Forked,
        ) as process,
    ):
        wait_ready(name, process, log, port)
        yield Door(metrics_port=port)

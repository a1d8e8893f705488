"""The cost of scraping vLLM pods in a real Prometheus 3, with all their series and with those that kvgate's rules and dashboards read.

    python benchmarks/scrape_cost.py [--pods 2000] [--interval 30] [--scrapes 4]

Every pod answers with the series of a recorded vLLM 0.32.0 and figures of its own that grow. Pods are targets with labels of their own
at one address, scraped and relabelled as the shipped configuration does it, with the shipped rules. Figures are Prometheus' own metrics
after so many scrapes of every pod; its memory goes on growing for two hours, until the first block is written. Needs 8 GB of memory.
"""

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from prometheus_client.parser import text_string_to_metric_families

from controlplane.programs import http_answer, wait_until
from controlplane.prometheus import Prometheus, ensure_prometheus, serving
from fleet.discovered_pods import PODS_FILE, engine_pod, in_a_file
from fleet.exposition import exposition
from kvgate.metrics.listener import listen
from mixin.alerts import rule_groups
from mixin.scraping import ENGINES, scrape_configuration

PODS_OF_A_DEPLOYMENT = 4
MIB = 1 << 20


@contextmanager
def engines() -> Iterator[int]:
    """The port of a server that is every pod: the query says which one."""
    loop, stop, ready, began = asyncio.new_event_loop(), asyncio.Event(), threading.Event(), time.monotonic()
    ports: list[int] = []

    async def metrics(request: web.Request) -> web.Response:
        body = exposition(seconds=time.monotonic() - began, seed=int(request.query["pod"]))
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runner = await listen(app, "127.0.0.1", 0)
        ports.append(runner.addresses[0][1])
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def targets(count: int, port: int) -> list[dict[str, Any]]:
    """Pods as the discovery of Kubernetes would give them, which need another address each: here the query tells them apart."""
    found = []
    for number in range(count):
        deployment, replica = divmod(number, PODS_OF_A_DEPLOYMENT)
        target: Any = engine_pod(
            f"chat-{deployment}", f"team-{deployment % 40}", f"127.0.0.1:{port}", replica=replica
        ).target()
        found.append(
            {**target, "labels": {**target["labels"], "__param_pod": str(number), "instance": f"10.0.0.{number}:8000"}}
        )
    return found


def figures_of(server: Prometheus) -> Mapping[str, float]:
    """Prometheus' own metrics, without those that have labels."""
    status, body = http_answer(server.program.port, "/metrics", tls=server.program.tls, timeout_seconds=30)
    if status != 200:
        raise SystemExit(f"Prometheus answers {status}")
    families = text_string_to_metric_families(body.decode())
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def one(server: Prometheus, query: str) -> float:
    return next((sample.value for sample in server.query(query)), float("nan"))


def measure(options: argparse.Namespace, *, keeps_used: bool) -> list[float]:
    configuration = scrape_configuration(
        in_a_file, interval=f"{options.interval}s", rule_files=("rules.yaml",), keeps_used=keeps_used
    )
    (job,) = (job for job in configuration["scrape_configs"] if job["job_name"] == ENGINES.name)
    configuration["scrape_configs"] = [job]
    with engines() as port:
        files = {PODS_FILE: json.dumps(targets(options.pods, port)), "rules.yaml": yaml.safe_dump(rule_groups())}
        with serving(ensure_prometheus("3"), yaml.safe_dump(configuration), files=files) as server:
            wait_until(
                lambda: one(server, "count(up == 1)") == options.pods, "every pod answers",
                within_seconds=options.interval * 3,
            )  # fmt: skip
            began, cpu = time.monotonic(), figures_of(server)["process_cpu_seconds_total"]
            time.sleep(options.interval * (options.scrapes - 1))
            seconds, now = time.monotonic() - began, figures_of(server)
            if (answered := one(server, "count(up == 1)")) != options.pods:
                print(f"only {answered:.0f} of {options.pods} pods answered")
            return [
                one(server, "avg(scrape_samples_scraped)"),
                one(server, "avg(scrape_samples_post_metric_relabeling)"),
                now["prometheus_tsdb_head_series"],
                one(server, "sum(scrape_samples_post_metric_relabeling)") / options.interval,
                now["process_resident_memory_bytes"] / MIB,
                now["go_memstats_heap_inuse_bytes"] / MIB,
                now["prometheus_tsdb_wal_storage_size_bytes"] / MIB,
                (now["process_cpu_seconds_total"] - cpu) / seconds * 1000,
                one(server, "avg(scrape_duration_seconds)") * 1e3,
                one(server, "quantile(0.99, scrape_duration_seconds)") * 1e3,
            ]


ROWS = (
    "series in an answer", "series stored of it", "series in Prometheus' head", "samples per second",
    "resident memory, MiB", "heap in use, MiB", "write-ahead log, MiB", "CPU, thousandths of a core",
    "one scrape, mean ms", "one scrape, p99 ms",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--interval", type=int, default=30, help="seconds between two scrapes of a pod")
    parser.add_argument("--scrapes", type=int, default=4, help="scrapes of every pod before the figures are read")
    options = parser.parse_args()
    print(f"{options.pods} pods, one scrape in {options.interval} s, after {options.scrapes} scrapes of each")
    columns = [measure(options, keeps_used=keeps_used) for keeps_used in (False, True)]
    print(f"{'':<30} {'all':>10} {'used':>10} {'share':>7}")
    for name, whole, used in zip(ROWS, *columns, strict=True):
        print(f"{name:<30} {whole:>10,.0f} {used:>10,.0f} {used / whole:>6.0%}")


if __name__ == "__main__":
    main()

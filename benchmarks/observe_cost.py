"""What asking running vLLM costs the controller: CPU and memory beside a controller that does not ask.

    python benchmarks/observe_cost.py --pods 500 --observe-seconds 15

Real control plane, real pod addresses on the loopback; behind each answers a server with 160 KB, as vLLM 0.32 does.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from controlplane.build import ensure_assets  # noqa: E402
from controlplane.plane import PROGRAMS, ControlPlane  # noqa: E402
from controlplane.programs import free_port, wait_until  # noqa: E402
from fleet.doors import door, scrape  # noqa: E402
from fleet.fake_gpus import fake_gpu_node  # noqa: E402
from scale.processes import cpu_seconds, resident_mib  # noqa: E402
from support.inference import H100, Objects, inference_deployment, install  # noqa: E402

PODS_OF_A_NODE = 100
REPLICAS = 10
PORT = 8000
ANSWER_BYTES = 160_000
MAX_CORES = 0.1
MAX_ADDED_MIB = 60
NEVER_SECONDS = 1e6
_LABELS = {
    "engine": "0", "num_gpu_blocks": "25587", "block_size": "16", "kv_cache_size_tokens": "409392",
    **{f"setting_{number}": "None" for number in range(34)},
}  # fmt: skip


def exposition() -> bytes:
    """The lines that matter after as many that do not, all of vLLM."""
    info = ",".join(f'{name}="{value}"' for name, value in _LABELS.items())
    wanted = f'vllm:cache_config_info{{{info}}} 1.0\nvllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.5\n'
    bucket = 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="%d",model_name="m"} 12.0\n'
    lines = (ANSWER_BYTES - len(wanted)) // len(bucket % 1000)
    return ("".join(bucket % (1000 + number) for number in range(lines)) + wanted).encode()


@contextmanager
def answering(addresses: Sequence[str]) -> Iterator[None]:
    """In a thread of this process, which is not the one that is measured."""
    body = exposition()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        await writer.drain()
        writer.close()

    async def listen() -> None:
        await asyncio.start_server(answer, addresses, PORT)
        ready.set()

    def serve() -> None:
        loop.create_task(listen())
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    if not ready.wait(30):
        sys.exit("the servers do not listen")
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def create(plane: ControlPlane, pods: int) -> list[str]:
    """Ready pods; their addresses."""
    for number in range(pods // PODS_OF_A_NODE + 1):
        plane.apply(fake_gpu_node(f"node-{number}", product=H100, memory_mib=81559, gpus=PODS_OF_A_NODE))
    plane.apply(*(inference_deployment(f"bench-{number}", replicas=REPLICAS) for number in range(pods // REPLICAS)))
    found: list[str] = []

    def are_ready() -> bool:
        items = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
        found[:] = [item["status"]["podIP"] for item in items if "podIP" in item["status"]]
        time.sleep(1)  # the API server shares the cores
        return len(found) >= pods

    wait_until(are_ready, f"{pods} pods are ready", within_seconds=300)
    return found


def measured(plane: ControlPlane, observe_seconds: float, seconds: float) -> tuple[float, float, int]:
    """Cores, MiB and scrapes of a window in which nobody changes anything."""
    port = free_port()
    options = ("--metrics-host=127.0.0.1", f"--metrics-port={port}", f"--kubeconfig={plane.kubeconfig}")
    with (
        tempfile.TemporaryDirectory(prefix="kvgate-bench-") as folder,
        door("controller", Path(folder) / "log", *options, f"--observe-seconds={observe_seconds}") as process,
    ):
        time.sleep(min(observe_seconds, 15) * 2)
        Objects(plane=plane).settle(5.0)
        cpu, before = cpu_seconds(process.pid), scrapes(port)
        time.sleep(seconds)
        return (cpu_seconds(process.pid) - cpu) / seconds, resident_mib(process.pid), scrapes(port) - before


def scrapes(port: int) -> int:
    """Successful ones."""
    name = 'kvgate_pod_scrapes_total{result="read"} '
    return next((int(float(line.removeprefix(name))) for line in scrape(port).splitlines() if line.startswith(name)), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of observing")
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--observe-seconds", type=float, default=15)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    with ControlPlane(ensure_assets(PROGRAMS)) as plane:
        install(plane)
        options = ("--metrics-host=127.0.0.1", "--metrics-port=0", f"--kubeconfig={plane.kubeconfig}")
        with (
            tempfile.TemporaryDirectory(prefix="kvgate-bench-") as folder,
            door("controller", Path(folder) / "log", *options),
        ):
            addresses = create(plane, arguments.pods)
        with answering(addresses):
            idle_cores, idle_mib, none = measured(plane, NEVER_SECONDS, arguments.seconds)
            cores, mib, count = measured(plane, arguments.observe_seconds, arguments.seconds)
    if none or count < arguments.pods:
        sys.exit(f"{none} and {count} scrapes: the measurement is none")
    print(f"{len(addresses)} pods every {arguments.observe_seconds:g} s, {count} scrapes in {arguments.seconds:g} s")
    print(f"CPU for observing     {cores - idle_cores:8.3f} cores  target {MAX_CORES}   (in all {cores:.3f})")
    print(f"memory for observing  {mib - idle_mib:8.0f} MiB    target {MAX_ADDED_MIB}    (in all {mib:.0f})")
    print(f"CPU of one scrape     {(cores - idle_cores) * arguments.seconds / count * 1000:8.2f} ms")


if __name__ == "__main__":
    main()

"""Open-loop load on `kvgate webhook` over TLS on the loopback: reviews start on time, whether or not the last was answered.

    python benchmarks/webhook_load.py --rps 50 --seconds 20

Ends with 1 if a review failed. Latency counts from the moment a review was due, so that a stalled server cannot hide.
"""

import argparse
import asyncio
import json
import random
import ssl
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from controlplane.certificates import write_certificates

OBJECT_BYTES = 20_000
MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B", "nobody/Unknown-7B")
ACCELERATORS = ("H100-SXM-80GB", "L4-24GB", "A100-SXM-80GB")
POLICIES = ("Reject", "Adjust", "Warn")


@dataclass
class Result:
    """What came back."""

    latencies_seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def review_body(number: int, chance: random.Random, *, only_fitting: bool) -> bytes:
    """A review whose object is about 20 KB, as annotations of other tools make it."""
    spec: dict[str, Any] = {
        "model": {"name": "Qwen/Qwen3-8B" if only_fitting else chance.choice(MODELS)},
        "accelerator": {"type": "H100-SXM-80GB" if only_fitting else chance.choice(ACCELERATORS)},
        "vllm": {"maxNumSeqs": 4 if only_fitting else chance.choice((1, 4, 16, 64))},
        "admission": {"policy": "Reject" if only_fitting else chance.choice(POLICIES)},
    }
    document = {
        "apiVersion": "kvgate.io/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": "chat", "namespace": "serving", "annotations": {"applied": "x" * OBJECT_BYTES}},
        "spec": spec,
    }
    request = {
        "uid": f"review-{number}",
        "kind": {"group": "kvgate.io", "version": "v1alpha1", "kind": "InferenceDeployment"},
        "resource": {"group": "kvgate.io", "version": "v1alpha1", "resource": "inferencedeployments"},
        "operation": "CREATE",
        "object": document,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


async def ask(client: aiohttp.ClientSession, body: bytes, number: int, due: float, result: Result) -> None:
    """One review; anything but an answer to it is an error."""
    try:
        async with client.post("/validate", data=body) as response:
            answer = await response.json()
        if response.status != 200 or answer["response"]["uid"] != f"review-{number}":
            result.errors.append(f"{response.status}: {answer}")
    except (aiohttp.ClientError, TimeoutError) as error:
        result.errors.append(repr(error))
    result.latencies_seconds.append(time.perf_counter() - due)


async def load(client: aiohttp.ClientSession, bodies: Sequence[bytes], rps: float) -> Result:
    """All bodies, one every 1 / rps seconds."""
    result, start = Result(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number, body in enumerate(bodies):
            due = start + number / rps
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(ask(client, body, number, due, result))
    return result


async def start_webhook(secret: Path) -> tuple[asyncio.subprocess.Process, int]:
    """The process and its port; its log goes nowhere once it listens."""
    options = ["--host", "127.0.0.1", "--port", "0", "--metrics-host", "127.0.0.1", "--metrics-port", "0"]
    files = ["--tls-cert", str(secret / "tls.crt"), "--tls-key", str(secret / "tls.key"), "--linger-seconds", "0"]
    command = [sys.executable, "-m", "kvgate", "webhook", *options, *files]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    async for line in process.stderr:
        if (event := json.loads(line))["event"] == "listening":
            return process, int(event["port"])
    raise SystemExit("kvgate webhook did not start")


async def measure(arguments: argparse.Namespace) -> Result:
    """Start a webhook, load it, stop it."""
    chance = random.Random(1)
    number = round(arguments.rps * arguments.seconds)
    bodies = [review_body(n, chance, only_fitting=arguments.only_fitting) for n in range(number)]
    with tempfile.TemporaryDirectory() as folder:
        write_certificates(Path(folder))
        process, port = await start_webhook(Path(folder))
        assert process.stderr is not None
        log = asyncio.create_task(process.stderr.read())
        trust = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        client = aiohttp.ClientSession(f"https://localhost:{port}", connector=aiohttp.TCPConnector(ssl=trust))
        try:
            async with client:
                return await load(client, bodies, arguments.rps)
        finally:
            process.terminate()
            await process.wait()
            await log


def print_table(result: Result, arguments: argparse.Namespace) -> None:
    """Latencies in milliseconds."""
    ordered = sorted(result.latencies_seconds)
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    figures = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3 for name, share in shares.items()}
    mix = "only fitting" if arguments.only_fitting else "mixed verdicts"
    print(f"{len(ordered)} reviews, {arguments.rps:g}/s, {mix}, objects of {OBJECT_BYTES // 1000} KB, TLS")
    print(" ".join(f"{name:>8}" for name in (*figures, "errors")))
    print(" ".join(f"{value:5.1f} ms" for value in figures.values()), f"{len(result.errors):>8}")
    for error in result.errors[:5]:
        print(error)


def main() -> int:
    parser = argparse.ArgumentParser(description="Open-loop load on kvgate webhook")
    parser.add_argument("--rps", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only-fitting", action="store_true", help="no refusals, which search for what would fit")
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments))
    print_table(result, arguments)
    return 1 if result.errors else 0


if __name__ == "__main__":
    raise SystemExit(main())

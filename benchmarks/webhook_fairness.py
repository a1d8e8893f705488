"""What a victim waits while a tenant sends its dearest reviews, and what strangers can hold: one webhook process, two workers, TLS.

    python benchmarks/webhook_fairness.py [--seconds 30]

The victim asks ten times a second with an object of 20 KB. The tenant sends its dearest InferenceDeployments (EXAONE-4.5-33B in 64 stages,
Adjust with three knobs) all at once, again and again. Then come unfinished bodies, idle connections and slow ones. Ends with 1 if the
victim's p99 is above 100 ms, a review of the victim's fails, or a probe does. Unlike the other benchmarks it has a target for two cores.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from controlplane.certificates import write_certificates
from webhook_load import review_body

TARGET_P99_SECONDS = 0.1
VICTIM_INTERVAL_SECONDS = 0.1
PROBE_INTERVAL_SECONDS = 0.25
DEAREST = 40
BURST_INTERVAL_SECONDS = 3.0
UNFINISHED_BODIES, UNFINISHED_BYTES = 60, 7 << 20
IDLE_CONNECTIONS, SLOW_CONNECTIONS = 600, 400
CORES = frozenset(sorted(os.sched_getaffinity(0))[:2])


@dataclass
class Seen:
    """Of one phase."""

    victim_seconds: list[float] = field(default_factory=list)
    victim_errors: Counter[str] = field(default_factory=Counter)
    tenant: Counter[int] = field(default_factory=Counter)
    """Answers by status; 0: none."""
    probes: Counter[str] = field(default_factory=Counter)
    peak_mib: float = 0.0
    """Proportional set sizes of the process and its workers: pages that they share count once."""


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A running process."""

    process: asyncio.subprocess.Process
    port: int
    metrics_port: int
    ca: str
    trust: ssl.SSLContext
    log: asyncio.Task[bytes]
    """All that it wrote, once it has ended."""


@asynccontextmanager
async def running() -> AsyncIterator[Webhook]:
    with tempfile.TemporaryDirectory() as folder:
        write_certificates(Path(folder))
        options = ["--host", "127.0.0.1", "--port", "0", "--metrics-host", "127.0.0.1", "--metrics-port", "0"]
        files = ["--tls-cert", f"{folder}/tls.crt", "--tls-key", f"{folder}/tls.key", "--linger-seconds", "0"]
        command = [sys.executable, "-m", "kvgate", "webhook", *options, *files]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        os.sched_setaffinity(process.pid, CORES)
        assert process.stderr is not None
        ports = await listening(process.stderr)
        log = asyncio.create_task(process.stderr.read())
        trust = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        try:
            yield Webhook(
                process=process, port=ports["port"], metrics_port=ports["metrics_port"], trust=trust, log=log,
                ca=f"{folder}/ca.crt",
            )  # fmt: skip
        finally:
            process.terminate()
            await process.wait()
            await log


async def listening(stream: asyncio.StreamReader) -> dict[str, int]:
    async for line in stream:
        if (event := json.loads(line))["event"] == "listening":
            return {"port": int(event["port"]), "metrics_port": int(event["metrics_port"])}
    raise SystemExit("kvgate webhook did not start")


def dearest_body(number: int) -> bytes:
    spec = {
        "model": {"name": "LGAI-EXAONE/EXAONE-4.5-33B"},
        "accelerator": {"type": "L4-24GB"},
        "vllm": {"pipelineParallelSize": 64},
        "admission": {"policy": "Adjust", "adjust": {"knobs": ["MaxNumSeqs", "MaxModelLen", "KvCacheDtype"]}},
    }
    return body_of(spec, "tenant", f"dear-{number}")


def victim_body() -> bytes:
    """20 KB, and it fits."""
    review = json.loads(review_body(0, random.Random(1), only_fitting=True))
    return body_of(review["request"]["object"]["spec"], "victim", "chat", padding="x" * 20_000)


def body_of(spec: dict[str, Any], namespace: str, name: str, padding: str = "") -> bytes:
    """As an API server writes it: the namespace before the object."""
    document = {
        "apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "spec": spec,
        "metadata": {"name": name, "namespace": namespace, "annotations": {"applied": padding}},
    }  # fmt: skip
    request = {
        "uid": name,
        "kind": {"group": "kvgate.io", "version": "v1alpha1", "kind": "InferenceDeployment"},
        "resource": {"group": "kvgate.io", "version": "v1alpha1", "resource": "inferencedeployments"},
        "name": name, "namespace": namespace, "operation": "CREATE", "object": document,
    }  # fmt: skip
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}).encode()


async def ask(client: aiohttp.ClientSession, body: bytes) -> int:
    """The status; 0 where there was no answer within the 5 s that an API server waits."""
    try:
        async with client.post("/validate", data=body, timeout=aiohttp.ClientTimeout(total=5)) as response:
            await response.read()
            return response.status
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0


async def be_victim(client: aiohttp.ClientSession, seen: Seen) -> None:
    """Due on time, whether or not the last was answered: latency counts from the moment it was due."""
    body, loop = victim_body(), asyncio.get_running_loop()

    async def once(due: float) -> None:
        status = await ask(client, body)
        seen.victim_seconds.append(loop.time() - due)
        if status != 200:
            seen.victim_errors[str(status)] += 1

    async with asyncio.TaskGroup() as tasks:
        due = loop.time()
        while True:
            tasks.create_task(once(due))
            due += VICTIM_INTERVAL_SECONDS
            await asyncio.sleep(max(0.0, due - loop.time()))


async def probe(webhook: Webhook, seen: Seen) -> None:
    """As a kubelet does, with a second for an answer; the memory beside it."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{webhook.metrics_port}") as client:
        while True:
            for path in ("/livez", "/readyz"):
                try:
                    async with client.get(path, timeout=aiohttp.ClientTimeout(total=1)) as response:
                        seen.probes["fine" if response.status == 200 else f"{path} {response.status}"] += 1
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    seen.probes[f"{path} {type(error).__name__}"] += 1
            seen.peak_mib = max(seen.peak_mib, await asyncio.to_thread(memory_mib, webhook.process.pid))
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)


def memory_mib(root: int) -> float:
    """Of a process and all that it started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    family, grown = {root}, True
    while grown:
        grown = bool(more := {child for child, parent in parents.items() if parent in family} - family)
        family |= more
    return sum(map(proportional_mib, family))


def proportional_mib(process: int) -> float:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


async def flood(port: int, trust: ssl.SSLContext) -> None:
    """All at once, and again; a line of answers by status for each round."""
    bodies = [dearest_body(number) for number in range(DEAREST)]
    async with aiohttp.ClientSession(
        f"https://localhost:{port}", connector=aiohttp.TCPConnector(ssl=trust, limit=0)
    ) as client:
        while True:
            started = time.monotonic()
            statuses = await asyncio.gather(*(ask(client, body) for body in bodies))
            print(*statuses, flush=True)
            await asyncio.sleep(max(0.0, BURST_INTERVAL_SECONDS - (time.monotonic() - started)))


async def hold_bodies(port: int, trust: ssl.SSLContext) -> None:
    """Bodies of 8 MiB of which a part never comes; whoever is sent away tries again."""
    head = b"POST /validate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n"
    await asyncio.gather(*(hold(port, trust, head + bytes(UNFINISHED_BYTES)) for _ in range(UNFINISHED_BODIES)))


async def hold_idle(port: int, trust: ssl.SSLContext) -> None:
    """Nothing after the handshake."""
    await asyncio.gather(*(hold(port, trust, b"") for _ in range(IDLE_CONNECTIONS)))


async def hold_slow(port: int, trust: ssl.SSLContext) -> None:
    """Headers that never end, a byte a second."""
    head = b"POST /validate HTTP/1.1\r\n"
    await asyncio.gather(*(hold(port, trust, head, drip=b"X") for _ in range(SLOW_CONNECTIONS)))


async def hold(port: int, trust: ssl.SSLContext, sent: bytes, drip: bytes = b"") -> None:
    """A connection that is opened again two seconds after it was closed."""
    await asyncio.sleep(random.uniform(0, 2))
    while True:
        with contextlib.suppress(OSError, ssl.SSLError):
            reader, writer = await asyncio.open_connection("localhost", port, ssl=trust)
            writer.write(sent)
            while not reader.at_eof():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1000), 1)
                if not reader.at_eof():
                    writer.write(drip)
            writer.close()
        await asyncio.sleep(2)


ATTACKS = {"dearest": flood, "bodies": hold_bodies, "idle": hold_idle, "slow": hold_slow}


@asynccontextmanager
async def attacked(webhook: Webhook, attack: str, seen: Seen) -> AsyncIterator[None]:
    """By a process of its own: the victim's latencies are the webhook's."""
    if not attack:
        yield
        return
    command = [sys.executable, __file__, "--attack", attack, "--port", str(webhook.port), "--ca", webhook.ca]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    answers = asyncio.create_task(process.stdout.read())
    try:
        yield
    finally:
        process.kill()
        await process.wait()
        seen.tenant.update(map(int, (await answers).split()))


async def phase(webhook: Webhook, seconds: float, attack: str = "") -> Seen:
    """The victim and the probes beside something else."""
    seen = Seen()
    connector = aiohttp.TCPConnector(ssl=webhook.trust, limit=0)
    async with aiohttp.ClientSession(f"https://localhost:{webhook.port}", connector=connector) as client:
        await ask(client, victim_body())
        async with attacked(webhook, attack, seen):
            tasks = [asyncio.create_task(each) for each in (be_victim(client, seen), probe(webhook, seen))]
            await asyncio.sleep(seconds)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    for error in results:
        if isinstance(error, Exception):
            raise error
    return seen


async def measure(seconds: float) -> tuple[dict[str, Seen], int]:
    """What was seen in each phase, and how many errors the webhook logged."""
    async with running() as webhook:
        phases = {
            "alone": await phase(webhook, seconds / 3),
            f"{DEAREST} dearest at once": await phase(webhook, seconds, "dearest"),
            f"{UNFINISHED_BODIES} unfinished bodies": await phase(webhook, seconds / 5, "bodies"),
            f"{IDLE_CONNECTIONS} idle connections": await phase(webhook, seconds / 5, "idle"),
            f"{SLOW_CONNECTIONS} slow connections": await phase(webhook, seconds / 5, "slow"),
        }
    return phases, webhook.log.result().count(b'"level": "error"')


def print_table(phases: dict[str, Seen]) -> bool:
    """True where all is as it should be."""
    print(
        f"{'beside':<24} {'reviews':>8} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'errors':>7} {'MiB':>6}  probes, tenant"
    )
    good = True
    for name, seen in phases.items():
        ordered = sorted(seen.victim_seconds)
        p50, p99, most = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99, 1.0))
        failed = {probe: count for probe, count in seen.probes.items() if probe != "fine"}
        told = f"{seen.probes['fine']} fine" + (f", {failed}" if failed else "")
        tenant = f"; tenant {dict(seen.tenant)}" if seen.tenant else ""
        errors = sum(seen.victim_errors.values())
        figures = f"{p50 * 1e3:>8.1f} {p99 * 1e3:>8.1f} {most * 1e3:>8.1f} {errors:>7} {seen.peak_mib:>6.0f}"
        print(f"{name:<24} {len(ordered):>8} {figures}  {told}{tenant}")
        good &= not failed and not errors and ("dearest" not in name or p99 <= TARGET_P99_SECONDS)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=30)
    for hidden in ("--attack", "--port", "--ca"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        trust = ssl.create_default_context(cafile=arguments.ca)
        asyncio.run(ATTACKS[arguments.attack](int(arguments.port), trust))
    phases, errors = asyncio.run(measure(arguments.seconds))
    good = print_table(phases)
    print(f"errors in the webhook's log: {errors}")
    return 0 if good and not errors else 1


if __name__ == "__main__":
    raise SystemExit(main())

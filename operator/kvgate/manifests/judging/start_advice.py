"""Surroundings that break an engine's start: probes that kill it while it loads, no shared memory, a volume that is too small."""

from collections.abc import Iterator
from fractions import Fraction

from kvgate import catalogue
from kvgate.api.quantity import parse_quantity
from kvgate.budget.units import cdiv, format_gib
from kvgate.documents.written import Written
from kvgate.manifests.judging.gpu_count import ranks_of_a_copy
from kvgate.manifests.pods.engine_found import FoundEngine, Store
from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import Located, Place, located
from kvgate.vllm.parser import CommandLine

FASTEST_LOAD_BYTES_PER_SECOND = 2_000_000_000
"""Speed that a disk or a network hardly ever reaches; a start that needs more is reported."""
FASTEST_START_SECONDS = 15
"""Imports, CUDA contexts and the profile run, at their least: no start was seen to answer sooner."""
_SHARED_MEMORY_MIB = 64
"""Shared memory of a container that requests no more."""


def start_advice(engine: FoundEngine, line: CommandLine, model: str, weights_bytes: int | None) -> Iterator[Located]:
    """Only what breaks a start, with its numbers. `weights_bytes`: of all ranks, where they are known."""
    stored = _checkpoint_bytes(model) or weights_bytes
    yield from _impatient_probe(engine, stored)
    yield from _no_shared_memory(engine, line)
    if stored is not None:
        for store in engine.stores:
            yield from _small_store(store, stored)


def _checkpoint_bytes(model: str) -> int | None:
    entry = catalogue.find_model(model) if model else None
    return entry.safetensors_bytes if entry else None


def _impatient_probe(engine: FoundEngine, stored_bytes: int | None) -> Iterator[Located]:
    """A startup probe replaces the liveness probe until it succeeds; readiness kills nothing."""
    probe = next(iter(engine.probes), None)
    if probe is None or not probe.get("httpGet").is_set:
        return
    patience, load = _patience_seconds(probe), cdiv(stored_bytes or 0, FASTEST_LOAD_BYTES_PER_SECOND)
    needed = FASTEST_START_SECONDS + load
    if patience < needed:
        name = probe.path.rpartition(".")[2]
        weights = f", reading {format_gib(stored_bytes)} of weights at 2 GB/s" if stored_bytes else ""
        yield located(
            rule="ProbeTooImpatient",
            severity=Severity.WARNING,
            at=Place(name="probe", path=probe.path),
            message=f"{name} kills the container after {patience} s; a start takes at least {needed} s{weights}",
            remediation="give a startupProbe whose periodSeconds × failureThreshold covers download, load and compilation",
        )


def _patience_seconds(probe: Written) -> int:
    """Until the kubelet gives up, at the latest."""
    initial, period, failures = (
        probe.get(name).count for name in ("initialDelaySeconds", "periodSeconds", "failureThreshold")
    )
    return (initial or 0) + (10 if period is None else period) * (3 if failures is None else failures)


def _no_shared_memory(engine: FoundEngine, line: CommandLine) -> Iterator[Located]:
    """NCCL and vLLM's own queues between the processes of an engine that are in one pod."""
    if engine.has_shared_memory is not False:
        return
    ranks = ranks_of_a_copy(line)
    ranks = min(ranks, engine.num_gpus.count or ranks)
    if ranks > 1:
        yield located(
            rule="SharedMemoryTooSmall",
            severity=Severity.WARNING,
            at=Place(name="tensor_parallel_size", path=engine.shared_memory_path or engine.path),
            message=f"{ranks} ranks talk through /dev/shm, which has {_SHARED_MEMORY_MIB} MiB: NCCL fails to start in so little",
            remediation="mount an emptyDir with medium: Memory at /dev/shm"
            if engine.is_in_a_pod
            else "set shm_size, or ipc: host",
        )


def _small_store(store: Store, stored_bytes: int) -> Iterator[Located]:
    size = parse_quantity(store.size.text)
    if size is not None and 0 < size < Fraction(stored_bytes):
        yield located(
            rule="VolumeTooSmall",
            severity=Severity.WARNING,
            at=Place(name="volume", path=store.path or store.size.path),
            message=f"{store.name} has {format_gib(int(size))}, and the weights that are downloaded to it {format_gib(stored_bytes)}",
            remediation=f"give it more than {format_gib(stored_bytes)}",
        )

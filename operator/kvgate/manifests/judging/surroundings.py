"""Surroundings that break an engine's start: probes that kill it while it loads, a volume that is too small."""

from collections.abc import Iterator
from fractions import Fraction

from kvgate import catalogue
from kvgate.api.quantity import parse_quantity
from kvgate.budget.ground.units import cdiv, format_gib
from kvgate.findings.finding import Severity
from kvgate.findings.located import Located, Place, located
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.command_line import LOADS_UNJUDGED
from kvgate.rules.manifests import PROBE_TOO_IMPATIENT, VOLUME_TOO_SMALL
from kvgate.vllm.parser import CommandLine
from kvgate.vllm.variables import loading

FASTEST_LOAD_BYTES_PER_SECOND = 2_000_000_000
"""Speed that a disk or a network hardly ever reaches; a start that needs more is reported."""
FASTEST_START_SECONDS = 15
"""Imports, CUDA contexts and the profile run, at their least: no start was seen to answer sooner."""


def impatient_probe(engine: FoundEngine, _: CommandLine, stored_bytes: int | None) -> Iterator[Located]:
    """A startup probe replaces the liveness probe until it succeeds; readiness kills nothing."""
    probe = next(iter(engine.probes), None)
    if probe is None or not probe.get("httpGet").is_set:
        return
    initial, period, failures = (
        probe.get(name).count for name in ("initialDelaySeconds", "periodSeconds", "failureThreshold")
    )
    patience = (initial or 0) + (10 if period is None else period) * (3 if failures is None else failures)
    needed = FASTEST_START_SECONDS + cdiv(stored_bytes or 0, FASTEST_LOAD_BYTES_PER_SECOND)
    if patience < needed:
        name = probe.path.rpartition(".")[2]
        weights = f", reading {format_gib(stored_bytes)} of weights at 2 GB/s" if stored_bytes else ""
        yield located(
            PROBE_TOO_IMPATIENT,
            Place(name="probe", path=probe.path),
            f"{name} kills the container after {patience} s; a start takes at least {needed} s{weights}",
            "give a startupProbe whose periodSeconds × failureThreshold covers download, load and compilation",
        )


def small_stores(engine: FoundEngine, _: CommandLine, stored_bytes: int | None) -> Iterator[Located]:
    """Volumes with less room than the weights, where both are known."""
    for store in engine.stores:
        size = parse_quantity(store.size.text)
        if stored_bytes is not None and size is not None and 0 < size < Fraction(stored_bytes):
            room, weights = format_gib(int(size)), format_gib(stored_bytes)
            yield located(
                VOLUME_TOO_SMALL,
                Place(name="volume", path=store.path or store.size.path),
                f"{store.name} has {room}, and the weights that are downloaded to it take {weights}",
                f"give it more than {weights}",
            )


def other_sources(engine: FoundEngine, _: CommandLine, stored_bytes: int | None) -> Iterator[Located]:
    """Note what the process loads beside the image and the model; who writes a whole pod may want that."""
    del stored_bytes
    for name, value in engine.loading.items():
        if row := loading(name, value.text):
            place = Place(name="env", path=value.path)
            yield located(
                LOADS_UNJUDGED,
                place,
                f"{name}: {row.effect}",
                f"leave {name} out, if nothing needs it",
                severity=Severity.INFO,
            )


START_CHECKS = (impatient_probe, small_stores, other_sources)
"""Checks of what breaks a start or changes what it loads, in the order in which their findings are reported."""


def start_advice(engine: FoundEngine, line: CommandLine, model: str, weights_bytes: int | None) -> Iterator[Located]:
    """Only what breaks a start or changes what it loads, with its numbers. `weights_bytes`: of all ranks, where they are known."""
    entry = catalogue.find_model(model) if model else None
    stored_bytes = (entry.safetensors_bytes if entry else None) or weights_bytes
    for check in START_CHECKS:
        yield from check(engine, line, stored_bytes)

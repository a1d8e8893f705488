"""How fast `kvgate check` is, and how much memory it takes: one file in a whole process, then 1,000 objects and large inputs.

    python benchmarks/cli_speed.py

Beside every large input stands what PyYAML's C loader needs to turn the same bytes into nodes (`yaml.compose_all` and nothing
else): a yardstick of the same language, because building a linter that is written in Go takes longer than all of this. Bytecode
goes to a folder of its own, so that the environment's setting for it does not count. Ends with 1 if a process fails.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rendered_manifests import DOCUMENTS_PER_RELEASE, MODELS, bundle, release

RUNS = 20
OBJECTS = 1000
COLD_START_SECONDS = 0.25
OBJECTS_SECONDS = 3.0
OBJECTS_MIB = 150
STREAM_BYTES = 50_000_000
VALUES = ("tests/manifests/production-stack/minimal-values/input.yaml", "--accelerator", "H100-SXM-80GB")
"""The file names no GPU."""
ACCELERATORS = ("H100-SXM-80GB", "L4-24GB", "A100-SXM-80GB", "H200-SXM-141GB")
POLICIES = ("Reject", "Adjust", "Warn")
COMPOSE = """
import pathlib, sys, yaml
path = pathlib.Path(sys.argv[1])
for file in sorted(path.iterdir()) if path.is_dir() else [path]:
    for node in yaml.compose_all(file.read_bytes(), yaml.CSafeLoader):
        pass
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one process took."""

    seconds: float
    cpu_seconds: float
    """Without what the machine did beside it."""
    peak_mib: float


def manifest(number: int) -> str:
    """One of 1,000 objects; no two ask the same, so that no cache answers for the arithmetic."""
    return f"""\
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata:
  name: number-{number}
  namespace: serving
spec:
  model:
    name: {MODELS[number % len(MODELS)]}
  accelerator:
    type: {ACCELERATORS[number % len(ACCELERATORS)]}
  vllm:
    maxModelLen: {4096 + 16 * number}
    maxNumSeqs: {1 + number % 32}
    tensorParallelSize: {1 + number % 2}
  admission:
    policy: {POLICIES[number % len(POLICIES)]}
"""


def run(*arguments: str, environment: dict[str, str], stream: Path | None = None) -> Run:
    """Wall time and peak memory of a process; 0 and 1 are verdicts, anything else is a failure."""
    with tempfile.TemporaryFile() as written, Path(stream or os.devnull).open("rb") as standard_input:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdin=standard_input, stdout=written, stderr=written
        )
        _, status, usage = os.wait4(process.pid, 0)
        taken = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            written.seek(0)
            sys.exit(f"{' '.join(arguments)} ended with {process.returncode}: {written.read()[-500:].decode()}")
    return Run(seconds=taken, cpu_seconds=usage.ru_utime + usage.ru_stime, peak_mib=usage.ru_maxrss / 1024)


def seconds(*arguments: str, environment: dict[str, str]) -> float:
    """Wall time of a process."""
    return run(*arguments, environment=environment).seconds


def median(*arguments: str, environment: dict[str, str]) -> float:
    """Of 20 runs, after one that writes bytecode."""
    seconds(*arguments, environment=environment)
    return statistics.median(seconds(*arguments, environment=environment) for _ in range(RUNS))


def row(name: str, value: float, target: float, unit: str = "s") -> None:
    print(f"{name:<52}{value:8.3f} {unit:<4} target {target:g} {unit}   {'ok' if value <= target else 'MISSED'}")


def measure(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": "operator"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    measure_one(environment)
    measure_objects(folder, environment)
    measure_rendered(folder, environment)


def measure_one(environment: dict[str, str]) -> None:
    """A whole process for one file, most of which is Python starting."""
    empty = median("-c", "pass", environment=environment)
    values = median("-m", "kvgate", "check", *VALUES, environment=environment)
    row("kvgate check, one values file, whole process", values, COLD_START_SECONDS)
    print(f"{'  as a multiple of python -c pass':<52}{values / empty:8.1f}      ({empty:.3f} s)")


def measure_objects(folder: Path, environment: dict[str, str]) -> None:
    """InferenceDeployments, as files and as a stream."""
    files = _files(folder / "objects", [manifest(number) for number in range(OBJECTS)])
    stream = folder / "stream.yaml"
    stream.write_text("---\n".join(map(manifest, range(OBJECTS))), encoding="utf-8")
    one = median("-m", "kvgate", "check", str(files / "0.yaml"), environment=environment)
    row("kvgate check, one InferenceDeployment", one, COLD_START_SECONDS)
    for name, path in ((f"{OBJECTS} of them", files), (f"one stream of {OBJECTS}", stream)):
        taken = seconds("-m", "kvgate", "check", str(path), environment=environment)
        row(f"kvgate check, {name}", taken, OBJECTS_SECONDS)


def measure_rendered(folder: Path, environment: dict[str, str]) -> None:
    """What charts are rendered to: files, the same on standard input, and 50 MB of which most is not about engines."""
    rendered = [release(number) for number in range(OBJECTS)]
    files = _files(folder / "rendered", rendered)
    stream, large = folder / "rendered.yaml", folder / "large.yaml"
    stream.write_text("".join(rendered), encoding="utf-8")
    with large.open("w", encoding="utf-8") as file:
        file.writelines(bundle(STREAM_BYTES, releases=OBJECTS))
    of_documents = f"{OBJECTS * DOCUMENTS_PER_RELEASE} rendered documents"
    checked = run("-m", "kvgate", "check", str(files), environment=environment)
    row(f"kvgate check, {of_documents}, {OBJECTS} files", checked.seconds, OBJECTS_SECONDS)
    _cpu_and_memory(checked)
    _yardstick(files, environment)
    streamed = run("-m", "kvgate", "check", "-", environment=environment, stream=stream)
    row("kvgate check, the same on standard input", streamed.seconds, OBJECTS_SECONDS)
    _cpu_and_memory(streamed)
    of_large = run("-m", "kvgate", "check", "-", environment=environment, stream=large)
    size_mib = large.stat().st_size / 2**20
    print(f"{f'kvgate check, a stream of {size_mib:.0f} MiB':<52}{of_large.seconds:8.3f} s")
    grown = of_large.peak_mib - streamed.peak_mib
    print(f"{'  peak memory':<52}{of_large.peak_mib:8.3f} MiB  {grown:+.0f} MiB for {size_mib:.0f} MiB more or less")
    _yardstick(large, environment)


def _cpu_and_memory(taken: Run) -> None:
    print(f"{'  seconds of a processor':<52}{taken.cpu_seconds:8.3f} s")
    row("  peak memory", taken.peak_mib, OBJECTS_MIB, "MiB")


def _yardstick(path: Path, environment: dict[str, str]) -> None:
    composed = run("-c", COMPOSE, str(path), environment=environment)
    name = "  PyYAML's C loader, compose_all alone"
    print(
        f"{name:<52}{composed.seconds:8.3f} s    processor {composed.cpu_seconds:.3f} s, peak {composed.peak_mib:.0f} MiB"
    )


def _files(folder: Path, texts: list[str]) -> Path:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.yaml").write_text(text, encoding="utf-8")
    return folder


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        measure(Path(temporary))

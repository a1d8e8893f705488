"""How fast the command line is: one file in a whole process, beside `python -c pass`; then 1,000 objects, as files and as a stream.

    python benchmarks/cli_speed.py

Bytecode goes to a folder of its own, so that the environment's setting for it does not count. Ends with 1 if a process fails.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 20
OBJECTS = 1000
COLD_START_SECONDS = 0.25
OBJECTS_SECONDS = 3.0
MODELS = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B",
    "meta-llama/Llama-3.1-70B-Instruct",
    "microsoft/phi-4",
)
ACCELERATORS = ("H100-SXM-80GB", "L4-24GB", "A100-SXM-80GB", "H200-SXM-141GB")
POLICIES = ("Reject", "Adjust", "Warn")


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


def seconds(*arguments: str, environment: dict[str, str]) -> float:
    """Wall time of a process; 0 and 1 are verdicts, anything else is a failure."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - started
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return taken


def median(*arguments: str, environment: dict[str, str]) -> float:
    """Of 20 runs, after one that writes bytecode."""
    seconds(*arguments, environment=environment)
    return statistics.median(seconds(*arguments, environment=environment) for _ in range(RUNS))


def row(name: str, value: float, target: float) -> None:
    print(f"{name:<42}{value:8.3f} s   target {target:g} s   {'ok' if value <= target else 'MISSED'}")


def measure(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": "operator"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    files = folder / "files"
    files.mkdir()
    for number in range(OBJECTS):
        (files / f"{number}.yaml").write_text(manifest(number), encoding="utf-8")
    stream = folder / "stream.yaml"
    stream.write_text("---\n".join(map(manifest, range(OBJECTS))), encoding="utf-8")

    empty = median("-c", "pass", environment=environment)
    one = median("-m", "kvgate", "check", str(files / "0.yaml"), environment=environment)
    row("kvgate check, one file, whole process", one, COLD_START_SECONDS)
    print(f"{'  as a multiple of python -c pass':<42}{one / empty:8.1f}     ({empty:.3f} s)")
    for name, path in ((f"{OBJECTS} files", files), (f"one stream of {OBJECTS} documents", stream)):
        row(
            f"kvgate check, {name}",
            seconds("-m", "kvgate", "check", str(path), environment=environment),
            OBJECTS_SECONDS,
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        measure(Path(temporary))

"""How fast `kvgate check` is and how much memory it takes, beside kubeconform and PyYAML on the same files in the same run.

    python benchmarks/cli_speed.py

kubeconform (Go, several threads) compares each document with the JSON schema of its kind and does no arithmetic; PyYAML's C loader
turns the same bytes into nodes (`yaml.compose_all`) and does nothing else: the least that a reader in Python pays. The programs take
turns on each input, so that what the machine does besides slows all of them. Bytecode goes to a folder of its own, so that the
environment's setting for it does not count. Ends with 1 if a process fails; a missed target is printed and fails nothing.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tools"))

from controlplane.build import ensure_assets  # noqa: E402 - found by the line above
from controlplane.kubeconform import kubeconform  # noqa: E402
from controlplane.plane import PROGRAMS  # noqa: E402
from measured_process import Run, kvgate, own_bytecode, run  # noqa: E402
from rendered_manifests import DOCUMENTS_PER_RELEASE, MODELS, bundle, release  # noqa: E402

OBJECTS = 1000
STREAM_BYTES = 50_000_000
VALUES = ("tests/manifests/production-stack/minimal-values/input.yaml", "--accelerator", "H100-SXM-80GB")
"""The file names no GPU."""
ACCELERATORS = ("H100-SXM-80GB", "L4-24GB", "A100-SXM-80GB", "H200-SXM-141GB")
POLICIES = ("Reject", "Adjust", "Warn")
COMPOSE = """
import pathlib, sys, yaml
path = pathlib.Path(sys.argv[1] if sys.argv[1] != "-" else "/dev/stdin")
for file in sorted(path.iterdir()) if path.is_dir() else [path]:
    for node in yaml.compose_all(file.read_bytes(), yaml.CSafeLoader):
        pass
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """What all programs are given, and what we want of kvgate."""

    name: str
    path: Path
    runs: int
    targets: Mapping[str, float]
    """Figure of a Run → at most."""
    on_standard_input: bool = False


SMALL = {"seconds": 0.25}
LARGE = {"seconds": 3.0, "peak_mib": 150.0}


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


def measure(folder: Path) -> None:
    """A table: for each input each program, and how much more kvgate takes."""
    environment = own_bytecode(folder)
    validator = kubeconform(ensure_assets([*PROGRAMS, "kubeconform"]))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    empty = Run.median([run([sys.executable, "-c", "pass"], environment) for _ in range(20)])
    print(f"{os.cpu_count()} processors, load {load}; `python -c pass` takes {empty.seconds:.3f} s\n")
    print(f"{'':<44}{'wall':>9}{'processor':>11}{'peak':>11}")
    values = [run(kvgate("check", *VALUES), environment) for _ in range(21)]
    print("a values file (it has no kind: kubeconform does not read it)")
    show("kvgate check", Run.median(values[1:]), verdicts(Run.median(values[1:]), SMALL))
    for each in inputs(folder):
        compare(each, validator, environment)


def compare(given: Input, validator: list[str], environment: dict[str, str]) -> None:
    """The programs in turn, after one turn that writes bytecode and fills the page cache."""
    path = "-" if given.on_standard_input else str(given.path)
    stream = given.path if given.on_standard_input else None
    commands = [kvgate("check", path), [*validator, path], [sys.executable, "-c", COMPOSE, path]]
    turns = [[run(command, environment, stream) for command in commands] for _ in range(given.runs + 1)]
    ours, conform, compose = (Run.median(runs) for runs in zip(*turns[1:], strict=True))
    print(given.name)
    show("kvgate check", ours, verdicts(ours, given.targets))
    show("kubeconform", conform, times(ours, conform))
    show("PyYAML's compose_all", compose, times(ours, compose))


def show(name: str, taken: Run, more: str) -> None:
    print(f"  {name:<42}{taken.seconds:>7.3f} s{taken.cpu_seconds:>9.3f} s{taken.peak_mib:>7.0f} MiB  {more}".rstrip())


def verdicts(ours: Run, targets: Mapping[str, float]) -> str:
    """Each target, and whether it is met."""
    units = {"seconds": "s", "peak_mib": "MiB"}
    met = {name: "ok" if getattr(ours, name) <= most else "MISSED" for name, most in targets.items()}
    return ", ".join(f"target {most:g} {units[name]} {met[name]}" for name, most in targets.items())


def times(ours: Run, other: Run) -> str:
    wall, processor = ours.seconds / other.seconds, ours.cpu_seconds / other.cpu_seconds
    return f"kvgate: {wall:.1f} times the wall, {processor:.1f} times the processor"


def inputs(folder: Path) -> list[Input]:
    """InferenceDeployments, and what charts are rendered to, each as files and as a stream; most of the last is no engine."""
    objects, rendered = [manifest(number) for number in range(OBJECTS)], [release(number) for number in range(OBJECTS)]
    streams = {
        "objects": ["---\n".join(objects)],
        "rendered": rendered,
        "large": bundle(STREAM_BYTES, releases=OBJECTS),
    }
    for name, texts in streams.items():
        with (folder / f"{name}.yaml").open("w", encoding="utf-8") as file:
            file.writelines(texts)
    files, rendered_files = _files(folder / "objects", objects), _files(folder / "rendered", rendered)
    documents = f"{OBJECTS * DOCUMENTS_PER_RELEASE:,} rendered documents"
    stream = folder / "rendered.yaml"
    megabytes = f"{STREAM_BYTES / 1e6:.0f} MB on standard input, most of it no engine"
    return [
        Input(name="an InferenceDeployment", path=files / "0.yaml", runs=20, targets=SMALL),
        Input(name="a rendered chart", path=rendered_files / "0.yaml", runs=20, targets=SMALL),
        Input(name=f"{OBJECTS:,} InferenceDeployments, one file each", path=files, runs=3, targets=LARGE),
        Input(name="the same, a stream in one file", path=folder / "objects.yaml", runs=3, targets=LARGE),
        Input(name=f"{documents}, {OBJECTS:,} files", path=rendered_files, runs=3, targets=LARGE),
        Input(name="the same, on standard input", path=stream, runs=3, targets=LARGE, on_standard_input=True),
        Input(name=megabytes, path=folder / "large.yaml", runs=1, targets={}, on_standard_input=True),
    ]


def _files(folder: Path, texts: list[str]) -> Path:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.yaml").write_text(text, encoding="utf-8")
    return folder


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        measure(Path(temporary))

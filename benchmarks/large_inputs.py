"""The cost of `kvgate check` on a repository in which nearly everything is no engine: CRDs as YAML, and results of benchmarks as JSON.

    python benchmarks/large_inputs.py

Both trees are written into a temporary folder, with one engine in the middle of each, which must be found. The CRDs have the shape
of operators that embed a pod template: a deep schema with a description at every field, 1 MB each, which mention vLLM and ConfigMaps.
The JSON files are results of `vllm bench` with a figure for every request, on one line or indented. Beside kvgate the same bytes are
read by a program that does nothing else. Ends with 1 if an engine is not found; a missed target is printed and fails nothing.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from measured_process import kvgate, own_bytecode, run

MIN_BYTES_PER_SECOND, MAX_PEAK_MIB = 20e6, 300
READ = "import pathlib, sys\nfor path in pathlib.Path(sys.argv[1]).rglob('*.*'):\n    path.read_bytes()\n"
ENGINE = """\
apiVersion: v1
kind: Pod
metadata: {name: needle}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.11.0
    args: [--model=Qwen/Qwen3-8B, --max-model-len=4096]
    resources: {limits: {nvidia.com/gpu: "1"}}
"""
FIELDS = ("args", "command", "configMapKeyRef", "containers", "env", "image", "kind", "resources", "volumeMounts")
SENTENCE = (
    "It names a ConfigMap, a Secret or a List of them that the vllm container reads; see https://kubernetes.io/docs."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """A folder of one kind of data."""

    name: str
    num_bytes: int
    texts: Callable[[random.Random], Iterator[str]]
    suffix: str


def resource_definitions(chance: random.Random) -> Iterator[str]:
    """Definitions whose schema repeats a pod template under several names."""
    number = 0
    while True:
        number += 1
        head = (
            "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
            f"metadata:\n  name: toys{number}.serving.example\n"
            f"spec:\n  group: serving.example\n  names:\n    kind: Toy{number}\n    listKind: Toy{number}List\n    plural: toys{number}\n"
            "  scope: Namespaced\n  versions:\n  - name: v1\n"
            "    schema:\n      openAPIV3Schema:\n        type: object\n        properties:\n"
        )
        yield head + "".join(f"          part{part}:\n" + schema(chance, 12, 4) for part in range(4))


def schema(chance: random.Random, indent: int, depth: int) -> str:
    """One object of a schema with its fields below it."""
    space = " " * indent
    text = f"{space}description: |-\n{space}  {SENTENCE}\n{space}  {SENTENCE}\n{space}type: object\n"
    if not depth:
        return text
    fields = "".join(f"{space}  {name}:\n" + schema(chance, indent + 4, depth - 1) for name in chance.sample(FIELDS, 5))
    return f"{text}{space}properties:\n{fields}"


def results(chance: random.Random) -> Iterator[str]:
    """Results of benchmarks, 12 MB each."""
    while True:
        result = {
            "date": "20261120-101010",
            "backend": "vllm",
            "model_id": "Qwen/Qwen3-8B",
            "input_lens": [chance.randrange(9999) for _ in range(200_000)],
            "itls": [[chance.random() for _ in range(100)] for _ in range(4000)],
            "generated_texts": ["A text with an image: and args: of vllm serve, caf\\u00e9. " * 10] * 5000,
        }
        yield json.dumps(result, indent=chance.choice((None, 1)))


TREES = (
    Tree(name="138 MB of CRDs", num_bytes=138_000_000, texts=resource_definitions, suffix="yaml"),
    Tree(name="691 MB of JSON", num_bytes=691_000_000, texts=results, suffix="json"),
)


def written(tree: Tree, folder: Path) -> int:
    """Write the tree, with the engine in its middle; the bytes that were written."""
    chance, num_bytes, number = random.Random(17), 0, 0
    for text in tree.texts(chance):
        (folder / f"{number:04}.{tree.suffix}").write_text(text, encoding="utf-8")
        num_bytes, number = num_bytes + len(text.encode()), number + 1
        if num_bytes >= tree.num_bytes:
            break
    (folder / f"{number // 2:04}-engine.yaml").write_text(ENGINE, encoding="utf-8")
    return num_bytes


def measure(tree: Tree, folder: Path, environment: dict[str, str]) -> bool:
    """Print the line of a tree; whether the engine was found."""
    num_bytes = written(tree, folder)
    subprocess.run([sys.executable, "-c", READ, str(folder)], check=True)  # fills the page cache
    read = run([sys.executable, "-c", READ, str(folder)], environment)
    ours = run(kvgate("check", str(folder)), environment)
    speed = num_bytes / ours.seconds
    met = "ok" if speed >= MIN_BYTES_PER_SECOND and ours.peak_mib <= MAX_PEAK_MIB else "MISSED"
    print(
        f"{tree.name:<16}{ours.seconds:>7.2f} s{speed / 1e6:>7.0f} MB/s{ours.peak_mib:>6.0f} MiB  "
        f"target {MIN_BYTES_PER_SECOND / 1e6:.0f} MB/s, {MAX_PEAK_MIB} MiB {met}; "
        f"{ours.seconds / read.seconds:.1f} times the reading of the bytes ({read.seconds:.2f} s)"
    )
    report = subprocess.run(
        kvgate("check", str(folder), "-o", "json"), env=environment, stdout=subprocess.PIPE, check=False
    ).stdout
    return [each["name"] for each in json.loads(report)["documents"]] == ["needle"]


def main() -> None:
    found = True
    for tree in TREES:
        with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory() as bytecode:
            environment = own_bytecode(Path(bytecode))
            run(kvgate("--version"), environment)
            found = measure(tree, Path(temporary), environment) and found
    if not found:
        sys.exit("the engine between the data was not found")


if __name__ == "__main__":
    main()

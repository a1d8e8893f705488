"""Many what-ifs through `kvgate explain --requests`: seconds for 100,000 of them, memory of 10,000 beside 100,000, and the import.

    python benchmarks/what_ifs.py [--requests 100000]

Every request asks something else (length, sequences, batch, GPU), so that no cache answers for the arithmetic. The models
are one of each kind of attention.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS, IMPORT_SECONDS, MEMORY_GROWTH = 60.0, 0.030, 1.1
MODELS = ("Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.5-27B", "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B")
GPUS = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "A100-SXM-80GB")
ENVIRONMENT = {**os.environ, "PYTHONPATH": "operator"}
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)
ASK = """
import resource, sys
from kvgate.cli.explain.requests import answers
with open(sys.argv[1], "rb") as lines:
    count = sum(1 for _ in answers(lines))
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def request(number: int) -> str:
    """No two ask the same."""
    return json.dumps(
        {
            "id": number,
            "model": MODELS[number % len(MODELS)],
            "gpu": GPUS[number // len(MODELS) % len(GPUS)],
            "tensor_parallel_size": (1, 2, 8)[number % 3],
            "max_model_len": 1024 + number % 30_000,
            "max_num_seqs": 1 + number % 509,
            "max_num_batched_tokens": 2048 + 256 * (number % 23),
            "vllm_version": "0.33.0",
        }
    )


def asked(path: Path, count: int) -> tuple[float, int]:
    """(seconds of the whole process, its peak memory in KiB)."""
    path.write_text("".join(request(number) + "\n" for number in range(count)), encoding="utf-8")
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(path)], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - started
    answered, peak_kib = map(int, done.stdout.split())
    if answered != count:
        sys.exit(f"{answered} answers to {count} requests")
    return seconds, peak_kib


def import_seconds() -> float:
    """Of the engine, above an interpreter that does nothing; the median of 15."""

    def median(code: str) -> float:
        runs = []
        for _ in range(15):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)
            runs.append(time.perf_counter() - started)
        return statistics.median(runs)

    return median("import kvgate.budget.answers.answer, kvgate.rules") - median("pass")


def row(name: str, value: str, target: str, *, ok: bool) -> None:
    print(f"{name:<46}{value:>12}   target {target:<8} {'ok' if ok else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=100_000)
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        ENVIRONMENT["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        _, few_kib = asked(Path(folder) / "few.jsonl", count // 10)
        seconds, many_kib = asked(Path(folder) / "many.jsonl", count)
        taken = import_seconds()
    limit = SECONDS * count / 100_000
    row(f"{count} what-ifs, whole process", f"{seconds:.1f} s", f"{limit:g} s", ok=seconds <= limit)
    growth = many_kib / few_kib
    row(
        f"peak memory, beside {count // 10} what-ifs",
        f"{growth:.2f} ×",
        f"{MEMORY_GROWTH} ×",
        ok=growth <= MEMORY_GROWTH,
    )
    print(f"{'  peak memory':<46}{many_kib / 1024:>8.0f} MiB")
    row("import of the engine", f"{1000 * taken:.0f} ms", f"{1000 * IMPORT_SECONDS:g} ms", ok=taken <= IMPORT_SECONDS)


if __name__ == "__main__":
    main()

"""The speed of the working tree beside that of an earlier revision, measured in turns in one run: what the machine does besides slows both.

    python benchmarks/before_and_after.py [--base REVISION] [--rounds 6]

Assessments and what-ifs ask something else each time, so that no cache answers for the arithmetic. Beside the wall clock stands the
processor time of the thread, which does not count what other programs take. A missed target is printed and fails nothing.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from measured_process import run

ROOT = Path(__file__).resolve().parent.parent
BASE = "HEAD~20"
QUESTIONS, WARM_UP = 300, 40
"""Questions of one round, and those before them that fill the caches of models and releases."""
UNIFORM = (("Qwen/Qwen3-8B", "L4-24GB", 1), ("meta-llama/Llama-3.1-70B-Instruct", "H100-SXM-80GB", 4))
HYBRID = (("Qwen/Qwen3.6-27B-FP8", "H100-NVL-94GB", 1), ("openai/gpt-oss-120b", "H100-SXM-80GB", 2))
"""Models whose layers differ: their cache has several groups."""
DEPLOYMENT = """\
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: benchmark, namespace: serving}
spec:
  model: {name: Qwen/Qwen3-8B}
  accelerator: {type: L4-24GB}
  vllm: {maxModelLen: 4096, maxNumSeqs: 2}
"""
VALUES = ("tests/manifests/production-stack/minimal-values/input.yaml", "--accelerator", "H100-SXM-80GB")
Cases = dict[str, list[Callable[[], object]]]


def cases() -> Cases:
    """Return the questions of one round by what they measure; the modules are those of the tree on PYTHONPATH."""
    return {
        "assess, uniform model": list(_assessments(UNIFORM)),
        "assess, hybrid model": list(_assessments(HYBRID)),
        "assess, refused with alternatives": list(_assessments(UNIFORM, length=38_000)),
        "what-if with JSON, other lengths": list(_what_ifs(lambda _: {})),
        "what-if with JSON, other batches": list(
            _what_ifs(lambda number: {"max_num_seqs": 1 + number, "max_num_batched_tokens": 2048 + 8 * number})
        ),
    }


def _assessments(models: tuple[tuple[str, str, int], ...], *, length: int = 2048) -> Iterator[Callable[[], object]]:
    from kvgate.api.validation import parse_document
    from kvgate.judgement.assess import assess
    from kvgate.judgement.facts import ConfigMissing, gather

    try:
        from kvgate.statement.deployment import statement_of
    except ImportError:  # an earlier revision gathers the facts of a spec itself
        statement_of = None  # type: ignore[assignment]
    for number in range(WARM_UP + QUESTIONS):
        model, accelerator, tensor = models[number % len(models)]
        vllm = {"maxModelLen": length + 8 * number, "maxNumSeqs": 1 + number % 4, "maxNumBatchedTokens": 2048 + number}
        spec = parse_document({
            "apiVersion": "kvgate.io/v1alpha1",
            "kind": "InferenceDeployment",
            "metadata": {"name": "benchmark"},
            "spec": {
                "model": {"name": model},
                "accelerator": {"type": accelerator},
                "vllm": {**vllm, "tensorParallelSize": tensor},
            },
        }).spec  # fmt: skip
        facts = gather(
            statement_of(spec) if statement_of else spec, lambda _: ConfigMissing(message="", remediation="")
        )
        yield lambda spec=spec, facts=facts: assess(spec, facts)  # type: ignore[misc]


def _what_ifs(more: Callable[[int], dict[str, int]]) -> Iterator[Callable[[], object]]:
    from kvgate.cli.explain.requests import answers

    for number in range(WARM_UP + QUESTIONS):
        asked = {"id": number, "model": "Qwen/Qwen3-8B", "gpu": "L4-24GB", "vllm_version": "0.33.0"}
        line = json.dumps({**asked, "max_model_len": 1024 + number, **more(number)}).encode() + b"\n"
        yield lambda line=line: next(answers(io.BytesIO(line)))  # type: ignore[misc]


def measure_round() -> dict[str, list[tuple[float, float]]]:
    """Return (wall, processor) microseconds of each question after the warm-up."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, questions in cases().items():
        for ask in questions[:WARM_UP]:
            ask()
        found[name] = [_microseconds(ask) for ask in questions[WARM_UP:]]
    return found


def _microseconds(ask: Callable[[], object]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.thread_time()
    ask()
    processor, wall = time.thread_time() - processor, time.perf_counter() - wall
    return 1e6 * wall, 1e6 * processor


TARGETS_P99 = {"assess, uniform model": 200.0, "assess, hybrid model": 1000.0}
TARGETS_P50 = {"what-if with JSON, other lengths": 100.0, "what-if with JSON, other batches": 100.0}


def compare_questions(trees: dict[str, Path], rounds: int) -> None:
    """Print p50 and p99 of both trees, and the ratio; the trees take turns, and who is first changes."""
    pooled: dict[str, dict[str, list[Any]]] = {name: {} for name in trees}
    for turn in range(rounds):
        for name in sorted(trees, reverse=bool(turn % 2)):
            environment = {**os.environ, "PYTHONPATH": f"{trees[name]}/operator"}
            done = subprocess.run(
                [sys.executable, __file__, "--round"],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
                cwd=ROOT,
            )
            for case, figures in json.loads(done.stdout).items():
                pooled[name].setdefault(case, []).extend(figures)
    print(f"{'':<36}{'':<11}{'p50 before':>11}{'after':>8}{'ratio':>7}{'p99 before':>13}{'after':>8}{'ratio':>7}")
    for case in pooled["after"]:
        for clock, label in enumerate(("wall", "processor")):
            p50, p99 = zip(
                *(_cuts([each[clock] for each in pooled[name][case]]) for name in ("before", "after")), strict=True
            )
            targets = TARGETS_P99.get(case), TARGETS_P50.get(case)
            met = _verdict(targets, p99[1], p50[1]) if label == "processor" else ""
            print(f"{case:<36}{label:<11}{_row(p50)}  {_row(p99)} µs  {met}".rstrip())


def _cuts(figures: list[float]) -> tuple[float, float]:
    cuts = quantiles(figures, n=100)
    return cuts[49], cuts[98]


def _row(pair: tuple[float, float]) -> str:
    return f"{pair[0]:>11.0f}{pair[1]:>8.0f}{pair[1] / pair[0]:>7.2f}"


def _verdict(targets: tuple[float | None, float | None], p99: float, p50: float) -> str:
    most, figure, name = (targets[0], p99, "p99") if targets[0] else (targets[1], p50, "p50")
    return f"target {name} {most:g} µs {'ok' if figure <= most else 'MISSED'}" if most else ""


def compare_processes(trees: dict[str, Path], rounds: int, folder: Path) -> None:
    """Print the processor seconds of whole processes: the median of each tree, in turns after one that writes bytecode."""
    deployment = folder / "deployment.yaml"
    deployment.write_text(DEPLOYMENT, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    commands: dict[str, tuple[float | None, tuple[str, ...]]] = {
        "python -c pass": (None, ("-c", "pass")),
        "import of the engine": (None, ("-c", "import kvgate.budget.answers.answer, kvgate.rules")),
        "kvgate check, an InferenceDeployment": (0.2, ("-m", "kvgate", "check", str(deployment))),
        "kvgate check, a values file": (0.12, ("-m", "kvgate", "check", *VALUES)),
    }
    print(f"\n{'processor time of a process':<47}{'before':>11}{'after':>8}{'ratio':>7}")
    for case, (most, command) in commands.items():
        taken: dict[str, list[float]] = {name: [] for name in trees}
        for turn in range(2 * rounds + 1):
            for name in sorted(trees, reverse=bool(turn % 2)):
                environment = {
                    **kept,
                    "PYTHONPATH": f"{trees[name]}/operator",
                    "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
                }
                taken[name].append(1000 * run([sys.executable, *command], environment).cpu_seconds)
        pair = median(taken["before"][1:]), median(taken["after"][1:])
        met = f"target {1000 * most:g} ms {'ok' if pair[1] <= 1000 * most else 'MISSED'}" if most else ""
        print(f"{case:<47}{_row(pair)} ms  {met}".rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default=os.environ.get("BASE") or BASE, help="revision to compare with")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--round", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.round:
        print(json.dumps(measure_round()))
        return
    named = ["git", "rev-parse", "-q", "--short", "--verify", f"{given.base}^{{commit}}"]
    revision = subprocess.run(named, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    if not revision:
        sys.exit(f"no revision {given.base} in this repository: name one that it has, such as make bench BASE=HEAD~5")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(base), revision], cwd=ROOT, check=True)
        try:
            load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
            print(
                f"before: {given.base} ({revision}), after: the working tree; {os.cpu_count()} processors, load {load}\n"
            )
            trees = {"before": base, "after": ROOT}
            compare_questions(trees, given.rounds)
            compare_processes(trees, given.rounds, Path(folder))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(base)], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()

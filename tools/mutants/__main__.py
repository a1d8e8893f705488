"""make mutants: change one thing of some rooms at a time, and count the changes that a test notices.

    PYTHONPATH=tools python -m mutants [--rooms budget] [--sample 100] [--seed 1] [--seconds 300] [--module weights]

The changes are a random sample, the same for the same seed and code. Each is made in a copy of the tree, and the tests that run its
line run until the first one fails. Results are kept beside the copy, so that a run that was stopped goes on where it was.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from mutants.changes import Change, changes_of
from mutants.coverage_map import TESTS, CoverageMap, coverage_map, digest

ROOT = Path(__file__).resolve().parents[2]
AT_LEAST_PERCENT = {"budget": 85}
"""Goal by rooms; 80 for others."""
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "bin")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One change of one module."""

    path: str
    change: Change

    def __str__(self) -> str:
        return f"{self.path.removeprefix('operator/kvgate/')} {self.change}"


def main() -> None:
    """Print every change that no test noticed, and the share of those that one did; ends with 1 if it is below the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rooms", choices=list(TESTS), default="budget")
    parser.add_argument("--sample", type=int, default=100, help="how many changes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; run again to go on")
    parser.add_argument("--module", default="*", help="one module of the rooms instead of all")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    tree = Path(gettempdir()) / f"kvgate-mutants-{os.getuid()}" / given.rooms / ROOT.name
    copy_tree(ROOT, tree)
    environment = {"PYTHONPATH": "operator:tools", "PYTHONPYCACHEPREFIX": f"{tree}-bytecode"}
    environment["MUTANTS_ROOMS"] = given.rooms
    covered = coverage_map(tree, environment, given.rooms)
    mutants = sample_of(tree, given.rooms, given.module, given.sample, given.seed)
    results = judged(mutants, tree, covered, environment, until)
    sys.exit(report(mutants, results, AT_LEAST_PERCENT.get(given.rooms, 80)))


def copy_tree(root: Path, tree: Path) -> None:
    """Make the copy equal to the tree. What is kept beside it, and the bytecode of unchanged files, stay."""
    shutil.copytree(root, tree, ignore=_LEFT_OUT, dirs_exist_ok=True, symlinks=True)
    for copied in (tree / "operator").rglob("*.py"), (tree / "tests").rglob("*.py"):
        for path in copied:
            if not (root / path.relative_to(tree)).exists():
                path.unlink()


def sample_of(tree: Path, rooms: str, module: str, count: int, seed: int) -> list[Mutant]:
    """Draw from all changes of all modules, each as likely as any other."""
    everything = [
        Mutant(path=path.relative_to(tree).as_posix(), change=change)
        for room in rooms.split(",")
        for path in sorted((tree / "operator/kvgate" / room).rglob(f"{module}.py"))
        for change in changes_of(path.read_bytes())
    ]
    drawn = random.Random(seed).sample(everything, min(count, len(everything)))  # noqa: S311 - a sample, no secret
    print(f"{len(drawn)} of {len(everything)} mutants, seed {seed}", flush=True)
    return drawn


def judged(
    mutants: list[Mutant], tree: Path, covered: CoverageMap, environment: Mapping[str, str], until: float
) -> dict[Mutant, str]:
    """Return the test that killed each mutant, empty where none did; those that time was too short for are missing."""
    kept = tree / "killed.json"
    known: dict[str, str] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    results: dict[Mutant, str] = {}
    for mutant in mutants:
        tests = covered.tests(mutant.path, mutant.change.line)
        files = sorted({tree / test.partition("::")[0] for test in tests})
        key = f"{mutant} {digest([tree / mutant.path, *files])}"  # a result holds for the module and these tests
        if key not in known:
            if time.monotonic() > until:
                continue
            known[key] = killer(mutant, tests, tree, covered, environment)
            kept.write_text(json.dumps(known), encoding="utf-8")
            print(f"{'killed  ' if known[key] else 'SURVIVED'} {mutant}", flush=True)
        results[mutant] = known[key]
    return results


def killer(mutant: Mutant, tests: list[str], tree: Path, covered: CoverageMap, environment: Mapping[str, str]) -> str:
    """Return the first test that fails with the mutant in place, or `time`; empty where all pass, and where no test runs the line."""
    if not tests:
        return ""
    path = tree / mutant.path
    source = path.read_bytes()
    arguments = tree / "tests.txt"
    arguments.write_text("\n".join(tests), encoding="utf-8")
    limit = 60 + 5 * sum(covered.seconds.get(test, 0.0) for test in tests)
    try:
        path.write_bytes(mutant.change.applied(source))
        forget_bytecode(path, environment)
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            "-p",
            "mutants.recording",
            *files,
        ]
        variables = {**os.environ, **environment, "MUTANTS_TESTS": str(arguments)}
        done = subprocess.run(
            command, cwd=tree, env=variables, capture_output=True, text=True, check=False, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return "time"
    finally:
        path.write_bytes(source)
        forget_bytecode(path, environment)
    if not done.returncode:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else "import"


def forget_bytecode(path: Path, environment: Mapping[str, str]) -> None:
    """Python keeps bytecode by second and size, which a mutant may share with the original."""
    folder = Path(environment["PYTHONPYCACHEPREFIX"], *path.resolve().parent.parts[1:])
    for kept in folder.glob(f"{path.stem}.*.pyc"):
        kept.unlink()


def report(mutants: list[Mutant], results: Mapping[Mutant, str], at_least_percent: int) -> int:
    """Print the survivors by module, and the share that was killed."""
    survivors = [mutant for mutant in mutants if results.get(mutant) == ""]
    print("\nsurvivors:")
    for mutant in sorted(survivors, key=lambda each: (each.path, each.change.line)):
        print(f"  {mutant}")
    killed = len(results) - len(survivors)
    by_module = Counter(Path(mutant.path).stem for mutant in survivors)
    print(", ".join(f"{name} {count}" for name, count in by_module.most_common()))
    percent = 100 * killed / len(results) if results else 0.0
    print(f"{killed} of {len(results)} killed: {percent:.1f} %; {len(mutants) - len(results)} not run")
    return 0 if percent >= at_least_percent else 1


if __name__ == "__main__":
    main()

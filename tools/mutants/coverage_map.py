"""The tests that run each line of some rooms, and how long each test takes; measured once for a state of the code and the tests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from coverage import CoverageData

TESTS: Mapping[str, tuple[str, ...]] = {
    "budget": (
        "tests/parity", "tests/unit/budget", "tests/unit/rules", "tests/unit/judgement", "tests/unit/planning", "tests/unit/calibration",
        "tests/unit/vllm", "tests/unit/vllm_release/test_committed_tables.py",
        "tests/unit/test_derivation.py", "tests/contract", "tests/property",
    ),
    "judgement": ("tests/unit/judgement", "tests/unit/manifests/judging", "tests/unit/planning", "tests/unit/rules", "tests/contract"),
    "manifests": ("tests/unit/manifests", "tests/contract", "tests/manifests/test_golden.py", "tests/manifests/test_look_alikes.py"),
    "controller,rendering,webhook": (
        "tests/unit/controller", "tests/unit/rendering", "tests/unit/webhook", "tests/contract", "tests/rendering",
        "tests/integration/test_reconcile.py", "tests/integration/test_standing_verdicts.py", "tests/integration/test_observe.py",
        "tests/integration/test_resync.py", "tests/integration/test_break_glass.py", "tests/integration/test_upgrade.py",
    ),
}  # fmt: skip
"""Rooms, with commas between them → the tests that may kill a mutant of theirs. Those of the doors print the same figures once more."""
AT_MOST_SECONDS = 60.0
"""Tests of one mutant: those of the module first, then the shortest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoverageMap:
    """What one run of the tests has shown."""

    seconds: Mapping[str, float]
    """By test."""
    tests_of_line: Mapping[str, Mapping[int, frozenset[str]]]
    """By path of the module from the root of the tree, and by line."""

    def tests(self, path: str, line: int) -> list[str]:
        """Return the tests for a mutant on a line; any test may notice a change of what runs when modules are imported."""
        covering = self.tests_of_line.get(path, {}).get(line) or self.seconds.keys()
        own = f"/test_{Path(path).stem}.py::"
        chosen, total = list[str](), 0.0
        for test in sorted(covering, key=lambda each: (own not in each, self.seconds.get(each, 0.0), each)):
            total += self.seconds.get(test, 0.0)
            if chosen and total > AT_MOST_SECONDS:
                break
            chosen.append(test)
        return chosen


def coverage_map(tree: Path, environment: Mapping[str, str], rooms: str) -> CoverageMap:
    """Run the tests of a tree once under coverage, or return what the last run of the same files has shown."""
    kept = tree / f"covered-{_state(tree)}.json"
    if not kept.exists():
        for outdated in tree.glob("covered-*.json"):
            outdated.unlink()
        print("running the tests once to learn which lines each of them runs", flush=True)
        kept.write_text(json.dumps(_measured(tree, environment, rooms)), encoding="utf-8")
    found = json.loads(kept.read_text(encoding="utf-8"))
    tests = list(found["seconds"])
    lines = {
        path: {int(line): frozenset(tests[number] for number in numbers) for line, numbers in by_line.items()}
        for path, by_line in found["lines"].items()
    }
    return CoverageMap(seconds=found["seconds"], tests_of_line=lines)


def _measured(tree: Path, environment: Mapping[str, str], rooms: str) -> dict[str, object]:
    seconds, data = tree / "seconds.json", tree / "covered.data"
    sources = ",".join(f"operator/kvgate/{room}" for room in rooms.split(","))
    done = subprocess.run(
        [sys.executable, "-m", "coverage", "run", "--rcfile=/dev/null", f"--source={sources}", f"--data-file={data}",
         "-m", "pytest", "-q", "-p", "mutants.recording", "-p", "no:cacheprovider", "-m", "not cluster", "--timeout=600", *TESTS[rooms]],
        cwd=tree, env={**os.environ, **environment, "MUTANTS_SECONDS": str(seconds)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode > 1:  # not the end of a run in which some tests failed
        sys.exit(f"the tests do not run:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    passed: dict[str, float] = json.loads(seconds.read_text(encoding="utf-8"))
    number_of = {test: number for number, test in enumerate(passed)}
    covered = CoverageData(str(data))
    covered.read()
    lines = {
        Path(name).relative_to(tree).as_posix(): {
            line: [number_of[test] for test in passed.keys() & contexts]  # lines of an import have no test
            for line, contexts in covered.contexts_by_lineno(name).items()
        }
        for name in covered.measured_files()
    }
    return {"seconds": passed, "lines": lines}


def _state(tree: Path) -> str:
    """Digest of everything that may change which lines the tests run."""
    return digest(path for folder in ("operator", "tests") for path in sorted((tree / folder).rglob("*.py")))


def digest(paths: Iterable[Path]) -> str:
    """Digest of the contents of files, in their order."""
    whole = sha256()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]

"""Run by `make check`: format, lint, types, layers and the fast tests, side by side; every check runs, and all failures count."""

import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAST_TESTS = ("tests/unit", "tests/property", "tests/parity", "tests/contract", "tests/manifests", "tests/rendering")
CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", ("ruff", "format", "--check", "-q", ".")),
    ("lint", ("ruff", "check", "-q", ".")),
    ("types", ("mypy",)),
    ("layers", ("lint-imports",)),
    ("fast tests", ("pytest", "-q", "-x", "-n", "auto", "--dist", "loadfile", "-m", "not slow", *FAST_TESTS)),
)


def main() -> None:
    """Run the checks and name those that failed; --no-tests leaves the tests to the whole suite."""
    failed = failures(CHECKS[:-1] if "--no-tests" in sys.argv[1:] else CHECKS)
    if failed:
        sys.exit(f"make check: failed: {', '.join(failed)}")


def failures(checks: Iterable[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Names of the checks that failed, in their order. All start at once: types and layers are done before the tests are."""
    checks = tuple(checks)
    with ThreadPoolExecutor(len(checks)) as threads:
        passed = threads.map(lambda check: passes(*check), checks)
        return [name for (name, _), ok in zip(checks, passed, strict=True) if not ok]


def passes(name: str, command: tuple[str, ...]) -> bool:
    """Run one check; its output is printed only when it fails, and in one piece."""
    started = time.monotonic()
    program, *arguments = command
    done = subprocess.run(
        [str(ROOT / ".venv/bin" / program), *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )
    line = f"{'ok  ' if done.returncode == 0 else 'FAIL'} {name} ({time.monotonic() - started:.1f} s)\n"
    print(line if done.returncode == 0 else f"{line}{done.stdout}{done.stderr}\n", end="", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    main()

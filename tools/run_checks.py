"""What `make check` runs: format, lint, types, layers and the tests that need no server; every check runs, all failures count."""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAST_TESTS = ("tests/unit", "tests/property", "tests/parity", "tests/contract", "tests/manifests", "tests/rendering")
CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", ("ruff", "format", "--check", "-q", ".")),
    ("lint", ("ruff", "check", "-q", ".")),
    ("types", ("mypy",)),
    ("layers", ("lint-imports",)),
    ("fast tests", ("pytest", "-q", "-x", *FAST_TESTS)),
)


def main() -> None:
    """Run every check and name those that failed; --no-tests leaves the tests to the whole suite."""
    checks = CHECKS[:-1] if "--no-tests" in sys.argv[1:] else CHECKS
    failed = [name for name, command in checks if not passes(name, command)]
    if failed:
        sys.exit(f"make check: failed: {', '.join(failed)}")


def passes(name: str, command: tuple[str, ...]) -> bool:
    """One check; its output is shown only where it fails."""
    started = time.monotonic()
    program, *arguments = command
    done = subprocess.run(
        [str(ROOT / ".venv/bin" / program), *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )
    print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {name} ({time.monotonic() - started:.1f} s)", flush=True)
    if done.returncode:
        print(done.stdout + done.stderr, flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    main()

"""Run `make test`: the checks, then the whole test suite with the control plane that `make tools` built."""

import os
import subprocess
import sys
from pathlib import Path

from controlplane import build

PYTEST = ("-q", "--durations=10", "-n", "auto", "--dist", "loadfile")
MAX_PLANES = "4"
"""Control planes that run at the same time: each takes half a GiB, and most of a test's time is waiting."""
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Format, lint, types and layers first: they fail fastest. Every file of the tests with a control plane starts its own.

    Generated files are compared inside the tests.
    """
    environment = {**os.environ, "KUBEBUILDER_ASSETS": str(build.find_assets() or "")}
    python = sys.executable
    steps = (
        [python, "tools/run_checks.py", "--no-tests"],
        [python, "-m", "pytest", *PYTEST, "-m", "not cluster", *sys.argv[1:]],
        [python, "-m", "pytest", *PYTEST, "-m", "cluster", "--maxprocesses", MAX_PLANES, *sys.argv[1:]],
    )
    codes = [subprocess.run(step, cwd=ROOT, env=environment, check=False).returncode for step in steps]
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()

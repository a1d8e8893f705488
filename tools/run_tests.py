"""Run `make test`: the checks, then the whole test suite with the control plane that `make tools` built."""

import os
import subprocess
import sys
from pathlib import Path

from controlplane import build

PYTEST = ("-q", "--durations=10")
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Format, lint, types and layers first: they fail fastest. What needs no control plane runs on all cores, the rest by itself.

    Generated files are compared inside the tests.
    """
    environment = {**os.environ, "KUBEBUILDER_ASSETS": str(build.find_assets() or "")}
    python = sys.executable
    steps = (
        [python, "tools/run_checks.py", "--no-tests"],
        [python, "-m", "pytest", *PYTEST, "-m", "not cluster", "-n", "auto", "--dist", "loadfile", *sys.argv[1:]],
        [python, "-m", "pytest", *PYTEST, "-m", "cluster", *sys.argv[1:]],
    )
    codes = [subprocess.run(step, cwd=ROOT, env=environment, check=False).returncode for step in steps]
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()

"""End `make verify`: fail where a generated file differs from the committed one, or is not committed."""

import subprocess
import sys
from pathlib import Path

from generate.files import GENERATED

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Changed and untracked files count alike."""
    listed = [name for name, _ in GENERATED]
    listed += [
        "CONTRIBUTING.md",
        "docs/accuracy.md",
        "docs/concepts/ledger.svg",
        "docs/one-deployment-every-door.md",
        "docs/planning.svg",
        "docs/reference/processes.md",
        "deploy/install.yaml",
        "tests/chart/golden",
    ]
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", *listed], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    if changed:
        sys.exit(f"generated files are out of date; run `make generate` and commit:\n{changed}")
    print("ok   generated files are up to date")


if __name__ == "__main__":
    main()

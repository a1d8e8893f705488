"""What `make bench` runs: every benchmark of this folder, one after the other; each prints its own table."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIRST = "before_and_after.py"
"""The comparison with an earlier revision."""


def main() -> None:
    """All of them run; a benchmark that reports errors fails the whole."""
    scripts = sorted(
        (path for path in HERE.glob("*.py") if path.name != Path(__file__).name),
        key=lambda path: (path.name != FIRST, path),
    )
    failed = [script.name for script in scripts if not succeeds(script)]
    if failed:
        sys.exit(f"make bench: failed: {', '.join(failed)}")


def succeeds(script: Path) -> bool:
    print(f"\n── {script.stem.replace('_', ' ')}", flush=True)
    return subprocess.run([sys.executable, str(script)], cwd=HERE.parent, check=False).returncode == 0


if __name__ == "__main__":
    main()

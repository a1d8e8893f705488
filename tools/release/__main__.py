"""`python -m release STEP [TAG]` runs one step of a release into dist/; without a step all that run dry, into an empty folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from release.publishing import NOT_YET, ROOT, addresses
from release.steps import DRY, STEPS, NotReady

DIST = ROOT / "dist"


def main(arguments: list[str]) -> int:
    """The exit code; what is missing is the last line."""
    try:
        if arguments:
            DIST.mkdir(exist_ok=True)
            STEPS[arguments[0]](DIST, *arguments[1:])
            return 0
        dry_run(DIST)
    except NotReady as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def dry_run(folder: Path) -> None:
    """Make everything that a release publishes, and say what it would wait for."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for step in DRY:
        print(f"release: {step.__name__}", flush=True)
        step(folder)
    for path in sorted(folder.iterdir()):
        print(f"   {path.stat().st_size:>9}  {path.name}")
    missing = [name for name, address in addresses().items() if address == NOT_YET]
    print(f"release: nothing was published; publishing.toml lacks {', '.join(missing) or 'nothing'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

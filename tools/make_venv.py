"""Run `make init`: .venv from the pinned requirements (hashes checked), and kvgate in it, editable.

Standard library only: it runs before there is an environment.
"""

import compileall
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"


def main() -> None:
    """Make or renew the environment; `.venv/ready` is touched only when all of it worked."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever runs it may have an older one
        sys.exit(f"kvgate needs Python 3.11 or newer; this is {sys.version.split()[0]} (set PYTHON=…)")
    if not (VENV / "bin" / "pip").exists():
        print("make init: creating .venv", flush=True)
        venv.create(VENV, with_pip=True, clear=True)
    print("make init: installing the pinned requirements", flush=True)
    # complete pins need no resolver, which would look at newer releases of a package that is wanted with an extra (coverage[toml])
    pip("--no-deps", "--require-hashes", "-r", "requirements/dev.txt", "-r", "requirements/build.txt")
    pip("--no-deps", "--no-build-isolation", "-e", ".")
    compileall.compile_dir(str(ROOT / "operator"), quiet=1)  # where PYTHONDONTWRITEBYTECODE is set, nobody else does
    (VENV / "ready").touch()


def pip(*arguments: str) -> None:
    """`pip install`, quiet but for errors."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit("make init: pip failed; its last lines say why")


if __name__ == "__main__":
    main()

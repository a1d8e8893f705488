#!/usr/bin/env python3
"""Prometheus 2 from Debian's package, unpacked into the user's cache: nothing is installed, no service starts.

    PYTHONPATH=tools python -m controlplane.debian_prometheus

`apt-get download` checks it against the archive's signature. Where the package is not available, a message says so and the tests which
need it skip; with KVGATE_REQUIRE_PROMETHEUS=1 it is an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from controlplane.build import BuildError, cache_folder, exclusive, say

PACKAGE = "prometheus"
LINE = "2."


def find_debian() -> Path | None:
    """The folder with prometheus and promtool, of the latest release that was fetched, or None."""
    fetched = cache_folder().glob(f"debian-{PACKAGE}-{LINE}*/usr/bin")
    return max(fetched, key=lambda folder: folder.stat().st_ctime, default=None)


def ensure_debian() -> Path:
    """Return that folder, after fetching the package if it is not there."""
    found = find_debian()
    if found:
        return found
    with exclusive(cache_folder() / "lock"):
        return find_debian() or _fetch()


def _fetch() -> Path:
    """Unpack beside the final place, then rename: no reader ever meets half a package."""
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".debian-") as name:
        folder = Path(name)
        _run(["apt-get", "download", "-o", "APT::Sandbox::User=root", PACKAGE], folder)
        (package,) = folder.glob("*.deb")
        version = _run(["dpkg-deb", "--field", package.name, "Version"], folder).strip()
        if not version.startswith(LINE):
            raise BuildError(f"Debian's {PACKAGE} is {version} here, and not a release {LINE}x")
        _run(["dpkg-deb", "--extract", package.name, "unpacked"], folder)
        (folder / "unpacked").rename(cache_folder() / f"debian-{PACKAGE}-{version}")
    found = find_debian()
    if not found:
        raise BuildError(f"Debian's {PACKAGE} {version} has no usr/bin")
    return found


def _run(command: list[str], folder: Path) -> str:
    try:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise BuildError(f"no {command[0]} here: Prometheus {LINE}x comes from a Debian package") from None
    except subprocess.CalledProcessError as error:
        raise BuildError(f"`{' '.join(command)}`: {error.stderr.strip()}; `apt-get update` may help") from None


def main() -> int:
    required = os.environ.get("KVGATE_REQUIRE_PROMETHEUS") == "1"
    try:
        say(f"Prometheus {LINE}x: {ensure_debian()}")
    except BuildError as error:
        print(f"tools: NO PROMETHEUS 2, what needs it is not tested: {error}", file=sys.stderr)
        return 1 if required else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

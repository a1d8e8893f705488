"""The image as an OCI layout, made without a container engine: Debian's Python, the pinned wheels and kvgate, and no shell.

    PYTHONPATH=tools python -m release.image lock            # requirements/image.csv from Debian's index, for both machines
    PYTHONPATH=tools python -m release.image build FOLDER    # FOLDER/oci, and FOLDER/rootfs as it is unpacked

Debian's packages are fetched by apt, in folders of its own, and compared with the SHA-256 of the lock file; umoci, out of Debian's package,
writes the layout. deploy/Dockerfile makes the same from an image of Python, for those who have an engine.
"""

from __future__ import annotations

import csv
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from kvgate import __version__
from release.publishing import ROOT

APT = ROOT / "build" / "apt"
LOCK = ROOT / "requirements" / "image.csv"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
PACKAGES = (
    "libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libpython3.11-minimal",
    "libpython3.11-stdlib", "libssl3", "libstdc++6", "libuuid1", "python3.11-minimal", "zlib1g",
)  # fmt: skip
"""Debian's Python and the libraries that it and the wheels link to."""
NOT_NEEDED = (
    "usr/share/*", "usr/lib/valgrind", "usr/lib/*/gconv", "usr/lib/python3.11/idlelib", "usr/lib/python3.11/tkinter",
    "usr/lib/python3.11/lib2to3", "usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/distutils", "etc/binfmt.d",
)  # fmt: skip
USER = "65532:65532"
ENTRYPOINT = ("/usr/bin/python3.11", "-m", "kvgate")
ENVIRONMENT = (
    "PATH=/usr/bin",
    "PYTHONPATH=/opt/kvgate",
    "HOME=/tmp",
    "PYTHONUNBUFFERED=1",
    "PYTHONDONTWRITEBYTECODE=1",
)


class Apt:
    """apt for one machine, in a folder of its own: nothing of this system is changed."""

    def __init__(self, folder: Path, machine: str, *, renews: bool = False) -> None:
        state, cache = folder / machine / "state", folder / machine / "cache"
        for each in (state / "lists/partial", cache / "archives/partial"):
            each.mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        settings = {
            "APT::Architecture": machine, "APT::Architectures": machine, "APT::Sandbox::User": "root", "Dir::State": state,
            "Dir::State::status": state / "status", "Dir::Cache": cache,
        }  # fmt: skip
        self._options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        if renews or not any((state / "lists").glob("*_Packages*")):
            self.run("apt-get", "-qq", "update")

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        command = [program, *self._options, *arguments]
        return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def lock() -> None:
    """Write the newest version of every package and its SHA-256, for both machines."""
    with LOCK.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("machine", "package", "version", "sha256"))
        for machine in MACHINES:
            apt = Apt(APT, machine, renews=True)
            shown = apt.run("apt-cache", "show", "--no-all-versions", *PACKAGES)
            for stanza in shown.strip().split("\n\n"):
                fields = dict(re.findall(r"^(Package|Version|SHA256): (\S+)$", stanza, re.MULTILINE))
                rows.writerow((machine, fields["Package"], fields["Version"], fields["SHA256"]))


def locked(machine: str) -> list[dict[str, str]]:
    with LOCK.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["machine"] == machine]


def build(folder: Path, machine: str) -> None:
    """Make the layout, and leave the files that it holds beside it."""
    rootfs, bundle = folder / "rootfs", folder / "bundle"
    apt = Apt(APT, machine)
    rootfs.mkdir(parents=True)
    (rootfs / "tmp").mkdir(mode=0o1777)
    for package in _fetched(apt, folder, locked(machine)):
        _unpack(package, rootfs)
    for path in [each for pattern in NOT_NEEDED for each in rootfs.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (rootfs / "usr/bin/python").symlink_to("python3.11")
    _install(folder, rootfs / "opt/kvgate", machine)
    umoci = _umoci(folder)
    image = f"{folder / 'oci'}:{__version__}"
    _run([umoci, "init", "--layout", folder / "oci"])
    _run([umoci, "new", "--image", image])
    _run([umoci, "unpack", "--rootless", "--image", image, bundle])
    shutil.rmtree(bundle / "rootfs")
    rootfs.rename(bundle / "rootfs")
    _run([umoci, "repack", "--image", image, bundle])
    words = [f"--config.entrypoint={word}" for word in ENTRYPOINT] + [f"--config.env={each}" for each in ENVIRONMENT]
    _run(
        [umoci, "config", "--image", image, f"--config.user={USER}", f"--architecture={machine}", "--os=linux", *words]
    )
    _run([umoci, "gc", "--layout", folder / "oci"])
    (bundle / "rootfs").rename(rootfs)


def _fetched(apt: Apt, folder: Path, rows: Sequence[dict[str, str]]) -> list[Path]:
    """Return the files of the packages. Raises ValueError where one is another than was locked."""
    place = folder / "debian"
    place.mkdir(parents=True)
    apt.run("apt-get", "-qq", "download", *(f"{row['package']}={row['version']}" for row in rows), cwd=place)
    found = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in place.glob("*.deb")}
    other = [path.name for digest, path in found.items() if digest not in {row["sha256"] for row in rows}]
    if other or len(found) != len(rows):
        raise ValueError(f"{', '.join(other) or 'a package'} is not as requirements/image.csv says")
    return sorted(found.values())


def _unpack(package: Path, into: Path) -> None:
    _run(["dpkg-deb", "--extract", package, into])


def _install(folder: Path, target: Path, machine: str) -> None:
    """Install the pinned wheels of the operator for that machine, and kvgate itself."""
    tags = [
        f"--platform={tag}_{MACHINES[machine]}"
        for tag in ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
    ]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-compile",
        "--upgrade",
    ]
    chosen = [*tags, "--python-version=3.11", "--implementation=cp", "--only-binary=:all:", f"--target={target}"]
    _run([*pip, *chosen, "--require-hashes", "-r", ROOT / "requirements/operator.txt"])
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder / "wheel"), versions=["standard"])
    _run([*pip, *chosen, wheel])
    shutil.rmtree(target / "bin", ignore_errors=True)  # their first line names this machine's Python


def _umoci(folder: Path) -> Path:
    """umoci of this machine, out of Debian's package."""
    place = folder / "umoci"
    place.mkdir()
    _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "umoci"], cwd=place)
    (package,) = place.glob("*.deb")
    _unpack(package, place)
    return place / "usr/bin/umoci"


def _run(command: Sequence[str | Path], cwd: Path | None = None) -> None:
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def compressed_bytes(layout: Path) -> int:
    """Return the bytes that a node pulls: those of all layers."""
    index = json.loads((layout / "index.json").read_text(encoding="utf-8"))
    (entry,) = index["manifests"]
    manifest = json.loads(_blob(layout, entry["digest"]))
    return sum(layer["size"] for layer in manifest["layers"])


def _blob(layout: Path, digest: str) -> bytes:
    return (layout / "blobs" / digest.replace(":", "/")).read_bytes()


def main(arguments: Sequence[str]) -> int:
    step, *rest = arguments
    if step == "lock":
        lock()
        return 0
    folder = Path(rest[0]).absolute()
    machine = rest[1] if len(rest) > 1 else {known: name for name, known in MACHINES.items()}[platform.machine()]
    build(folder, machine)
    print(f"{folder / 'oci'}: {compressed_bytes(folder / 'oci') / 1e6:.0f} MB compressed, for {machine}", flush=True)
    if MACHINES[machine] == platform.machine():
        from release.image_check import check, shells

        print("\n".join([*check(folder / "rootfs"), f"shells: {len(shells(folder / 'rootfs'))}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

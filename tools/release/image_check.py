"""Both processes of an unpacked image, started as the chart starts them: uid 65532, a read-only root, no capabilities, an empty /tmp."""

from __future__ import annotations

import datetime as dt
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from controlplane.programs import free_ports, wait_until
from fleet.doors import answers
from kvgate.controller.certificates import issue
from release.image import ENTRYPOINT, ENVIRONMENT, USER

USER_ID, GROUP_ID = USER.split(":")


def inside(rootfs: Path, mounted: Path, *arguments: str) -> list[str]:
    """The command that runs kvgate in the image; root is needed to mount, and given up before kvgate starts."""
    mounts = (
        ("--bind", rootfs, rootfs), ("--rbind", "/proc", rootfs / "proc"), ("--rbind", "/dev", rootfs / "dev"),
        ("--bind", mounted, rootfs / "mnt"), ("-t", "tmpfs", "tmpfs", rootfs / "tmp"),
    )  # fmt: skip
    for name in ("proc", "dev", "mnt"):
        (rootfs / name).mkdir(exist_ok=True)
    first, *rest = (shlex.join(["mount", *map(str, each)]) for each in mounts)
    read_only = shlex.join(["mount", "-o", "remount,bind,ro", str(rootfs)])
    drop = [
        "setpriv",
        "--no-new-privs",
        "unshare",
        f"--root={rootfs}",
        f"--setuid={USER_ID}",
        f"--setgid={GROUP_ID}",
        "--wd=/",
    ]
    start = shlex.join([*drop, *ENTRYPOINT, *arguments])
    return ["unshare", "--mount", "env", "-i", *ENVIRONMENT[1:], "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-ec",
            "\n".join((first, read_only, *rest, f"exec {start}"))]  # fmt: skip


def check(rootfs: Path) -> list[str]:
    """Start both and ask their probes; what was seen. Raises where one does not answer."""
    with tempfile.TemporaryDirectory(prefix="kvgate-image-") as name:
        mounted, ports = Path(name), free_ports(3)
        mounted.chmod(0o755)
        made = issue("localhost", dt.datetime.now(dt.UTC))
        cluster = {"name": "a", "cluster": {"server": "http://127.0.0.1:9"}}
        context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
        config = {
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "a", "user": {}}],
            "current-context": "a",
        }
        for file, content in {
            "tls.crt": made.certificate, "tls.key": made.key, "kubeconfig": yaml.safe_dump(config).encode(),
        }.items():  # fmt: skip
            (mounted / file).write_bytes(content)
        version = subprocess.run(
            inside(rootfs, mounted, "--version"), check=True, capture_output=True, text=True
        ).stdout
        tls = ("--tls-cert=/mnt/tls.crt", "--tls-key=/mnt/tls.key", f"--port={ports[0]}", "--linger-seconds=0")
        with running(rootfs, mounted, "webhook", *tls, f"--metrics-port={ports[1]}"):
            wait_until(lambda: answers(ports[1], "/readyz"), "the webhook of the image is ready")
        with running(rootfs, mounted, "controller", "--kubeconfig=/mnt/kubeconfig", f"--metrics-port={ports[2]}"):
            wait_until(lambda: answers(ports[2], "/livez"), "the controller of the image is alive")
    return [version.strip(), "webhook: ready", "controller: alive, and waits for a cluster"]


@contextmanager
def running(rootfs: Path, mounted: Path, *arguments: str) -> Iterator[None]:
    process = subprocess.Popen(inside(rootfs, mounted, *arguments), stderr=subprocess.STDOUT, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def shells(rootfs: Path) -> Sequence[Path]:
    """Return the shells that the image has; none is needed."""
    return [path for name in ("sh", "bash", "dash", "busybox") for path in rootfs.rglob(f"bin/{name}")]

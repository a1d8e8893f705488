#!/usr/bin/env python3
"""Upgrade 100 live objects of each earlier commit to this version of kvgate, and go back; count the pod templates that change.

    PYTHONPATH=tools:tests python tools/upgrades.py             # all of COMMITS, each from a worktree of git
    PYTHONPATH=tools:tests python tools/upgrades.py 946862a8

It prints a row per commit, and writes what the earlier controller left of each shape to tests/cluster/earlier_releases/COMMIT.yaml,
from which the tests make live objects again. Needs the control plane of `make tools` and the commits in this repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from controlplane.build import ensure_assets
from controlplane.plane import PROGRAMS, ControlPlane
from controlplane.programs import free_port, wait_until
from fleet.doors import door, scrape, wait_ready
from fleet.fake_gpus import fake_gpu_node
from kvgate.rendering.live_deployment import applied

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "cluster" / "earlier_releases"
COMMITS = ("11d547f6", "48d537f4", "96f73d43", "946862a8")
NUM_OBJECTS = 100
QUIET_SECONDS = 8.0
"""Time without a change after which nothing more is expected: longer than that between two resyncs."""
SKIP = {"kvgate.io/skip-budget": "load test on Tuesday"}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "adjusted": {"vllm": {"maxNumSeqs": 64}, "admission": {"policy": "Adjust"}},
    "skipped": {"vllm": {"maxNumSeqs": 64}},
    "unknown": {"model": {"name": "nobody/novel-7b"}},
    "dressed": {
        "vllm": {"maxNumSeqs": 4, "tensorParallelSize": 2, "kvCacheDtype": "fp8", "gpuMemoryUtilization": "0.85"},
        "template": {
            "labels": {"team": "chat"}, "env": [{"name": "GREETING", "value": "$(HOME)"}], "nodeSelector": {"kubernetes.io/os": "linux"},
            "resources": {"requests": {"cpu": "2", "memory": "24Gi"}, "limits": {"memory": "64Gi"}},
        },
    },
}  # fmt: skip
"""Name of an object → its spec, as far as it differs from the plain one."""
OF_STATUS = ("observedGeneration", "effective", "budget", "standing", "provenance", "calibrationRevision", "admission")
"""Fields of the status that a later release may read."""


def main() -> int:
    print("commit     objects  templates changed by the upgrade  by going back")
    for commit in sys.argv[1:] or COMMITS:
        with tempfile.TemporaryDirectory(prefix="kvgate-earlier-") as folder:
            earlier = Path(folder) / commit
            _git("worktree", "add", "--detach", str(earlier), commit)
            try:
                there, back = _upgraded(earlier, commit)
            finally:
                _git("worktree", "remove", "--force", str(earlier))
        print(
            f"{commit:9}  {NUM_OBJECTS:7}  {len(there):32}  {len(back):13}  {', '.join(sorted({*there, *back}))}",
            flush=True,
        )
    return 0


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True)


def _upgraded(earlier: Path, commit: str) -> tuple[list[str], list[str]]:
    """Return the objects whose template the upgrade changed, and those where going back did."""
    with ControlPlane(ensure_assets(PROGRAMS)) as plane:
        plane.apply(fake_gpu_node("gpu-0", product="NVIDIA-H100-80GB-HBM3", memory_mib=81559, gpus=8 * NUM_OBJECTS))
        _install(plane, earlier)
        namespaces = [f"fleet-{number}" for number in range(NUM_OBJECTS // len(SHAPES))]
        with _controller(plane, earlier) as port:
            for namespace in namespaces:
                plane.apply(
                    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, *shapes(namespace)
                )
            _settle(plane, port)
        _keep(plane, commit)
        states = [_templates(plane)]
        _install(plane, ROOT)
        for root in (ROOT, earlier):
            with _controller(plane, root) as port:
                _settle(plane, port)
            states.append(_templates(plane))
    first, second, third = states
    return [name for name in first if second[name] != first[name]], [
        name for name in first if third[name] != second[name]
    ]


def shapes(namespace: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a namespace; namespaces multiply them, because records hold their names."""
    plain = {"model": {"name": "Qwen/Qwen3-8B"}, "accelerator": {"type": "H100-SXM-80GB"}, "vllm": {"maxNumSeqs": 4}}
    for name, spec in SHAPES.items():
        metadata = {"name": name, "namespace": namespace, "annotations": SKIP if name == "skipped" else {}}
        yield {
            "apiVersion": "kvgate.io/v1alpha1",
            "kind": "InferenceDeployment",
            "metadata": metadata,
            "spec": plain | spec,
        }


def _install(plane: ControlPlane, root: Path) -> None:
    plane.apply(*(yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((root / "crds").glob("*.yaml"))))
    wait_until(lambda: plane.find("/apis/kvgate.io/v1alpha1/inferencedeployments") is not None, "the CRD is served")


@contextmanager
def _controller(plane: ControlPlane, root: Path) -> Iterator[int]:
    port = free_port()
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PYTHONPATH": str(root / "operator")}
    options = (f"--metrics-port={port}", "--metrics-host=127.0.0.1", "--resync-seconds=5")
    log = plane.logs / f"{root.name}-{port}.log"
    with door("controller", log, *options, environment=environment) as process:
        wait_ready("controller", process, log, port)
        yield port


def _listed(plane: ControlPlane, path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = plane.request("GET", path)["items"]
    return items


def _templates(plane: ControlPlane) -> dict[str, Any]:
    live = _listed(plane, "/apis/apps/v1/deployments")
    return {f"{each['metadata']['namespace']}/{each['metadata']['name']}": each["spec"]["template"] for each in live}


def _settle(plane: ControlPlane, port: int) -> None:
    """Wait until the controller has judged every object, and nothing changes for a while."""
    wait_until(
        lambda: scrape(port).count("\nkvgate_deployment_info{") >= NUM_OBJECTS,
        "all are judged",
        progress=lambda: scrape(port),
    )

    def state() -> list[tuple[str, str]]:
        kinds = ("/apis/apps/v1/deployments", "/apis/kvgate.io/v1alpha1/inferencedeployments")
        return [
            (each["metadata"]["uid"], each["metadata"]["resourceVersion"])
            for path in kinds
            for each in _listed(plane, path)
        ]

    def is_settled() -> bool:
        nonlocal before, since
        if (now := state()) != before:
            before, since = now, time.monotonic()
        return len(before) == 2 * NUM_OBJECTS and time.monotonic() - since > QUIET_SECONDS

    before, since = state(), time.monotonic()
    wait_until(is_settled, "all is settled", progress=lambda: before)


def _keep(plane: ControlPlane, commit: str) -> None:
    """Write what this release left of each shape."""
    found = []
    for name in SHAPES:
        document = plane.request("GET", f"/apis/kvgate.io/v1alpha1/namespaces/fleet-0/inferencedeployments/{name}")
        paths = f"/apis/apps/v1/namespaces/fleet-0/deployments/{name}", f"/api/v1/namespaces/fleet-0/services/{name}"
        found.append({
            "name": name,
            "annotations": document["metadata"].get("annotations", {}),
            "spec": document["spec"],
            "uid": document["metadata"]["uid"],
            "status": {key: document["status"][key] for key in OF_STATUS if key in document["status"]},
            "children": [applied(plane.request("GET", path)) for path in paths],
        })  # fmt: skip
    KEPT.mkdir(exist_ok=True)
    head = f"# What the controller of commit {commit} left of each shape of tools/upgrades.py, which wrote this.\n"
    text = yaml.safe_dump(found, sort_keys=True, width=140, default_flow_style=None)
    (KEPT / f"{commit}.yaml").write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

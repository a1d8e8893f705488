#!/usr/bin/env python3
"""A real Kubernetes control plane on the loopback, in seconds, without containers: for tests, demo and benchmarks.

    with ControlPlane(ensure_assets(PROGRAMS)) as plane:    # etcd, API server, controller manager, scheduler, kwok
        plane.apply(fake_gpu_node("gpu-0", product="NVIDIA-H100-80GB-HBM3", memory_mib=81559))
        plane.kubectl("get", "nodes")

`full=False` starts etcd and the API server only: enough for CRDs, webhooks and RBAC. From a shell,
`PYTHONPATH=tools python -m controlplane.plane` runs one in the foreground until Ctrl-C.

Everything lives in one temporary folder and on 127.0.0.1. No program outlives the Python process (see guard.py). A start that fails
is tried once more. When it fails again, a program dies or the `with` body raises, the logs stay and the error says where; else all is
removed. With KVGATE_LOGS the folder is made there and not in the folder for temporary files.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from controlplane.audit import AUDIT_POLICY, AuditEvent, AuditLog
from controlplane.build import BuildError, ensure_assets
from controlplane.certificates import write_certificates
from controlplane.programs import (
    IDLE_SECONDS,
    PATIENCE_SECONDS,
    POLL_SECONDS,
    ControlPlaneError,
    Program,
    http_answer,
    wait_until,
)

API_PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
PROGRAMS = (*API_PROGRAMS, "kube-controller-manager", "kube-scheduler", "kwok")
STAGES = Path(__file__).resolve().parent / "stages.yaml"
ADMINISTRATOR = "kvgate-admin"
IDLE_CONTROLLERS = (
    "node-ipam-controller",
    "node-route-controller",
    "service-lb-controller",
    "cloud-node-lifecycle-controller",
    "endpoints-controller",  # nothing routes here, and pods on the loopback may not be endpoints
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
)
POD_NETWORKS = tuple(f"127.{number}.0.0" for number in range(64, 192))
BUSY_ATTEMPTS = 8
CLAIM_PORT = 20249
"""UDP port; the control plane that has it on the first address of a pod network has that network."""


class ControlPlane:
    """One cluster of its own for each `with`; not for reuse after it ends."""

    def __init__(self, assets: Path, *, full: bool = True) -> None:
        self._assets = assets
        self._full = full
        self._token = secrets.token_urlsafe(24)
        self._folder: Path
        self._tls: ssl.SSLContext
        self._programs: dict[str, Program]
        self._pod_network: socket.socket
        """Its address is that of the range of the pods' addresses. The range is on the loopback, so that a scrape of a pod never leaves
        this machine, and no other control plane has it while the socket is open."""
        self._audit: AuditLog
        self._audited: int
        """Events that `audit` leaves out."""
        self._kinds: dict[tuple[str, str], tuple[str, bool]]
        """Name in paths, and whether it has a namespace, of each kind of an API group."""
        self.keeps_logs = False
        """Set where something failed that the `with` body does not raise, such as one test of several."""

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        """Start it. A start that fails is tried once more, in another folder and on other ports."""
        for name in PROGRAMS if self._full else API_PROGRAMS:
            if not (self._assets / name).is_file():
                raise ControlPlaneError(f"{self._assets / name}: no such program; `make tools` builds it")
        try:
            self._begin()
        except (ControlPlaneError, OSError) as error:
            first = "\n".join([f"the first start: {error}", *error.__notes__])
            print(f"the control plane is started once more; {first}", file=sys.stderr, flush=True)
            try:
                self._begin()
            except BaseException as second:
                second.add_note(first)
                raise
        return self

    def _begin(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kvgate-plane-", dir=os.environ.get("KVGATE_LOGS")))
        self._programs, self._pod_network = {}, _claimed_network()
        self._audit, self._audited, self._kinds = AuditLog(self.logs / "audit.log"), 0, {}
        try:
            self._start()
        except BaseException as error:
            self._end(error)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        deaths = self.deaths()
        if error or not deaths:
            self._end(error)
            return
        death = ControlPlaneError("\n".join(deaths))
        self._end(death)
        raise death

    def deaths(self) -> list[str]:
        """Programs which ended though nobody stopped them, each with its last words."""
        return [program.death() for program in self._programs.values() if program.died]

    def _end(self, error: BaseException | None) -> None:
        """Stop everything; what went wrong keeps its logs (Ctrl-C is nothing that went wrong)."""
        for program in self._programs.values():
            program.kill()
        self._pod_network.close()
        if isinstance(error, KeyboardInterrupt) or not (error or self.keeps_logs):
            shutil.rmtree(self._folder)
            return
        for entry in set(self._folder.iterdir()) - {self.logs}:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if error:
            error.add_note(f"logs of the control plane: {self.logs}")

    def _start(self) -> None:
        self.logs.mkdir()
        write_certificates(self._folder)
        self._tls = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        self._write("audit-policy.json", json.dumps(AUDIT_POLICY))
        self._write("admission.json", json.dumps(self._admission_configuration()))
        self._write("webhooks.kubeconfig", json.dumps(self._webhook_identity()))
        self._write("tokens.csv", f"{self._token},{ADMINISTRATOR},{ADMINISTRATOR},system:masters\n")
        self._run("etcd", self._etcd_flags, "/readyz").wait_ready()
        self._run("kube-apiserver", self._apiserver_flags, "/readyz").wait_ready()
        self._write_kubeconfig(self.kubeconfig.name, self._token)
        self._wait_for_object("/api/v1/namespaces/default", "kube-apiserver")
        if self._full:
            self._start_controllers()

    def _start_controllers(self) -> None:
        """Side by side: each needs a second of its own."""
        programs = [
            self._run("kube-controller-manager", self._controller_manager_flags, "/healthz"),
            self._run("kube-scheduler", self._scheduler_flags, "/readyz"),
            self._run("kwok", self._kwok_flags, "/readyz"),
        ]
        for program in programs:
            program.wait_ready()
        self._wait_for_object("/api/v1/namespaces/default/serviceaccounts/default", "kube-controller-manager")

    def _run(self, name: str, flags: Callable[[int], Sequence[str]], health_path: str) -> Program:
        binary = self._assets / name
        program = Program(binary=binary, flags=flags, health_path=health_path, folder=self._folder, tls=self._tls)
        self._programs[name] = program
        program.start()
        return program

    def _wait_for_object(self, path: str, maker: str) -> None:
        """Wait until this program has made it, as long as every program lives."""
        wait_until(
            lambda: self.deaths() or self._finds(path),
            f"GET {path} finds it",
            within_seconds=IDLE_SECONDS,
            progress=self._programs[maker].work,
        )
        if deaths := self.deaths():
            raise ControlPlaneError("\n".join(deaths))

    def _finds(self, path: str) -> bool:
        try:
            return self._request("GET", path)[0] == 200
        except (OSError, http.client.HTTPException):  # a server under load answers the next one
            return False

    def stop(self, name: str) -> None:
        """Kill a program, as if its machine had gone; the others keep trying to reach it."""
        self._programs[name].kill()

    def start(self, name: str) -> None:
        """Bring it back on the same port, with everything that it had stored."""
        self._programs[name].start()
        self._programs[name].wait_ready()

    # ── use ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._programs['kube-apiserver'].port}"

    def write_container_log(self, text: str | None) -> None:
        """Write the log that `kubectl logs` shows for every container, in the format of container runtimes; None: there is none."""
        if text is None:
            self._container_log.unlink(missing_ok=True)
            return
        lines = (f"2026-01-01T00:00:00.000000000Z stdout F {line}\n" for line in text.splitlines())
        self._container_log.write_text("".join(lines), encoding="utf-8")

    @property
    def ca_pem(self) -> str:
        return (self._folder / "ca.crt").read_text(encoding="utf-8")

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of an administrator (group system:masters)."""
        return self._folder / "admin.kubeconfig"

    def kubeconfig_for(self, service_account: str, namespace: str = "default") -> Path:
        """Write a kubeconfig for a ServiceAccount that exists, with the rights that it really has; it is valid for one hour."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        answer = self.request("POST", path, {"spec": {"expirationSeconds": 3600}})
        return self._write_kubeconfig(f"{namespace}-{service_account}.kubeconfig", answer["status"]["token"])

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request as administrator; anything but a success is an error with the server's own words."""
        status, answer = self._request(method, path, json.dumps(body).encode() if body is not None else None)
        return _parsed(f"{method} {path}", status, answer)

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002 - as subprocess calls it
        check: bool = True,
        kubeconfig: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator, or with `kubeconfig`; the error for a failure has the output of kubectl."""
        options = [f"--kubeconfig={kubeconfig or self.kubeconfig}", f"--cache-dir={self._folder / 'kubectl'}"]
        result = subprocess.run(
            [self._assets / "kubectl", *options, *arguments],
            input=input or "", text=True, capture_output=True, check=False, timeout=2 * PATIENCE_SECONDS,
        )  # fmt: skip
        if check and result.returncode:
            raise ControlPlaneError(f"kubectl {' '.join(arguments)} ended with {result.returncode}: {result.stderr}")
        return result

    def find(self, path: str) -> dict[str, Any] | None:
        """GET as administrator; None where nothing is there."""
        status, answer = self._request("GET", path)
        if status == 404:
            return None
        return _parsed(f"GET {path}", status, answer)

    def delete(self, path: str) -> None:
        """DELETE as administrator, also of what has gone."""
        status, answer = self._request("DELETE", path)
        if status not in (404, 409):  # 409: its namespace ends already
            _parsed(f"DELETE {path}", status, answer)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """As `kubectl apply --server-side`, in this order, without a start of kubectl."""
        for manifest in manifests:
            path = f"{self.path_of(manifest)}?fieldManager=kubectl&fieldValidation=Strict&force=true"
            self.request("PATCH", path, manifest)

    def path_of(self, manifest: Mapping[str, Any]) -> str:
        """The place of an object, by what the API server says of its kind."""
        version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        wait_until(lambda: self._knows(root, kind), f"{root} has {kind}")
        plural, is_namespaced = self._kinds[root, kind]
        there = f"/namespaces/{metadata.get('namespace', 'default')}" if is_namespaced else ""
        return f"{root}{there}/{plural}/{metadata['name']}"

    def _knows(self, root: str, kind: str) -> bool:
        if (root, kind) not in self._kinds:
            for each in (self.find(root) or {}).get("resources", ()):
                self._kinds.setdefault((root, each["kind"]), (each["name"], each["namespaced"]))
        return (root, kind) in self._kinds

    def audit(self) -> Sequence[AuditEvent]:
        """Every request answered since `begin_audit`; a request's own event may come a moment after its answer."""
        return self._audit.events()[self._audited :]

    def begin_audit(self) -> None:
        """Leave out of `audit` what was asked until now."""
        self._audited = len(self._audit.events())

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def logs(self) -> Path:
        """Folder of the programs' logs and of the audit log."""
        return self._folder / "logs"

    @property
    def _container_log(self) -> Path:
        return self._folder / "container.log"

    def _request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        port = self._programs["kube-apiserver"].port
        for attempt in range(BUSY_ATTEMPTS):
            time.sleep(attempt and POLL_SECONDS * 2**attempt)
            status, answer = http_answer(port, path, tls=self._tls, method=method, headers=headers, body=body)
            if status != 429:  # as every client of Kubernetes: a CRD that was just created is not stored yet
                break
        return status, answer

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def _write_kubeconfig(self, name: str, token: str) -> Path:
        """JSON, which every reader of YAML accepts."""
        authority = base64.b64encode(self.ca_pem.encode()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        named = {"name": "kvgate"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "kvgate",
            "clusters": [named | {"cluster": cluster}],
            "users": [named | {"user": {"token": token}}],
            "contexts": [named | {"context": {"cluster": "kvgate", "user": "kvgate", "namespace": "default"}}],
        }
        return self._write(name, json.dumps(content, indent=1))

    # ── command lines ─────────────────────────────────────────────────────────────────────────────────────────────

    def _etcd_flags(self, port: int) -> list[str]:
        return [
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls=https://127.0.0.1:{port}",
            f"--advertise-client-urls=https://127.0.0.1:{port}",
            f"--cert-file={self._folder / 'tls.crt'}",
            f"--key-file={self._folder / 'tls.key'}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _certificate_flags(self) -> list[str]:
        return [f"--tls-cert-file={self._folder / 'tls.crt'}", f"--tls-private-key-file={self._folder / 'tls.key'}"]

    def _serving_flags(self, port: int) -> list[str]:
        return ["--bind-address=127.0.0.1", f"--secure-port={port}", *self._certificate_flags()]

    def _apiserver_flags(self, port: int) -> list[str]:
        without_controllers = [] if self._full else ["--disable-admission-plugins=ServiceAccount"]
        return [
            *self._serving_flags(port),
            f"--etcd-servers=https://127.0.0.1:{self._programs['etcd'].port}",
            f"--etcd-cafile={self._folder / 'ca.crt'}",
            f"--cert-dir={self._folder / 'apiserver'}",
            f"--client-ca-file={self._folder / 'ca.crt'}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self._folder / 'sa.pub'}",
            f"--service-account-signing-key-file={self._folder / 'sa.key'}",
            "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",  # the names of fake nodes lead nowhere
            f"--admission-control-config-file={self._folder / 'admission.json'}",
            f"--audit-policy-file={self._folder / 'audit-policy.json'}",
            f"--audit-log-path={self.logs / 'audit.log'}",
            "--audit-log-maxsize=100000",  # MB: one file, never rotated
            "--v=1",
            *without_controllers,
        ]

    def _admission_configuration(self) -> dict[str, Any]:
        """Show webhooks a certificate, as the chart's README describes it."""
        configuration = {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": str(self._folder / "webhooks.kubeconfig"),
        }
        plugin = {"name": "ValidatingAdmissionWebhook", "configuration": configuration}
        return {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [plugin]}

    def _webhook_identity(self) -> dict[str, Any]:
        files = {"client-certificate": str(self._folder / "tls.crt"), "client-key": str(self._folder / "tls.key")}
        return {"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": files}]}

    def _client_flags(self) -> list[str]:
        return [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"]

    def _controller_manager_flags(self, port: int) -> list[str]:
        return [
            *self._serving_flags(port),
            *self._client_flags(),
            f"--root-ca-file={self._folder / 'ca.crt'}",
            f"--service-account-private-key-file={self._folder / 'sa.key'}",
            "--use-service-account-credentials",
            "--kube-api-qps=500",  # its start is thirty ServiceAccounts and their tokens: 5 s at the default of 20
            "--kube-api-burst=1000",
            "--node-monitor-grace-period=24h",  # fake nodes send no heartbeats: else they and their pods flap each 50 s
            f"--controllers=*,{','.join('-' + controller for controller in IDLE_CONTROLLERS)}",
        ]

    def _scheduler_flags(self, port: int) -> list[str]:
        return [*self._serving_flags(port), *self._client_flags()]

    def _container_logs(self) -> dict[str, Any]:
        """Containers that never ran have one log, present and previous."""
        path = str(self._container_log)
        logs = [{"logsFile": path, "previousLogsFile": path, "follow": False}]
        return {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "ClusterLogs",
            "metadata": {"name": "all"},
            "spec": {"logs": logs},
        }

    def _kwok_flags(self, port: int) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            "--manage-all-nodes=true",
            f"--server-address=127.0.0.1:{port}",
            *self._certificate_flags(),
            f"--config={STAGES}",
            f"--config={self._write('container-logs.json', json.dumps(self._container_logs()))}",
            "--node-ip=127.0.0.1",
            f"--node-port={port}",
            f"--cidr={self._pod_network.getsockname()[0]}/16",
        ]


def _parsed(request: str, status: int, answer: bytes) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(answer)
    if status >= 300:
        raise ControlPlaneError(f"{request}: {status} {parsed['message']}")
    return parsed


def _claimed_network() -> socket.socket:
    claim = socket.socket(type=socket.SOCK_DGRAM)
    for network in random.sample(POD_NETWORKS, len(POD_NETWORKS)):
        with contextlib.suppress(OSError):
            claim.bind((network, CLAIM_PORT))
            return claim
    claim.close()
    raise ControlPlaneError(
        f"UDP port {CLAIM_PORT} is taken on every pod network, {POD_NETWORKS[0]} to {POD_NETWORKS[-1]}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a control plane in the foreground until Ctrl-C.")
    parser.add_argument("--api-only", action="store_true", help="etcd and the API server, no controllers")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ControlPlane(ensure_assets(PROGRAMS), full=not options.api_only) as plane:
            print(f"export KUBECONFIG={plane.kubeconfig}\n# Ctrl-C stops it", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    except KeyboardInterrupt:
        return 130
    except (BuildError, ControlPlaneError) as error:
        print("\n".join([f"controlplane: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

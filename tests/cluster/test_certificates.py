"""Certificates by the controller itself: made under the chart's rights, and renewed under traffic without an admission that fails.

`KVGATE_ROTATIONS=20 KVGATE_ADMISSIONS_PER_SECOND=50` is the long form.
"""

import asyncio
import base64
import os
import ssl
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from controlplane.plane import ControlPlane
from controlplane.programs import free_port, wait_until
from kvgate.cluster.client import Cluster, load_configuration
from kvgate.controller.certificates import WebhookCertificate
from kvgate.webhook.command import WebhookOptions, serving
from support.assets import require_assets
from support.chart import NAMESPACE, documents, one, render
from support.doors import running
from support.inference import inference_deployment

pytestmark = pytest.mark.cluster

ROTATIONS = int(os.environ.get("KVGATE_ROTATIONS", "3"))
PER_SECOND = float(os.environ.get("KVGATE_ADMISSIONS_PER_SECOND", "20"))
SECRET, CONFIGURATION = "kvgate-webhook-cert", f"kvgate-webhook.{NAMESPACE}"
OPTIONS = (f"--webhook-secret={NAMESPACE}/{SECRET}", f"--webhook-configuration={CONFIGURATION}")
AT_ONCE = 4
SETTLE_SECONDS = 0.5
KUBELET_SECONDS = 0.2
NEEDED = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Secret"}


def files_of(plane: ControlPlane) -> dict[str, bytes]:
    """What the Secret holds."""
    found = plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}")
    return {name: base64.b64decode(text) for name, text in found.get("data", {}).items()}


def installed(plane: ControlPlane, helm: Path, port: int) -> list[dict[str, Any]]:
    """The chart's rights, Secret and webhook configuration; an address of this machine stands in for its Service."""
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    found = documents(render(helm))
    configuration = one(found, "ValidatingWebhookConfiguration", CONFIGURATION)
    configuration["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{port}/validate"}
    plane.apply(*(each for each in found if each["kind"] in NEEDED and "helm.sh/hook" not in str(each)), configuration)
    return found


async def mount(plane: ControlPlane, folder: Path) -> None:
    """What the kubelet does: the files follow the Secret, a little late, one after the other."""
    while True:
        for name, content in (await asyncio.to_thread(files_of, plane)).items():
            (folder / f".{name}").write_bytes(content)
            (folder / f".{name}").rename(folder / name)
        await asyncio.sleep(KUBELET_SECONDS)


async def admit_forever(plane: ControlPlane, failures: list[str]) -> None:
    """Ask for admissions, a few at a time and no more than a machine under load can answer; note what was said to each."""
    context = ssl.create_default_context(cadata=plane.ca_pem)
    access = yaml.safe_load(plane.kubeconfig.read_text(encoding="utf-8"))
    path = f"{access['clusters'][0]['cluster']['server']}/apis/kvgate.io/v1alpha1/namespaces/default/inferencedeployments?dryRun=All"
    headers = {"Authorization": f"Bearer {access['users'][0]['user']['token']}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0), headers=headers) as client:
        turns = asyncio.Semaphore(AT_ONCE)

        async def admit() -> None:
            async with turns, client.post(path, json=inference_deployment("asked")) as answer:
                failures.append("" if answer.status == 201 else f"{answer.status} {await answer.text()}")

        async with asyncio.TaskGroup() as group:
            while True:
                if not turns.locked():
                    group.create_task(admit())
                await asyncio.sleep(1 / PER_SECOND)


async def rotate(plane: ControlPlane, kubeconfig: Path, folder: Path, port: int) -> list[str]:
    """Renew the certificate again and again while admissions are asked for; what was said to each."""
    said: list[str] = []
    options = WebhookOptions(
        host="127.0.0.1", port=port, tls_cert=folder / "tls.crt", tls_key=folder / "tls.key", metrics_host="127.0.0.1",
        metrics_port=0, linger_seconds=0, certificate_poll_seconds=KUBELET_SECONDS,
    )  # fmt: skip
    async with serving(options), Cluster(await load_configuration(str(kubeconfig)), lambda *_: None) as cluster:
        tasks = [asyncio.create_task(mount(plane, folder)), asyncio.create_task(admit_forever(plane, said))]
        keeper = WebhookCertificate(cluster, (NAMESPACE, SECRET), CONFIGURATION, settle_seconds=SETTLE_SECONDS)
        for _ in range(ROTATIONS):
            await keeper.keep(renews=True)
            await asyncio.sleep(SETTLE_SECONDS)
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return said


def test_the_controller_makes_the_certificate_and_renews_it_without_an_admission_that_fails(
    plane: ControlPlane, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    port = free_port()
    found = installed(plane, require_assets(pytestconfig, "helm") / "helm", port)
    kubeconfig = plane.kubeconfig_for("kvgate-controller", NAMESPACE)
    with running("controller", *OPTIONS, kubeconfig=kubeconfig):
        wait_until(lambda: len(files_of(plane)) == 3, "the certificate is made")
    for name, content in files_of(plane).items():
        (tmp_path / name).write_bytes(content)
    said = asyncio.run(rotate(plane, kubeconfig, tmp_path, port))
    assert len(said) > ROTATIONS, "many more are asked for on a machine that has the time"
    assert set(said) == {""}
    by_us = [event for event in plane.audit() if event.user == f"system:serviceaccount:{NAMESPACE}:kvgate-controller"]
    assert [event for event in by_us if event.code == 403] == []
    assert_that_helm_test_passes(found, port, files_of(plane)["ca.crt"].decode(), tmp_path)


def assert_that_helm_test_passes(found: Sequence[dict[str, Any]], port: int, authority: str, folder: Path) -> None:
    """The command of the Pod of `helm test`, against a webhook with the certificate that was made last."""
    (container,) = one(found, "Pod", "kvgate-test")["spec"]["containers"]
    address = {"host": "127.0.0.1", "port": port, "metrics_host": "127.0.0.1", "metrics_port": 0, "linger_seconds": 0}

    async def asked() -> tuple[int | None, str]:
        files = {"tls_cert": folder / "tls.crt", "tls_key": folder / "tls.key"}
        async with serving(WebhookOptions(**address, **files)):
            variables = {"WEBHOOK": f"https://127.0.0.1:{port}/validate", "CA": authority}
            process = await asyncio.create_subprocess_exec(
                sys.executable, *container["command"][1:], *container["args"], env=variables, stdout=subprocess.PIPE
            )
            return await process.wait(), (await process.stdout.read()).decode() if process.stdout else ""

    code, text = asyncio.run(asked())
    assert code == 0, text
    assert "GiB of KV cache per GPU" in text

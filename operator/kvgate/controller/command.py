"""`kvgate controller`: its options, and the process.

Probes, metrics and the Lease are in the main thread's loop, the work in a thread of its own. Nothing is watched or written before the Lease
is held, and the gate that it opens stands before every request that writes. The process stops on SIGTERM, and reports in one sentence why
it cannot start.
"""

import asyncio
import logging
import os
import socket
import threading
import uuid
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from itertools import product
from pathlib import Path
from typing import Any

import click

from kvgate.api.allowed import AllowedPods
from kvgate.cluster import leases
from kvgate.cluster.client import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    INFERENCE_DEPLOYMENTS,
    PODS,
    SERVICES,
    Cluster,
    load_configuration,
)
from kvgate.cluster.errors import ApiError, Forbidden, NoConfiguration, NotFound
from kvgate.cluster.leases import Claim, Leases
from kvgate.controller.leadership import RENEW_SECONDS, Elector, LeaseLost
from kvgate.controller.pace import MAX_REPLACING
from kvgate.controller.starts import ConfigMapName
from kvgate.controller.state import RESOLVE_SECONDS, ControllerOptions, Process
from kvgate.controller.working_thread import run_thread
from kvgate.metrics.exporter import endpoint_app
from kvgate.metrics.listener import listen
from kvgate.rendering.workload import IMAGES
from kvgate.runtime.service import (
    audit_option,
    calibration_options,
    log_as_json,
    max_skip_days_option,
    otlp_options,
    pods_option,
    stop_signal,
)

STOP_SECONDS = 18.0
"""Time in which the working thread must end; the pod has 30 s."""
LOST_STOP_SECONDS = 3.0
"""The same time where the Lease is lost: the thread may write nothing any more, and the process must make room for the next one."""

_log = logging.getLogger(__name__)


class ClusterNotPrepared(Exception):
    """The cluster is not prepared for kvgate; the message says what to do."""


class ThreadDied(Exception):
    """The working thread ended by itself: nothing reconciles any more, and the process must not look alive."""


async def run(options: ControllerOptions, stopped: asyncio.Event | None = None) -> None:
    """Work until `stopped` is set, or until SIGTERM where no event is given.

    Raises ClusterNotPrepared, LeaseLost, ThreadDied, NoConfiguration, and OSError for a port that is taken.
    """
    stopped = stopped or stop_signal()
    process = Process(options=options)
    configuration = await load_configuration(options.kubeconfig)
    app = endpoint_app(
        process.registry, livez=process.health.livez, readyz=process.health.readyz, deployments=process.deployments
    )
    runner = await listen(app, options.metrics_host, options.metrics_port)
    _log.info("listening", extra={"fields": {"metrics_port": runner.addresses[0][1]}})
    machine = socket.gethostname()
    holder = f"{machine}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    claim = Claim.of(options.namespaces, holder=holder, instance=options.instance or machine)
    try:
        async with _pushing(process), Cluster(configuration, process.count_request) as cluster:
            elector = Elector(Leases(cluster, options.lease_namespace), claim, process.gate)
            process.leader.set_function(elector.holds_lease)
            if await _wait_for_cluster(cluster, process, stopped):
                try:
                    if await _wait_for_lease(elector, process, stopped):
                        await process.starts.try_load(cluster, process.troubles, loop="start")
                        await process.models.try_load(cluster, process.troubles, loop="start")
                        await _work(elector, process, stopped)
                finally:
                    await elector.release()  # nothing can be written any more
    finally:
        await runner.cleanup()
    _log.info("stopped")


def _pushing(process: Process) -> AbstractAsyncContextManager[None]:
    if process.options.otlp is None:
        return nullcontext()
    from kvgate.metrics.otlp import pushing  # an extra, and 0.3 s

    return pushing(process.options.otlp, "kvgate-controller", process.registry, process.troubles, process.deployments)


_KINDS = (INFERENCE_DEPLOYMENTS, DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS, PODS)


async def _wait_for_cluster(cluster: Cluster, process: Process, stopped: asyncio.Event) -> bool:
    """Wait until all that is watched can be listed. Returns False where the process must stop first."""
    pause_seconds = 1.0
    while not stopped.is_set():
        try:
            for namespace, kind in product(process.options.namespaces or (None,), _KINDS):
                await cluster.probe(kind, namespace)
        except NotFound as error:
            remedy = "install the CustomResourceDefinition of kvgate first"
            raise ClusterNotPrepared(f"the cluster does not know {error.resource}: {remedy}") from error
        except ApiError as error:
            process.health.trouble = str(error)
            hint = "; the controller's role lacks a rule" if isinstance(error, Forbidden) else ""
            fields = {"verb": error.verb, "resource": error.resource}
            _log.error("cannot work yet: %s%s", error, hint, extra={"fields": fields})
        else:
            process.health.answered()
            return True
        await _pause(pause_seconds, stopped)
        pause_seconds = min(pause_seconds * 2, 30.0)
    return False


async def _wait_for_lease(elector: Elector, process: Process, stopped: asyncio.Event) -> bool:
    """Wait until the Lease is held. Returns False where the process must stop first; each other holder is logged once."""
    logged = ""
    while not stopped.is_set():
        pause_seconds = RENEW_SECONDS
        try:
            rival = await elector.take()
        except ApiError as error:
            is_standby, reason, subject = False, f"cannot take the Lease: {error}", str(error)
            if isinstance(error, Forbidden):
                reason += (
                    "; the role lacks a rule: list, create and update leases in that namespace,"
                    " or name another one by --lease-namespace"
                )
        else:
            if rival is None:
                process.health.answered()
                return True
            is_standby, reason, subject = elector.is_replica(rival), elector.describe(rival), rival.holder
            pause_seconds = elector.pause_seconds(rival)
        process.health.wait(reason, is_standby=is_standby)
        if subject != logged:
            logged = subject
            _log.warning("%s", reason)
        await _pause(pause_seconds, stopped)
    return False


async def _work(elector: Elector, process: Process, stopped: asyncio.Event) -> None:
    """Run the working thread and confirm the Lease meanwhile, until the process must stop or the Lease is lost."""
    loop = asyncio.get_running_loop()
    thread = threading.Thread(
        target=run_thread, args=(process, lambda: loop.call_soon_threadsafe(stopped.set)), name="working", daemon=True
    )
    process.health.begin()
    thread.start()
    _log.info("working", extra={"fields": {"namespaces": list(process.options.namespaces) or "all"}})
    keeping = asyncio.create_task(_keep(elector, process))
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait((keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
    process.stop.set()
    stopping.cancel()
    patience_seconds = LOST_STOP_SECONDS if keeping.done() else STOP_SECONDS
    await asyncio.to_thread(thread.join, patience_seconds)  # the Lease is held until the thread has ended
    if thread.is_alive():
        elector.abandon()
        _log.error("the working thread did not end within %g s", patience_seconds)
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
    if process.died:
        raise ThreadDied("the working thread has ended by itself; see the log above")


async def _keep(elector: Elector, process: Process) -> None:
    """Confirm the Lease for ever. A request that fails is tried again, and meanwhile the gate shuts by itself. Raises LeaseLost."""
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        try:
            await elector.confirm()
        except ApiError as error:
            process.health.trouble = f"the Lease cannot be confirmed: {error}"
        except LeaseLost:
            raise
        except Exception as error:  # noqa: BLE001 - a defect must not end the process: the gate shuts by itself
            process.health.trouble = "the Lease cannot be read; see the log"
            process.troubles.note("lease", error)
        else:
            process.health.answered()


async def _pause(seconds: float, stopped: asyncio.Event) -> None:
    """Sleep, or return early when the process must stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopped.wait()


def _config_map_name(_context: click.Context, _option: click.Parameter, text: str | None) -> ConfigMapName | None:
    try:
        return None if text is None else ConfigMapName.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _secret_name(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, str] | None:
    namespace, slash, name = (text or "").partition("/")
    if text is not None and (not (namespace and slash and name) or "/" in name):
        raise click.BadParameter(
            f"{text!r} is not NAMESPACE/NAME of a Secret; give one such as kvgate-system/kvgate-webhook-cert"
        )
    return (namespace, name) if text else None


@click.command("controller", context_settings={"show_default": True})
@click.option("--metrics-host", default="0.0.0.0", help="Address on which /metrics, /livez and /readyz are served.")  # noqa: S104
@click.option(
    "--metrics-port", default=8080, type=click.IntRange(0, 65535), help="Port of these; 0 takes any free port."
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NS",
    help="Namespace to serve; may be repeated. Without it all are.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig file. Without it: KUBECONFIG, then ~/.kube/config, then the pod's ServiceAccount.",
)
@click.option(
    "--calibration",
    "calibration_map",
    metavar="NAMESPACE/NAME",
    callback=_config_map_name,
    help="Name of the 16 ConfigMaps in which observed starts are stored: NAME-0 to NAME-15. NAME itself, in which older releases stored"
    " them, is read as well. Without it they are lost when the process ends.",
)
@click.option(
    "--read-nodes",
    is_flag=True,
    help="Read nodes: starts under another driver or GPU product then count as starts of a neighbour, and starts on nodes that are gone or"
    " were upgraded are no witnesses any more.",
)
@click.option(
    "--watch-nodes",
    is_flag=True,
    help="Watch nodes and ResourceSlices: the least GPU memory of the nodes that can take a pod counts, and nodes that contradict the spec"
    " are reported.",
)
@calibration_options(IMAGES.values())
@click.option(
    "--models",
    "models_map",
    metavar="NAMESPACE/NAME",
    callback=_config_map_name,
    help="ConfigMap in which models are stored that are not in the catalogue: with it, the Hugging Face hub is asked for them"
    " (HF_ENDPOINT and HF_TOKEN are read). Without it nothing is fetched.",
)
@click.option(
    "--resolve-seconds",
    default=RESOLVE_SECONDS,
    type=click.FloatRange(0, 3600),
    help="Longest time for which an object is held back while its model is fetched.",
)
@click.option(
    "--max-replacing",
    default=MAX_REPLACING,
    type=click.IntRange(1, 1000),
    help="Most engines that load at a time where pods are replaced that nobody edited, as after an upgrade of kvgate.",
)
@click.option(
    "--pass-label",
    "pass_labels",
    multiple=True,
    metavar="KEY",
    help="Label of InferenceDeployments that their children get too; `example.com/*` means all that begin so. May be repeated.",
)
@click.option("--pass-annotation", "pass_annotations", multiple=True, metavar="KEY", help="The same for an annotation.")
@click.option(
    "--webhook-secret",
    metavar="NAMESPACE/NAME",
    callback=_secret_name,
    help="Secret in which the webhook's certificate is made and renewed. Without it somebody else makes it.",
)
@click.option(
    "--webhook-configuration",
    metavar="NAME",
    default="",
    help="ValidatingWebhookConfiguration that gets the CA of that certificate.",
)
@click.option(
    "--lease-namespace",
    metavar="NS",
    default=leases.NAMESPACE,
    help="Namespace of the controllers' Leases; it must be the same for all controllers of the cluster.",
)
@click.option(
    "--instance",
    default="",
    metavar="NAME",
    help="Name of the installation that this process is a replica of. Without it: the name of the machine.",
)
@click.option(
    "--resync-seconds",
    default=300.0,
    type=click.FloatRange(min=1),
    help="Time between two comparisons of all objects with the cluster, ± 20 %.",
)
@click.option(
    "--observe-seconds",
    default=15.0,
    type=click.FloatRange(min=1),
    help="Time between two reads of the metrics of running vLLM pods, ± 10 %.",
)
@audit_option
@max_skip_days_option
@pods_option(AllowedPods.from_document)
@otlp_options
def controller(kubeconfig: Path | None, **options: Any) -> None:
    """Reconcile InferenceDeployments.

    Only one controller works at a time: it takes a Lease first, and waits while a controller that serves one of its namespaces holds one.
    """
    if bool(options["webhook_secret"]) != bool(options["webhook_configuration"]):
        raise click.UsageError("--webhook-secret and --webhook-configuration need each other")
    try:
        asyncio.run(run(ControllerOptions(kubeconfig=str(kubeconfig) if kubeconfig else None, **options)))
    except (ClusterNotPrepared, LeaseLost, NoConfiguration, ThreadDied) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot listen: {error}; choose another --metrics-host or --metrics-port") from None


def main(argv: Sequence[str]) -> None:
    log_as_json()
    controller.main(args=list(argv), prog_name="kvgate controller")

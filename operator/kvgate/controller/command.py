"""`kvgate controller`: starts the process, stops it on SIGTERM, and says in one sentence why it cannot start."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kvgate.budget.calibration import Scope
from kvgate.calibration.records import Trust
from kvgate.cluster import leases
from kvgate.cluster.errors import NoConfiguration
from kvgate.controller.leadership import LeaseLost
from kvgate.controller.process import CannotStart, Options, ThreadDied, run
from kvgate.controller.starts import ConfigMapName
from kvgate.rendering.pod import IMAGES
from kvgate.runtime.logs import log_as_json


@click.command("controller", context_settings={"show_default": True})
@click.option("--metrics-host", default="0.0.0.0", help="Address of /metrics, /livez and /readyz.")  # noqa: S104
@click.option("--metrics-port", default=8080, type=click.IntRange(0, 65535), help="Their port; 0 takes any.")
@click.option("--namespace", "namespaces", multiple=True, metavar="NS", help="Only this namespace; may be repeated.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Else KUBECONFIG, ~/.kube/config, the pod's own.",
)
@click.option(
    "--calibration", metavar="NAMESPACE/NAME", help="ConfigMap that keeps observed starts; else until the process ends."
)
@click.option(
    "--calibration-image",
    "calibration_images",
    multiple=True,
    metavar="REPOSITORY",
    default=tuple(IMAGES.values()),
    help="Only pods of this image teach; without tag, `*` for any part; may be repeated.",
)
@click.option(
    "--calibration-scope",
    type=click.Choice([scope.value for scope in Scope]),
    default=Scope.NAMESPACE.value,
    help="Whom a start teaches: its namespace, or every one.",
)
@click.option(
    "--lease-namespace",
    metavar="NS",
    default=leases.NAMESPACE,
    help="Where controllers of this cluster keep their Leases; the same for all of them.",
)
@click.option(
    "--instance",
    default="",
    metavar="NAME",
    help="The installation that this process is a replica of, for those who wait for it; else this machine's name.",
)
@click.option(
    "--resync-seconds", default=300.0, type=click.FloatRange(min=1), help="How often everything is compared, ± 20 %."
)
@click.option(
    "--observe-seconds", default=15.0, type=click.FloatRange(min=1), help="How often running vLLM is asked, ± 10 %."
)
def controller(
    kubeconfig: Path | None, calibration: str | None, calibration_images: tuple[str, ...], calibration_scope: str,
    **options: Any,
) -> None:  # fmt: skip
    """Reconcile InferenceDeployments.

    One controller at a time: it takes a Lease first, and waits while another controller that serves the same namespaces holds one.
    """
    place = _place(calibration) if calibration else None
    trust = _trust(calibration_images, calibration_scope)
    chosen = Options(kubeconfig=str(kubeconfig) if kubeconfig else None, calibration=place, trust=trust, **options)
    try:
        asyncio.run(_until_signal(chosen))
    except (CannotStart, LeaseLost, NoConfiguration, ThreadDied) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot listen: {error}; choose another --metrics-host or --metrics-port") from None


def _place(text: str) -> ConfigMapName:
    try:
        return ConfigMapName.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--calibration") from None


def _trust(images: tuple[str, ...], scope: str) -> Trust:
    try:
        return Trust.of(images, scope)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--calibration-image") from None


def main(argv: Sequence[str]) -> None:
    """Entry of the console script."""
    log_as_json()
    logging.getLogger("kopf").setLevel(logging.WARNING)  # else two lines per change
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns that signals are ours, as is meant
    controller.main(args=list(argv), prog_name="kvgate controller")


async def _until_signal(options: Options) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await run(options, stopped)

"""`kvgate controller`: starts the process, stops it on SIGTERM, and reports in one sentence why it cannot start."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kvgate.cluster import leases
from kvgate.cluster.errors import NoConfiguration
from kvgate.controller.leadership import LeaseLost
from kvgate.controller.process import ClusterNotPrepared, ThreadDied, run
from kvgate.controller.starts import ConfigMapName
from kvgate.controller.state import RESOLVE_SECONDS, ControllerOptions
from kvgate.rendering.pod import IMAGES
from kvgate.runtime.service import calibration_options, log_as_json, otlp_options


def _config_map_name(_context: click.Context, _option: click.Parameter, text: str | None) -> ConfigMapName | None:
    try:
        return None if text is None else ConfigMapName.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


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
@otlp_options
def controller(kubeconfig: Path | None, **options: Any) -> None:
    """Reconcile InferenceDeployments.

    Only one controller works at a time: it takes a Lease first, and waits while a controller that serves one of its namespaces holds one.
    """
    try:
        asyncio.run(run(ControllerOptions(kubeconfig=str(kubeconfig) if kubeconfig else None, **options)))
    except (ClusterNotPrepared, LeaseLost, NoConfiguration, ThreadDied) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot listen: {error}; choose another --metrics-host or --metrics-port") from None


def main(argv: Sequence[str]) -> None:
    """Entry of the console script."""
    log_as_json()
    logging.getLogger("kopf").setLevel(logging.WARNING)  # at INFO kopf logs two lines per change
    logging.getLogger("kopf._core.reactor.running").setLevel(
        logging.ERROR
    )  # it warns that signals are ours, as intended
    controller.main(args=list(argv), prog_name="kvgate controller")

"""`kvgate webhook`: starts the process, and stops it gracefully on SIGTERM."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.allowed import NOTHING_ALLOWED, AllowedPods
from kvgate.calibration.trust import Trust
from kvgate.metrics import registry as names
from kvgate.metrics.exporter import counter, endpoint_app, gauge, new_registry
from kvgate.metrics.listener import DEFAULT_LIMITS, Listener, PortLimits, listen, listening_beside
from kvgate.rendering.workload import IMAGES, VLLM_ALONE
from kvgate.runtime.background import Troubles, repeat
from kvgate.runtime.pool import Pool
from kvgate.runtime.service import (
    OtlpOptions,
    audit_option,
    calibration_options,
    log_as_json,
    max_skip_days_option,
    otlp_options,
    pods_option,
    stop_signal,
)
from kvgate.runtime.worker import Limits
from kvgate.webhook.judging import (
    LIMITS,
    WORKERS,
    ModelsFolder,
    MountedFacts,
    StartsFile,
    review_in_worker,
)
from kvgate.webhook.server import Bodies, ReviewInstruments, Traffic, validation_app
from kvgate.webhook.tls import Certificate, CertificateError, has_name

LINGER_SECONDS = 5.0
"""Time in which a stopping process still answers, while the API server learns to use the other replica."""
DRAIN_SECONDS = 10.0
"""Time that reviews under way may take after that; the API server waits half as long."""
BEAT_SECONDS = 1.0
MAX_LAG_SECONDS = 10.0
"""Time without a beat of the event loop after which something blocks it."""
CERTIFICATE_POLL_SECONDS = 10.0
"""Time between two looks at the files; the kubelet takes a minute to update a mounted Secret."""

_log = logging.getLogger(__name__)


class CannotServe(click.ClickException):
    """The given files or addresses cannot be served."""

    exit_code = 2


class WebhookOptions(Struct, frozen=True, kw_only=True):
    host: str
    port: int
    tls_cert: Path
    tls_key: Path
    metrics_host: str
    metrics_port: int
    calibration_file: Path | None = None
    models_folder: Path | None = None
    trust: Trust = VLLM_ALONE
    audit: bool = False
    max_skip_days: int = 0
    allowed: AllowedPods = NOTHING_ALLOWED
    """Parts of pods that the administrator allows."""
    client_ca: Path | None = None
    client_names: tuple[str, ...] = ()
    limits: Limits = LIMITS
    port_limits: PortLimits = DEFAULT_LIMITS
    linger_seconds: float = LINGER_SECONDS
    certificate_poll_seconds: float = CERTIFICATE_POLL_SECONDS
    otlp: OtlpOptions | None = None
    """Receiver of the metrics; None where nothing is pushed."""


_FILE = click.Path(path_type=Path)


@click.command("webhook", context_settings={"show_default": True})
@click.option("--host", default="0.0.0.0", help="Address on which reviews are answered.")  # noqa: S104 - a Service sends them
@click.option("--port", default=9443, type=click.IntRange(0, 65535), help="Port of the reviews; 0 takes any free port.")
@click.option(
    "--tls-cert", type=_FILE, required=True, help="PEM file of the certificate chain; read again when it changes."
)
@click.option("--tls-key", type=_FILE, required=True, help="PEM file of the certificate's key.")
@click.option(
    "--client-ca",
    type=_FILE,
    help="PEM file of the CA that must have signed a client's certificate; read again when it changes. Without it any client may ask.",
)
@click.option(
    "--client-name",
    "client_names",
    multiple=True,
    metavar="NAME",
    help="Common or DNS name that a client's certificate must have; may be repeated. Without it any certificate of --client-ca will do.",
)
@click.option(
    "--workers",
    default=WORKERS,
    type=click.IntRange(1, 64),
    help="Processes that judge; one namespace never uses all of them at once.",
)
@click.option("--metrics-host", default="0.0.0.0", help="Address on which /metrics, /livez and /readyz are served.")  # noqa: S104
@click.option(
    "--metrics-port", default=8080, type=click.IntRange(0, 65535), help="Port of these; 0 takes any free port."
)
@click.option(
    "--calibration",
    "calibration_file",
    type=_FILE,
    help="Folder with the observed starts of every shard, or one file of them; read again when they change. They may be missing.",
)
@calibration_options(IMAGES.values())
@click.option(
    "--models",
    "models_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the models that the controller fetched from the hub; read again when it changes. It may be missing or empty.",
)
@audit_option
@max_skip_days_option
@click.option(
    "--linger-seconds",
    default=LINGER_SECONDS,
    type=click.FloatRange(0, 60),
    help="Time for which reviews are still answered after SIGTERM, while /readyz reports that the process is leaving.",
)
@pods_option(AllowedPods.from_document)
@otlp_options
def webhook(workers: int, **options: Any) -> None:
    """Answer admission reviews of InferenceDeployments over HTTPS."""
    if options["client_names"] and not options["client_ca"]:
        raise click.UsageError("--client-name needs --client-ca: without it clients show no certificate")
    try:
        asyncio.run(run(WebhookOptions(limits=replace(LIMITS, workers=workers), **options)))
    except CertificateError as error:
        raise CannotServe(str(error)) from None
    except OSError as error:
        raise CannotServe(
            f"cannot listen: {error}; choose another --host, --port, --metrics-host or --metrics-port"
        ) from None


def main(argv: Sequence[str]) -> None:
    log_as_json()
    webhook.main(args=list(argv), prog_name="kvgate webhook")


async def run(options: WebhookOptions) -> None:
    """Serve until SIGTERM or SIGINT, then leave as `serving` does."""
    stop = stop_signal()
    async with serving(options) as ports:
        _log.info("listening", extra={"fields": ports})
        await stop.wait()
        _log.info("stopping")
    _log.info("stopped")


@contextlib.asynccontextmanager
async def serving(options: WebhookOptions) -> AsyncIterator[dict[str, int]]:
    """Serve reviews and metrics, and yield the ports by name. The probes outlive the reviews and then report "not ready"."""
    certificate = Certificate(options.tls_cert, options.tls_key, options.client_ca)
    starts, models = StartsFile(options.calibration_file, options.trust), ModelsFolder(options.models_folder)
    registry, traffic, accepting, beat = new_registry(), Traffic(), asyncio.Event(), Beat()

    def readyz() -> tuple[bool, str]:
        return (True, "ok") if accepting.is_set() else (False, "reviews are not accepted yet, or no longer")

    metrics = endpoint_app(registry, livez=beat.livez, readyz=readyz)
    gauge(names.CERTIFICATE_EXPIRY, registry).set_function(lambda: certificate.expires_at)
    pool = Pool(options.limits, preload=("kvgate.judgement.warm",))
    facts = MountedFacts(
        starts, models, asks_hub=options.models_folder is not None, audits=options.audit, allowed=options.allowed,
        max_skip_days=options.max_skip_days,
    )  # fmt: skip
    judge = partial(review_in_worker, pool, facts)
    validation = validation_app(ReviewInstruments.registered(registry), traffic, judge, Bodies())
    async with contextlib.AsyncExitStack() as stack:
        beating = asyncio.create_task(beat.run_forever())
        stack.callback(beating.cancel)
        probes = await stack.enter_async_context(listening_beside(metrics, options.metrics_host, options.metrics_port))
        stack.push_async_callback(pool.close)  # after the last review
        reviews = await listen(
            validation, options.host, options.port, tls=certificate.context, limits=options.port_limits,
            accepts=partial(has_name, options.client_names),
        )  # fmt: skip
        stack.push_async_callback(_leave, reviews, traffic, options.linger_seconds)
        await pool.start()
        errors = counter(names.BACKGROUND_ERRORS, registry)
        troubles = Troubles(lambda loop: errors.labels(loop).inc())
        if options.otlp:
            from kvgate.metrics.otlp import pushing  # an extra, and 0.3 s

            await stack.enter_async_context(pushing(options.otlp, "kvgate-webhook", registry, troubles))
        reloads = {"certificate": certificate.reload, "observed starts": starts.reload, "fetched models": models.reload}
        following = asyncio.create_task(_follow(options.certificate_poll_seconds, troubles, reloads))
        stack.callback(following.cancel)
        accepting.set()
        stack.callback(accepting.clear)
        yield {"port": reviews.addresses[0][1], "metrics_port": probes.addresses[0][1]}


async def _follow(interval_seconds: float, troubles: Troubles, reloads: Mapping[str, Callable[[], object]]) -> None:
    """Look for changed files for ever; an error with one file does not stop the others."""

    async def look() -> None:
        for name, reload in reloads.items():
            try:
                reload()
            except Exception as error:  # noqa: BLE001 - a file may hold anything
                troubles.note(f"reload of {name}", error)

    await repeat("reload", look, interval_seconds=interval_seconds, troubles=troubles, pauses_first=True)


async def _leave(reviews: Listener, traffic: Traffic, linger_seconds: float) -> None:
    """Send clients away, stop accepting, let what is under way finish, close.

    The wait is ours because aiohttp's own shutdown drops what has not arrived completely.
    """
    traffic.leaving = True
    await asyncio.sleep(linger_seconds)
    await reviews.stop()
    await traffic.idle(DRAIN_SECONDS)
    await reviews.cleanup()


class Beat:
    """Sign of life of the event loop of the reviews; the probes have a loop of their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.at = clock()

    async def run_forever(self) -> None:
        while True:
            self.at = self._clock()
            await asyncio.sleep(BEAT_SECONDS)

    def livez(self) -> tuple[bool, str]:
        """Report a loop that stands still, the only case in which a restart helps."""
        lag_seconds = self._clock() - self.at
        if lag_seconds > MAX_LAG_SECONDS:
            return False, f"the event loop has not turned for {lag_seconds:.0f} s"
        return True, "ok"

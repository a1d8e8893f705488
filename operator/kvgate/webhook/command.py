"""`kvgate webhook`: starts the door, stops it gracefully, and logs one JSON object per line."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from kvgate.budget.calibration import Scope
from kvgate.calibration.records import Trust
from kvgate.metrics import registry as names
from kvgate.metrics.endpoint import endpoint_app
from kvgate.metrics.exporter import counter, gauge, new_registry
from kvgate.metrics.listener import DEFAULT_LIMITS, Listener, PortLimits, listen, listening_beside
from kvgate.rendering.pod import IMAGES, VLLM_ALONE
from kvgate.runtime.background import Troubles, repeat
from kvgate.runtime.logs import log_as_json
from kvgate.runtime.workers import Limits
from kvgate.webhook.judging import LIMITS, WORKERS, ReviewWorkers, StartsFile, reviewing_pool
from kvgate.webhook.server import Bodies, ReviewInstruments, Traffic, validation_app
from kvgate.webhook.tls import Certificate, CertificateError, ClientNames

LINGER_SECONDS = 5.0
"""Seconds in which a stopping process still answers, while the API server learns to use the other one."""
DRAIN_SECONDS = 10.0
"""Seconds that reviews under way may take after that; the API server waits half of it."""
BEAT_SECONDS = 1.0
MAX_LAG_SECONDS = 10.0
"""Seconds without a beat of the event loop: something blocks it."""
CERTIFICATE_POLL_SECONDS = 10.0
"""Well below the minute in which the kubelet updates a mounted Secret."""

_log = logging.getLogger(__name__)


class CannotStart(click.ClickException):
    """The given files or addresses cannot be served."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of the command."""

    host: str
    port: int
    tls_cert: Path
    tls_key: Path
    metrics_host: str
    metrics_port: int
    calibration: Path | None = None
    trust: Trust = VLLM_ALONE
    """Rule about whose observed starts teach."""
    client_ca: Path | None = None
    client_names: tuple[str, ...] = ()
    limits: Limits = LIMITS
    port_limits: PortLimits = DEFAULT_LIMITS
    linger_seconds: float = LINGER_SECONDS
    certificate_poll_seconds: float = CERTIFICATE_POLL_SECONDS


_FILE = click.Path(path_type=Path)


@click.command("webhook", context_settings={"show_default": True})
@click.option("--host", default="0.0.0.0", help="Address of the reviews.")  # noqa: S104 - a Service sends them
@click.option("--port", default=9443, type=click.IntRange(0, 65535), help="Port of the reviews; 0 takes any.")
@click.option(
    "--tls-cert", type=_FILE, required=True, help="PEM file of the certificate chain; read again when it changes."
)
@click.option("--tls-key", type=_FILE, required=True, help="PEM file of its key.")
@click.option(
    "--client-ca",
    type=_FILE,
    help="PEM file of the CA that must have signed a client's certificate; read again when it changes. Without it anybody may ask.",
)
@click.option(
    "--client-name",
    "client_names",
    multiple=True,
    metavar="NAME",
    help="Common or DNS name that the client's certificate must have; may be repeated. Without it any certificate of --client-ca will do.",
)
@click.option(
    "--workers",
    default=WORKERS,
    type=click.IntRange(1, 64),
    help="Processes that judge; a namespace never has all of them.",
)
@click.option("--metrics-host", default="0.0.0.0", help="Address of /metrics, /livez and /readyz.")  # noqa: S104
@click.option("--metrics-port", default=8080, type=click.IntRange(0, 65535), help="Their port; 0 takes any.")
@click.option("--calibration", type=_FILE, help="Observed starts; read again when it changes, and it may be missing.")
@click.option(
    "--calibration-image",
    "calibration_images",
    multiple=True,
    metavar="REPOSITORY",
    default=tuple(IMAGES.values()),
    help="Only starts of this image teach; without tag, `*` for any part; may be repeated.",
)
@click.option(
    "--calibration-scope",
    type=click.Choice([scope.value for scope in Scope]),
    default=Scope.NAMESPACE.value,
    help="Whom a start teaches: its namespace, or every one.",
)
@click.option(
    "--linger-seconds",
    default=LINGER_SECONDS,
    type=click.FloatRange(0, 60),
    help="After SIGTERM: not ready, and still answering that long.",
)
def webhook(calibration_images: tuple[str, ...], calibration_scope: str, workers: int, **options: Any) -> None:
    """Answer admission reviews of InferenceDeployments over HTTPS."""
    if options["client_names"] and not options["client_ca"]:
        raise click.UsageError("--client-name needs --client-ca: without it clients show no certificate")
    try:
        trust = Trust.of(calibration_images, calibration_scope)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--calibration-image") from None
    try:
        asyncio.run(run(Options(trust=trust, limits=replace(LIMITS, workers=workers), **options)))
    except CertificateError as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise CannotStart(
            f"cannot listen: {error}; choose another --host, --port, --metrics-host or --metrics-port"
        ) from None


def main(argv: Sequence[str]) -> None:
    """Entry of the console script."""
    log_as_json()
    webhook.main(args=list(argv), prog_name="kvgate webhook")


async def run(settings: Options) -> None:
    """Serve until SIGTERM or SIGINT, then leave as `serving` does."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(settings) as ports:
        _log.info("listening", extra={"fields": ports})
        await stop.wait()
        _log.info("stopping")
    _log.info("stopped")


@contextlib.asynccontextmanager
async def serving(settings: Options) -> AsyncIterator[dict[str, int]]:
    """Both listeners, as ports by name. The probes outlive the reviews, and tell that no more should come."""
    certificate = Certificate(settings.tls_cert, settings.tls_key, settings.client_ca)
    starts = StartsFile(settings.calibration, settings.trust)
    registry, traffic, accepting, beat = new_registry(), Traffic(), asyncio.Event(), Beat()
    metrics = endpoint_app(registry, livez=beat.livez, readyz=lambda: _readiness(accepting))
    gauge(names.CERTIFICATE_EXPIRY, registry).set_function(lambda: certificate.expires_at)
    pool, names_of_clients = reviewing_pool(settings.limits), ClientNames(settings.client_names)
    judge = ReviewWorkers(pool, lambda: starts.calibration)
    validation = validation_app(ReviewInstruments.registered(registry), traffic, judge, Bodies())
    async with contextlib.AsyncExitStack() as stack:
        beating = asyncio.create_task(beat.run_forever())
        stack.callback(beating.cancel)
        probes = await stack.enter_async_context(
            listening_beside(metrics, settings.metrics_host, settings.metrics_port)
        )
        stack.push_async_callback(pool.close)  # after the last review
        reviews = await listen(
            validation, settings.host, settings.port, tls=certificate.context, limits=settings.port_limits,
            accepts=names_of_clients.has,
        )  # fmt: skip
        stack.push_async_callback(_leave, reviews, traffic, settings.linger_seconds)
        await pool.start()
        errors = counter(names.BACKGROUND_ERRORS, registry)
        troubles = Troubles(lambda loop: errors.labels(loop).inc())
        reloads = {"certificate": certificate.reload, "observed starts": starts.reload}
        following = asyncio.create_task(_follow(settings.certificate_poll_seconds, troubles, reloads))
        stack.callback(following.cancel)
        accepting.set()
        stack.callback(accepting.clear)
        yield {"port": reviews.addresses[0][1], "metrics_port": probes.addresses[0][1]}


async def _follow(interval_seconds: float, troubles: Troubles, reloads: Mapping[str, Callable[[], object]]) -> None:
    """Look for changes for ever; reading a few small files is cheaper than being told of them. None holds up another."""

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
    """Sign of life of the reviews' event loop; the probes have another one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.at = clock()

    async def run_forever(self) -> None:
        while True:
            self.at = self._clock()
            await asyncio.sleep(BEAT_SECONDS)

    def livez(self) -> tuple[bool, str]:
        """A restart helps where the loop stands still, and only there."""
        lag_seconds = self._clock() - self.at
        if lag_seconds > MAX_LAG_SECONDS:
            return False, f"the event loop has not turned for {lag_seconds:.0f} s"
        return True, "ok"


def _readiness(accepting: asyncio.Event) -> tuple[bool, str]:
    """Catalogues read, certificate served, listener up: all three are done before it accepts."""
    return (True, "ok") if accepting.is_set() else (False, "reviews are not accepted yet, or no longer")

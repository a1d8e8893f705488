"""The common part of the two long-running processes: log lines as JSON, the end on a signal, and options of both."""

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import wraps
from importlib.util import find_spec
from typing import Any

import click
from msgspec import Struct

from kvgate import INSTALL
from kvgate.budget import CalibrationScope
from kvgate.calibration.trust import Trust
from kvgate.text.inert import inert, inert_line, inert_values, json_text
from kvgate.text.patterns import pattern


class JsonLines(logging.Formatter):
    """One JSON object per line: a record's `fields` stand beside its event."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        line = inert_values(line)
        if record.exc_info:
            line["traceback"] = "\n".join(map(inert, self.formatException(record.exc_info).split("\n")))
        return json_text(line)


def log_as_json() -> None:
    """Log as JSON to stderr, from INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def stop_signal() -> asyncio.Event:
    """Return an event of the running loop that SIGTERM and SIGINT set."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


audit_option = click.option(
    "--audit",
    is_flag=True,
    help="Admit and run what would be refused, and report it: for the first weeks of an installation.",
)
max_skip_days_option = click.option(
    "--max-skip-days",
    default=0,
    type=click.IntRange(min=0),
    help="Days for which a break glass may last: one without an end, or with a later one, admits nothing new. 0: for ever.",
)
"""Options of both processes, which must agree."""


class OtlpOptions(Struct, frozen=True, kw_only=True):
    """The receiver to which metrics are pushed, and the seconds between two pushes."""

    endpoint: str
    interval_seconds: float


_ENDPOINT = pattern(r"https?://[A-Za-z0-9.\[\]:-]+(/[A-Za-z0-9._~/-]*)?")


def otlp_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --otlp-endpoint and --otlp-seconds; the command gets both as `otlp`, which is None without an endpoint."""

    @click.option(
        "--otlp-endpoint",
        metavar="URL",
        help="Base address of an OpenTelemetry receiver (OTLP over HTTP) that metrics are pushed to."
        " OTEL_EXPORTER_OTLP_HEADERS, …_CERTIFICATE, …_COMPRESSION, OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME are read."
        " Without it nothing is pushed.",
    )
    @click.option(
        "--otlp-seconds",
        default=60.0,
        type=click.FloatRange(1, 3600),
        help="Time between two pushes to --otlp-endpoint.",
    )
    @wraps(command)
    def with_otlp(*, otlp_endpoint: str | None, otlp_seconds: float, **options: Any) -> Any:
        if otlp_endpoint is None:
            return command(otlp=None, **options)
        if not _ENDPOINT.fullmatch(otlp_endpoint):
            raise click.BadParameter(
                f"{inert_line(otlp_endpoint)} is no address of a receiver; give one such as http://collector:4318, without user,"
                " password or query",
                param_hint="--otlp-endpoint",
            )
        try:
            find_spec("opentelemetry.exporter.otlp.proto.http")
        except ModuleNotFoundError:
            raise click.UsageError(
                f"--otlp-endpoint needs OpenTelemetry's SDK: {INSTALL.format(extras='otlp')}"
            ) from None
        return command(otlp=OtlpOptions(endpoint=otlp_endpoint, interval_seconds=otlp_seconds), **options)

    return with_otlp


def pods_option(read: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --pods; the command gets what `read` makes of it as `allowed`."""
    option = click.option(
        "--pods",
        metavar="JSON",
        default="{}",
        help="Parts of pods that InferenceDeployments may have, as `pods` in the values of the chart: allowHostPath,"
        " allowedServiceAccounts, allowedInitImages, allowedSidecarImages. Without it they may have none of these.",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_pods(*, pods: str, **options: Any) -> Any:
            try:
                allowed = read(json.loads(pods))
            except ValueError as error:
                raise click.BadParameter(inert_line(str(error)), param_hint="--pods") from None
            return command(allowed=allowed, **options)

        return option(with_pods)

    return decorate


def calibration_options(images: Iterable[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --calibration-image, with these images as default, and --calibration-scope; the command gets both as `trust`."""
    image = click.option(
        "--calibration-image",
        "calibration_images",
        multiple=True,
        metavar="REPOSITORY",
        default=tuple(images),
        help="Image whose starts may correct predictions, without a tag; `*` stands for any part of it; may be repeated.",
    )
    reach = click.option(
        "--calibration-scope",
        type=click.Choice([scope.value for scope in CalibrationScope]),
        default=CalibrationScope.NAMESPACE.value,
        help="Predictions that a start may correct: those of its own namespace, or those of the whole cluster.",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_trust(*, calibration_images: tuple[str, ...], calibration_scope: str, **options: Any) -> Any:
            try:
                trust = Trust.of(calibration_images, calibration_scope)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint="--calibration-image") from None
            return command(trust=trust, **options)

        return image(reach(with_trust))

    return decorate

"""The door over real TLS on the loopback: answers, mistakes, probes, metrics, and a certificate that changes under load."""

import asyncio
import contextlib
import io
import json
import logging
import re
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.utils import floatToGoString

from controlplane.certificates import write_certificates
from kvgate.metrics.exporter import new_registry
from kvgate.metrics.listener import listen
from kvgate.runtime.worker import TaskFailed, TurnedAway, WorkerLost
from kvgate.webhook.command import WebhookOptions, serving
from kvgate.webhook.server import MAX_BODY_BYTES, Bodies, ReviewInstruments, Traffic, validation_app
from kvgate.webhook.tls import Certificate, CertificateError
from support.waiting import until

pytestmark = pytest.mark.slow

NewReview = Callable[..., dict[str, Any]]
POLL_SECONDS = 0.02


class Door:
    """A running door and a client that trusts its authority."""

    def __init__(self, ports: dict[str, int], client: aiohttp.ClientSession) -> None:
        self.reviews = f"https://localhost:{ports['port']}/validate"
        self.plain = f"http://127.0.0.1:{ports['metrics_port']}"
        self.port = ports["port"]
        self.client = client

    async def ask(self, body: object) -> tuple[int, Any]:
        """(status, JSON) of a POST; bytes are sent as they are."""
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.client.post(self.reviews, data=data) as response:
            return response.status, await response.json()

    async def get(self, path: str, accept: str = "*/*") -> tuple[int, str]:
        async with self.client.get(f"{self.plain}{path}", headers={"Accept": accept}) as response:
            return response.status, await response.text()


def settings_of(secret: Path, **changes: Any) -> WebhookOptions:
    given: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "tls_cert": secret / "tls.crt",
        "tls_key": secret / "tls.key",
        "metrics_host": "127.0.0.1",
        "metrics_port": 0,
        "linger_seconds": 0,
        "certificate_poll_seconds": POLL_SECONDS,
    }
    return WebhookOptions(**given | changes)


def trusting(*folders: Path) -> aiohttp.TCPConnector:
    """Connections that are verified, and never used twice."""
    context = ssl.create_default_context()
    for folder in folders:
        context.load_verify_locations(folder / "ca.crt")
    return aiohttp.TCPConnector(ssl=context, force_close=True)


@contextlib.asynccontextmanager
async def open_door(secret: Path, *authorities: Path) -> AsyncIterator[Door]:
    connector = trusting(secret, *authorities)
    async with serving(settings_of(secret)) as ports, aiohttp.ClientSession(connector=connector) as client:
        yield Door(ports, client)


async def served_certificate(port: int) -> bytes | None:
    """The certificate of a fresh handshake without a server name, in DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="")
    certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return certificate


def on_disk(secret: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert((secret / "tls.crt").read_text())


async def test_reviews_are_answered_counted_and_timed(secret: Path, new_review: NewReview) -> None:
    async with open_door(secret) as door:
        assert await door.get("/readyz") == (200, "ok\n")
        assert await door.get("/livez") == (200, "ok\n")
        status, answer = await door.ask(new_review())
        assert (status, answer["response"]["allowed"]) == (200, True)
        _, text = await door.get("/metrics")
        _, openmetrics = await door.get("/metrics", "application/openmetrics-text;version=1.0.0")
    exemplar = f' # {{uid="{answer["response"]["uid"]}"}} '
    assert exemplar in openmetrics, "by it the log has the review"
    assert exemplar not in text
    counted = 'kvgate_admission_reviews_total{decision="Admit",operation="CREATE",policy="Reject"} 1.0'
    assert counted in text
    assert "kvgate_admission_errors_total 0.0" in text
    assert "kvgate_admission_review_duration_seconds_count 1.0" in text
    assert 'kvgate_admission_review_duration_seconds_bucket{le="0.0025"}' in text
    assert re.search(r'kvgate_catalogue_entries\{catalogue="models"\} [1-9]', text)
    assert 'kvgate_build_info{version="' in text


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "the body is not JSON"),
        (b"{", 400, "the body is not JSON"),
        (b"\xff\xfe", 400, "the body is not JSON"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", 400, "the body is not JSON"),
        (b'{"a": "\\ud800"}', 400, "the body is not text: it holds half of a surrogate pair"),
        (b"{}", 400, "the body is not an AdmissionReview of admission.k8s.io/v1"),
        (b" " * (MAX_BODY_BYTES + 1), 413, f"larger than {MAX_BODY_BYTES} bytes"),
    ],
)
async def test_what_is_no_review_is_the_callers_mistake(secret: Path, body: bytes, status: int, words: str) -> None:
    async with open_door(secret) as door:
        answered, problem = await door.ask(body)
        _, text = await door.get("/metrics")
    assert answered == status
    assert words in problem["error"]
    assert "kvgate_admission_errors_total 0.0" in text


@pytest.mark.parametrize("abort", [True, False])
async def test_a_client_that_leaves_early_is_no_defect_of_ours(
    secret: Path, caplog: pytest.LogCaptureFixture, *, abort: bool
) -> None:
    context = ssl.create_default_context(cafile=secret / "ca.crt")
    async with open_door(secret) as door:
        reader, writer = await asyncio.open_connection("localhost", door.port, ssl=context)
        head = b"POST /validate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\nExpect: 100-continue\r\n\r\n"
        writer.write(head)
        assert b"100 Continue" in await reader.readline(), "the door waits for the body"
        writer.write(b"{")
        await writer.drain()
        if abort:
            writer.transport.abort()
        else:
            writer.close()
        await until(lambda: "no verdict" in caplog.text or "ERROR" in caplog.text)
        _, text = await door.get("/metrics")
    assert "ERROR" not in caplog.text
    assert "kvgate_admission_errors_total 0.0" in text


async def test_a_large_object_below_the_cap_is_judged(secret: Path, new_review: NewReview) -> None:
    body = new_review(metadata={"annotations": {"note": "x" * (MAX_BODY_BYTES - 2000)}})
    async with open_door(secret) as door:
        assert (await door.ask(body))[1]["response"]["allowed"] is True


async def test_a_defect_of_ours_is_http_500_counted_and_logged(
    new_review: NewReview, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_: bytes) -> Any:
        raise ZeroDivisionError("a defect")

    assert await answered(new_review, broken) == (500, 1.0)
    assert "ZeroDivisionError: a defect" in caplog.text


async def answered(new_review: NewReview, decide: Callable[[bytes], Any]) -> tuple[int, float | None]:
    """Status of an answer, and the number of errors that are counted then; nothing of the defect is told."""
    registry = new_registry()
    app = validation_app(ReviewInstruments.registered(registry), Traffic(), decide, Bodies())
    runner = await listen(app, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/validate"
    try:
        async with aiohttp.ClientSession() as client, client.post(url, json=new_review()) as response:
            assert "a defect" not in await response.text()
            status = response.status
    finally:
        await runner.cleanup()
    return status, registry.get_sample_value("kvgate_admission_errors_total")


@pytest.mark.parametrize(
    ("error", "status", "fields"),
    [
        (TaskFailed("Traceback: a defect"), 500, [{"traceback": "Traceback: a defect"}, {"status": 500}]),
        (TurnedAway("64 reviews wait"), 429, [{"status": 429, "error": "64 reviews wait"}]),
        (WorkerLost("the worker is gone"), 503, [{"status": 503, "error": "the worker is gone"}]),
    ],
)
async def test_a_review_without_a_verdict_is_logged_with_its_status_and_the_reason(
    error: Exception, status: int, fields: list[dict[str, Any]], new_review: NewReview, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(_: bytes) -> Any:
        raise error

    assert await answered(new_review, failing) == (status, 1.0)
    logged = [record.__dict__["fields"] for record in caplog.records if record.name == "kvgate.webhook.server"]
    assert [{key: found[key] for key in wanted} for found, wanted in zip(logged, fields, strict=True)] == fields


async def test_every_answer_is_logged_with_what_was_said(
    secret: Path, new_review: NewReview, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_door(secret) as door:
        await door.ask(new_review({"replicas": -1}))
    fields = next(record.fields for record in caplog.records if record.message == "review")  # type: ignore[attr-defined]
    assert (fields["decision"], fields["namespace"], fields["name"]) == ("Invalid", "serving", "chat")
    assert "spec.replicas is -1" in fields["said"]


async def test_a_stopping_door_sends_its_clients_elsewhere_and_still_answers(
    secret: Path, new_review: NewReview
) -> None:
    stack = contextlib.AsyncExitStack()
    ports = await stack.enter_async_context(serving(settings_of(secret, linger_seconds=0.5)))
    async with aiohttp.ClientSession(connector=trusting(secret)) as client:
        door = Door(ports, client)
        stopping = asyncio.create_task(stack.aclose())

        async def is_leaving() -> bool:
            return await door.get("/readyz") == (503, "reviews are not accepted yet, or no longer\n")

        await until(is_leaving)
        async with client.post(door.reviews, json=new_review()) as response:
            assert (response.status, response.headers["Connection"]) == (200, "close")
        await stopping
        with pytest.raises(aiohttp.ClientConnectorError):
            await door.ask(new_review())


async def test_tls_below_1_2_is_refused(secret: Path) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with open_door(secret) as door:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection("127.0.0.1", door.port, ssl=old, server_hostname="localhost")
        assert await served_certificate(door.port) == on_disk(secret)


async def test_a_new_certificate_is_served_without_losing_a_request(
    secret: Path, tmp_path: Path, new_review: NewReview, caplog: pytest.LogCaptureFixture
) -> None:
    renewed = tmp_path / "renewed"
    renewed.mkdir()
    write_certificates(renewed)
    answers: list[tuple[int, bool]] = []
    done = asyncio.Event()

    async def keep_asking(door: Door) -> None:
        while not done.is_set():
            status, answer = await door.ask(new_review())
            answers.append((status, answer["response"]["allowed"]))

    async with open_door(secret, renewed) as door, asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(keep_asking(door))
        await until(lambda: len(answers) > 10)
        shutil.copy(renewed / "tls.crt", secret / "tls.crt")
        await until(lambda: "the old one stays" in caplog.text)  # the files do not match for a moment
        shutil.copy(renewed / "tls.key", secret / "tls.key")

        async def is_renewed() -> bool:
            return await served_certificate(door.port) == on_disk(renewed)

        await until(is_renewed)
        before = len(answers)
        await until(lambda: len(answers) > before + 10)
        done.set()
    assert set(answers) == {(200, True)}


async def test_the_metrics_tell_when_the_certificate_ends(secret: Path) -> None:
    async with open_door(secret) as door:
        _, text = await door.get("/metrics")
    end = Certificate(secret / "tls.crt", secret / "tls.key").expires_at
    assert f"kvgate_webhook_certificate_expiry_timestamp_seconds {floatToGoString(end)}\n" in text  # type: ignore[no-untyped-call]


async def test_a_broken_new_certificate_keeps_the_old_one_and_is_logged_once(
    secret: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, looks, reload = on_disk(secret), [], Certificate.reload

    def counted(certificate: Certificate) -> bool:
        looks.append(reload(certificate))
        return looks[-1]

    monkeypatch.setattr(Certificate, "reload", counted)
    async with open_door(secret) as door:
        (secret / "tls.crt").write_text("not a certificate")
        await until(lambda: "the old one stays" in caplog.text)
        first = len(looks)
        await until(lambda: len(looks) > first + 5)
        assert await served_certificate(door.port) == before
        assert await door.get("/readyz") == (200, "ok\n")
    assert caplog.text.count("the old one stays") == 1


def test_a_secret_that_vanishes_and_comes_back_is_served_again(secret: Path, tmp_path: Path) -> None:
    certificate = Certificate(secret / "tls.crt", secret / "tls.key")
    secret.rename(tmp_path / "elsewhere")
    assert certificate.reload() is False
    secret.mkdir()
    write_certificates(secret)
    assert certificate.reload() is True
    assert certificate.reload() is False


def _without_key(secret: Path) -> None:
    (secret / "tls.key").unlink()


def _with_foreign_key(secret: Path) -> None:
    shutil.copy(secret / "sa.key", secret / "tls.key")


def _with_encrypted_key(secret: Path) -> None:
    (secret / "tls.key").write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_without_key, r"tls\.key cannot be read \(No such file or directory\); mount"),
        (_with_foreign_key, r"tls\.crt and .*tls\.key are not a PEM certificate and its unencrypted key"),
        (_with_encrypted_key, r"tls\.crt and .*tls\.key are not a PEM certificate and its unencrypted key"),
    ],
)
def test_a_certificate_that_cannot_be_served_is_named(secret: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(secret)
    with pytest.raises(CertificateError, match=words):
        Certificate(secret / "tls.crt", secret / "tls.key")

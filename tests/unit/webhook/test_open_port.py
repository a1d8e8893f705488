"""The door for whoever reaches it: bodies that do not end, too many bytes, no room, nesting, and clients without a certificate."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from controlplane.certificates import write_certificates
from kvgate.metrics.exporter import new_registry
from kvgate.metrics.listener import listen
from kvgate.runtime.worker import NoAnswer, Outcome, OutOfTime, TaskFailed, TurnedAway, WorkerLost
from kvgate.webhook.command import Beat, WebhookOptions, serving
from kvgate.webhook.judging import namespace_in, review_in_worker
from kvgate.webhook.review import ALWAYS, NOTHING_KNOWN, Answer, Mistake, answers, review
from kvgate.webhook.server import Bodies, ReviewInstruments, Traffic, validation_app
from support.waiting import turns, until

NewReview = Callable[..., dict[str, Any]]
MIB = 1 << 20


class Door:
    """An application that answers every body with its length in `said`, and raw connections to it."""

    def __init__(self, bodies: Bodies, decide: Callable[[bytes], Any]) -> None:
        self.registry = new_registry()
        self.bodies = bodies
        self.app: web.Application = validation_app(
            ReviewInstruments.registered(self.registry), Traffic(), decide, bodies
        )
        self.address: tuple[str, int] = ("", 0)
        self.writers: list[asyncio.StreamWriter] = []

    async def send(self, length: int, body: bytes) -> asyncio.StreamReader:
        """Headers that announce a length, and so much of the body."""
        reader, writer = await asyncio.open_connection(*self.address)
        self.writers.append(writer)
        writer.write(f"POST /validate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode() + body)
        await writer.drain()
        return reader

    async def ask(self, body: bytes) -> tuple[int, dict[str, str], Any]:
        async with aiohttp.ClientSession() as client:
            url = f"http://{self.address[0]}:{self.address[1]}/validate"
            async with client.post(url, data=body) as response:
                return response.status, dict(response.headers), await response.json()


@contextlib.asynccontextmanager
async def open_door(
    *, bodies: Bodies | None = None, decide: Callable[[bytes], Any] | None = None
) -> AsyncIterator[Door]:
    async def here(text: bytes) -> Answer | Mistake:
        return list(answers(text, NOTHING_KNOWN, ALWAYS))[-1]

    door = Door(bodies or Bodies(), decide or here)
    listener = await listen(door.app, "127.0.0.1", 0)
    door.address = listener.addresses[0]
    try:
        yield door
    finally:
        for writer in door.writers:
            writer.transport.abort()
        await listener.cleanup()
        await turns()


async def status_of(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(5):
        return int((await reader.readline()).split()[1])


async def test_a_body_that_does_not_end_is_answered_and_its_connection_closed() -> None:
    async with open_door(bodies=Bodies(seconds=0.1)) as door:
        reader = await door.send(1000, b"{")
        assert await status_of(reader) == 408
        assert b"Connection: close" in await reader.read()
        await until(lambda: door.bodies.bytes_in_flight == 0)


async def test_beyond_the_bytes_in_flight_the_largest_unfinished_body_gives_way_and_a_small_one_is_judged(
    new_review: NewReview,
) -> None:
    async with open_door(bodies=Bodies(most_bytes=3 * MIB, seconds=20)) as door:
        large = [await door.send(5 * MIB, bytes(MIB + number * 100_000)) for number in range(2)]
        await until(lambda: door.bodies.bytes_in_flight >= 2 * MIB)
        more = await door.send(5 * MIB, bytes(MIB))
        assert await status_of(large[1]) == 503
        await until(lambda: door.bodies.bytes_in_flight <= 3 * MIB)
        assert (await door.ask(json.dumps(new_review()).encode()))[0] == 200
        assert not more.at_eof()
        assert not large[0].at_eof()
    assert door.registry.get_sample_value("kvgate_admission_errors_total") == 1


async def test_many_unfinished_bodies_hold_no_more_than_the_bytes_in_flight() -> None:
    async with open_door(bodies=Bodies(most_bytes=2 * MIB, seconds=20)) as door:
        for _ in range(12):
            with contextlib.suppress(ConnectionError):
                await door.send(8 * MIB, bytes(MIB))
            assert door.bodies.bytes_in_flight <= 2 * MIB + 256 * 1024
        await until(lambda: door.bodies.bytes_in_flight <= 2 * MIB)


@pytest.mark.parametrize(
    ("raised", "status", "retry"),
    [
        (TurnedAway("64 assessments of tenant wait already"), 429, "1"),
        (WorkerLost("the process that judged it ended"), 503, "1"),
        (OutOfTime("it took longer than 2 s"), 503, "1"),
        (TaskFailed("Traceback …"), 500, None),
    ],
)
async def test_without_a_verdict_the_answer_says_whether_to_ask_again(
    raised: NoAnswer, status: int, retry: str | None
) -> None:
    async def decide(_: bytes) -> Answer:
        raise raised

    async with open_door(decide=decide) as door:
        answered, headers, problem = await door.ask(b"{}")
        assert (answered, headers.get("Retry-After")) == (status, retry)
        assert "Traceback" not in problem["error"]
    assert door.registry.get_sample_value("kvgate_admission_errors_total") == 1


def nested(levels: int) -> Any:
    value: Any = "x"
    for number in range(levels):
        value = {"a": value} if number % 2 else [value]
    return value


@pytest.mark.parametrize("levels", [60, 100, 900])
async def test_a_nested_object_gets_an_answer_of_its_own(new_review: NewReview, levels: int) -> None:
    for body in (new_review(metadata={"managedFields": nested(levels)}), new_review({"template": nested(levels)})):
        async with open_door() as door:
            status, _, answer = await door.ask(json.dumps(body).encode())
        assert status == 200
        assert answer["response"]["uid"] == body["request"]["uid"]
        if levels > 64:
            assert answer["response"]["status"]["code"] == 422
            assert "nested deeper than 64 levels" in answer["response"]["status"]["message"]


@pytest.mark.parametrize("levels", [100, 900, 100_000])
async def test_what_is_nested_elsewhere_is_no_review(levels: int) -> None:
    text = b'{"request": ' + b"[" * levels + b"]" * levels + b"}"
    async with open_door() as door:
        status, _, problem = await door.ask(text)
    assert status == 400
    assert "it is nested deeper than 64 levels" in problem["error"]


def test_a_document_with_thousands_of_errors_is_told_the_first_of_them(new_review: NewReview) -> None:
    body = new_review({"vllm": {f"unknown{number}": "x" * 100 for number in range(20_000)}})
    message = review(body).body["response"]["status"]["message"]
    assert "and 100 more errors or beyond: correct these first" in message
    assert message.count("is not a field") == 50


@pytest.mark.parametrize(
    ("text", "namespace"),
    [
        (b'{"request": {"uid": "u", "name": "x", "namespace":"serving", "object": {}}}', "serving"),
        (b'{"request":{"name":"\\"namespace\\":\\"liar\\"","namespace":"serving"}}', "serving"),
        (b'{"request": {"object": {"note": "' + b"x" * 5000 + b'", "metadata": {"namespace": "late"}}}}', ""),
        (b"[1, 2", ""),
        (b'{"namespace": "' + b"x" * 64 + b'"}', ""),
    ],
)
def test_whose_turn_a_review_takes_is_read_from_its_head(text: bytes, namespace: str) -> None:
    assert namespace_in(text) == namespace


@pytest.mark.slow
def test_the_first_answer_is_that_there_is_no_verdict_yet_and_it_admits(new_review: NewReview) -> None:
    too_big = {"accelerator": {"type": "L4-24GB"}, "vllm": {"maxNumSeqs": 64}}
    first, second, third = answers(json.dumps(new_review(too_big)).encode(), NOTHING_KNOWN, ALWAYS)
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert isinstance(third, Answer)
    assert first.body["response"]["allowed"] is True
    assert "stopped before there was a verdict" in first.body["response"]["warnings"][0]
    assert "the search for settings that fit took longer" in second.body["response"]["status"]["message"]
    assert second.body["response"]["allowed"] is third.body["response"]["allowed"] is False
    assert "Would fit: maxModelLen" in third.body["response"]["status"]["message"]


class Workers:
    """A pool that loses so many workers before it answers."""

    def __init__(self, losses: int) -> None:
        self.losses = losses

    def share(self, _: object) -> None:
        return None

    async def run(self, *_: object, wait_seconds: float) -> Outcome[Mistake]:
        self.losses -= 1
        if self.losses >= 0:
            raise WorkerLost("gone")
        return Outcome(value=Mistake(message="fine"))


async def test_a_review_survives_the_loss_of_one_worker() -> None:
    assert await review_in_worker(Workers(1), lambda: None, b"{}") == Mistake(message="fine")  # type: ignore[arg-type, return-value]
    with pytest.raises(WorkerLost):
        await review_in_worker(Workers(2), lambda: None, b"{}")  # type: ignore[arg-type, return-value]


def test_a_loop_that_stands_still_is_not_alive() -> None:
    now = [100.0]
    beat = Beat(lambda: now[0])
    assert beat.livez() == (True, "ok")
    now[0] += 11
    assert beat.livez() == (False, "the event loop has not turned for 11 s")


def settings_of(secret: Path, **changes: Any) -> WebhookOptions:
    given: dict[str, Any] = {
        "host": "127.0.0.1", "port": 0, "metrics_host": "127.0.0.1", "metrics_port": 0, "linger_seconds": 0,
        "tls_cert": secret / "tls.crt", "tls_key": secret / "tls.key", "certificate_poll_seconds": 0.02,
    }  # fmt: skip
    return WebhookOptions(**given | changes)


async def answer_to(secret: Path, port: int, new_review: NewReview, client: Path | None) -> int | None:
    """The status, or None where the connection is refused."""
    trust = ssl.create_default_context(cafile=secret / "ca.crt")
    if client is not None:
        trust.load_cert_chain(client / "tls.crt", client / "tls.key")
    connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            async with session.post(f"https://localhost:{port}/validate", json=new_review()) as response:
                return response.status
        except (aiohttp.ClientError, ConnectionError):
            return None


@pytest.mark.slow
async def test_with_a_client_ca_only_its_clients_are_answered_and_a_new_ca_is_read(
    secret: Path, tmp_path: Path, new_review: NewReview
) -> None:
    stranger, ca = tmp_path / "stranger", tmp_path / "clients.crt"
    stranger.mkdir()
    write_certificates(stranger)
    ca.write_bytes((secret / "ca.crt").read_bytes())
    async with serving(settings_of(secret, client_ca=ca)) as ports:
        for client, expected in ((secret, 200), (stranger, None), (None, None)):
            assert await answer_to(secret, ports["port"], new_review, client) == expected
        async with aiohttp.ClientSession() as session:
            for probe in ("livez", "readyz", "metrics"):
                async with session.get(f"http://127.0.0.1:{ports['metrics_port']}/{probe}") as response:
                    assert response.status == 200
        ca.write_bytes((stranger / "ca.crt").read_bytes())

        async def is_trusted() -> bool:
            return await answer_to(secret, ports["port"], new_review, stranger) == 200

        await until(is_trusted)
        assert await answer_to(secret, ports["port"], new_review, secret) is None


@pytest.mark.slow
@pytest.mark.parametrize(("names", "expected"), [(("localhost",), 200), (("kube-apiserver", "other"), None)])
async def test_a_client_must_have_one_of_the_names(
    secret: Path, new_review: NewReview, names: tuple[str, ...], expected: int | None
) -> None:
    async with serving(settings_of(secret, client_ca=secret / "ca.crt", client_names=names)) as ports:
        assert await answer_to(secret, ports["port"], new_review, secret) == expected

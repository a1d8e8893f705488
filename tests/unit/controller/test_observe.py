"""A scrape of whatever answers on the pod's port: one of a few words, in bounded time and memory."""

import gzip

import pytest
from prometheus_client import CollectorRegistry

from kvgate.controller import observe as scraping
from kvgate.controller.observe import MAX_BYTES, Scrape, ScrapeInstruments, Scraper, ScrapeResult
from kvgate.metrics import registry as metrics
from kvgate.metrics.exporter import counter, histogram
from support.misbehaving import http, serving

INFO = b'vllm:cache_config_info{engine="0",num_gpu_blocks="64",block_size="128",kv_cache_size_tokens="8192"} 1.0\n'


def instruments(into: CollectorRegistry) -> ScrapeInstruments:
    results, durations = counter(metrics.POD_SCRAPES, into), histogram(metrics.POD_SCRAPE_DURATION, into)
    return ScrapeInstruments(results=results, durations=durations)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "TIMEOUT_SECONDS", 0.5)


async def scraped(port: int, ip: str = "127.0.0.1") -> tuple[Scrape, CollectorRegistry]:
    into = CollectorRegistry()
    async with Scraper(instruments(into), port=port) as scrape:
        return await scrape(ip), into


async def test_a_reading_is_counted_and_timed_and_asks_for_plain_text_without_compression() -> None:
    async with serving(http(INFO, "Set-Cookie: a=b")) as served:
        found, into = await scraped(served.port)
    assert found.result is ScrapeResult.READ
    assert found.reading is not None
    assert found.reading.kv_cache_size_tokens == 8192
    assert into.get_sample_value("kvgate_pod_scrapes_total", {"result": "read"}) == 1
    assert into.get_sample_value("kvgate_pod_scrape_duration_seconds_count") == 1
    (asked,) = served.requests
    assert asked.startswith(b"GET /metrics HTTP/1.1\r\n")
    assert b"Accept: text/plain;version=0.0.4\r\n" in asked
    assert b"Accept-Encoding: identity\r\n" in asked


@pytest.mark.parametrize(
    ("answer", "result", "trouble"),
    [
        (http(b"", status="404 Not Found"), "http_error", "answers HTTP 404"),
        (http(b"", status="500 Internal Server Error"), "http_error", "answers HTTP 500"),
        (http(b"", "Location: http://127.0.0.1:1/", status="302 Found"), "http_error", "answers HTTP 302"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "http_error", "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 100_000 + b"\r\n\r\n", "http_error", "does not answer in HTTP"),
        (b"", "unreachable", "cannot be reached: the connection was closed"),
        (http(b"<html>", content_type="text/html"), "not_vllm", "answers 'text/html' instead of text/plain"),
        (http(INFO, content_type="application/json"), "not_vllm", "answers 'application/json'"),
        (http(b"go_goroutines 7\n"), "not_vllm", "the first one is 'go_goroutines'"),
        (http(b""), "not_vllm", "the first one is 'none at all'"),
        (http(gzip.compress(INFO, mtime=0), "Content-Encoding: gzip"), "unreadable", "sends a compressed answer"),
        (http(gzip.compress(b"0" * (100 << 20), mtime=0), "Content-Encoding: gzip"), "unreadable", "sends a compressed answer"),
        (http(INFO + b"vllm:kv_cache_usage_perc NaN\n"), "unreadable", "is not between 0 and 1"),
        (http(INFO.replace(b'"64"', b'"0"')), "unreadable", "num_gpu_blocks is '0'"),
        (http(INFO.replace(b"num_gpu_blocks", b"blocks")), "unreadable", "no label num_gpu_blocks"),
    ],
)  # fmt: skip
async def test_what_is_wrong_has_a_word_and_a_sentence(answer: bytes, result: str, trouble: str) -> None:
    async with serving(answer) as served:
        found, into = await scraped(served.port)
    assert (found.result, found.reading) == (result, None)
    assert trouble in found.trouble
    assert into.get_sample_value("kvgate_pod_scrapes_total", {"result": result}) == 1
    assert len(served.requests) == 1 or not answer, "nothing is followed; aiohttp asks a silent server once more"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", http(INFO)])
async def test_a_server_that_hangs_anywhere_is_left_in_time(answer: bytes) -> None:
    async with serving(answer, hangs=True) as served:
        found, _ = await scraped(served.port)
    assert found.result is ScrapeResult.TIMEOUT


async def test_a_hundred_megabytes_are_left_at_the_first() -> None:
    async with serving(http(b"")[:-2] + b"\r\n" + b"# x\n" * (1 << 18), times=100) as served:
        found, _ = await scraped(served.port)
    assert (found.result, found.trouble) == (ScrapeResult.TOO_LARGE, "answers more than 1 MiB")
    assert served.sent_bytes < 20 * MAX_BYTES, "what lies in the sockets' buffers"


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
async def test_a_port_that_nobody_listens_on_is_unreachable(ip: str) -> None:
    async with serving(b"") as served:
        port = served.port
    found, _ = await scraped(port, ip)
    assert (found.result, found.trouble) == (ScrapeResult.UNREACHABLE, "cannot be reached: connection refused")


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(http(b"")) as proxy, serving(http(INFO)) as served:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        found, _ = await scraped(served.port)
    assert found.result is ScrapeResult.READ
    assert proxy.requests == []

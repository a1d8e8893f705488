"""A scrape of whatever answers on the pod's port: one of a few words, in bounded time and memory."""

import gzip

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from kvgate.controller import observe as scraping
from kvgate.controller.observe import MAX_BYTES, Scrape, ScrapeInstruments, Scraper, ScrapeResult
from kvgate.metrics import registry as metrics
from kvgate.metrics.exporter import counter, histogram
from kvgate.vllm.metric_names import NEEDED, EngineReading
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
    assert b"\r\nAccept: text/plain;version=0.0.4\r\n" in asked
    assert b"\r\nAccept-Encoding: identity\r\n" in asked


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
        (http(gzip.compress(b"0" * (1 << 20), mtime=0) * 100, "Content-Encoding: gzip"), "unreadable", "sends a compressed answer"),
        (http(INFO + b"vllm:kv_cache_usage_perc NaN\n"), "unreadable", "is not between 0 and 1"),
        (http(INFO.replace(b'"64"', b'"0"')), "unreadable", "num_gpu_blocks is '0'"),
        (http(INFO.replace(b"num_gpu_blocks", b"blocks")), "unknown_names", "no label num_gpu_blocks"),
        (http(b"vllm:latent_cache_share 0.5\n"), "unknown_names", "kvgate does not know vllm:latent_cache_share"),
        (http(INFO * 2 + INFO.replace(b'"64"', b'"65"')), "unreadable", "of engine '0' is there twice, with different values"),
        (http(INFO.replace(b'engine="0"', b'engine="\xff"')), "unreadable", "is not UTF-8"),
        (http(INFO.replace(b'engine="0"', b'engine="' + b"x" * 900_000 + b'"')), "unreadable", "takes more than 64 KiB"),
        (http(b"# HELP vllm:x " + b"x" * 900_000 + b"\n"), "not_vllm", "the first one is 'none at all'"),
        (http(b'x{a="' + b"x" * 900_000 + b'"} 1\n'), "not_vllm", "the first one is 'x'"),
        (http(INFO, f"Content-Length: {len(INFO) + 100}"), "cut", "closes the connection inside the answer"),
        (http(b"200\r\n" + INFO, "Transfer-Encoding: chunked"), "cut", "closes the connection inside the answer"),
        (http(INFO[:-30]), "cut", "ends in the middle of vllm:cache_config_info"),
        (http(INFO + b"vllm:kv_cache_usage_perc 0."), "cut", "ends in the middle of vllm:kv_cache_usage_perc"),
        (http(INFO, content_type="application/openmetrics-text"), "cut", "without # EOF at the end"),
    ],
)  # fmt: skip
async def test_what_is_wrong_has_a_word_and_a_sentence(answer: bytes, result: str, trouble: str) -> None:
    async with serving(answer) as served:
        found, into = await scraped(served.port)
    assert (found.result, found.reading) == (result, None)
    assert trouble in found.trouble
    assert into.get_sample_value("kvgate_pod_scrapes_total", {"result": result}) == 1
    assert len(served.requests) == 1 or not answer, "nothing is followed; aiohttp asks a silent server once more"


async def test_no_text_of_a_server_is_repeated_without_an_end() -> None:
    """Whatever it serves, a trouble is short: it reaches status, events and logs."""
    long = b"x" * 500_000
    answers = [
        http(b"", status="200 " + "x" * 5_000, content_type="text/html" + "x" * 5_000),
        http(long + b" 1\n"),
        http(b"vllm:" + long + b" 1\n"),
        http(INFO.replace(b'"64"', b'"' + long[:50_000] + b'"')),
        http(INFO + b"vllm:kv_cache_usage_perc " + long[:50_000] + b"\n"),
        http(INFO + b"vllm:kv_cache_usage_perc{" + long[:50_000] + b"} 1\n"),
    ]
    for answer in answers:
        async with serving(answer) as served:
            found, _ = await scraped(served.port)
        assert found.reading is None
        assert 0 < len(found.trouble) < 300


async def test_a_capacity_that_changes_while_the_container_runs_is_told() -> None:
    known = EngineReading(num_gpu_blocks=64, block_size=128, kv_cache_size_tokens=8192)
    async with serving(http(INFO)) as served, Scraper(instruments(CollectorRegistry()), port=served.port) as scrape:
        same, other = await scrape("127.0.0.1", known), await scrape("127.0.0.1", replace(known, num_gpu_blocks=65))
    assert (same.result, other.result) == (ScrapeResult.READ, ScrapeResult.CHANGED)
    assert other.trouble == "reports another capacity than before, and its container did not restart"


async def test_a_release_with_new_names_is_read_as_far_as_it_is_known() -> None:
    lines = [f"# TYPE {metric.names[0].name} {metric.kind}" for metric in NEEDED[2:]]
    body = (
        INFO + "\n".join([*lines, "# TYPE vllm:latent_cache_share gauge", "vllm:latent_cache_share 0.5", ""]).encode()
    )
    async with serving(http(body)) as served:
        found, into = await scraped(served.port)
    assert found.result is ScrapeResult.UNKNOWN_NAMES
    assert found.reading is not None
    assert found.trouble == "has unknown metrics of vLLM, and no known one for kv_cache_usage, requests_running"
    assert into.get_sample_value("kvgate_pod_scrapes_total", {"result": "unknown_names"}) == 1


async def test_a_pod_is_asked_directly_whatever_proxy_the_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with serving(http(INFO)) as served:
        found, _ = await scraped(served.port)
    assert found.result is ScrapeResult.READ


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


MODELS = b'{"object":"list","data":[{"id":"a","max_model_len":25456,"permission":[]},{"id":"lora","parent":"a","max_model_len":null}]}'


async def length_from(answer: bytes) -> tuple[int | Scrape, list[bytes]]:
    async with serving(answer) as served, Scraper(instruments(CollectorRegistry()), port=served.port) as scrape:
        return await scrape.length("127.0.0.1"), served.requests


async def test_the_longest_request_is_read_without_a_key() -> None:
    found, (asked,) = await length_from(http(MODELS, content_type="application/json"))
    assert found == 25456
    assert asked.startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"\r\nAccept: application/json\r\n" in asked
    assert b"authorization" not in asked.lower()


@pytest.mark.parametrize(
    ("body", "status", "trouble"),
    [
        (b'{"error":"Unauthorized"}', "401 Unauthorized", "answers HTTP 401"),
        (b"{}", "200 OK", "something that is no list of models"),
        (b"[" * 200_000, "200 OK", "something that is no list of models"),
        (b'{"data":[{"max_model_len":"25456"}]}', "200 OK", "something that is no list of models"),
        (b'{"data":[{"max_model_len":-1},{"max_model_len":null}]}', "200 OK", "tells no max_model_len"),
        (b'{"data":[{"max_model_len":1000000000000000}]}', "200 OK", "tells no max_model_len"),
        (b'{"data":[' + b" " * (1 << 20) + b"]}", "200 OK", "answers more than 1 MiB"),
        (b"\xff\xfe", "200 OK", "something that is no list of models"),
    ],
)  # fmt: skip
async def test_a_list_of_models_that_tells_no_length_is_a_trouble(body: bytes, status: str, trouble: str) -> None:
    found, _ = await length_from(http(body, status=status, content_type="application/json"))
    assert isinstance(found, Scrape)
    assert trouble in found.trouble
    assert (found.http_status == 401) == status.startswith("401")

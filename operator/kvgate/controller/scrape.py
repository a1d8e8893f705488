"""One GET of a vLLM pod's `/metrics`: bounded in time and bytes, because whatever answers there may be anything."""

import asyncio
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import aiohttp
from prometheus_client import Counter, Histogram
from yarl import URL

from kvgate.cluster.connection import USER_AGENT
from kvgate.rendering.pod import PORT
from kvgate.sources.engine_metrics import NotAnEngine, UnreadableMetrics, read_engine
from kvgate.vllm.metric_names import EngineReading

TIMEOUT_SECONDS = 2.0
"""Seconds from connecting to the last byte."""
MAX_BYTES = 1 << 20
"""vLLM 0.32 answers 160 KB."""
MAX_CONCURRENT = 64
"""500 pods that hang hold a round up for 16 s."""
_CHUNK_BYTES = 1 << 16
_HEADERS = {
    "Accept": "text/plain;version=0.0.4",
    "Accept-Encoding": "identity",  # and nothing is ever decompressed: a small answer stays small
    "User-Agent": USER_AGENT,
}
_TYPES = ("text/plain", "application/openmetrics-text")


class ScrapeResult(StrEnum):
    """Result of a scrape; the values of the label `result`."""

    READ = "read"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    HTTP_ERROR = "http_error"
    TOO_LARGE = "too_large"
    NOT_VLLM = "not_vllm"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scrape:
    """A reading, or what was wrong."""

    result: ScrapeResult
    reading: EngineReading | None = None
    trouble: str = ""
    """Completes `the pod …`; the same words for the same trouble, so that nothing is written twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScrapeInstruments:
    """Measurements of scrapes."""

    results: Counter
    durations: Histogram


class _Failed(Exception):
    def __init__(self, result: ScrapeResult, trouble: str) -> None:
        super().__init__(trouble)
        self.result = result


class Scraper:
    """Follows no redirect, asks no proxy, keeps no cookie and no connection; one event loop."""

    def __init__(self, instruments: ScrapeInstruments, *, port: int = PORT) -> None:
        self._instruments = instruments
        self._port = port
        self._turn = asyncio.Semaphore(MAX_CONCURRENT)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            headers=_HEADERS, auto_decompress=False, trust_env=False,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def __call__(self, ip: str) -> Scrape:
        """Never raises for what a server does."""
        async with self._turn:
            with self._instruments.durations.time():
                scrape = await self._scrape(URL.build(scheme="http", host=ip, port=self._port, path="/metrics"))
        self._instruments.results.labels(scrape.result).inc()
        return scrape

    async def _scrape(self, url: URL) -> Scrape:
        try:
            return Scrape(result=ScrapeResult.READ, reading=read_engine(await self._get(url)))
        except _Failed as failed:
            return Scrape(result=failed.result, trouble=str(failed))
        except NotAnEngine as error:
            return Scrape(result=ScrapeResult.NOT_VLLM, trouble=str(error))
        except UnreadableMetrics as error:
            return Scrape(result=ScrapeResult.UNREADABLE, trouble=str(error))
        except TimeoutError:
            return Scrape(result=ScrapeResult.TIMEOUT, trouble=f"does not answer within {TIMEOUT_SECONDS:g} s")
        except (aiohttp.ClientOSError, aiohttp.ServerConnectionError, OSError) as error:
            return Scrape(result=ScrapeResult.UNREACHABLE, trouble=f"cannot be reached: {_reason(error)}")
        except (aiohttp.ClientError, ValueError) as error:
            return Scrape(result=ScrapeResult.HTTP_ERROR, trouble=f"answers no HTTP: {type(error).__name__}")

    async def _get(self, url: URL) -> bytes:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise _Failed(ScrapeResult.HTTP_ERROR, f"answers HTTP {response.status}")
            if response.content_type not in _TYPES:
                raise _Failed(ScrapeResult.NOT_VLLM, f"answers {response.content_type!r:.80} and not text/plain")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise _Failed(ScrapeResult.UNREADABLE, "answers compressed, which was not asked for")
            return await _limited(response.content)


async def _limited(content: aiohttp.StreamReader) -> bytes:
    """Read within the limit; a larger answer is left at the first byte too many, which closes its connection."""
    body = bytearray()
    async for chunk in content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_BYTES:
            raise _Failed(ScrapeResult.TOO_LARGE, f"answers more than {MAX_BYTES >> 20} MiB")
    return bytes(body)


def _reason(error: Exception) -> str:
    """The operating system's word, which stays the same from scrape to scrape."""
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if number else "the connection was closed"

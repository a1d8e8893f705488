"""Bounded requests: no answer is longer, slower or elsewhere than a fetch allows, and the token stays with its host."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from kvgate.checkpoint.not_fetched import Reason
from kvgate.fetching.limits import CouldNotFetch, Spending
from kvgate.text.inert import inert

if TYPE_CHECKING:  # a third of a second, which a run without a fetch does not need
    import httpx2

_CHUNK_BYTES = 64 << 10
_MAX_ERROR_BYTES = 16 << 10
"""Bytes of an error's text that are read."""
_SERVER_ERRORS = (408, 500, 502, 503, 504)
_DEFAULT_PORTS = {"http": 80, "https": 443}
Headers = Mapping[str, str]


class Range(Struct, frozen=True):
    """Bytes of a file that are asked for."""

    start: int
    length: int

    @property
    def header(self) -> str:
        return f"bytes={self.start}-{self.start + self.length - 1}"


class Answer(Struct, frozen=True, kw_only=True):
    """An answer that was read to its end, or as far as it was wanted."""

    url: str
    status: int
    headers: Headers
    """Headers of the first answer, then those of the answers that it led to; the names are in lower case."""
    body: bytes
    total_bytes: int | None = None
    """Size of the whole file, where a range was asked for and the server states it."""


class Http:
    """The requests of one fetch. Proxies and certificates are those of the environment (HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE)."""

    def __init__(self, spending: Spending) -> None:
        import httpx2

        self._spending = spending
        self._client = httpx2.Client(
            follow_redirects=False,
            timeout=spending.limits.request_seconds,
            limits=httpx2.Limits(max_connections=2 * spending.limits.num_parallel),
        )

    @contextmanager
    def open(self) -> Iterator["Http"]:
        """Close all connections at the end, and when the time is over: a server may send one byte now and then forever."""
        watch = Timer(max(self._spending.left_seconds, 0), self._client.close)
        watch.daemon = True
        watch.start()
        try:
            yield self
        finally:
            watch.cancel()
            self._client.close()

    def get(
        self,
        url: str,
        *,
        headers: Headers,
        token: str | None = None,
        wanted: Range | None = None,
        max_bytes: int,
        follows: bool = True,
    ) -> Answer:
        """Return the answer of any status. The token goes to the origin of `url` only; `headers` go wherever a redirect leads.

        An answer with more than `max_bytes` is refused, and of a range not more than its bytes are read. Raises CouldNotFetch.
        """
        limits, pause = self._spending.limits, self._spending.limits.pause_seconds
        headers = {**headers, "range": wanted.header} if wanted else headers
        for tries_left in reversed(range(limits.retries + 1)):
            try:
                answer = self._follow(url, headers, token, wanted, max_bytes, follows=follows)
            except _Interrupted as error:
                if not tries_left:
                    raise CouldNotFetch(error.reason, error.message, *error.remedies) from None
            else:
                wait = _wait_of(answer, limits.max_retry_after_seconds)
                if not tries_left or wait is None:
                    return answer
                pause = max(pause, wait)
            self._spending.pause(pause)
            pause *= 2
        raise AssertionError("the last try returns or raises")

    def _follow(
        self, url: str, headers: Headers, token: str | None, wanted: Range | None, max_bytes: int, *, follows: bool
    ) -> Answer:
        origin, seen = origin_of(url) if token else None, dict[str, str]()
        for _ in range(self._spending.limits.max_redirects + 1):
            own = {"authorization": f"Bearer {token}"} if token and origin_of(url) == origin else {}
            answer = self._once(url, {**headers, **own}, wanted, max_bytes)
            seen = dict(answer.headers) | seen
            location = answer.headers.get("location")
            if not follows or answer.status not in (301, 302, 303, 307, 308) or location is None:
                return replace(answer, headers=seen)
            url = redirected(url, location)
        raise broken(f"{host_of(url)} redirects more than {self._spending.limits.max_redirects} times")

    def _once(self, url: str, headers: Headers, wanted: Range | None, max_bytes: int) -> Answer:
        """Make one request, without redirects and other tries."""
        import httpx2

        self._spending.take(requests=1)
        timeout = min(self._spending.limits.request_seconds, max(self._spending.left_seconds, 0.01))
        try:
            with self._client.stream("GET", url, headers=headers, timeout=timeout) as response:
                return self._read(url, response, wanted, max_bytes)
        except httpx2.InvalidURL as error:
            raise broken(f"{inert(url[:200])} is no address: {error}") from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError, RuntimeError) as error:
            self._spending.check_time()  # a connection that was closed because of it has an error of its own
            raise _interrupted(url, error) from None

    def _read(self, url: str, response: "httpx2.Response", wanted: Range | None, max_bytes: int) -> Answer:
        headers = {name.lower(): inert(value[:2000]) for name, value in response.headers.items()}
        if headers.get("content-encoding", "identity") != "identity":
            raise broken(f"{host_of(url)} compresses its answer, which was not asked for")
        stated = headers.get("content-length", "")
        total = int(stated) if stated.isascii() and stated.isdecimal() and len(stated) < 19 else None
        status, skip = response.status_code, 0
        if not response.is_success:
            length = _MAX_ERROR_BYTES
        elif wanted is None:
            if total is not None and total > max_bytes:
                raise too_large(total, max_bytes)
            length = max_bytes + 1
        elif status == 206:
            # `bytes 0-99/1234`
            span, _, whole = headers.get("content-range", "").removeprefix("bytes").strip()[:80].partition("/")
            first, length, total = span.partition("-")[0], wanted.length, int(whole) if whole.isdecimal() else None
            if not first.isdecimal() or int(first) != wanted.start:
                raise broken(f"{host_of(url)} sends other bytes than it was asked for: {headers.get('content-range')}")
        else:  # the server ignores the range and sends the file from its beginning
            skip, length = wanted.start, wanted.length
        body = self._take(response, skip, length)
        if response.is_success and wanted is None and len(body) > max_bytes:
            raise too_large(len(body), max_bytes)
        return Answer(url=url, status=status, headers=headers, body=body, total_bytes=total if wanted else None)

    def _take(self, response: "httpx2.Response", skip: int, length: int) -> bytes:
        """Read the bytes after the first `skip`, and no more than `length` of them."""
        taken = bytearray()
        for chunk in response.iter_raw(_CHUNK_BYTES):
            self._spending.take(num_bytes=len(chunk))
            taken += chunk[skip:]
            skip = max(0, skip - len(chunk))
            if len(taken) >= length:
                break
        return bytes(taken[:length])


class _Interrupted(CouldNotFetch):
    """The connection broke: another try may help."""


def _interrupted(url: str, error: Exception) -> _Interrupted:
    import httpx2

    host, text = host_of(url), inert(str(error)[:300]) or type(error).__name__
    if isinstance(error, httpx2.RemoteProtocolError):
        return _Interrupted(
            Reason.BROKEN, f"{host} broke off its answer, or sent something that is not HTTP ({text})", "try again"
        )
    if isinstance(error, httpx2.TimeoutException):
        text = "no answer in time"
    return _Interrupted(Reason.UNREACHABLE, f"{host} cannot be reached ({text})", *REACH)


REACH = ("try again", "set HTTPS_PROXY if a proxy leads there, or HF_ENDPOINT for a mirror")
"""Remedies where a hub cannot be reached."""


def redirected(url: str, location: str) -> str:
    """Return the address that an answer leads to: over https, or on the host that was asked. Raises CouldNotFetch for others."""
    try:
        target = urljoin(url, location)
        scheme, host, _ = origin_of(target)
    except ValueError:
        raise broken(f"{host_of(url)} leads to {inert(location[:200])}, which is no address") from None
    if not host or not (scheme == "https" or (scheme, host) == origin_of(url)[:2]):
        shown = f"{scheme}://{host}" if scheme in _DEFAULT_PORTS else f"{scheme}:"
        raise broken(f"{host_of(url)} leads to {inert(shown[:200])}, where a hub must not lead")
    return target


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises ValueError for a port that is none."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)


def host_of(url: str) -> str:
    """Return the host with its port as messages name it, without credentials."""
    return inert(urlsplit(url).netloc.rpartition("@")[2][:200])


def broken(message: str) -> CouldNotFetch:
    """An answer that is not what it must be."""
    return CouldNotFetch(Reason.BROKEN, message, "try again")


def too_large(size: int, limit: int) -> CouldNotFetch:
    """A file that is longer than such a file may be."""
    return CouldNotFetch(Reason.TOO_LARGE, f"a file of it has {size} bytes or more; the limit is {limit}")


def _wait_of(answer: Answer, longest: float) -> float | None:
    """Return the seconds to wait before another try; None where there is none."""
    if answer.status in _SERVER_ERRORS:
        return 0
    if answer.status != 429:
        return None
    seconds = retry_after(answer.headers)
    return seconds if seconds is not None and seconds <= longest else None


def retry_after(headers: Headers) -> int | None:
    """Return the seconds after which a rate limit ends, as the hub states them: `Retry-After`, else `RateLimit: …;t=55`."""
    stated = headers.get("retry-after", "") or headers.get("ratelimit", "").rpartition("t=")[2]
    digits = stated.strip()[:9]
    return int(digits) if digits.isascii() and digits.isdecimal() else None

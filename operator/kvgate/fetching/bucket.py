"""A folder in a bucket (`s3://bucket/prefix`), over S3's own requests: anonymous, or signed with the keys in the environment.

Signature: AWS Signature Version 4, <https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html>. Keys come from
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN only, and go to the endpoint of the bucket only: no redirect is followed.
No client of S3 keeps to that: obstore 0.12 follows a redirect to any host and takes AWS_SESSION_TOKEN there (measured with two servers),
and cannot be told not to. botocore 1.44 could sign, but is a wheel of 17 MB in the place of `signed`.
"""

import hmac
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from html import unescape
from urllib.parse import quote, urlsplit

from msgspec import Struct

from kvgate import __version__
from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published
from kvgate.fetching.bounded_http import REACH, Answer, Http, Range, broken, host_of, retry_after
from kvgate.fetching.checkpoint_names import MAIN, CheckpointName
from kvgate.fetching.limits import LIMITS, CouldNotFetch, Limits, Spending
from kvgate.fetching.reading import CheckpointFiles, Part, published
from kvgate.text.inert import inert
from kvgate.text.patterns import pattern

SCHEME = "s3://"
_ADDRESS = pattern(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,62})(?P<prefix>(?:/[A-Za-z0-9!_.*'()+=@ -]{1,255}){0,20})/?", re.ASCII
)
_MAX_LISTING_BYTES = 4 << 20
"""Bytes of a list of 1,000 files."""
_KEY = pattern(rb"<Key>([^<]{1,1024})</Key>")
_NOTHING = sha256(b"").hexdigest()
"""Digest of the body of a request that has none."""


class Account(Struct, frozen=True, kw_only=True):
    """The place of buckets, and the keys for it."""

    endpoint: str = ""
    """Address under which all buckets are folders; empty: Amazon's own addresses."""
    region: str = "us-east-1"
    key_id: str = ""
    """Empty: requests are anonymous."""
    secret: str = ""
    session_token: str = ""


def account_of(environment: Mapping[str, str]) -> Account:
    """Return what the variables of AWS's tools say."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    return Account(
        endpoint=endpoint.rstrip("/"),
        region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1",
        key_id=environment.get("AWS_ACCESS_KEY_ID", ""),
        secret=environment.get("AWS_SECRET_ACCESS_KEY", ""),
        session_token=environment.get("AWS_SESSION_TOKEN", ""),
    )


def read_bucket(
    address: str, *, name: str, limits: Limits = LIMITS, account: Account | None = None
) -> Published | NotFetched:
    """Return the facts of the files in a folder of a bucket, under a name; like `fetch`, it raises nothing."""
    spending = Spending(limits)
    try:
        bucket, folder = _place(address)
        with Http(spending).open() as http:
            files = BucketFiles(http, account or account_of(os.environ), bucket, folder)
            wanted = CheckpointName(name=name, repository=address, revision=MAIN)
            return published(files, wanted, num_parallel=limits.num_parallel)
    except CouldNotFetch as error:
        message = f"{inert(address[:200])}: {error.message}"
        return NotFetched(name=name, reason=error.reason, message=message, remedies=tuple(error.remedies))


def _place(address: str) -> tuple[str, str]:
    found = _ADDRESS.fullmatch(address)
    if found is None or {"..", "."} & set(found["prefix"].split("/")):
        raise CouldNotFetch(
            Reason.INVALID_NAME, "this is no s3://bucket/folder", "write the address of a folder in a bucket"
        )
    return found["bucket"], found["prefix"].strip("/")


class BucketFiles(CheckpointFiles):
    """The files directly in a folder of a bucket."""

    def __init__(self, http: Http, account: Account, bucket: str, prefix: str) -> None:
        self._http, self._account, self._prefix = http, account, f"{prefix}/" if prefix else ""
        self._base = _base(account, bucket)
        self.source, self.commit = f"s3://{bucket}/{prefix}".rstrip("/"), ""
        answer = self._get(
            "", {"delimiter": "/", "list-type": "2", "prefix": self._prefix}, max_bytes=_MAX_LISTING_BYTES
        )
        if b"<IsTruncated>true" in answer.body:
            raise CouldNotFetch(Reason.TOO_LARGE, "it has more than 1,000 files", "name the folder of one model")
        keys = (unescape(key.decode("utf-8", errors="replace")) for key in _KEY.findall(answer.body))
        self.names = frozenset(key.removeprefix(self._prefix) for key in keys)

    def read(self, name: str, *, max_bytes: int) -> bytes:
        return self._get(name, {}, max_bytes=max_bytes).body

    def read_part(self, name: str, *, start: int, length: int) -> Part:
        answer = self._get(name, {}, max_bytes=length, wanted=Range(start, length))
        return Part(answer.body, answer.total_bytes)

    def _get(self, name: str, query: Mapping[str, str], *, max_bytes: int, wanted: Range | None = None) -> Answer:
        path = quote(self._prefix + name) if name else ""
        encoded = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in sorted(query.items()))
        url = f"{self._base}/{path}{f'?{encoded}' if encoded else ''}"
        headers = {"user-agent": f"kvgate/{__version__}", "accept-encoding": "identity"} | signed(url, self._account)
        answer = self._http.get(url, headers=headers, wanted=wanted, max_bytes=max_bytes, follows=False)
        if answer.status not in (200, 206):
            raise _failure(answer, self._account, name)
        return answer


def _base(account: Account, bucket: str) -> str:
    """Return the address of a bucket: a folder of an own endpoint; on Amazon's a host of its own, unless its name has dots."""
    if account.endpoint:
        return f"{account.endpoint}/{bucket}"
    if "." in bucket:
        return f"https://s3.{account.region}.amazonaws.com/{bucket}"
    return f"https://{bucket}.s3.{account.region}.amazonaws.com"


def signed(url: str, account: Account, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> dict[str, str]:
    """Return the headers that sign a request without a body; none where there are no keys."""
    if not account.key_id or not account.secret:
        return {}
    parts, moment = urlsplit(url), now().strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": parts.netloc.rpartition("@")[2], "x-amz-content-sha256": _NOTHING, "x-amz-date": moment}
    if account.session_token:
        headers["x-amz-security-token"] = account.session_token
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"GET\n{parts.path or '/'}\n{parts.query}\n{lines}\n{names}\n{_NOTHING}"
    scope = f"{moment[:8]}/{account.region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{sha256(request.encode()).hexdigest()}"
    key = f"AWS4{account.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={account.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return headers | {"authorization": f"AWS4-HMAC-SHA256 {credential}"}


def _failure(answer: Answer, account: Account, name: str) -> CouldNotFetch:
    host, what, status = host_of(answer.url), f" for {inert(name)}" if name else "", answer.status
    if status in (301, 302, 307, 308, 400):
        return broken(f"{host} answers with HTTP {status}{what}; the bucket may be in another region: set AWS_REGION")
    keys = "the keys in AWS_ACCESS_KEY_ID may not read it" if account.key_id else "there are no keys"
    refused = (
        Reason.GATED,
        f"{host} refuses access{what}: {keys}",
        "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for keys of a session, AWS_SESSION_TOKEN",
    )
    limited = f"{host} takes no more requests ({retry_after(answer.headers)})"
    meanings: Mapping[int, tuple[Reason, str, str]] = {
        401: refused,
        403: refused,
        404: (Reason.NOT_FOUND, f"{host} has no such bucket or file{what}", "correct the address"),
        429: (Reason.RATE_LIMITED, limited, "try again later"),
    }
    other = (Reason.UNREACHABLE, f"{host} answers with HTTP {status}{what}", *REACH)
    return CouldNotFetch(*meanings.get(status, other))

"""When a certificate ends, read from its DER (RFC 5280, 4.1): the standard library tells it of a peer's certificate only."""

import datetime as dt
import ssl
from collections.abc import Iterator

_VERSION, _UTC_TIME = 0xA0, 0x17
_END = "-----END CERTIFICATE-----"


def expires_at(pem: bytes) -> float:
    """Seconds since 1970, of the first certificate: the one that is served. Raises ValueError where there is none."""
    text = pem.decode("ascii", errors="replace")
    der = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE-----") : text.index(_END) + len(_END)])
    (_, certificate), *_ = _elements(der)
    (_, signed), *_ = _elements(certificate)
    fields = [content for tag, content in _elements(signed) if tag != _VERSION]
    _serial, _algorithm, _issuer, validity, *_ = fields
    _, (tag, end) = _elements(validity)
    return _moment(tag, end.decode("ascii")).timestamp()


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each element in a row."""
    at = 0
    while at < len(der):
        tag, size, start = der[at], der[at + 1], at + 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(der[at + 2 : start])
        at = start + size
        yield tag, der[start:at]


def _moment(tag: int, text: str) -> dt.datetime:
    """UTCTime has two digits for a year from 1950 to 2049, GeneralizedTime has four."""
    if tag == _UTC_TIME:
        text = ("20" if text < "50" else "19") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC)

"""The certificate of the listener, replaced while it runs.

One SSLContext listens for good and hands every handshake to the newest context that loaded without an error. Calling
`load_cert_chain` on the listening context itself would be shorter, and wrong: where the new key does not match, OpenSSL has
replaced the certificate already and drops the old key, so that every later handshake fails (measured, OpenSSL 3.0).
"""

import datetime as dt
import logging
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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


_log = logging.getLogger(__name__)


class CertificateError(Exception):
    """The certificate cannot be served; the message names the file and says what to do."""


class Certificate:
    """A certificate and its key on disk, and the SSLContext that serves them as they are now.

    With a client CA only who has a certificate of it gets through the handshake.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Raises CertificateError where the files cannot be served from the start."""
        self._files = (certificate, key)
        self._client_ca = client_ca
        self._error = ""
        self._contents, self._current, self.expires_at = self._loaded()
        self.context = _server_context(asks_clients=client_ca is not None)
        self.context.sni_callback = self._hand_over

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in every handshake, with or without a server name."""
        connection.context = self._current

    def _loaded(self) -> tuple[tuple[bytes, ...], ssl.SSLContext, float]:
        """Return the files' contents, the context that serves them, and their end in seconds since 1970."""
        contents = self._read_all()
        context = _server_context(asks_clients=self._client_ca is not None)
        if self._client_ca is not None:
            _trust(context, self._client_ca, contents[-1])
        try:
            context.load_cert_chain(*self._files, password=_no_passphrase)
            return contents, context, expires_at(contents[0])
        except (ssl.SSLError, OSError, ValueError) as error:
            names = " and ".join(map(str, self._files))
            raise CertificateError(
                f"{names} are not a PEM certificate and its unencrypted key ({error}); give the tls.crt and tls.key of one Secret"
            ) from error

    def _read_all(self) -> tuple[bytes, ...]:
        return tuple(map(_read, (*self._files, *((self._client_ca,) if self._client_ca else ()))))

    def reload(self) -> bool:
        """Serve what the files hold now, if it changed; what cannot be served is logged once, and the old one stays."""
        try:
            if self._read_all() == self._contents:
                self._error = ""
                return False
            self._contents, self._current, self.expires_at = self._loaded()
        except CertificateError as error:
            if str(error) != self._error:
                _log.error("certificate kept", extra={"fields": {"error": str(error)}})
            self._error = str(error)
            return False
        self._error = ""
        _log.info("certificate reloaded", extra={"fields": {"file": str(self._files[0])}})
        return True


class ClientNames:
    """The common and DNS names of clients that may ask; any, where none is named."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def has(self, certificate: dict[str, Any]) -> bool:
        """True for the certificate of such a client, as `ssl` describes it."""
        subject = (pair for part in certificate.get("subject", ()) for pair in part)
        found = {value for key, value in (*subject, *certificate.get("subjectAltName", ())) if key in _NAME_KEYS}
        return not self._names or not found.isdisjoint(self._names)


_NAME_KEYS = ("commonName", "DNS")


def _server_context(*, asks_clients: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED if asks_clients else ssl.CERT_NONE
    return context


def _trust(context: ssl.SSLContext, path: Path, pem: bytes) -> None:
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", errors="replace"))
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(
            f"{path} is no PEM certificate ({error}); give the CA that signed the certificates of your API servers"
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be read ({error.strerror}); mount the webhook's Secret there, or name another file by its option"
        ) from error


def _no_passphrase() -> str:
    """OpenSSL would ask on the terminal, and a server would hang there."""
    raise ValueError("the key is encrypted")

"""The certificate of the listener, which is replaced while the process runs.

One SSLContext listens all the time and hands every handshake to the newest context that loaded without an error. It would be shorter to
call `load_cert_chain` on the listening context itself, but wrong: where the new key does not match, OpenSSL has already replaced the
certificate and drops the old key, so that every later handshake fails (measured, OpenSSL 3.0).
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
    """Return the end of the first certificate, which is the one that is served, in seconds since 1970. Raises ValueError without one.

    It is read from the DER (RFC 5280, 4.1), because the standard library reads the end of a peer's certificate only.
    """
    text = pem.decode("ascii", errors="replace")
    der = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE-----") : text.index(_END) + len(_END)])
    (_, certificate), *_ = _elements(der)
    (_, signed), *_ = _elements(certificate)
    fields = [content for tag, content in _elements(signed) if tag != _VERSION]
    _serial, _algorithm, _issuer, validity, *_ = fields
    _, (tag, end) = _elements(validity)
    text = end.decode("ascii")
    if tag == _UTC_TIME:  # UTCTime has two digits for a year from 1950 to 2049, GeneralizedTime has four
        text = ("20" if text < "50" else "19") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC).timestamp()


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (tag, content) of each element in a row."""
    at = 0
    while at < len(der):
        tag, size, start = der[at], der[at + 1], at + 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(der[at + 2 : start])
        at = start + size
        yield tag, der[start:at]


_log = logging.getLogger(__name__)


class CertificateError(Exception):
    """The certificate cannot be served; the message names the file and says what to do."""


class Certificate:
    """A certificate and its key on disk, and the SSLContext that serves them as they are now.

    With a client CA, the handshake of a client without a certificate of that CA fails.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Load the files. Raises CertificateError where they cannot be served."""
        self._files = (certificate, key)
        self._client_ca = client_ca
        self._error = ""
        self._contents, self._current, self.expires_at = self._loaded()
        self.context = _server_context(asks_clients=client_ca is not None)

        def hand_over(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._current

        self.context.sni_callback = hand_over  # called in every handshake, with or without a server name

    def _loaded(self) -> tuple[tuple[bytes, ...], ssl.SSLContext, float]:
        """Return the files' contents, the context that serves them, and the end of the certificate in seconds since 1970."""
        contents = self._read_all()
        context = _server_context(asks_clients=self._client_ca is not None)
        if self._client_ca is not None:
            try:
                context.load_verify_locations(cadata=contents[-1].decode("ascii", errors="replace"))
            except (ssl.SSLError, ValueError) as error:
                raise CertificateError(
                    f"{self._client_ca} is no PEM certificate ({error}); give the CA that signed the certificates of your API servers"
                ) from error
        try:
            context.load_cert_chain(*self._files, password=_no_passphrase)
            return contents, context, expires_at(contents[0])
        except (ssl.SSLError, OSError, ValueError) as error:
            names = " and ".join(map(str, self._files))
            raise CertificateError(
                f"{names} are not a PEM certificate and its unencrypted key ({error}); give the tls.crt and tls.key of one Secret"
            ) from error

    def _read_all(self) -> tuple[bytes, ...]:
        contents = []
        for path in (*self._files, *((self._client_ca,) if self._client_ca else ())):
            try:
                contents.append(path.read_bytes())
            except OSError as error:
                raise CertificateError(
                    f"{path} cannot be read ({error.strerror}); mount the webhook's Secret there, or name another file by its option"
                ) from error
        return tuple(contents)

    def reload(self) -> bool:
        """Serve the files' new contents, if they changed. Contents that cannot be served are logged once, and the old ones stay."""
        try:
            if self._read_all() == self._contents:
                self._error = ""
                return False
            self._contents, self._current, self.expires_at = self._loaded()
        except CertificateError as error:
            if str(error) != self._error:
                _log.error(
                    "the new certificate cannot be served, the old one stays", extra={"fields": {"error": str(error)}}
                )
            self._error = str(error)
            return False
        self._error = ""
        _log.info("certificate reloaded", extra={"fields": {"file": str(self._files[0])}})
        return True


def has_name(names: Sequence[str], certificate: dict[str, Any]) -> bool:
    """Return True for a client with one of these common and DNS names; without names for every client.

    The certificate is in the form of `ssl.SSLSocket.getpeercert`.
    """
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    pairs = (*subject, *certificate.get("subjectAltName", ()))
    return not names or any(key in ("commonName", "DNS") and value in names for key, value in pairs)


def _server_context(*, asks_clients: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED if asks_clients else ssl.CERT_NONE
    return context


def _no_passphrase() -> str:
    """Refuse an encrypted key: OpenSSL would ask for the passphrase on the terminal, and a server would hang there."""
    raise ValueError("the key is encrypted")

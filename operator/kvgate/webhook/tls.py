"""The certificate of the listener, replaced while it runs.

One SSLContext listens for good and hands every handshake to the newest context that loaded without an error. Calling
`load_cert_chain` on the listening context itself would be shorter, and wrong: where the new key does not match, OpenSSL has
replaced the certificate already and drops the old key, so that every later handshake fails (measured, OpenSSL 3.0).
"""

import logging
import ssl
from pathlib import Path

from kvgate.webhook.expiry import expires_at

_log = logging.getLogger(__name__)


class CertificateError(Exception):
    """The certificate cannot be served; the message names the file and says what to do."""


class Certificate:
    """A certificate and its key on disk, and the SSLContext that serves them as they are now."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises CertificateError where the files cannot be served from the start."""
        self._files = (certificate, key)
        self._error = ""
        self._contents, self._current, self.expires_at = self._loaded()
        self.context = _server_context()
        self.context.sni_callback = self._hand_over

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in every handshake, with or without a server name."""
        connection.context = self._current

    def _loaded(self) -> tuple[tuple[bytes, ...], ssl.SSLContext, float]:
        """What the files hold, what serves it, and until when in seconds since 1970."""
        contents = tuple(_read(path) for path in self._files)
        context = _server_context()
        try:
            context.load_cert_chain(*self._files, password=_no_passphrase)
            return contents, context, expires_at(contents[0])
        except (ssl.SSLError, OSError, ValueError) as error:
            names = " and ".join(map(str, self._files))
            raise CertificateError(
                f"{names} are not a PEM certificate and its unencrypted key ({error}); give the tls.crt and tls.key of one Secret"
            ) from error

    def reload(self) -> bool:
        """Serve what the files hold now, if it changed; what cannot be served is logged once, and the old one stays."""
        try:
            if tuple(_read(path) for path in self._files) == self._contents:
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


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be read ({error.strerror}); mount the webhook's Secret there, or name another file by --tls-cert and --tls-key"
        ) from error


def _no_passphrase() -> str:
    """OpenSSL would ask on the terminal, and a server would hang there."""
    raise ValueError("the key is encrypted")

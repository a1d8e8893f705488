"""The webhook's certificate where kvgate makes it itself (`webhook.certs.mode: auto`).

Each certificate has a CA of its own, whose key is thrown away once it has signed: no stored key can sign another one. The API server is
told of a CA before anything is served that it signed, and trusts the CAs before it until the next rotations, so that a webhook whose files
are a minute late is trusted as well. Whoever dies in between leaves a CA behind that signed nothing that is served.
"""

import asyncio
import base64
import datetime as dt
import logging
import re
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from msgspec import Struct

from kvgate.api.base import Document
from kvgate.cluster.client import SECRETS, WEBHOOK_CONFIGURATIONS, Cluster
from kvgate.cluster.errors import ApiError, NotFound
from kvgate.runtime.background import Troubles, repeat

VALID_FOR = dt.timedelta(days=90)
RENEWED_AFTER = 2 / 3
"""Share of the life of a certificate after which it is replaced, as cert-manager does."""
CLOCKS_DIFFER = dt.timedelta(hours=1)
"""Time before now at which a certificate begins to be valid, for an API server whose clock is late."""
SETTLE_SECONDS = 10.0
"""Time from a CA in the webhook's configuration to the first certificate of it, in which every API server hears of the CA."""
LOOK_SECONDS = 60.0
MAX_TRUSTED = 4
"""CAs that are trusted at a time, the newest first."""
AUTHORITY = "kvgate-webhook-ca"

_SIGNS = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
    key_cert_sign=True, crl_sign=False, encipher_only=False, decipher_only=False,
)  # fmt: skip
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
_log = logging.getLogger(__name__)


class Issued(Struct, frozen=True, kw_only=True):
    """A certificate with its key and its CA, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes


def issue(host: str, now: dt.datetime, valid_for: dt.timedelta = VALID_FOR) -> Issued:
    """Make a CA, and a certificate of it for one DNS name or address."""
    signer, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    try:
        name: x509.GeneralName = x509.IPAddress(ip_address(host))
    except ValueError:
        name = x509.DNSName(host)

    def signed(subject: str, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> bytes:
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True),
            (_SIGNS, True) if is_authority else (x509.SubjectAlternativeName([name]), False),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
        ]
        builder = x509.CertificateBuilder(
            subject_name=_named(subject), issuer_name=_named(AUTHORITY), public_key=key.public_key(),
            serial_number=x509.random_serial_number(), not_valid_before=now - CLOCKS_DIFFER, not_valid_after=now + valid_for,
        )  # fmt: skip
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, critical=is_critical)
        return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)

    return Issued(
        authority=signed(AUTHORITY, signer, is_authority=True),
        certificate=signed("kvgate-webhook", server, is_authority=False),
        key=server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def is_usable(found: Issued, host: str, now: dt.datetime) -> bool:
    """Return True for a certificate of its CA with its key, for this host, before the time at which it is replaced."""
    try:
        certificate, authority = map(x509.load_pem_x509_certificate, (found.certificate, found.authority))
        certificate.verify_directly_issued_by(authority)
        key = load_pem_private_key(found.key, password=None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (
        ValueError,
        TypeError,
        InvalidSignature,
        x509.ExtensionNotFound,
    ):  # somebody has edited it, or it is not there yet
        return False
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    is_named = host in (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
    return is_named and key.public_key() == certificate.public_key() and now < begin + RENEWED_AFTER * (end - begin)


def trusted(bundles: Sequence[bytes], now: dt.datetime) -> bytes:
    """Return the newest CAs of these bundles that have not ended, each once, in the order in which they are given."""
    kept: list[bytes] = []
    for pem in (pem.strip() + b"\n" for bundle in bundles for pem in _PEM.findall(bundle)):
        try:
            ends = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        except ValueError:
            continue
        if now < ends and pem not in kept:
            kept.append(pem)
    return b"".join(kept[:MAX_TRUSTED])


class WebhookCertificate:
    """Keeps the Secret that the webhook serves from, and the CA in the webhook's configuration."""

    def __init__(
        self, cluster: Cluster, secret: tuple[str, str], configuration: str, *,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC), settle_seconds: float = SETTLE_SECONDS,
    ) -> None:  # fmt: skip
        """`secret` is its namespace and name, `configuration` the name of the ValidatingWebhookConfiguration."""
        self._cluster = cluster
        self._secret = secret
        self._configuration = configuration
        self._clock = clock
        self._settle_seconds = settle_seconds

    async def run_forever(self, troubles: Troubles) -> None:
        await repeat(
            "webhook certificate", self.keep, interval_seconds=LOOK_SECONDS, troubles=troubles, expected=ApiError
        )

    async def keep(self, *, renews: bool = False) -> None:
        """Make a certificate where there is none or it is time, and put the CA back where it is lost. Raises ApiError."""
        configuration = await self._cluster.find(WEBHOOK_CONFIGURATIONS, None, self._configuration)
        if configuration is None:
            raise NotFound("get", WEBHOOK_CONFIGURATIONS.resource, f"{self._configuration} does not exist")
        found = await self._cluster.find(SECRETS, *self._secret)
        data = {name: base64.b64decode(text) for name, text in ((found or {}).get("data") or {}).items()}
        now, host = self._clock(), _host(configuration)
        stored = Issued(
            authority=data.get("ca.crt", b""), certificate=data.get("tls.crt", b""), key=data.get("tls.key", b"")
        )
        if not renews and is_usable(stored, host, now):
            await self._trust(configuration, trusted([stored.authority], now))
            return
        new = issue(host, now)
        bundle = trusted([new.authority, stored.authority, *map(_bundle, configuration["webhooks"])], now)
        await self._trust(configuration, bundle)
        if stored.certificate:
            await asyncio.sleep(self._settle_seconds)
        await self._serve(found, {"ca.crt": bundle, "tls.crt": new.certificate, "tls.key": new.key})
        _log.info("webhook certificate made", extra={"fields": {"host": host, "ends": f"{now + VALID_FOR:%Y-%m-%d}"}})

    async def _trust(self, configuration: Document, bundle: bytes) -> None:
        if all(_bundle(webhook) == bundle for webhook in configuration["webhooks"]):
            return
        authority = {"caBundle": base64.b64encode(bundle).decode()}
        webhooks = [{"name": webhook["name"], "clientConfig": authority} for webhook in configuration["webhooks"]]
        metadata = {"name": self._configuration, "uid": configuration["metadata"]["uid"]}
        kind = WEBHOOK_CONFIGURATIONS
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "webhooks": webhooks}
        await self._cluster.apply(kind, body)

    async def _serve(self, found: Document | None, files: dict[str, bytes]) -> None:
        """Write the Secret. Raises Conflict where it has changed since it was found."""
        namespace, name = self._secret
        metadata: Document = {"namespace": namespace, "name": name}
        if found:
            metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
        data = {name: base64.b64encode(content).decode() for name, content in files.items()}
        await self._cluster.apply(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def _bundle(webhook: Document) -> bytes:
    return base64.b64decode(webhook["clientConfig"].get("caBundle") or "")


def _host(configuration: Document) -> str:
    """Return the host that the API server asks for: that of the Service, or of the URL."""
    client = configuration["webhooks"][0]["clientConfig"]
    if service := client.get("service"):
        return f"{service['name']}.{service['namespace']}.svc"
    return urlsplit(client["url"]).hostname or ""

"""Keys and certificates which a control plane of one hour needs; elliptic curves, because they take no time to make."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509 import CertificateBuilder as Builder
from cryptography.x509.oid import NameOID

AUTHORITY = "kvgate-test-ca"
VALID_FOR = dt.timedelta(days=60)
"""Longer than the alert on certificates that are about to end looks ahead."""
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
ADDRESSES = ("127.0.0.1", "10.0.0.1")
"""The loopback, and the first address of the Service range."""


def _builder(subject: str, key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey) -> Builder:
    """Begin a certificate, with the key identifiers that Python 3.13 and later require."""
    now = dt.datetime.now(dt.UTC)
    return (
        Builder()
        .subject_name(_name(subject))
        .issuer_name(_name(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage() -> x509.KeyUsage:
    every = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        **dict.fromkeys(every, False), key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def write_certificates(folder: Path) -> None:
    """ca.crt, tls.crt and tls.key of a server on the loopback, sa.key and sa.pub for ServiceAccount tokens."""
    authority, server, accounts = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = (
        _builder(AUTHORITY, authority, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(), critical=True)
    )
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES]
    names = x509.SubjectAlternativeName([*map(x509.DNSName, NAMES), *addresses])
    tls = _builder("localhost", server, authority).add_extension(names, critical=False)
    for name, certificate in (("ca.crt", ca), ("tls.crt", tls)):
        (folder / name).write_bytes(certificate.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM))
    _write_key(folder / "tls.key", server)
    _write_key(folder / "sa.key", accounts)
    public = accounts.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "sa.pub").write_bytes(public)

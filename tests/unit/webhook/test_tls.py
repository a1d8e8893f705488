"""When a certificate ends, as cryptography wrote it."""

import datetime as dt
import logging
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from controlplane.certificates import write_certificates
from kvgate.webhook.tls import Certificate, expires_at, has_name

UTC_TIME_ENDS = dt.datetime(2049, 12, 31, 23, 59, 59, tzinfo=dt.UTC)


def write_certificate(folder: Path, end: dt.datetime, subject: str = "kvgate-webhook") -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(dt.datetime(1970, 1, 2, tzinfo=dt.UTC))
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(b"# of a Secret\n" + built.public_bytes(Encoding.PEM))
    (folder / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@pytest.mark.parametrize(
    "end",
    [dt.datetime(1999, 1, 1, tzinfo=dt.UTC), UTC_TIME_ENDS, UTC_TIME_ENDS + dt.timedelta(seconds=1)],
)
@pytest.mark.parametrize("subject", ["x", "x" * 64])
def test_the_end_of_a_certificate_is_read(tmp_path: Path, end: dt.datetime, subject: str) -> None:
    write_certificate(tmp_path, end, subject)
    assert expires_at((tmp_path / "tls.crt").read_bytes()) == end.timestamp()


def test_the_first_of_a_chain_is_the_one_that_is_served(secret: Path, tmp_path: Path) -> None:
    write_certificate(tmp_path, UTC_TIME_ENDS)
    chain = (tmp_path / "tls.crt").read_bytes() + (secret / "tls.crt").read_bytes()
    assert expires_at(chain) == UTC_TIME_ENDS.timestamp()


def test_a_renewed_certificate_ends_later_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_certificates(tmp_path)
    certificate = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    assert certificate.expires_at < UTC_TIME_ENDS.timestamp()
    write_certificate(tmp_path, UTC_TIME_ENDS)
    caplog.set_level(logging.INFO)
    assert certificate.reload()
    assert [each.__dict__["fields"] for each in caplog.records] == [{"file": str(tmp_path / "tls.crt")}]
    assert certificate.expires_at == UTC_TIME_ENDS.timestamp()
    (tmp_path / "tls.crt").write_text("none")
    caplog.clear()
    assert not certificate.reload()
    assert not certificate.reload()
    (record,) = caplog.records  # told once
    assert record.levelno == logging.ERROR
    assert record.__dict__["fields"]["error"]
    assert certificate.expires_at == UTC_TIME_ENDS.timestamp()


@pytest.mark.parametrize(
    ("certificate", "is_known"),
    [
        ({"subject": ((("commonName", "apiserver"),),)}, True), ({"subject": ((("organizationName", "apiserver"),),)}, False),
        ({"subjectAltName": (("DNS", "other"), ("DNS", "apiserver"))}, True), ({"subjectAltName": (("URI", "apiserver"),)}, False),
        ({"subject": ((("organizationName", "o"), ("commonName", "other")),)}, False), ({}, False),
    ],
)  # fmt: skip
def test_a_client_is_known_by_its_common_and_dns_names(certificate: dict[str, Any], *, is_known: bool) -> None:
    assert has_name(["apiserver", "second"], certificate) is is_known
    assert has_name([], certificate)

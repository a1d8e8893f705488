"""The webhook's certificate that the controller makes: what is stored, what is trusted, and when it is made anew."""

import base64
import datetime as dt
import ssl
import tempfile
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from kvgate.api.base import Document
from kvgate.cluster.client import SECRETS, Kind
from kvgate.cluster.errors import Conflict, NotFound, Unavailable
from kvgate.controller.certificates import MAX_TRUSTED, VALID_FOR, Issued, WebhookCertificate, issue

NOW = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
SERVICE = {"service": {"name": "kvgate-webhook", "namespace": "kvgate-system"}}
HOST = "kvgate-webhook.kvgate-system.svc"


class FakeCluster:
    """One Secret and one webhook configuration; `writes` names each write in turn, and `fails` what to raise instead of one."""

    def __init__(self, client: dict[str, Any] = SERVICE) -> None:
        self.client: dict[str, Any] | None = dict(client)
        self.secret: Document | None = {"metadata": {"resourceVersion": "0"}}
        self.writes: list[str] = []
        self.fails: dict[str, Exception] = {}

    async def find(self, kind: Kind, _namespace: str | None, _name: str) -> Document | None:
        if kind is SECRETS:
            return self.secret
        return self.client and {"metadata": {"uid": "u"}, "webhooks": [{"name": "w", "clientConfig": self.client}]}

    async def apply(self, kind: Kind, body: Document) -> Document:
        if kind.kind in self.fails:
            raise self.fails.pop(kind.kind)
        self.writes.append(kind.kind)
        if kind is SECRETS:
            before = (self.secret or {"metadata": {}})["metadata"].get("resourceVersion")
            assert body["metadata"].get("resourceVersion") == before
            self.secret = {"metadata": {"resourceVersion": str(len(self.writes))}, "data": body["data"]}
        else:
            assert body["metadata"]["uid"] == "u", "a configuration that is gone is not made again"
            assert self.client is not None
            self.client |= body["webhooks"][0]["clientConfig"]
        return body

    def file(self, name: str) -> bytes:
        return base64.b64decode((self.secret or {}).get("data", {}).get(name, ""))

    @property
    def authorities(self) -> list[x509.Certificate]:
        assert self.client
        return x509.load_pem_x509_certificates(base64.b64decode(self.client["caBundle"]))


async def keep(cluster: FakeCluster, *, after: dt.timedelta = dt.timedelta(), renews: bool = False) -> None:
    keeper = WebhookCertificate(cluster, ("ns", "cert"), "w", clock=lambda: NOW + after, settle_seconds=0)  # type: ignore[arg-type]
    await keeper.keep(renews=renews)


async def test_the_first_certificate_is_trusted_before_it_is_served_and_then_left_alone() -> None:
    cluster = FakeCluster()
    await keep(cluster)
    assert cluster.writes == ["ValidatingWebhookConfiguration", "Secret"]
    served = x509.load_pem_x509_certificate(cluster.file("tls.crt"))
    (authority,) = cluster.authorities
    served.verify_directly_issued_by(authority)
    assert served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.DNSName
    ) == [HOST]
    assert (cluster.secret or {})["data"].keys() == {"ca.crt", "tls.crt", "tls.key"}, (
        "the key of the CA is stored nowhere"
    )
    await keep(cluster, after=VALID_FOR / 2)
    assert len(cluster.writes) == 2


async def test_both_are_renewed_after_two_thirds_of_their_life_and_the_old_ca_stays_until_it_ends() -> None:
    cluster = FakeCluster()
    await keep(cluster)
    (old,) = cluster.authorities
    await keep(cluster, after=VALID_FOR * 0.67)
    new, kept = cluster.authorities
    assert kept == old
    x509.load_pem_x509_certificate(cluster.file("tls.crt")).verify_directly_issued_by(new)
    await keep(cluster, after=VALID_FOR)
    assert cluster.authorities == [new]


async def test_no_more_cas_are_trusted_than_a_late_webhook_needs() -> None:
    cluster = FakeCluster()
    for _ in range(MAX_TRUSTED + 2):
        await keep(cluster, renews=True)
    assert len(set(cluster.authorities)) == MAX_TRUSTED


async def test_a_ca_that_somebody_took_away_comes_back() -> None:
    cluster = FakeCluster()
    await keep(cluster)
    before = cluster.client
    cluster.client = dict(SERVICE)
    await keep(cluster)
    assert cluster.client == before
    assert cluster.writes[2:] == ["ValidatingWebhookConfiguration"]


@pytest.mark.parametrize("damage", ["tls.crt", "tls.key", "ca.crt", "all"])
async def test_a_damaged_secret_is_made_anew_and_what_webhooks_still_serve_stays_trusted(damage: str) -> None:
    cluster = FakeCluster()
    await keep(cluster)
    (served,), data = cluster.authorities, (cluster.secret or {})["data"]
    if damage == "all":
        cluster.secret = None
    else:
        data[damage] = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----").decode()
    await keep(cluster)
    assert served in cluster.authorities[1:]
    x509.load_pem_x509_certificate(cluster.file("tls.crt")).verify_directly_issued_by(cluster.authorities[0])


async def test_another_name_of_the_service_gets_a_certificate_of_its_own() -> None:
    cluster = FakeCluster({"url": "https://127.0.0.1:9443/validate"})
    await keep(cluster)
    names = x509.load_pem_x509_certificate(cluster.file("tls.crt")).extensions
    assert (
        str(names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.IPAddress)[0])
        == "127.0.0.1"
    )
    cluster.client = SERVICE | {"caBundle": (cluster.client or {})["caBundle"]}
    await keep(cluster)
    assert cluster.writes[2:] == ["ValidatingWebhookConfiguration", "Secret"]


async def test_who_fails_between_the_two_writes_leaves_what_is_served_trusted() -> None:
    cluster = FakeCluster()
    await keep(cluster)
    (served,), files = cluster.authorities, dict((cluster.secret or {})["data"])
    for error in (Conflict("patch", "secrets", "changed"), Unavailable("patch", "secrets", "no answer")):
        cluster.fails = {"Secret": error}
        with pytest.raises(type(error)):
            await keep(cluster, renews=True)
        assert (cluster.secret or {})["data"] == files
        assert served in cluster.authorities
    await keep(cluster)
    assert cluster.authorities == [served], "a CA that signed nothing is forgotten"


async def test_without_a_webhook_configuration_nothing_is_written() -> None:
    cluster = FakeCluster()
    cluster.client = None
    with pytest.raises(NotFound, match="w does not exist"):
        await keep(cluster)
    assert cluster.writes == []


def test_a_certificate_passes_the_strict_checks_of_openssl() -> None:
    made = issue(HOST, dt.datetime.now(dt.UTC))
    context = ssl.create_default_context(cadata=made.authority.decode())
    assert context.get_ca_certs()[0]["subject"] == ((("commonName", "kvgate-webhook-ca"),),)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    shake_hands(context, server, made)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, made: Issued) -> None:
    """In memory, without a socket. Raises SSLError where the client does not trust the server."""
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder) / "chain.pem"
        chain.write_bytes(made.certificate + made.key)
        server.load_cert_chain(chain)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=HOST),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)

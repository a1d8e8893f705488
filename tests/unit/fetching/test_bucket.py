"""Folders in buckets: signed as AWS documents it, and read like any other folder."""

from datetime import UTC, datetime
from html import escape

import pytest

from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published
from kvgate.fetching.bucket import Account, account_of, read_bucket, signed
from kvgate.fetching.limits import Limits
from support.hub_server import Fault, LoopbackHub, safetensors

LIMITS = Limits(pause_seconds=0, max_seconds=20, request_seconds=5)
EXAMPLE = Account(key_id="AKIAIOSFODNN7EXAMPLE", secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
CONFIG = b'{"architectures": ["Qwen3ForCausalLM"]}'


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_a_signature_is_that_of_the_documentation(query: str, signature: str) -> None:
    """Examples of AWS, "Signature calculations for the authorization header"."""
    moment = datetime(2013, 5, 24, tzinfo=UTC)
    headers = signed(f"https://examplebucket.s3.amazonaws.com/?{query}", EXAMPLE, lambda: moment)
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        f"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}"
    )


def test_without_keys_nothing_is_signed() -> None:
    assert signed("https://bucket.s3.amazonaws.com/x", Account()) == {}
    assert account_of({}) == Account()
    assert account_of({"AWS_ENDPOINT_URL": "http://minio:9000/", "AWS_REGION": "eu-west-1"}) == Account(
        endpoint="http://minio:9000", region="eu-west-1"
    )


def store(server: LoopbackHub, files: dict[str, bytes]) -> None:
    """Put files under models/own of the bucket `data`."""
    keys = "".join(f"<Contents><Key>models/own/{escape(name)}</Key></Contents>" for name in files)
    text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>".encode()
    server.faults["/data/"] = lambda handler, _: handler.send(text)
    for name, data in files.items():
        server.faults[f"/data/models/own/{name}"] = lambda handler, _, data=data: handler.send(data)  # type: ignore[misc]


def test_a_folder_in_a_bucket(server: LoopbackHub) -> None:
    """Its config and its headers are read; every request is signed."""
    store(server, {"config.json": CONFIG, "model.safetensors": safetensors({"a.weight": ("BF16", (8, 8))}), "a&b": b""})
    account = Account(endpoint=server.endpoint, key_id="key", secret="secret", session_token="session")
    model = read_bucket("s3://data/models/own", name="s3://data/models/own", limits=LIMITS, account=account)
    assert isinstance(model, Published), model
    assert (model.name, model.source, model.checkpoint_bytes) == ("s3://data/models/own", "s3://data/models/own", 128)
    assert {request.headers["x-amz-security-token"] for request in server.requests} == {"session"}
    assert all("Signature=" in request.headers["authorization"] for request in server.requests)


def status(code: int) -> Fault:
    return lambda handler, _: handler.send(b"<Error><Code>AccessDenied</Code></Error>", status=code)


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (403, Reason.GATED, "refuses access: there are no keys"),
        (404, Reason.NOT_FOUND, "has no such bucket or file"),
        (301, Reason.BROKEN, "the bucket may be in another region: set AWS_REGION"),
        (503, Reason.UNREACHABLE, "answers with HTTP 503"),
        (429, Reason.RATE_LIMITED, "takes no more requests"),
    ],
)
def test_a_bucket_that_answers_with_an_error(server: LoopbackHub, code: int, reason: Reason, message: str) -> None:
    server.faults["/data/"] = status(code)
    answer = read_bucket("s3://data/x", name="x", limits=LIMITS, account=Account(endpoint=server.endpoint))
    assert isinstance(answer, NotFetched)
    assert (answer.reason, message in answer.message) == (reason, True), answer.message


def test_no_redirect_gets_the_keys(server: LoopbackHub) -> None:
    """A store that leads elsewhere is not followed: the session's token would go there."""
    server.faults["/data/"] = lambda handler, _: handler.send(
        b"", status=307, headers={"Location": f"{server.cdn}/data/"}
    )
    account = Account(endpoint=server.endpoint, key_id="key", secret="secret", session_token="session")
    assert isinstance(read_bucket("s3://data/x", name="x", limits=LIMITS, account=account), NotFetched)
    assert server.requested("cdn") == []


@pytest.mark.parametrize(
    "address",
    ["s3://", "s3://UP/x", "s3://b/../x", "s3://bucket/./x", "s3://bucket/a\nb", "s3://bucket/?x", "s3://bucket//x"],
)
def test_no_address(address: str) -> None:
    answer = read_bucket(address, name="x", limits=LIMITS, account=Account(endpoint="http://127.0.0.1:9"))
    assert isinstance(answer, NotFetched)
    assert answer.reason is Reason.INVALID_NAME

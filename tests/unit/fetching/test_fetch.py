"""A fetch against a hub on loopback, and everything that a hub may do to it; each fault with the sentence that people see."""

from time import monotonic

import pytest

from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published
from kvgate.fetching.fetch import fetch, fetch_all
from kvgate.fetching.hub import Hub
from kvgate.fetching.limits import Limits
from support.checkpoints import gguf_bytes, qwen3_gguf
from support.hub_server import COMMIT, TOKEN, Fault, Handler, LargeFile, LoopbackHub, safetensors

LIMITS = Limits(pause_seconds=0, max_seconds=20, request_seconds=5)
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16"}
LAYER = {"model.layers.0.q.weight": ("BF16", (64, 32)), "model.layers.1.q.weight": ("BF16", (64, 32))}
MODEL = {"config.json": CONFIG, "model.safetensors": safetensors(LAYER)}
RESOLVED = f"/o/model/resolve/{COMMIT}"


def found(answer: Published | NotFetched) -> Published:
    assert isinstance(answer, Published), answer
    return answer


def refused(answer: Published | NotFetched) -> NotFetched:
    assert isinstance(answer, NotFetched), answer
    assert answer.message.isprintable()
    return answer


def test_a_model(server: LoopbackHub, hub: Hub) -> None:
    """The config and the headers are read, the commit is pinned, and the token goes to the hub only."""
    server.add("o/model", MODEL | {"model.py": b"raise SystemExit", "tokenizer.json": b"x"})
    model = found(fetch("o/model", hub=hub, limits=LIMITS))
    assert model.config == CONFIG
    assert (model.name, model.revision, model.commit, model.source) == ("o/model", "", COMMIT, hub.host)
    assert model.checkpoint_bytes == 2 * 64 * 32 * 2 == sum(group.size_bytes for group in model.tensors)
    assert {request.token for request in server.requests if request.place == "hub"} == {f"Bearer {TOKEN}"}
    assert {request.token for request in server.requests if request.place == "cdn"} == {None}
    assert all(COMMIT in path for path in server.requested()[1:])
    assert not [path for path in server.requested() if path.endswith(("model.py", "tokenizer.json"))]


def test_a_large_model_costs_its_headers_only(server: LoopbackHub, hub: Hub) -> None:
    """Files of many gigabytes are not read, and each needs one request that is answered by the CDN."""
    shards = {
        f"model-{part}.safetensors": safetensors({f"model.layers.{part}.up.weight": ("F8_E4M3", (1 << 17, 1 << 16))})
        for part in range(8)
    }
    index = {"metadata": {}, "weight_map": {f"model.layers.{part}.up.weight": name for part, name in enumerate(shards)}}
    server.add("o/model", {"config.json": CONFIG, "model.safetensors.index.json": index, **shards})
    assert found(fetch("o/model", hub=hub, limits=LIMITS)).checkpoint_bytes == 8 << 33
    assert len(server.requested("cdn")) == 8


def test_a_long_header_costs_a_second_request(server: LoopbackHub, hub: Hub) -> None:
    """A header that is longer than the first guess is read to its end."""
    tensors = {f"model.layers.{layer}.{'q' * 300}.weight": ("BF16", (64,)) for layer in range(2000)}
    server.add("o/model", {"config.json": CONFIG, "model.safetensors": safetensors(tensors)})
    assert found(fetch("o/model", hub=hub, limits=LIMITS)).checkpoint_bytes == 2000 * 128
    assert len(server.requested("cdn")) == 2


def test_a_revision(server: LoopbackHub, hub: Hub) -> None:
    """A branch is resolved to its commit; a commit may be asked for too."""
    server.add("o/model", MODEL, revisions=("main", "refs/pr/1"))
    model = found(fetch("o/model", "refs/pr/1", hub=hub, limits=LIMITS))
    assert (model.revision, model.commit) == ("refs/pr/1", COMMIT)
    assert found(fetch("o/model", COMMIT, hub=hub, limits=LIMITS)).commit == COMMIT


def test_quantisation_beside_the_config(server: LoopbackHub, hub: Hub) -> None:
    """What stands in hf_quant_config.json is read with the config."""
    quantization = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    server.add("o/model", MODEL | {"hf_quant_config.json": quantization})
    assert found(fetch("o/model", hub=hub, limits=LIMITS)).config["quantization_config"] == quantization


def test_an_adapter(server: LoopbackHub, hub: Hub) -> None:
    """A LoRA adapter has no config.json; its own config is what it is known by."""
    lora = safetensors({"base_model.model.model.layers.0.q_proj.lora_A.weight": ("BF16", (16, 64))})
    config = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"]}
    server.add("o/lora", {"adapter_config.json": config, "adapter_model.safetensors": lora})
    adapter = found(fetch("o/lora", hub=hub, limits=LIMITS))
    assert (adapter.adapter, adapter.config, adapter.checkpoint_bytes) == (config, {}, 2 * 16 * 64)


def test_pickled_weights_are_not_read(server: LoopbackHub, hub: Hub) -> None:
    """Of weights that only code could read, the size of the files is taken."""
    server.add("o/model", {"config.json": CONFIG, "pytorch_model.bin": b"\x80" * 4096})
    model = found(fetch("o/model", hub=hub, limits=LIMITS))
    assert (model.tensors, model.checkpoint_bytes) == ((), 4096)
    assert [request.headers["range"] for request in server.requests if request.place == "cdn"] == ["bytes=0-0"]


def test_models_are_fetched_together(server: LoopbackHub, hub: Hub) -> None:
    """One that cannot be fetched costs the others nothing."""
    server.add("o/model", MODEL)
    first, second, third = fetch_all([("o/model", ""), ("o/none", ""), ("../x", "")], hub=hub, limits=LIMITS)
    assert found(first).name == "o/model"
    assert refused(second).reason is Reason.NOT_FOUND
    assert refused(third).reason is Reason.INVALID_NAME
    assert not [path for path in server.requested() if "x" in path.split("/")]


def test_there_is_no_such_model(hub: Hub, stranger: Hub) -> None:
    """The hub tells strangers no more than that: the variable for a token is named."""
    answer = refused(fetch("o/none", hub=stranger, limits=LIMITS))
    assert answer.reason is Reason.NOT_FOUND
    assert (
        answer.message
        == f"{hub.host} has no public model o/none: there is none, or it is private and there is no token"
    )
    assert "set HF_TOKEN if it is private" in answer.remedies[1]
    answer = refused(fetch("o/none", hub=hub, limits=LIMITS))
    assert answer.message == f"{hub.host} has no model o/none that the account of the token may read"


def test_a_private_model(server: LoopbackHub, hub: Hub, stranger: Hub) -> None:
    """A private model needs the token, and says which variable is read."""
    server.add("o/model", MODEL, is_private=True)
    answer = refused(fetch("o/model", hub=stranger, limits=LIMITS))
    assert answer.reason is Reason.NOT_FOUND
    assert "HF_TOKEN" in " ".join(answer.remedies)
    assert found(fetch("o/model", hub=hub, limits=LIMITS))


def test_a_gated_model(server: LoopbackHub, hub: Hub, stranger: Hub) -> None:
    """Without a token, with one of an account that is not accepted, and with an accepted one."""
    repository = server.add("o/model", MODEL, is_gated=True)
    answer = refused(fetch("o/model", hub=stranger, limits=LIMITS))
    assert answer.reason is Reason.GATED
    assert answer.message == (
        "o/model is gated: only accounts that its publisher accepted may read it, and there is no token"
    )
    assert f"ask for access on {hub.endpoint}/o/model" in answer.remedies[0]
    answer = refused(fetch("o/model", hub=hub, limits=LIMITS))
    assert answer.message == "o/model is gated, and its publisher has not accepted the account of the token"
    repository.accepted = (TOKEN,)
    assert found(fetch("o/model", hub=hub, limits=LIMITS))


def test_a_token_that_is_not_valid(server: LoopbackHub, hub: Hub) -> None:
    """An old token fails even for a public model; the token is not in the message."""
    server.add("o/model", MODEL)
    answer = refused(fetch("o/model", hub=Hub(endpoint=hub.endpoint, token="hf_old"), limits=LIMITS))
    assert (answer.reason, answer.message) == (Reason.GATED, f"o/model: {hub.host} does not accept the token")
    assert "hf_old" not in repr(answer)


def test_there_is_no_such_revision(server: LoopbackHub, hub: Hub) -> None:
    """The name may be right while the revision is not."""
    server.add("o/model", MODEL)
    answer = refused(fetch("o/model", "v9", hub=hub, limits=LIMITS))
    assert (answer.reason, answer.revision) == (Reason.REVISION_NOT_FOUND, "v9")
    assert answer.message == f"o/model on {hub.host} has no branch, tag or commit v9"


def test_a_repository_without_a_model(server: LoopbackHub, hub: Hub) -> None:
    """A repository of something else has no config.json."""
    server.add("o/model", {"README.md": b"x"})
    answer = refused(fetch("o/model", hub=hub, limits=LIMITS))
    assert (answer.reason, answer.message) == (
        Reason.FILE_NOT_FOUND,
        f"o/model in {hub.host} has no config.json, so it is no model that vLLM loads",
    )


def test_files_that_escape_are_not_requested(server: LoopbackHub, hub: Hub) -> None:
    """Names in the listing and in the index that leave the repository lead to no request."""
    listed = [
        {"rfilename": name} for name in ("config.json", "../../o/other/config.json", "/etc/passwd", "a\nb", 7, None)
    ]
    server.add("o/model", MODEL)
    server.faults["/revision/main"] = lambda handler, _: handler.send_json({"sha": COMMIT, "siblings": [*listed, "x"]})
    assert found(fetch("o/model", hub=hub, limits=LIMITS)).tensors == ()
    index = {"weight_map": {"a": "../../../etc/passwd.safetensors"}}
    server.faults.clear()
    server.add("o/model", MODEL | {"model.safetensors.index.json": index})
    answer = refused(fetch("o/model", hub=hub, limits=LIMITS))
    assert answer.reason is Reason.BROKEN
    assert "which is no file of this folder" in answer.message
    assert not [path for path in server.requested() if "etc" in path or "other" in path]


def status(code: int, **headers: str) -> Fault:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, _: handler.refuse(code, "", "", **named)


def test_too_many_requests(server: LoopbackHub, hub: Hub, stranger: Hub) -> None:
    """A long wait ends the fetch at once, and the message says how long it is."""
    server.add("o/model", MODEL)
    server.faults["/revision/main"] = status(429, Retry_After="3600")
    answer = refused(fetch("o/model", hub=stranger, limits=LIMITS))
    assert (answer.reason, answer.is_temporary) == (Reason.RATE_LIMITED, True)
    assert answer.message == (
        f"o/model: {hub.host} takes no more requests (HTTP 429); it takes them again in 3600 seconds"
    )
    assert answer.remedies == ("try again later", "set HF_TOKEN: accounts may ask more often")
    assert len(server.requests) == 1


def test_a_short_wait_is_waited_for(server: LoopbackHub, hub: Hub) -> None:
    """The hub takes requests again after the seconds that it states."""
    server.add("o/model", MODEL)
    server.faults["/revision/main"] = first(1, status(429, ratelimit='"api";r=0;t=0'), server)
    assert found(fetch("o/model", hub=hub, limits=LIMITS))


def first(times: int, fault: Fault, server: LoopbackHub) -> Fault:
    """A fault that is over after some requests."""
    left = [times]

    def once(handler: Handler, data: bytes) -> None:
        left[0] -= 1
        if left[0] == 0:
            server.faults.clear()
        fault(handler, data)

    return once


@pytest.mark.parametrize("code", [500, 502, 503, 504])
def test_errors_of_the_hub(server: LoopbackHub, hub: Hub, code: int) -> None:
    """An error of the hub itself is tried again; where it stays, the hub is not reachable."""
    server.add("o/model", MODEL)
    server.faults["config.json"] = first(2, status(code), server)
    assert found(fetch("o/model", hub=hub, limits=LIMITS))
    server.faults["config.json"] = status(code)
    answer = refused(fetch("o/model", hub=hub, limits=LIMITS))
    assert (answer.reason, answer.message) == (Reason.UNREACHABLE, f"o/model: {hub.host} answers with HTTP {code}")


def test_a_hub_that_is_not_there() -> None:
    """Nobody listens on the port."""
    answer = refused(fetch("o/model", hub=Hub(endpoint="http://127.0.0.1:9"), limits=LIMITS))
    assert answer.reason is Reason.UNREACHABLE
    assert answer.message.startswith("o/model: 127.0.0.1:9 cannot be reached (")
    assert "HTTPS_PROXY" in answer.remedies[1]


def drip(seconds: float, *, in_headers: bool) -> Fault:
    """Send one byte now and then, in the headers or in the body, until the server stops."""

    def dripping(handler: Handler, data: bytes) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: " if in_headers else b"HTTP/1.1 200 OK\r\n\r\n")
        while not handler.hub.stopped.wait(seconds):
            handler.wfile.write(b" ")

    return dripping


@pytest.mark.parametrize("in_headers", [True, False])
def test_a_slow_hub(server: LoopbackHub, hub: Hub, in_headers: bool) -> None:  # noqa: FBT001
    """A byte now and then keeps no fetch alive, in the headers and in the body."""
    server.add("o/model", MODEL)
    server.faults["config.json"] = drip(0.02, in_headers=in_headers)
    started = monotonic()
    answer = refused(fetch("o/model", hub=hub, limits=Limits(max_seconds=0.5, request_seconds=5)))
    assert (answer.reason, answer.message) == (Reason.TIME_OVER, "o/model: it was not fetched within 0.5 seconds")
    assert monotonic() - started < 3


def test_a_silent_hub(server: LoopbackHub, hub: Hub) -> None:
    """A hub that says nothing is given up after the seconds of a request."""
    server.add("o/model", MODEL)
    server.faults["config.json"] = lambda handler, _: handler.hub.stopped.wait()  # type: ignore[func-returns-value]
    answer = refused(fetch("o/model", hub=hub, limits=Limits(retries=0, request_seconds=0.2, max_seconds=20)))
    assert answer.reason is Reason.UNREACHABLE
    assert answer.message == f"o/model: {hub.host} cannot be reached (no answer in time)"


def whole(data: bytes, **headers: str) -> Fault:
    """Answer with these bytes, whatever range is asked for, and close the connection."""

    def answer(handler: Handler, stored: bytes) -> None:
        handler.send_response(200)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data or stored)
        handler.close_connection = True

    return answer


def redirect(location: str) -> Fault:
    return lambda handler, _: handler.send(b"", status=302, headers={"Location": location})


SMALL = safetensors(LAYER)
WEIGHTS = "cdn:model.safetensors"


def test_a_server_that_ignores_ranges(server: LoopbackHub, hub: Hub) -> None:
    """The file is read as far as it is wanted, and the connection is closed."""
    server.add("o/model", MODEL)
    server.faults[WEIGHTS] = whole(bytes(SMALL) + bytes(1 << 20), Content_Length=str(SMALL.size))
    assert found(fetch("o/model", hub=hub, limits=LIMITS)).checkpoint_bytes == 8192


@pytest.mark.parametrize(
    ("path", "fault", "reason", "message"),
    [
        ("config.json", whole(b"{", Content_Length="500"), Reason.BROKEN, "broke off its answer"),
        ("config.json", whole(b"{"), Reason.BROKEN, "config.json cannot be read: "),
        ("config.json", whole(b"[1]"), Reason.BROKEN, "config.json cannot be read: "),
        ("config.json", whole(b"\xff\xfe"), Reason.BROKEN, "config.json cannot be read: "),
        ("config.json", whole(b"<html>Sign in</html>"), Reason.BROKEN, "config.json cannot be read: "),
        ("config.json", whole(b"[" * 200_000), Reason.BROKEN, "config.json cannot be read: "),
        ("config.json", whole(b"{}", Content_Length="9" * 12), Reason.TOO_LARGE, "a file of it has 999999999999 bytes"),
        ("config.json", whole(b" " * (17 << 20)), Reason.TOO_LARGE, "the limit is"),
        ("config.json", whole(b"{}", Content_Encoding="gzip"), Reason.BROKEN, "compresses its answer"),
        ("config.json", whole(b"{}", **{f"X-{n}": "x" * 8000 for n in range(100)}), Reason.BROKEN, "that is not HTTP"),
        ("config.json", redirect("/o/model/resolve/x/config.json"), Reason.BROKEN, "redirects more than 5 times"),
        ("config.json", redirect("file:///etc/passwd"), Reason.BROKEN, "leads to file:, where a hub must not lead"),
        ("config.json", redirect("http://localhost:9/x"), Reason.BROKEN, "leads to http://localhost, where"),
        ("config.json", redirect("http://:x/"), Reason.BROKEN, "which is no address"),
        ("/revision/main", whole(b"<html>"), Reason.BROKEN, "the list of the files of o/model"),
        ("/revision/main", whole(b"{}"), Reason.BROKEN, "does not list the files of o/model"),
        ("/revision/main", whole(b"[]"), Reason.BROKEN, "does not list the files of o/model"),
        ("/revision/main", whole(b" " * (33 << 20)), Reason.TOO_LARGE, "the limit is"),
        (WEIGHTS, whole(b"1234567"), Reason.BROKEN, "a safetensors file begins with 8 bytes of length"),
        (WEIGHTS, whole(b"\xff" * 100), Reason.BROKEN, "which no safetensors file has"),
        (WEIGHTS, whole(SMALL[:100]), Reason.BROKEN, "model.safetensors is truncated"),
        (WEIGHTS, whole(b"\x80\x04" + bytes(200)), Reason.BROKEN, "model.safetensors"),
        (WEIGHTS, status(403), Reason.GATED, "refuses access to o/model: HTTP 403"),
        (WEIGHTS, status(404), Reason.FILE_NOT_FOUND, "lists model.safetensors but does not have it"),
        (WEIGHTS, status(416), Reason.UNREACHABLE, "answers with HTTP 416"),
    ],
)  # fmt: skip
def test_answers_that_are_none(
    server: LoopbackHub, hub: Hub, path: str, fault: Fault, reason: Reason, message: str
) -> None:
    """A truncated, absurd or foreign answer ends the fetch with a sentence, and not with an error of ours."""
    server.add("o/model", MODEL)
    server.faults[path] = fault
    answer = refused(fetch("o/model", hub=hub, limits=LIMITS))
    assert (answer.reason, message in answer.message) == (reason, True), answer.message


@pytest.mark.parametrize(
    ("content_range", "message"),
    [("bytes 7-99/1000", "sends other bytes than it was asked for"), ("bytes 0-99/7", "model.safetensors cannot be read"),
     ("nonsense", "sends other bytes than it was asked for")],
)  # fmt: skip
def test_lying_ranges(server: LoopbackHub, hub: Hub, content_range: str, message: str) -> None:
    """A range that was not asked for is no header, and a size that the tensors do not fill is not one."""
    server.add("o/model", MODEL)
    server.faults[WEIGHTS] = lambda handler, data: handler.send(
        data, status=206, headers={"Content-Range": content_range}
    )
    answer = refused(fetch("o/model", hub=hub, limits=LIMITS))
    assert (answer.reason, message in answer.message) == (Reason.BROKEN, True), answer.message


def test_more_than_the_limit_of_bytes(server: LoopbackHub, hub: Hub) -> None:
    """All answers together have a limit, and a server that never ends its answer meets it."""
    server.add("o/model", MODEL)
    answer = refused(fetch("o/model", hub=hub, limits=Limits(max_bytes=100, pause_seconds=0)))
    assert answer.reason is Reason.TOO_LARGE


def test_words_of_a_hub_do_nothing_in_a_log(server: LoopbackHub, hub: Hub) -> None:
    """What a hub says in an error is shown inert."""
    server.add("o/model", MODEL)
    server.faults["config.json"] = lambda handler, _: handler.send(
        b"", status=403, headers={"X-Error-Message": "a \x1b[31m ##[error]"}
    )
    assert "\\x1b" in refused(fetch("o/model", hub=hub, limits=LIMITS)).message


def test_a_name_that_is_none_is_not_requested(server: LoopbackHub, hub: Hub) -> None:
    """Paths and addresses are refused before anything is requested."""
    for name in ("/etc", "../x", "http://x/y", "a/b/../../c"):
        assert refused(fetch(name, hub=hub, limits=LIMITS)).reason is Reason.INVALID_NAME
    assert server.requests == []


def gguf() -> LargeFile:
    data, size = gguf_bytes(*qwen3_gguf())
    file = LargeFile(data)
    file.size = size
    return file


def test_a_gguf_file(server: LoopbackHub, hub: Hub) -> None:
    """By its type or by its name; of a large file only its beginning is read."""
    server.add("o/model", {"m-Q4_K_M.gguf": gguf(), "m-Q8_0.gguf": b"x", "README.md": b""})
    for name in ("o/model:Q4_K_M", "o/model/m-Q4_K_M.gguf"):
        model = found(fetch(name, hub=hub, limits=LIMITS))
        assert model.name == name
        assert model.config["architectures"] == ["Qwen3ForCausalLM"]
        assert model.config["quantization_config"] == {"quant_method": "gguf"}
        assert {group.dtype for group in model.tensors} == {"Q4_K", "Q6_K", "F32"}
    assert not [path for path in server.requested("cdn") if path.endswith("m-Q8_0.gguf")]


def test_a_long_gguf_header_is_read_in_parts(server: LoopbackHub, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary takes some megabytes; nobody knows how many before the file is read."""
    monkeypatch.setattr("kvgate.fetching.reading._FIRST_GGUF_BYTES", 1000)
    server.add("o/model", {"m-Q4_K_M.gguf": gguf()})
    assert found(fetch("o/model:Q4_K_M", hub=hub, limits=LIMITS)).checkpoint_bytes
    ranges = [request.headers["range"] for request in server.requests if request.place == "cdn"]
    assert ranges[:2] == ["bytes=0-999", "bytes=1000-4999"]


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        ("o/model:Q2_K", Reason.FILE_NOT_FOUND, "has no GGUF file of type Q2_K; it has m-Q4_K_M.gguf, m-Q8_0.gguf"),
        ("o/model/none.gguf", Reason.FILE_NOT_FOUND, "has no none.gguf; it has m-Q4_K_M.gguf, m-Q8_0.gguf"),
        ("o/model", Reason.FILE_NOT_FOUND, "has GGUF files, and no config.json"),
        ("o/model:Q8_0", Reason.BROKEN, "m-Q8_0.gguf is truncated: "),
    ],
)
def test_gguf_files_that_are_none(server: LoopbackHub, hub: Hub, name: str, reason: Reason, message: str) -> None:
    """The message says which files there are."""
    server.add("o/model", {"m-Q4_K_M.gguf": gguf(), "m-Q8_0.gguf": b"GGUF"})
    answer = refused(fetch(name, hub=hub, limits=LIMITS))
    assert (answer.reason, message in answer.message) == (reason, True), answer.message


def test_one_file_of_a_split_is_missing(server: LoopbackHub, hub: Hub) -> None:
    server.add("o/model", {"m-Q4_K_M-00001-of-00002.gguf": gguf()})
    answer = refused(fetch("o/model:Q4_K_M", hub=hub, limits=LIMITS))
    assert "m-Q4_K_M-00002-of-00002.gguf is not there" in answer.message


def test_params_of_mistral(server: LoopbackHub, hub: Hub) -> None:
    """Without a config.json, params.json says what the model is."""
    params = {
        "dim": 64, "n_layers": 1, "head_dim": 16, "hidden_dim": 128, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 1000,
        "norm_eps": 1e-5, "rope_theta": 1e6,
    }  # fmt: skip
    tensors = safetensors({"layers.0.attention.wq.weight": ("BF16", (64, 64))})
    server.add("o/model", {"params.json": params, "consolidated.safetensors": tensors})
    model = found(fetch("o/model", hub=hub, limits=LIMITS))
    assert model.config["hidden_size"] == 64
    assert [group.name for group in model.tensors] == ["model.layers.{}.self_attn.q_proj.weight"]

"""The bundle: it holds no secret, and gives the same answer again."""

import json
from pathlib import Path

import pytest

from kvgate.vllm.redacting import redacted
from support.command_line import invoked

SECRETS = {
    "HF_TOKEN=hf_abcdefghijklmnop": "hf_abcdefghijklmnop",
    "--api-key sk-1234567890abc --port 1": "sk-1234567890abc",
    "--api-key=topsecretkey": "topsecretkey",
    "'api_key': ['topsecretvalue'], 'x': 1": "topsecretvalue",
    "Authorization: Bearer abc.def.ghijkl": "abc.def.ghijkl",
    "https://user:hunter22@registry/x": "hunter22",
    "- name: HF_TOKEN\n  value: mysecretvalue1": "mysecretvalue1",
    '{"name": "OPENAI_API_KEY", "value": "mysecretvalue2"}': "mysecretvalue2",
    "AWS_SECRET_ACCESS_KEY: abcd1234efgh": "abcd1234efgh",
    "password=hunter22x": "hunter22x",
    "export WANDB_API_KEY=0123456789abcdef": "0123456789abcdef",
    "github_pat_11AAAAAAAAAAAAAAAAAAAA is here": "github_pat_11AAAAAAAAAAAAAAAAAAAA",
}
PLAIN = (
    "GPU KV cache size: 118,448 tokens",
    "'max_num_batched_tokens': 8192, 'num_speculative_tokens': 3",
    "Maximum concurrency for 32,768 tokens per request: 6.16x",
    "HUGGING_FACE_HUB_TOKEN:  <set to the key 'token' in secret 'hf'>",
    "--prompt-tokens 123456",
    "value: $(HF_TOKEN)",
    "the tokenizer: Qwen/Qwen3-8B",
)


@pytest.mark.parametrize(("text", "secret"), SECRETS.items())
def test_a_secret_is_taken_out(text: str, secret: str) -> None:
    assert secret not in redacted(text)


@pytest.mark.parametrize("text", PLAIN)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_text_without_secrets_is_the_same_after_a_second_time() -> None:
    for text in SECRETS:
        assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize("piece", ["token=", "a:", "Bearer ", "://x:", "name: A\nvalue: ", "_key "])
def test_long_texts_are_redacted_in_time(piece: str) -> None:
    redacted(piece * (300_000 // len(piece)))


LOG = """\
(APIServer pid=1) INFO 11-02 03:04:05 [api_server.py:1] vLLM API server version 0.11.0
(APIServer pid=1) INFO 11-02 03:04:05 [utils.py:1] non-default args: {'model': 'Qwen/Qwen3-8B', 'api_key': ['mysecretvalue4']}
ValueError: No available memory for the cache blocks. Try something.
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: vllm-0}
spec:
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.11.0
    args: [--model=Qwen/Qwen3-8B]
    env:
    - name: HF_TOKEN
      value: mysecretvalue3
"""


def test_a_bundle_gives_the_same_answer_again_and_holds_no_secret(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "a.log").write_text(LOG)
    bundle = tmp_path / "bundle.json"
    first = invoked(
        "why",
        str(tmp_path / "pod.yaml"),
        str(tmp_path / "a.log"),
        "--accelerator",
        "T4",
        "--bundle",
        str(bundle),
        "-o",
        "json",
    )
    (tmp_path / "pod.yaml").unlink()
    again = invoked("why", str(bundle), "-o", "json")
    assert json.loads(again.stdout) == json.loads(first.stdout)
    written = bundle.read_text()
    assert not any(f"mysecretvalue{number}" in written + first.stdout for number in (3, 4))
    held = json.loads(written)
    assert {name for name, _ in held["given"]} == {str(tmp_path / "pod.yaml"), str(tmp_path / "a.log")}
    assert held["answer"]["answers"][0]["statement"]["model"] == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("text", ['{"kvgateBundle": 1}', '{"kvgateBundle": 1, "given": 3}', '{"kvgateBundle": '])
def test_a_broken_bundle_is_no_bundle(text: str) -> None:
    assert invoked("why", "-", stdin=text).exit_code == 2

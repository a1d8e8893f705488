"""`kvgate models`, `kvgate models fetch`, `kvgate models lock`, and `--fetch`, against a hub on loopback."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvgate.checkpoint.published import Published, lock_text, read_lock
from kvgate.fetching import fetch as fetching
from kvgate.fetching.hub import Hub
from support.builders import new_llama_config
from support.command_line import invoked
from support.hub_server import COMMIT, TOKEN, LoopbackHub, loopback_hub, safetensors

pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")

CONFIG = new_llama_config(tie_word_embeddings=True, intermediate_size=1024)
"""Its weights are most of what WEIGHTS holds: a config and a checkpoint that contradict each other never fit."""
WEIGHTS = safetensors({"model.embed_tokens.weight": ("BF16", (128256, 4096)), "model.norm.weight": ("BF16", (4096,))})
POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L4}}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.32.0
    args: ["--model={model}", --max-model-len=4096{more}]
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with loopback_hub() as hub:
        monkeypatch.setattr(fetching, "hub_of_environment", lambda: Hub(endpoint=hub.endpoint, token=TOKEN))
        hub.add("org/own", {"config.json": CONFIG, "model.safetensors": WEIGHTS})
        yield hub


def pod(folder: Path, model: str, *, name: str = "engine", more: str = "") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(POD.format(name=name, model=model, more=more))
    return path


def test_the_list_needs_no_command() -> None:
    """`kvgate models FILTER` is what it was before there were commands."""
    assert invoked("models", "gpt-oss-20b").output == invoked("models", "list", "gpt-oss-20b").output
    assert json.loads(invoked("models", "gpt-oss-20b", "-o", "json").output)[0]["name"] == "openai/gpt-oss-20b"
    assert "fetch" in invoked("models", "--help").output


def test_fetched_for_people(server: LoopbackHub) -> None:
    """A person sees what it is, how large, in which formats, and from where."""
    result = invoked("models", "fetch", "org/own")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "org/own",
        f"  source        {server.endpoint.removeprefix('http://')}, commit {COMMIT}",
        "  architecture  LlamaForCausalLM, 4 layers, up to 8,192 tokens",
        "  weights       0.98 GiB",
        "  formats       BF16 0.98 GiB",
        "  tensors       2",
    ]


def test_fetched_for_programs(server: LoopbackHub) -> None:
    """A program gets the entries, and a reason for each one that is missing."""
    result = invoked("models", "fetch", "org/own", "org/none", "-o", "json")
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert [(each["name"], each["commit"], each["checkpointBytes"]) for each in answer["models"]] == [
        ("org/own", COMMIT, 2 * 4096 * 128257)
    ]
    assert [(each["name"], each["reason"]) for each in answer["notFetched"]] == [("org/none", "NotFound")]
    assert "has no model org/none" in result.stderr


def test_an_adapter_is_described(server: LoopbackHub) -> None:
    server.add(
        "org/lora",
        {
            "adapter_config.json": {
                "r": 16,
                "lora_alpha": 32,
                "target_modules": ["q_proj"],
                "base_model_name_or_path": "org/own",
            }
        },
    )
    assert "  adapter       LORA of rank 16 for org/own" in invoked("models", "fetch", "org/lora").stdout


def test_a_folder_has_the_name_of_its_place_in_the_cluster(tmp_path: Path) -> None:
    """What lies on a volume is known by its path, from a copy of the folder."""
    folder, lock = tmp_path / "own", tmp_path / "models.json"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert invoked("models", "fetch", str(folder), "--as", "/models/own", "--into", str(lock)).exit_code == 0
    assert [each.name for each in read_lock(lock.read_text())] == ["/models/own"]
    manifest = pod(tmp_path, "/models/own")
    assert "Unknown" in invoked("check", str(manifest)).stdout
    assert "L4-24GB: Fits" in invoked("check", str(manifest), "--lock", str(lock)).stdout
    assert invoked("models", "fetch", str(folder), "org/own", "--as", "x").exit_code == 2


def test_a_bucket_has_the_address_that_manifests_name(
    server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM streams weights from `s3://…`, and the lock file knows what lies there."""
    listing = b"<ListBucketResult><Key>own/config.json</Key></ListBucketResult>"
    server.faults["/data/"] = lambda handler, _: handler.send(listing)
    server.faults["/data/own/config.json"] = lambda handler, _: handler.send(json.dumps(CONFIG).encode())
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    lock = tmp_path / "models.json"
    assert invoked("models", "fetch", "s3://data/own", "--into", str(lock)).exit_code == 0
    assert "L4-24GB: Fits" in invoked("check", str(pod(tmp_path, "s3://data/own")), "--lock", str(lock)).stdout


def test_check_with_fetch(server: LoopbackHub, tmp_path: Path) -> None:
    """An unknown model gets a verdict; without --fetch nothing is requested."""
    manifest = str(pod(tmp_path, "org/own"))
    result = invoked("check", manifest)
    assert (result.exit_code, "fetch what its publisher published: add --fetch" in result.stdout) == (2, True)
    assert server.requests == []
    result = invoked("check", manifest, "--fetch")
    assert (result.exit_code, "L4-24GB: Fits" in result.stdout) == (0, True)
    assert f"org/own: fetched from {server.endpoint.removeprefix('http://')}, commit {COMMIT[:12]}" in result.stderr


def test_check_says_why_a_model_could_not_be_fetched(server: LoopbackHub, tmp_path: Path) -> None:
    """The verdict stays Unknown, and the finding has the reason and what to do."""
    server.add("org/gated", {"config.json": CONFIG}, is_gated=True)
    result = invoked("check", str(pod(tmp_path, "org/gated")), "--fetch", "-o", "json")
    finding = json.loads(result.stdout)["documents"][0]["findings"][0]
    assert (result.exit_code, finding["rule"]) == (2, "UnknownModel")
    assert finding["message"] == (
        "model org/gated is not in the catalogue, and it could not be fetched: org/gated is gated, and its publisher has not "
        "accepted the account of the token"
    )
    assert "ask for access on" in finding["remediation"]
    assert "--model-config" in finding["remediation"]


def test_a_model_that_could_not_be_fetched_is_assumed_and_says_why(server: LoopbackHub, tmp_path: Path) -> None:
    """A namesake in the catalogue is better than nothing, but whoever asked for a fetch learns that there was none."""
    result = invoked("check", str(pod(tmp_path, "org/Qwen3-8B-AWQ")), "--fetch")
    assert "assumed from Qwen/Qwen3-8B" in result.stdout
    assert "has no model org/Qwen3-8B-AWQ that the account of the token may read" in result.stdout


@pytest.mark.parametrize("model", ["/models/own", "./org/own", "s3://org/own", "pvc://org/own", "../org/own"])
def test_a_place_is_never_looked_up_on_a_hub(server: LoopbackHub, tmp_path: Path, model: str) -> None:
    """The end of a path may be the name of another model."""
    assert "Unknown" in invoked("check", str(pod(tmp_path, model)), "--fetch").stdout
    assert server.requests == []
    assert "--fetch" not in invoked("check", str(pod(tmp_path, model))).stdout


def test_models_of_the_catalogue_are_not_fetched(server: LoopbackHub, tmp_path: Path) -> None:
    """Nor is one whose config.json the user gives."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    invoked("check", str(pod(tmp_path, "Qwen/Qwen3-8B", name="a")), "--fetch")
    invoked("check", str(pod(tmp_path, "org/none", name="b")), "--fetch", "--model-config", str(config))
    assert server.requests == []


def test_a_draft_is_fetched_too(server: LoopbackHub, tmp_path: Path) -> None:
    """A draft of another model is looked up in the same way."""
    draft: dict[str, Any] = {
        **CONFIG,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 32000,
    }
    server.add("org/draft", {"config.json": draft, "pytorch_model.bin": b"\x80" * 64})
    speculation = ', "--speculative-config={\\"method\\": \\"eagle3\\", \\"model\\": \\"org/draft\\", \\"num_speculative_tokens\\": 3}"'
    manifest = pod(tmp_path, "org/own", more=speculation)
    result = invoked("check", str(manifest), "--fetch")
    assert "org/draft: fetched from" in result.stderr, result.output
    lock = tmp_path / "models.json"
    assert invoked("models", "lock", str(manifest), "-o", str(lock)).exit_code == 0
    assert [each.name for each in read_lock(lock.read_text())] == ["org/draft", "org/own"]


def test_adapters_are_fetched_too(server: LoopbackHub, tmp_path: Path) -> None:
    """An adapter with a rank that is too high is refused; one that cannot be fetched is told, and refuses nothing."""
    adapter = {"r": 64, "lora_alpha": 32, "target_modules": ["q_proj"], "base_model_name_or_path": "org/own"}
    server.add("org/lora", {"adapter_config.json": adapter})
    manifest = str(pod(tmp_path, "org/own", more=", --enable-lora, --lora-modules=a=org/lora"))
    result = invoked("check", manifest, "--fetch")
    assert (result.exit_code, "its rank 64 is above --max-lora-rank 16" in result.stdout) == (1, True), result.stdout
    manifest = str(pod(tmp_path, "org/own", more=", --enable-lora, --lora-modules=a=org/none"))
    result = invoked("check", manifest, "--fetch")
    assert (result.exit_code, "the adapter a could not be fetched: " in result.stdout) == (0, True), result.stdout


def test_the_configuration_switches_it_on(server: LoopbackHub, tmp_path: Path) -> None:
    """`.kvgate.yaml` says once what to do; the command line wins."""
    manifest = str(pod(tmp_path, "org/own"))
    (tmp_path / ".kvgate.yaml").write_text("models: {fetch: true}\n")
    assert invoked("check", manifest, "--no-fetch").exit_code == 2
    assert server.requests == []
    assert invoked("check", manifest).exit_code == 0
    (tmp_path / ".kvgate.yaml").write_text("models: {lock: missing.json, fetsch: true}\n")
    assert invoked("check", manifest).exit_code == 2


def test_lock_and_check(server: LoopbackHub, tmp_path: Path) -> None:
    """With the committed file CI needs no hub; a file that lacks a model fails."""
    pod(tmp_path, "org/own")
    pod(tmp_path, "Qwen/Qwen3-8B", name="known")
    (tmp_path / ".kvgate.yaml").write_text("models: {lock: locked.json}\n")
    lock = tmp_path / "locked.json"
    lock.write_text(lock_text(()))
    result = invoked("models", "lock", "--check", str(tmp_path))
    assert (result.exit_code, server.requests) == (1, [])
    assert f"{lock} lacks org/own, which an engine names" in result.stderr
    assert invoked("models", "lock", str(tmp_path)).exit_code == 0
    assert [(each.name, each.commit) for each in read_lock(lock.read_text())] == [("org/own", COMMIT)]
    server.requests.clear()
    assert invoked("models", "lock", "--check", str(tmp_path)).exit_code == 0
    assert "2 engines: 2 start" in invoked("check", str(tmp_path)).stdout
    assert invoked("models", "lock", str(tmp_path)).exit_code == 0
    assert server.requests == []


def test_lock_keeps_commits_until_it_is_told_to_update(server: LoopbackHub, tmp_path: Path) -> None:
    """A new commit of the publisher changes nothing in CI, and can be seen."""
    manifest, lock = str(pod(tmp_path, "org/own")), str(tmp_path / "models.json")
    invoked("models", "lock", manifest, "-o", lock)
    server.repositories["org/own"].commit = "b" * 40
    assert invoked("models", "lock", manifest, "-o", lock, "--check").exit_code == 0
    result = invoked("models", "lock", manifest, "-o", lock, "--check", "--update")
    assert (result.exit_code, "has org/own of commit" in result.stderr) == (1, True)
    assert invoked("models", "lock", manifest, "-o", lock, "--update").exit_code == 0
    assert read_lock(Path(lock).read_text())[0].commit == "b" * 40


def test_lock_drops_what_no_engine_names(server: LoopbackHub, tmp_path: Path) -> None:
    """`--all` keeps models of the catalogue too; without it they are left out."""
    manifest, lock = str(pod(tmp_path, "org/own")), tmp_path / "models.json"
    lock.write_text(lock_text([Published(name="org/old", config=CONFIG)]))
    result = invoked("models", "lock", manifest, "-o", str(lock), "--check")
    assert (result.exit_code, "has org/old, which no engine names" in result.stderr) == (1, True)
    server.add("Qwen/Qwen3-8B", {"config.json": CONFIG})
    pod(tmp_path, "Qwen/Qwen3-8B", name="known")
    assert invoked("models", "lock", str(tmp_path), "-o", str(lock), "--all").exit_code == 0
    assert [each.name for each in read_lock(lock.read_text())] == ["org/own", "Qwen/Qwen3-8B"]


def test_lock_with_a_model_that_cannot_be_fetched(server: LoopbackHub, tmp_path: Path) -> None:
    """The others are kept, and the exit code says that the file is not complete."""
    pod(tmp_path, "org/own")
    pod(tmp_path, "org/none", name="second")
    lock = tmp_path / "models.json"
    result = invoked("models", "lock", str(tmp_path), "-o", str(lock))
    assert result.exit_code == 2
    assert f"{lock}: 1 model, 1 could not be fetched" in result.stderr
    assert len(read_lock(lock.read_text())) == 1


def test_broken_lock_files(tmp_path: Path) -> None:
    """Every command that reads one says which file, what is wrong, and what to do."""
    manifest, lock = str(pod(tmp_path, "org/own")), tmp_path / "models.json"
    lock.write_text('{"schema": "kvgate-models/9", "models": []}')
    for arguments in (
        ("check", manifest, "--lock", str(lock)),
        ("models", "lock", manifest, "-o", str(lock)),
        ("models", "fetch", str(tmp_path), "--into", str(lock)),
        ("explain", "--model", "org/own", "--gpu", "L4", "--lock", str(lock)),
        ("size", "--model", "org/own", "--lock", str(lock)),
        ("sweep", "--model", "org/own", "--gpu", "L4", "--lock", str(lock)),
    ):
        result = invoked(*arguments)
        assert result.exit_code == 2, arguments
        assert "its schema is kvgate-models/9, and this kvgate reads kvgate-models/1" in result.stderr, arguments
    assert lock.read_text() == '{"schema": "kvgate-models/9", "models": []}'


def test_other_commands_fetch_too(server: LoopbackHub, tmp_path: Path) -> None:
    """`explain`, `size` and `sweep` answer for a model that only the hub knows."""
    about = ("--model", "org/own", "--fetch", "--max-model-len", "4096")
    assert "Fits" in invoked("explain", *about, "--gpu", "L4").stdout
    assert invoked("size", *about, "--gpus", "L4").exit_code == 0
    assert invoked("sweep", *about[:3], "--gpu", "L4", "--y", "max_num_seqs=1,2").exit_code == 0
    assert invoked("explain", "--requests", "-", "--fetch", stdin="").exit_code == 2
    lock = tmp_path / "models.json"
    invoked("models", "fetch", "org/own", "--into", str(lock))
    line = json.dumps({"model": "org/own", "gpu": "L4", "max_model_len": 4096})
    assert '"verdict":"Fits"' in invoked("explain", "--requests", "-", "--lock", str(lock), stdin=line).stdout

"""Folders on this machine, and the cache of huggingface_hub where the hub cannot be asked."""

import json
from os import mkfifo
from pathlib import Path

import pytest

from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published
from kvgate.fetching.fetch import fetch
from kvgate.fetching.folder import read_folder
from kvgate.fetching.hub import Hub
from kvgate.fetching.limits import Limits
from support.hub_server import COMMIT, LargeFile, LoopbackHub, safetensors

CONFIG = json.dumps({"architectures": ["Qwen3ForCausalLM"]})
WEIGHTS = safetensors({"model.layers.0.q.weight": ("BF16", (8, 8))})
QUICK = Limits(retries=0, pause_seconds=0, max_seconds=10)


def whole(file: LargeFile) -> bytes:
    return bytes(file).ljust(file.size, b"\0")


def found(answer: Published | NotFetched) -> Published:
    assert isinstance(answer, Published), answer
    return answer


def reason(answer: Published | NotFetched) -> tuple[Reason, str]:
    assert isinstance(answer, NotFetched), answer
    return answer.reason, answer.message


def test_a_folder(tmp_path: Path) -> None:
    """A fine-tune that nobody published has the name under which its manifests know it."""
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model.safetensors").write_bytes(whole(WEIGHTS))
    model = found(read_folder(tmp_path, name="/models/own"))
    assert (model.name, model.source, model.commit) == ("/models/own", f"folder {tmp_path}", "")
    assert model.checkpoint_bytes == 128


def test_folders_that_are_none(tmp_path: Path) -> None:
    """Nothing there, nothing in it, and files that are not what their names say."""
    assert reason(read_folder(tmp_path / "no", name="x"))[0] is Reason.NOT_FOUND
    assert reason(read_folder(tmp_path, name="x"))[0] is Reason.FILE_NOT_FOUND
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model.safetensors").write_bytes(whole(WEIGHTS)[:-1])
    assert reason(read_folder(tmp_path, name="x"))[0] is Reason.BROKEN


def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    """A folder may come from anybody: its links and pipes open nothing else."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": 1}')
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").symlink_to(secret)
    assert "outside of" in reason(read_folder(folder, name="x"))[1]
    (folder / "config.json").unlink()
    mkfifo(folder / "config.json")
    assert reason(read_folder(folder, name="x"))[0] is Reason.FILE_NOT_FOUND


def cache_with(tmp_path: Path, files: dict[str, bytes]) -> Path:
    """Write a commit as huggingface_hub keeps it: files as links to blobs."""
    repository = tmp_path / "hub" / "models--o--model"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for number, (name, data) in enumerate(files.items()):
        (repository / "blobs" / str(number)).write_bytes(data)
        (snapshot / name).symlink_to(Path("..", "..", "blobs", str(number)))
    return tmp_path / "hub"


def test_offline_with_a_filled_cache(tmp_path: Path, server: LoopbackHub) -> None:
    """HF_HUB_OFFLINE forbids requests; what `hf download` left is enough."""
    cache = cache_with(tmp_path, {"config.json": CONFIG.encode(), "model.safetensors": whole(WEIGHTS)})
    hub = Hub(endpoint=server.endpoint, is_offline=True, cache=cache)
    model = found(fetch("o/model", hub=hub, limits=QUICK))
    assert (model.checkpoint_bytes, model.commit, model.source) == (128, COMMIT, f"{hub.host}, from the cache")
    assert found(fetch("o/model", COMMIT, hub=hub, limits=QUICK)).revision == COMMIT
    assert server.requests == []


def test_offline_with_a_part_of_the_files(tmp_path: Path, server: LoopbackHub) -> None:
    """Without the weights, the index says how many bytes they have."""
    index = json.dumps({"metadata": {"total_size": 4096}, "weight_map": {"a": "model-1.safetensors"}}).encode()
    cache = cache_with(tmp_path, {"config.json": CONFIG.encode(), "model.safetensors.index.json": index})
    hub = Hub(endpoint=server.endpoint, is_offline=True, cache=cache)
    assert found(fetch("o/model", hub=hub, limits=QUICK)).checkpoint_bytes == 4096


@pytest.mark.parametrize("name", ["o/other", "O/model"])
def test_offline_without_the_model(tmp_path: Path, server: LoopbackHub, name: str) -> None:
    """The message names the variable."""
    hub = Hub(endpoint=server.endpoint, is_offline=True, cache=cache_with(tmp_path, {}))
    assert reason(fetch(name, hub=hub, limits=QUICK)) == (
        Reason.OFFLINE, f"HF_HUB_OFFLINE forbids requests, and the cache does not have {name}",
    )  # fmt: skip


def test_the_cache_stands_in_for_a_hub_that_is_not_there(tmp_path: Path) -> None:
    """As huggingface_hub does it; for a model that is not in the cache the reason stays."""
    cache = cache_with(tmp_path, {"config.json": CONFIG.encode()})
    hub = Hub(endpoint="http://127.0.0.1:9", cache=cache)
    assert found(fetch("o/model", hub=hub, limits=QUICK)).commit == COMMIT
    assert reason(fetch("o/other", hub=hub, limits=QUICK))[0] is Reason.UNREACHABLE


def test_a_reference_in_the_cache_leads_nowhere_else(tmp_path: Path, server: LoopbackHub) -> None:
    """The file of a branch holds a commit, and nothing that is a path."""
    cache = cache_with(tmp_path, {"config.json": CONFIG.encode()})
    (cache / "models--o--model" / "refs" / "main").write_text("../../../..")
    hub = Hub(endpoint=server.endpoint, is_offline=True, cache=cache)
    assert reason(fetch("o/model", hub=hub, limits=QUICK))[0] is Reason.OFFLINE

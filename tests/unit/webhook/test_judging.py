"""The mounted files of observed starts and of fetched models come, change and go while the webhook runs."""

import logging
from pathlib import Path

import pytest

from kvgate.calibration.keeping import Store, shard_of, with_start
from kvgate.calibration.records import write_records
from kvgate.checkpoint.published import Published
from kvgate.checkpoint.stored import MAX_ENTRY_BYTES, entry_key, packed
from kvgate.webhook.judging import ModelsFolder, MountedFacts, StartsFile
from kvgate.webhook.review import Known, review
from support.builders import new_llama_config
from support.starts import a_pods_start, a_start

SETTING: dict[str, object] = {"gpu": "L4-24GB", "enforce_eager": True, "max_num_seqs": 3, "max_model_len": 11264}


def test_the_file_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "starts.jsonl"
    starts = StartsFile(path)
    assert starts.calibration.starts == ()
    path.write_text(write_records(with_start((), a_start(0.2, **SETTING))), encoding="utf-8")
    starts.reload()
    assert len(starts.calibration.starts) == 1
    path.write_text(path.read_text() + "broken\n", encoding="utf-8")
    starts.reload()
    starts.reload()
    assert len(starts.calibration.starts) == 1
    assert sum("line 3" in record.message for record in caplog.records) == 1
    path.unlink()
    starts.reload()
    assert starts.calibration.starts == ()


def a_review() -> dict[str, object]:
    kind = {"group": "kvgate.io", "version": "v1alpha1", "kind": "InferenceDeployment"}
    resource = {"group": "kvgate.io", "version": "v1alpha1", "resource": "inferencedeployments"}
    spec = {
        "model": {"name": "Qwen/Qwen3-8B"}, "accelerator": {"type": "L4-24GB"},
        "vllm": {"version": "0.33.0", "maxModelLen": 11264, "maxNumSeqs": 3, "enforceEager": True},
    }  # fmt: skip
    body = {
        "apiVersion": "kvgate.io/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": "a", "namespace": "b"},
        "spec": spec,
    }
    request = {
        "uid": "1",
        "operation": "CREATE",
        "namespace": "b",
        "name": "a",
        "kind": kind,
        "resource": resource,
        "object": body,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@pytest.mark.parametrize(("error_gib", "decision"), [(None, "AdmitWithWarning"), (0.2, "Admit"), (-0.2, "Refuse")])
def test_an_observed_start_decides_what_was_open(tmp_path: Path, error_gib: float | None, decision: str) -> None:
    path = tmp_path / "starts.jsonl"
    if error_gib is not None:
        path.write_text(write_records(with_start((), a_start(error_gib, **SETTING))), encoding="utf-8")
    assert review(a_review(), Known(calibration=StartsFile(path).calibration)).decision == decision


@pytest.mark.parametrize("error_gib", [0.2, -0.2, -3.0])
@pytest.mark.parametrize(
    ("pods", "decision"),
    [
        ({"namespace": "elsewhere"}, "AdmitWithWarning"),
        ({"namespace": "b", "image": "ghcr.io/some/vllm@sha256:1"}, "AdmitWithWarning"),
        ({"namespace": "b"}, None),
    ],
    ids=["another namespace", "another image", "the same namespace and vLLM's image"],
)
def test_at_admission_too_no_foreign_start_decides_what_was_open(
    tmp_path: Path, error_gib: float, pods: dict[str, str], decision: str | None
) -> None:
    path, starts = tmp_path / "starts.jsonl", ()
    for pod in ("pod-1", "pod-2"):
        starts = with_start(starts, a_pods_start(error_gib, pod, **pods, **SETTING))
    path.write_text(write_records(starts), encoding="utf-8")
    expected = decision or ("Admit" if error_gib > 0 else "Refuse")
    assert review(a_review(), Known(calibration=StartsFile(path).calibration)).decision == expected
    path.write_text(write_records(starts[:1]), encoding="utf-8")
    assert review(a_review(), Known(calibration=StartsFile(path).calibration)).decision == "AdmitWithWarning", (
        "one alone decides nothing"
    )


LARGE = new_llama_config(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)


def of_model(name: str) -> dict[str, object]:
    body = a_review()
    body["request"]["object"]["spec"]["model"] = {"name": name}  # type: ignore[index]
    return body


def put(folder: Path, name: str, config: dict[str, object]) -> Path:
    path = folder / entry_key(name)
    path.write_bytes(packed(Published(name=name, config=config)))
    return path


def test_the_folder_of_fetched_models_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    found = ModelsFolder(folder)
    assert found.models.get("mine/large") is None, "it need not be there"
    folder.mkdir()
    path = put(folder, "mine/large", LARGE)
    (folder / "..data").mkdir()
    (folder / "mine--large.about.json").write_text("{}", encoding="utf-8")
    found.reload()
    seen = found.models
    assert list(seen) == ["mine/large"]
    found.reload()
    assert found.models is seen, "what did not change is not sent to the workers again"
    put(folder, "mine/small", new_llama_config())
    found.reload()
    assert sorted(found.models) == ["mine/large", "mine/small"]
    path.unlink()
    found.reload()
    assert list(found.models) == ["mine/small"]


def test_files_that_are_too_large_or_broken_are_unknown_models(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / entry_key("mine/huge")).write_bytes(b"x" * (MAX_ENTRY_BYTES + 1))
    (tmp_path / entry_key("mine/broken")).write_bytes(b"x")
    found = ModelsFolder(tmp_path)
    found.reload()
    assert found.models.get("mine/huge") is None
    assert found.models.get("mine/broken") is None
    (tmp_path / entry_key("mine/huge")).write_bytes(b"x" * MAX_ENTRY_BYTES)
    with caplog.at_level(logging.INFO):
        found.reload()
    assert set(found.models.entries) == {entry_key("mine/huge"), entry_key("mine/broken")}, "the largest one is read"
    assert [record.__dict__["fields"] for record in caplog.records] == [{"models": 2}]


def test_a_fetched_model_is_judged_at_admission_and_one_that_is_not_fetched_yet_is_announced(tmp_path: Path) -> None:
    facts = MountedFacts(StartsFile(None), ModelsFolder(tmp_path), asks_hub=True)
    assert facts() is facts()
    response = review(of_model("mine/large"), facts()).body["response"]
    assert response["allowed"]
    assert "rendered after the hub was asked (see the condition ModelResolved): mine/large" in response["warnings"]
    put(tmp_path, "mine/large", LARGE)
    facts = MountedFacts(StartsFile(None), ModelsFolder(tmp_path), asks_hub=True)
    assert review(of_model("mine/large"), facts()).decision == "Refuse"
    assert "hub" not in str(review(of_model("Qwen/Qwen3-8B"), facts()).body)


def test_without_the_folder_nobody_is_told_of_a_hub() -> None:
    facts = MountedFacts(StartsFile(None), ModelsFolder(None), asks_hub=False)
    response = review(of_model("mine/large"), facts()).body["response"]
    assert response["allowed"]
    assert "hub" not in str(response["warnings"])


def test_a_folder_of_shards_is_read_with_the_file_of_older_releases(tmp_path: Path) -> None:
    old, fresh = a_pods_start(0.3, "pod-1"), a_pods_start(0.3, "pod-2")
    (tmp_path / "starts.jsonl").write_text(write_records((old,)), encoding="utf-8")
    starts = StartsFile(tmp_path)
    assert starts.calibration.starts == (old,)
    before = starts.calibration
    starts.reload()
    assert starts.calibration is before, "workers have it already"
    shard = tmp_path / f"{shard_of('serving')}.jsonl"
    digest = Store().with_text(None, write_records((old,))).digest
    shard.write_text(write_records((fresh,), taken_over=digest), encoding="utf-8")
    starts.reload()
    assert starts.calibration.starts == (fresh,), "the old one was taken over, and removed since"

"""The mounted file of observed starts comes, changes and goes while the webhook runs."""

from pathlib import Path

import pytest

from kvgate.calibration import with_start, write_records
from kvgate.webhook.observed_starts import StartsFile
from kvgate.webhook.review import review
from support.starts import a_start

SETTING: dict[str, object] = {"gpu": "L4-24GB", "enforce_eager": True, "max_num_seqs": 3, "max_model_len": 11264}


def test_the_file_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "starts.jsonl"
    starts = StartsFile(path)
    assert starts.calibration.starts == ()
    path.write_text(write_records(with_start((), a_start(0.5, **SETTING))), encoding="utf-8")
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


@pytest.mark.parametrize(("error_gib", "decision"), [(None, "AdmitWithWarning"), (0.3, "Admit"), (-0.2, "Refuse")])
def test_an_observed_start_decides_what_was_open(tmp_path: Path, error_gib: float | None, decision: str) -> None:
    path = tmp_path / "starts.jsonl"
    if error_gib is not None:
        path.write_text(write_records(with_start((), a_start(error_gib, **SETTING))), encoding="utf-8")
    assert review(a_review(), StartsFile(path).calibration).decision == decision

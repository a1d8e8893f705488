"""kvgate calibrate: what a log says is remembered, and the next verdict of every command follows it."""

import json
from pathlib import Path

import pytest

from kvgate.calibration.records import read_records
from support.command_line import invoked

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
LOG = """\
(APIServer pid=1) INFO 11-20 21:57:39 [api_utils.py:286] non-default args: {args}
(EngineCore pid=3) INFO 11-20 21:58:17 [core.py:133] Initializing a V1 LLM engine (v0.33.0) with config: model='Qwen/Qwen3-32B-FP8', x=1
(Worker pid=5) INFO 11-20 21:58:38 [gpu_worker.py:260] Available KV cache memory: {gib} GiB
"""
GIVEN = """reserved 40 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling.
(EngineCore pid=3) INFO 11-20 21:58:38 [kv_cache_utils.py:1] # GPU blocks: 9000, # CPU blocks: 0, seen by"""
ARGS = {
    "model_tag": "Qwen/Qwen3-32B-FP8",
    "model": "Qwen/Qwen3-32B-FP8",
    "max_model_len": 32768,
    "max_num_seqs": 64,
    "port": 8000,
}
EXPLAIN = (
    "explain",
    "--model",
    "Qwen/Qwen3-32B-FP8",
    "--gpu",
    "H100-SXM-80GB",
    "--vllm-version",
    "0.33.0",
    "--max-num-seqs",
    "64",
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return a_log(tmp_path, 38.11)


def a_log(folder: Path, gib: float, **changes: object) -> Path:
    path = folder / f"serve-{gib}.log"
    path.write_text(LOG.format(args={**ARGS, **changes}, gib=gib), encoding="utf-8")
    return path


def test_a_log_is_remembered_and_the_next_answer_follows_it(log: Path, tmp_path: Path) -> None:
    into = tmp_path / "starts.jsonl"
    done = invoked("calibrate", str(log), "--gpu", "H100-SXM-80GB", "--into", str(into))
    assert done.exit_code == 0
    assert "38.11 GiB for the KV cache, 38.89 GiB predicted (38.51 GiB to 39.22 GiB)" in done.stderr
    answer = json.loads(invoked(*EXPLAIN, "--calibration", str(into), "-o", "json").stdout)
    assert answer["ledger"]["calibration"] == {"starts": 1, "same_setting": True}
    assert answer["ledger"]["available_kv_cache_bytes"]["expected"] == pytest.approx(38.11 * 2**30, abs=2)
    assert json.loads(invoked(*EXPLAIN, "-o", "json").stdout)["ledger"]["calibration"] is None
    assert "as 1 observed start of this setting had it" in invoked(*EXPLAIN, "--calibration", str(into)).stdout


def test_the_example_of_the_docs_makes_the_file_that_they_show(tmp_path: Path) -> None:
    into = tmp_path / "calibration.jsonl"
    done = invoked("calibrate", str(EXAMPLES / "serve.log"), "--gpu", "H100-SXM-80GB", "--into", str(into))
    assert done.exit_code == 0
    assert into.read_text() == (EXAMPLES / "calibration.jsonl").read_text()


def test_the_same_log_twice_is_one_start(log: Path, tmp_path: Path) -> None:
    into = tmp_path / "starts.jsonl"
    for known in ("", "; known already"):
        assert (
            invoked("calibrate", str(log), "--gpu", "H100-SXM-80GB", "--into", str(into))
            .stderr.rstrip()
            .endswith(f"GiB){known}")
        )
    assert len(read_records(into.read_text()).starts) == 1


def test_of_several_starts_in_a_log_the_last_one_counts_and_that_is_told(tmp_path: Path) -> None:
    log = tmp_path / "twice.log"
    log.write_text("".join(LOG.format(args=ARGS, gib=gib) for gib in (30.0, 38.11)), encoding="utf-8")
    done = invoked("calibrate", str(log), "--gpu", "H100-SXM-80GB")
    assert "38.11 GiB for the KV cache" in done.stderr
    assert done.stderr.rstrip().endswith("GiB); the last of 2 starts in it counts")


def test_without_a_file_the_records_are_printed(log: Path) -> None:
    done = invoked("calibrate", str(log), "--gpu", "H100-SXM-80GB")
    (start,) = read_records(done.stdout).starts
    assert (start.source, start.max_num_seqs, start.revision) == (log.name, 64, 1)


UNUSABLE = [
    ("no vLLM at all", [], "no line of a vLLM start is in it"),
    ("", [], "the log is empty"),
    (
        LOG.format(args=ARGS, gib=38.11),
        ["--gpu", "H100"],
        "accelerator H100 is one of H100-SXM-80GB, H100-PCIe-80GB and H100-NVL-94GB",
    ),
    (LOG.format(args=ARGS, gib=38.11), [], "neither --gpu nor --gpu-memory-bytes is given"),
    (
        LOG.format(args={**ARGS, "kv_cache_memory_bytes": 10**9}, gib=38.11),
        ["--gpu", "H100-SXM-80GB"],
        "the size of the KV cache was set",
    ),
    (
        LOG.format(args=ARGS, gib=38.11).replace("Available KV cache memory:", GIVEN),
        ["--gpu", "H100-SXM-80GB"],
        "the size of the KV cache was set",
    ),
    (
        'vllm:cache_config_info{num_gpu_blocks="9000",block_size="16",kv_cache_memory_bytes="40000000000"} 1\n',
        ["--gpu", "H100-SXM-80GB", "--model", "Qwen/Qwen3-32B-FP8"],
        "the size of the KV cache was set",
    ),
    (LOG.format(args={**ARGS, "worker_cls": "x.Y"}, gib=38.11), ["--gpu", "H100-SXM-80GB"], "no formula for a worker"),
    (
        LOG.format(args={**ARGS, "max_num_seqs": "many"}, gib=38.11),
        ["--gpu", "H100-SXM-80GB"],
        "--max-num-seqs is 'many'",
    ),
    (
        LOG.format(args={**ARGS, "model": "/models/x"}, gib=38.11),
        ["--gpu", "H100-SXM-80GB"],
        "model /models/x is not in the catalogue",
    ),
]


@pytest.mark.parametrize(("text", "options", "told"), UNUSABLE, ids=[told for *_, told in UNUSABLE])
def test_what_cannot_be_used_is_told_and_the_other_logs_are_remembered(
    tmp_path: Path, log: Path, text: str, options: list[str], told: str
) -> None:
    bad = tmp_path / "bad.log"
    bad.write_text(text, encoding="utf-8")
    done = invoked("calibrate", str(bad), str(log), *options)
    assert done.exit_code == 2
    assert f"{bad}: " in done.stderr
    assert told in done.stderr
    if options == ["--gpu", "H100-SXM-80GB"]:
        assert len(read_records(done.stdout).starts) == 1


METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",engine="0",kv_cache_size_tokens="{tokens}",num_gpu_blocks="{blocks}"}} 1.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
"""
ASKED = ("--model", "Qwen/Qwen3-32B-FP8", "--gpu", "H100-SXM-80GB", "--vllm-version", "0.33.0", "--max-num-seqs", "64")


def test_what_an_engine_serves_as_metrics_is_remembered_with_the_setting_that_is_given(tmp_path: Path) -> None:
    """9700 blocks of 4 MiB are 37.89 GiB, within half a block."""
    path, into = tmp_path / "metrics.txt", tmp_path / "starts.jsonl"
    path.write_text(METRICS.format(tokens=9700 * 16, blocks=9700), encoding="utf-8")
    done = invoked("calibrate", str(path), *ASKED, "--into", str(into))
    assert (done.exit_code, "37.89 GiB for the KV cache" in done.stderr) == (0, True), done.stderr
    answer = json.loads(invoked(*EXPLAIN, "--calibration", str(into), "-o", "json").stdout)
    assert answer["kv_cache"]["num_blocks"] == 9700
    alone = invoked("calibrate", str(path))
    assert (alone.exit_code, "--model and --model-config are missing" in alone.stderr) == (2, True)
    path.write_text(METRICS.format(tokens=0, blocks=0), encoding="utf-8")
    empty = invoked("calibrate", str(path), *ASKED)
    assert (empty.exit_code, "give all of what /metrics answers" in empty.stderr) == (2, True)


def test_a_start_that_is_kept_and_not_used_is_told(tmp_path: Path) -> None:
    path = a_log(tmp_path, 5.0)
    done = invoked("calibrate", str(path), "--gpu", "H100-SXM-80GB")
    assert done.exit_code == 0
    assert "5.00 GiB of KV cache where 38.89 GiB was expected: it is not used" in done.stderr


def test_a_missing_file_and_a_broken_target_are_told(tmp_path: Path, log: Path) -> None:
    broken = tmp_path / "starts.jsonl"
    missing = invoked("calibrate", str(tmp_path / "none.log"), "--gpu", "H100-SXM-80GB", "--into", str(broken))
    assert "cannot be read" in missing.stderr
    assert not broken.exists(), "nothing was learnt"
    broken.write_text("nothing of ours\n", encoding="utf-8")
    done = invoked("calibrate", str(log), "--gpu", "H100-SXM-80GB", "--into", str(broken))
    assert (done.exit_code, broken.read_text()) == (2, "nothing of ours\n")
    assert "line 1: this is not a calibration file" in done.stderr
    explained = invoked(*EXPLAIN, "--calibration", str(broken))
    assert explained.exit_code == 2
    assert "write it again with `kvgate calibrate`" in explained.stderr


def test_check_follows_a_calibration_of_the_configuration(tmp_path: Path) -> None:
    """What may not fit does not, once a start of the setting has left less than was expected."""
    asked = ("--gpu", "L4-24GB", "--model", "Qwen/Qwen3-8B", "--max-num-seqs", "3")
    log = a_log(tmp_path, 4.5, model="Qwen/Qwen3-8B", max_num_seqs=3, enforce_eager=True)
    starts = tmp_path / "starts.jsonl"
    assert invoked("calibrate", str(log), *asked, "--into", str(starts)).exit_code == 0
    spec = {
        "model": {"name": "Qwen/Qwen3-8B"}, "accelerator": {"type": "L4-24GB"},
        "vllm": {"version": "0.33.0", "maxModelLen": 11264, "maxNumSeqs": 3, "enforceEager": True},
    }  # fmt: skip
    document = {
        "apiVersion": "kvgate.io/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": "a"},
        "spec": spec,
    }
    manifest = tmp_path / "a.yaml"
    manifest.write_text(json.dumps(document), encoding="utf-8")
    assert json.loads(invoked("check", str(manifest), "-o", "json").stdout)["documents"][0]["verdict"] == "MayNotFit"
    (tmp_path / ".kvgate.yaml").write_text("calibration: starts.jsonl\n", encoding="utf-8")
    assert json.loads(invoked("check", str(manifest), "-o", "json").stdout)["documents"][0]["verdict"] == "DoesNotFit"


def test_starts_that_are_not_used_are_told_beside_the_answer(tmp_path: Path) -> None:
    into = tmp_path / "starts.jsonl"
    for gib in (38.11, 34.0):
        invoked("calibrate", str(a_log(tmp_path, gib)), "--gpu", "H100-SXM-80GB", "--into", str(into))
    done = invoked(*EXPLAIN, "--calibration", str(into))
    assert done.stderr.count("none is used; remove those that are wrong") == 2
    assert "observed start" not in done.stdout


def test_the_memory_of_a_gpu_is_not_its_name(tmp_path: Path) -> None:
    path = a_log(tmp_path, 38.11)
    path.write_text(path.read_text() + "(Worker pid=5) Free memory on device (78.5/79.19 GiB) on startup is fine\n")
    done = invoked("calibrate", str(path))
    assert (done.exit_code, len(done.stdout.splitlines())) == (2, 1)
    assert "does not name the GPU; give --gpu" in done.stderr


def test_a_file_that_cannot_be_written_is_named(log: Path, tmp_path: Path) -> None:
    done = invoked("calibrate", str(log), "--gpu", "H100-SXM-80GB", "--into", str(tmp_path / "missing" / "a.jsonl"))
    assert done.exit_code == 2
    assert "a.jsonl cannot be written: No such file or directory" in done.stderr

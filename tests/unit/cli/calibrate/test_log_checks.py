"""A log whose figures contradict each other, the GPU or the model teaches nothing, and the message has the figures."""

from pathlib import Path

import pytest

from kvgate.calibration.records import read_records
from support.command_line import invoked

LOG = """\
(APIServer pid=1) INFO [utils.py:233] non-default args: {{'model': 'meta-llama/Llama-3.1-8B-Instruct', 'max_model_len': 8192}}
(EngineCore pid=2) INFO [core.py:97] Initializing a V1 LLM engine (v{release}) with config: model='x', y=1
(EngineCore pid=2) INFO [gpu_worker.py:390] Free memory on device (cuda:0) ({free}/{total} GiB) on startup. Desired GPU
(EngineCore pid=2) INFO [gpu_model_runner.py:4100] Model loading took {weights} GiB memory and 21.4 seconds
(EngineCore pid=2) INFO [gpu_worker.py:390] Available KV cache memory: {kv} GiB
"""


def calibrated(folder: Path, **figures: str) -> tuple[int, str]:
    values = {"release": "0.19.0", "free": "78.62", "total": "79.19", "weights": "14.99", "kv": "54.11"} | figures
    text = LOG.format(**values).replace(" (cuda:0)", "")
    (folder / "serve.log").write_text(text, encoding="utf-8")
    done = invoked("calibrate", str(folder / "serve.log"), "--gpu", "H100-SXM-80GB")
    return done.exit_code, done.stderr


def test_figures_that_add_up_are_remembered(tmp_path: Path) -> None:
    code, said = calibrated(tmp_path)
    assert code == 0
    assert "another process" not in said
    assert "leave this log out" not in said


def test_the_rounding_of_a_log_is_no_contradiction(tmp_path: Path) -> None:
    """71.27 GiB are requested; the two figures may be 0.05 GiB more because each is rounded."""
    assert calibrated(tmp_path, weights="15.07", kv="56.24")[0] == 0
    assert calibrated(tmp_path, weights="15.07", kv="56.28")[0] == 2


def test_a_figure_that_the_weights_do_not_leave_is_impossible_although_the_log_states_none_that_contradicts_it(
    tmp_path: Path,
) -> None:
    code, said = calibrated(tmp_path, weights="11.50", kv="57.00")
    assert code == 2
    assert (
        "57.00 GiB of KV cache are impossible: its weights leave at most 56.29 GiB of the 71.27 GiB that vLLM requests"
        in said
    )


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (
            {"kv": "70.00"},
            "its figures are more than the 71.27 GiB that vLLM requested: 14.99 GiB weights + 70.00 GiB KV cache",
        ),
        ({"kv": "90.00"}, "it shows 90.00 GiB for the KV cache on a GPU of 79.19 GiB; leave this log out"),
        (
            {"total": "44.42", "free": "44.00", "kv": "20.0"},
            "it shows a GPU of 44.42 GiB, and H100-SXM-80GB has 79.19 GiB",
        ),
        ({"weights": "8.49"}, "it shows 8.49 GiB of weights, and 14.99 GiB are computed"),
        ({"total": "85.03", "free": "84.42"}, "these are GB of 10^9 bytes, so give the log as vLLM printed it"),
        (
            {"release": "0.23.1rc1.dev1219+gffae5a399"},
            "vLLM 0.23.1rc1.dev1219+gffae5a399 is a development build or a fork",
        ),
        ({"release": "0.13.0+faa43dbf.nv26.01"}, "is a development build or a fork"),
    ],
)
def test_a_contradiction_is_told_with_its_figures(tmp_path: Path, figures: dict[str, str], sentence: str) -> None:
    code, said = calibrated(tmp_path, **figures)
    assert code == 2
    assert sentence in said


def test_a_wheel_for_another_cuda_is_a_release(tmp_path: Path) -> None:
    assert calibrated(tmp_path, release="0.19.0+cu129")[0] == 0


def test_the_log_of_two_engines_teaches_nothing(tmp_path: Path) -> None:
    line = "INFO [core.py:97] Initializing a V1 LLM engine (v0.19.0) with config: model='{name}', y=1\n"
    text = LOG.format(release="0.19.0", free="78.62", total="79.19", weights="14.99", kv="54.11")
    (tmp_path / "serve.log").write_text(text + line.format(name="another"), encoding="utf-8")
    done = invoked("calibrate", str(tmp_path / "serve.log"), "--gpu", "H100-SXM-80GB")
    assert done.exit_code == 2
    assert "it holds the lines of two engines, x and another" in done.stderr


@pytest.mark.parametrize(
    ("argument", "config", "weights", "kv"),
    [
        ("'enable_lora': True, 'max_loras': 64, 'max_lora_rank': 32", "", "24.86", "43.0"),
        ("'quantization': 'gptq_marlin'", "", "5.41", "60.00"),
        ("'max_num_seqs': 64", ", quantization=awq_marlin", "5.41", "60.00"),
    ],
)
def test_adapters_and_a_format_of_its_own_are_no_contradiction(
    tmp_path: Path, argument: str, config: str, weights: str, kv: str
) -> None:
    text = LOG.format(release="0.19.0", free="78.62", total="79.19", weights=weights, kv=kv)
    text = text.replace("'max_model_len': 8192", f"'max_model_len': 8192, {argument}").replace(", y=1", config)
    (tmp_path / "serve.log").write_text(text, encoding="utf-8")
    done = invoked("calibrate", str(tmp_path / "serve.log"), "--gpu", "H100-SXM-80GB")
    assert done.exit_code == 0, done.stderr


def test_all_contradictions_are_told_at_once(tmp_path: Path) -> None:
    _, said = calibrated(tmp_path, kv="90.00", weights="40.00")
    assert "its figures are more than" in said
    assert "it shows 90.00 GiB for the KV cache" in said
    assert "it shows 40.00 GiB of weights" in said


def test_another_process_on_the_gpu_is_told_and_costs_the_start_nothing_since_v1(tmp_path: Path) -> None:
    code, said = calibrated(tmp_path, free="60.40")
    assert code == 0
    assert "another process held about 18." in said


def test_where_vllm_counts_the_whole_card_the_start_of_a_shared_gpu_teaches_nothing(tmp_path: Path) -> None:
    code, said = calibrated(tmp_path, release="0.8.5", free="60.40")
    assert code == 2
    assert "another process held about 18." in said
    assert "vLLM 0.8.5 counts its memory; leave this log out" in said


def test_the_kind_of_start_that_a_log_shows_is_remembered(tmp_path: Path) -> None:
    log = LOG.format(release="0.19.0", free="78.62", total="79.19", weights="14.99", kv="54.11").replace(
        " (cuda:0)", ""
    )
    (tmp_path / "serve.log").write_text(log + "Compiling a graph for compile range (1, 8192) takes 9.10 s\n")
    into = tmp_path / "starts.jsonl"
    done = invoked("calibrate", str(tmp_path / "serve.log"), "--gpu", "H100-SXM-80GB", "--into", str(into))
    assert done.exit_code == 0
    assert [start.compile_cache for start in read_records(into.read_text()).starts] == ["cold"]
    wrong = into.read_text().replace('"compile_cache": "cold"', '"compile_cache": "luke"')
    assert "compile_cache is 'luke'; it must be warm or cold" in read_records(wrong).problems[0]

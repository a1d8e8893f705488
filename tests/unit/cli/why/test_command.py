"""`kvgate why`: dialogues from what is pasted to the answer, and changes that `kvgate check` accepts."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvgate.cli.why.gathered import MAX_FILES
from support.command_line import MISTAKEN_POD, invoked
from support.json_schemas import checked_report

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
COMMAND = f"vllm serve {LLAMA} --max-model-len 131072"
ARGUMENTS = f"{{'model_tag': '{LLAMA}', 'model': '{LLAMA}', 'max_model_len': 131072, 'api_key': ['sk-0123456789abc']}}"
HEAD = f"""\
(APIServer pid=1) INFO 11-02 03:04:05 [api_server.py:1] vLLM API server version 0.11.0
(APIServer pid=1) INFO 11-02 03:04:05 [utils.py:1] non-default args: {ARGUMENTS}
"""
TOO_SMALL = """\
(EngineCore_DP0 pid=9) INFO 11-02 03:04:08 [gpu_worker.py:1] Available KV cache memory: 3.42 GiB
(EngineCore_DP0 pid=8) ERROR 11-02 03:04:07 [core.py:2] ValueError: To serve at least one request with the models's max seq len \
(131072), (16.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.42 GiB). Based on the available memory, \
the estimated maximum model length is 28016.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
LOG = HEAD + TOO_SMALL
POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: vllm-0, namespace: serving}}
spec:
  nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L4}}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.11.0
    args:
    - --model={LLAMA}
    - --max-model-len=131072
    resources: {{limits: {{nvidia.com/gpu: 1, memory: 32Gi}}}}
"""


def asked(*arguments: str, stdin: str | None = None) -> tuple[dict, int]:
    """Return the only answer, and the exit code."""
    done = invoked("why", *arguments, "-o", "json", stdin=stdin)
    report = checked_report(done.stdout)
    assert len(report["answers"]) == 1, report
    return {**report["answers"][0], "notes": report["notes"]}, done.exit_code


def test_a_log_says_what_happened_why_and_what_fits() -> None:
    answer, code = asked("-", "--accelerator", "L4", stdin=LOG)
    assert code == 0
    assert (answer["outcome"], answer["happened"]["id"], answer["happened"]["line"]) == (
        "CauseFound",
        "KVCacheTooSmall",
        4,
    )
    assert answer["happened"]["sentence"].startswith("To serve at least one request")
    assert any("= 3.42 GiB for the KV cache" in line for line in answer["why"])
    assert any("one request of 131072 tokens needs 16.00 GiB" in line for line in answer["why"])
    stated, *others = answer["fixes"]
    assert (stated["changes"], stated["is_checked"]) == ({"max_model_len": 28016}, False)
    assert stated["words"].endswith("the length that vLLM states")
    assert others
    assert all(fix["is_checked"] for fix in others)


def test_the_fixed_command_fits_where_it_is_pasted_again() -> None:
    given = ("--accelerator", "L4", "--vllm-version", "0.11.0")
    answer, _ = asked(COMMAND, *given)
    commands = [fix["command"] for fix in answer["fixes"] if fix["command"]]
    assert commands
    for command in commands:
        again, code = asked(command, *given)
        assert (again["outcome"], again["verdict"], code) == ("NothingWrong", "Fits", 0), command


def test_the_fix_of_a_log_is_a_command_that_explain_calls_fitting() -> None:
    answer, _ = asked("-", "--accelerator", "L4", stdin=LOG)
    lengths = [
        fix["changes"]["max_model_len"]
        for fix in answer["fixes"]
        if set(fix["changes"]) == {"max_model_len"} and fix["is_checked"]
    ]
    assert lengths
    settings = ("--model", LLAMA, "--gpu", "L4", "--vllm-version", "0.11.0")
    for length in lengths:
        assert invoked("explain", *settings, "--max-model-len", str(length)).stdout.startswith("Fits")


def patched(text: str, patch: list[str]) -> str:
    """Apply a patch of one place, as `patch` does."""
    lines = patch[3:]
    before = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    assert text.count(before) == 1
    return text.replace(before, "\n".join(line[1:] for line in lines if not line.startswith("-")))


def test_the_patch_of_a_manifest_is_one_that_check_accepts(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    answer, _ = asked(str(file))
    patches = [fix["patch"] for fix in answer["fixes"] if fix["patch"]]
    assert patches
    for patch in patches:
        file.write_text(patched(POD, patch))
        assert invoked("check", str(file)).exit_code == 0
        assert " starts" in invoked("check", str(file)).stdout


def test_an_option_that_is_not_written_is_added_below_the_last_one(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD.replace("    - --max-model-len=131072\n", ""))
    answer, _ = asked(str(file))
    patches = [fix for fix in answer["fixes"] if fix["patch"]]
    assert patches
    assert all(f"+    - --max-model-len={fix['changes']['max_model_len']}" in fix["patch"] for fix in patches)


def test_a_manifest_and_the_log_of_its_pod_are_one_engine(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "vllm.log").write_text(LOG)
    answer, code = asked(str(tmp_path / "pod.yaml"), str(tmp_path / "vllm.log"))
    assert (answer["happened"]["id"], answer["statement"]["gpu"], code) == ("KVCacheTooSmall", "L4-24GB", 0)
    assert answer["happened"]["file"].endswith("vllm.log")


def test_manifest_and_log_in_one_stream_are_one_engine_too() -> None:
    answer, _ = asked("-", stdin=f"{POD}\n{LOG}")
    assert answer["happened"]["id"] == "KVCacheTooSmall"
    assert answer["happened"]["line"] == POD.count("\n") + 1 + 4


def test_a_question_of_markdown_with_command_and_log_is_one_engine() -> None:
    text = (
        f"Why does this fail on my L4?\n```sh\n$ {COMMAND}\n```\nIt prints\n```\n{LOG}```\nGPU 0: NVIDIA L4 (UUID: x)\n"
    )
    answer, _ = asked("-", stdin=text)
    assert (answer["happened"]["id"], answer["statement"]["gpu"]) == ("KVCacheTooSmall", "L4-24GB")


def test_the_state_of_a_pod_says_that_the_host_ran_out_of_memory() -> None:
    status = """\
status:
  containerStatuses:
  - name: vllm
    lastState: {terminated: {exitCode: 137, reason: OOMKilled}}
    state: {waiting: {reason: CrashLoopBackOff, message: back-off 40s}}
"""
    answer, code = asked("-", stdin=POD.replace("131072", "8192") + status)
    assert (answer["happened"]["id"], answer["happened"]["stage"], code) == ("HostOutOfMemory", "host", 0)
    assert any("host memory" in line for line in answer["why"])


def test_a_pod_that_waits_for_gpus_is_explained() -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    status = f"status:\n  conditions:\n  - {{type: PodScheduled, status: 'False', reason: Unschedulable, message: '{message}'}}\n"
    answer, _ = asked("-", stdin=POD.replace("131072", "8192") + status)
    assert answer["happened"]["id"] == "UnschedulableGpu"


def test_a_removed_option_is_left_out_and_the_rest_made_to_fit() -> None:
    text = "vllm serve Qwen/Qwen3-8B --swap-space 4\nvllm: error: unrecognized arguments: --swap-space 4"
    answer, _ = asked(text, "--accelerator", "L4", "--vllm-version", "0.20.0")
    assert answer["happened"]["id"] == "UnknownArgument"
    assert all(fix["changes"]["swap_space"] is None for fix in answer["fixes"])
    assert all("swap-space" not in fix["command"] for fix in answer["fixes"])
    assert all(fix["is_checked"] for fix in answer["fixes"])


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856).", {"max_num_seqs": 856}),
        (
            "Free memory on device cuda:0 (40.00/79.25 GiB) on startup is less than desired GPU memory utilization (0.9, 71.3 GiB).",
            {"gpu_memory_utilization": "0.49"},
        ),
        ("ValueError: LoRA rank 48 is greater than max_lora_rank 16.", {"max_lora_rank": 64}),
        ("Total number of attention heads (14) must be divisible by tensor parallel size (4).", {"tensor_parallel_size": 2}),
        (
            "User-specified max_model_len (99999) is greater than the derived max_model_len (x=40960). To allow overriding this maximum, …",
            {"max_model_len": 40960},
        ),
        ("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.", {"gpu_memory_utilization": "0.85"}),
    ],
)  # fmt: skip
def test_the_figures_of_a_message_become_a_change(message: str, changes: dict[str, object]) -> None:
    head = HEAD.replace(LLAMA, "Qwen/Qwen3-8B").replace("131072", "8192")
    answer, code = asked("-", "--accelerator", "H100-SXM-80GB", stdin=head + message)
    assert code == 0
    assert changes in [fix["changes"] for fix in answer["fixes"]]


def test_an_error_that_the_table_lacks_is_shown_and_not_explained() -> None:
    log = HEAD + "Traceback (most recent call last):\n  File 'x'\nKeyError: 'weird'\n"
    answer, code = asked("-", "--accelerator", "H100-SXM-80GB", stdin=log)
    assert (answer["outcome"], answer["happened"]["id"], answer["happened"]["sentence"], code) == (
        "CauseUnknown", "", "KeyError: 'weird'", 1
    )  # fmt: skip


def test_the_end_of_a_traceback_alone_asks_for_the_whole_log() -> None:
    answer, code = asked("-", stdin="RuntimeError: Engine core initialization failed. See root cause above.")
    assert (answer["outcome"], answer["happened"]["id"], code) == ("CauseUnknown", "EngineCoreFailed", 1)
    assert any("first line" in line for line in answer["not_known"])


def test_a_server_that_serves_is_well_whatever_it_printed_before() -> None:
    log = HEAD + "404 Client Error. Entry Not Found for url\nOSError: [Errno 98] Address already in use\n"
    log += "(APIServer pid=1) INFO:     Application startup complete.\n"
    answer, code = asked("-", "--accelerator", "H100-SXM-80GB", stdin=log)
    assert (answer["outcome"], answer["happened"], code) == ("NothingWrong", None, 0)


def test_memory_that_runs_out_after_the_start_is_a_failure_of_serving() -> None:
    log = HEAD + "(APIServer pid=1) INFO:     Application startup complete.\n"
    log += '  File "/vllm/v1/engine/core.py", line 818, in run_busy_loop\ntorch.OutOfMemoryError: CUDA out of memory.\n'
    answer, _ = asked("-", "--accelerator", "H100-SXM-80GB", stdin=log)
    assert (answer["happened"]["id"], answer["happened"]["stage"]) == ("OutOfMemoryServing", "serve")


def test_the_last_start_of_a_crash_loop_counts() -> None:
    first = HEAD + "ValueError: No available memory for the cache blocks.\n"
    answer, _ = asked("-", "--accelerator", "L4", stdin=first + LOG)
    assert answer["happened"]["id"] == "KVCacheTooSmall"
    assert any("2 starts" in line for line in answer["not_known"])


def test_two_pods_in_one_log_have_an_answer_each() -> None:
    other = LOG.replace(LLAMA, "Qwen/Qwen3-8B").replace("KV cache is needed", "KV cache is needed")
    lines = [f"[pod/a-0/vllm] {line}" for line in LOG.splitlines()] + [
        f"[pod/b-0/vllm] {line}" for line in other.splitlines()
    ]
    report = checked_report(invoked("why", "-", "-o", "json", stdin="\n".join(lines)).stdout)
    assert {each["statement"]["model"] for each in report["answers"]} == {LLAMA, "Qwen/Qwen3-8B"}


def test_lines_of_two_servers_between_each_other_are_told() -> None:
    one, other = LOG.splitlines(), LOG.replace("pid=1)", "pid=501)").splitlines()
    mixed = "\n".join(line for pair in zip(one, other, strict=True) for line in pair)
    report = checked_report(invoked("why", "-", "-o", "json", stdin=mixed).stdout)
    assert any("two servers" in line for each in report["answers"] for line in each["not_known"])


@pytest.mark.parametrize(
    ("log", "engine"),
    [
        ("[2025-11-01 10:00:00] server_args=ServerArgs(model_path='m')\nRuntimeError: Not enough memory.", "SGLang"),
        ("llama_model_loader: loaded meta data\ncudaMalloc failed: out of memory", "llama.cpp"),
        ("time=2025 level=INFO source=server.go:168 msg=offload\nError: CUDA error: out of memory", "Ollama"),
        ("[TensorRT-LLM][ERROR] CUDA out of memory", "TensorRT-LLM"),
        ("ERROR text_generation_launcher: CUDA out of memory", "Text Generation Inference"),
    ],
)
def test_the_log_of_another_server_is_not_judged(log: str, engine: str) -> None:
    answer, code = asked("-", stdin=log)
    assert (answer["outcome"], code) == ("NotJudged", 0)
    assert engine in answer["why"][0]


def test_an_engine_that_is_not_vllm_is_not_judged() -> None:
    answer, code = asked("python -m sglang.launch_server --model-path Qwen/Qwen3-8B")
    assert (answer["outcome"], answer["fixes"], code) == ("NotJudged", [], 0)


@pytest.mark.parametrize("what", ["hello there", "x = 1\n", "{}", "[]"])
def test_what_says_nothing_about_an_engine_is_undecided(what: str) -> None:
    done = invoked("why", "-", stdin=what)
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\x00\x01\x02" * 99, "not text"), (b"\x1f\x8b\x08aaaa", "gzip"), (b"", "empty"), (b"PK\x03\x04aaa", "zip")],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "file.log"
    file.write_bytes(content)
    done = invoked("why", str(file))
    assert done.exit_code == 2
    assert words in done.output


def test_a_path_that_is_not_there_is_no_text() -> None:
    done = invoked("why", "no-such.log")
    assert (done.exit_code, "no such file" in done.output) == (2, True)


def test_a_pasted_command_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    invoked("why", f"vllm serve $(touch {mark}) `touch {mark}`; touch {mark} && docker run --rm img; touch {mark}")
    assert not mark.exists()


def test_a_folder_with_too_many_files_is_bounded_and_told(tmp_path: Path) -> None:
    for index in range(MAX_FILES + 50):
        (tmp_path / f"{index}.txt").write_text("x")
    (tmp_path / "a.yaml").write_text(POD)
    started = time.monotonic()
    done = invoked("why", str(tmp_path), "-o", "json")
    assert any("more than" in note for note in checked_report(done.stdout)["notes"])
    assert time.monotonic() - started < 60


def test_the_engines_of_a_folder_are_answered_those_that_fail_first(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POD.replace("131072", "8192"))
    (tmp_path / "b.yaml").write_text(POD.replace("vllm-0", "vllm-1"))
    report = checked_report(invoked("why", str(tmp_path), "-o", "json").stdout)
    assert [each["outcome"] for each in report["answers"]] == ["CauseFound", "NothingWrong"]


def test_text_names_the_four_parts_in_order() -> None:
    shown = invoked("why", "-", stdin=LOG).stdout
    parts = ["what happened", "why", "what would fix it", "not known"]
    places = [shown.index(f"\n  {part}") for part in parts]
    assert places == sorted(places)


def test_a_setting_that_vllm_refuses_is_named_with_its_rule_and_left_out_in_every_change() -> None:
    answer, _ = asked("-", stdin=MISTAKEN_POD)
    assert any("no-such-option" in line for line in answer["why"])
    assert answer["fixes"]
    assert all(fix["changes"]["no_such_option"] is None for fix in answer["fixes"])


def test_a_log_of_two_megabytes_takes_half_a_second_of_work(tmp_path: Path) -> None:
    line = "(EngineCore pid=77) INFO 01-02 03:04:05 [x.py:9] Loading safetensors checkpoint shards:  52% Completed | 13/25 [00:12<00:11]\n"
    (tmp_path / "a.log").write_text(HEAD + line * 14_000 + TOO_SMALL)
    asked(str(tmp_path / "a.log"), "--accelerator", "L4")  # imports are measured elsewhere
    started = time.process_time()
    answer, _ = asked(str(tmp_path / "a.log"), "--accelerator", "L4")
    assert time.process_time() - started < 1.5  # 0.4 s on a machine that does nothing else
    assert answer["happened"]["line"] == 14_004


def test_json_holds_the_statement_without_secrets() -> None:
    done = invoked("why", "-", "-o", "json", stdin=LOG)
    assert "sk-0123456789abc" not in done.stdout
    assert json.loads(done.stdout)["answers"][0]["statement"]["max_model_len"] == 131072


def test_a_cut_log_is_answered_with_the_figures_of_its_message() -> None:
    answer, code = asked("-", stdin=TOO_SMALL.splitlines()[1])
    assert (answer["happened"]["id"], code) == ("KVCacheTooSmall", 0)
    assert any("16.00 GiB is needed and 3.42 GiB is there: 12.58 GiB too much" in line for line in answer["why"])
    assert {"max_model_len": 28016} in [fix["changes"] for fix in answer["fixes"]]


def test_a_crash_loop_without_a_log_is_explained_by_arithmetic_where_that_refuses() -> None:
    status = "status:\n  containerStatuses:\n  - state: {waiting: {reason: CrashLoopBackOff, message: back-off 40s}}\n"
    answer, code = asked("-", stdin=POD + status)
    assert (answer["outcome"], answer["verdict"], code) == ("CauseFound", "DoesNotFit", 0)
    assert any("for the KV cache" in line for line in answer["why"])


def test_pod_description_node_and_log_in_one_stream_are_one_engine() -> None:
    described = "Name:             vllm-0\nNamespace:        serving\nContainers:\n  vllm:\n    Image:  vllm/vllm-openai:v0.11.0\n"
    described += "Events:\n  Warning  BackOff  2m  kubelet  Back-off restarting failed container vllm\n"
    node = "Name:     gpu-1\nLabels:   nvidia.com/gpu.product=NVIDIA-L4\nCapacity:\n  cpu:  8\n"
    pod = POD.replace("  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}\n", "")
    answer, _ = asked("-", stdin=pod + described + node + LOG)
    assert (answer["happened"]["id"], answer["statement"]["gpu"]) == ("KVCacheTooSmall", "L4-24GB")


def test_check_and_explain_take_a_pasted_command_too() -> None:
    for command in ("check", "explain"):
        given = [sys.executable, "-m", "kvgate", command, "-", "--accelerator", "L4"]
        done = subprocess.run(given, input=COMMAND, capture_output=True, text=True, check=False)
        assert (done.returncode, "DoesNotFit" in done.stdout) == (1, True), done.stderr


@pytest.mark.parametrize(
    "words", ["I have one L4 with 24 GB.", "It runs on a single NVIDIA L4 GPU", "GPU 0: NVIDIA L4 (UUID: GPU-1)"]
)
def test_a_gpu_that_the_text_names_counts(words: str) -> None:
    answer, _ = asked("-", stdin=f"{words}\nWhy?\n{LOG}")
    assert answer["statement"]["gpu"] == "L4-24GB"


def test_two_gpus_that_the_text_names_are_none() -> None:
    answer, _ = asked("-", stdin=f"It worked on an H200.\nNow I have an L4.\n{LOG}")
    assert "gpu" not in answer["statement"]
    assert any(line.startswith("the GPU: nothing names it") for line in answer["not_known"])


CUT = """\
(Worker pid=19) INFO 10-11 10:42:14 [gpu_worker.py:298] Available KV cache memory: 3.42 GiB
(EngineCore_DP0 pid=19) ERROR 10-11 10:42:14 [core.py:708] EngineCore failed to start.
"""


def test_a_log_whose_cache_holds_no_request_is_explained_without_its_error_and_without_a_gpu() -> None:
    answer, _ = asked("-", stdin=f"{COMMAND}\n{CUT}")
    assert (answer["outcome"], answer["verdict"], answer["happened"]) == ("CauseFound", "DoesNotFit", None)
    assert answer["why"][0].startswith("KVCacheTooSmall: one request of max_model_len needs 16.00 GiB of KV cache")
    assert answer["fixes"][0]["changes"] == {"max_model_len": 28016}


@pytest.mark.parametrize(
    "log",
    [
        f"{COMMAND}\n{CUT.replace('3.42', '16.42')}",
        f"{COMMAND}\n{CUT.replace('Worker pid', 'Worker_TP0 pid')}",
        f"{COMMAND.replace('131072', 'auto')}\n{CUT}",
    ],
    ids=["it holds one", "one of several ranks", "a length that vLLM chooses"],
)
def test_a_cache_that_may_hold_a_request_is_no_cause(log: str) -> None:
    answer, _ = asked("-", stdin=log)
    assert answer["outcome"] == "CauseUnknown"


def test_a_start_that_states_its_cache_is_well_and_says_what_it_holds() -> None:
    log = "GPU KV cache size: 290,864 tokens\nMaximum concurrency for 32,768 tokens per request: 33.04x"
    answer, _ = asked("-", stdin=log)
    assert (answer["outcome"], answer["happened"]) == ("NothingWrong", None)
    assert "33.04 requests of 32768 tokens at the same time (1082655 tokens)" in answer["why"][0]
    assert answer["why"][1].startswith("the number of requests counts")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Free memory on device cuda:0 (38.74/121.63 GiB) on startup is less than desired GPU memory utilization (0.35, 42.57 GiB).",
         "at most 0.31 of the GPU"),
        ("RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min capability: 80. ', 'Current capability: 75.')",
         "needs compute capability 8.0, and the GPU has 7.5"),
        ("vllm: error: unrecognized arguments: --disable-log-requests", "use --no-enable-log-requests"),
        ("ValueError: Model architectures ['Qwen3ForCausalLM'] are not supported for now.", "vLLM 0.8.5 has Qwen3ForCausalLM"),
        ("ValueError: This model's maximum context length is 8192 tokens and your request has 1210 input tokens", "6982 at most"),
        (("System memory request exceeds memory available in /dev/shm. The request is for 10200547328 bytes, and the amount available is "
         "9663676416 bytes"), "9.50 GiB is needed and 9.00 GiB is there"),
    ],
)  # fmt: skip
def test_figures_and_names_of_a_message_are_read_further(message: str, words: str) -> None:
    answer, _ = asked("-", stdin=message)
    assert words in " ".join(answer["why"])


def test_yaml_that_begins_with_a_comment_about_a_command_is_yaml() -> None:
    given = [sys.executable, "-m", "kvgate", "check", "-"]
    done = subprocess.run(
        given, input=f"# vllm serve is run by this\n{POD}", capture_output=True, text=True, check=False
    )
    assert "pod serving/vllm-0" in done.stdout


def test_a_command_for_gpus_that_nobody_names_is_not_decided() -> None:
    answer, code = asked(COMMAND)
    assert (answer["outcome"], answer["verdict"], code) == ("Unknown", "Fits", 2)
    assert any(line.startswith("the GPU: nothing names it") for line in answer["not_known"])

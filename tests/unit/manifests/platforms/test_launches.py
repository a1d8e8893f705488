"""Commands outside of a cluster: options of `docker run`, scripts, Makefiles, units and quadlets."""

import time
from pathlib import Path

import pytest

from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.documents.launch_files import MAX_LAUNCH_BYTES
from kvgate.manifests.engines import find_engines
from kvgate.manifests.inputs import read_manifests
from kvgate.manifests.platforms import launches
from kvgate.manifests.pods.engine_found import FoundEngine
from support.tables import table

IMAGE = "vllm/vllm-openai:v0.11.0"


def engines(folder: Path, **files: str) -> list[FoundEngine]:
    """The engines of a folder; in the names of its files, `__` stands for the dot."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return find_engines(read_manifests([str(folder)])).engines


def words(engine: FoundEngine) -> list[str]:
    return [word.text for word in engine.arguments]


@table(
    ("options", "gpus"),
    [
        ("--gpus all", None),
        ("--gpus=2", "2"),
        ("--gpus '\"device=0,3\"'", "2"),
        ('--gpus "device=${DEVICE}"', None),
        ("--gpus all,capabilities=utility", None),
        ("--gpus driver=nvidia,count=4", "4"),
        ("--device nvidia.com/gpu=all", None),
        ("--device nvidia.com/gpu=0 --device=nvidia.com/gpu=1", "2"),
    ],
)
def test_gpus_of_a_container(tmp_path: Path, options: str, gpus: str | None) -> None:
    (engine,) = engines(tmp_path, run__sh=f"docker run {options} {IMAGE} --model a/b\n")
    assert engine.num_gpus.text == (gpus or engine.num_gpus.text)
    assert engine.num_gpus.count == (int(gpus) if gpus else None)
    assert words(engine) == ["--model", "a/b"]


@pytest.mark.parametrize(
    "options",
    [
        "-it --rm -d", "-itd", "-dp 8000:8000", "-p8000:8000 -v /x:/y", "--name=chat --ulimit memlock=-1", "--rm --",
        "-e A=1 -eB=2 --env C", "--mount type=bind,source=/m,target=/m --restart unless-stopped", "--init --privileged=true -u 0",
        "$GPU_ARGS ${DOCKER_ARGS[@]} --rm", "-v $HOME/x:/y $EXTRA",
        "--security-opt seccomp=unconfined --cap-add=SYS_PTRACE --group-add video --device /dev/kfd",
    ],
)  # fmt: skip
def test_the_image_stands_behind_the_options(tmp_path: Path, options: str) -> None:
    (engine,) = engines(tmp_path, run__sh=f"sudo docker run {options} {IMAGE} --model a/b --max-model-len 4096 &\n")
    assert (engine.image.text, words(engine)) == (IMAGE, ["--model", "a/b", "--max-model-len", "4096"])


def test_variables_before_an_image_that_is_one_itself_are_options(tmp_path: Path) -> None:
    (engine,) = engines(
        tmp_path,
        run__sh='docker run ${DETACH:+-d} --label a=b -p "${PORT}:80" "$IMAGE" --model vllm/b --max-num-seqs 4\n',
    )
    assert (engine.image.text, words(engine)) == ("$IMAGE", ["--model", "vllm/b", "--max-num-seqs", "4"])


@table(
    ("lines", "gpus"),
    [
        ("--gres=gpu:h100:8", 8),
        ("--nodes=1\n#SBATCH --gpus-per-node=8", 8),
        ("-N1\n#SBATCH --gpus-per-node=8", 8),
        ("--job-name=x --nodes=2\n#SBATCH --gpus-per-node=8", None),
        ("-N 2\n#SBATCH --gres=gpu:8", None),
        ("--nodes=1-2\n#SBATCH --gres=gpu:8", None),
        ("--nodes 16\n#SBATCH --gres=gpu:8", None),
    ],
)
def test_gpus_of_one_node_of_several_say_nothing_of_all(tmp_path: Path, lines: str, gpus: int | None) -> None:
    (engine,) = engines(tmp_path, run__sh=f"#!/bin/bash\n#SBATCH {lines}\nray start --head\nvllm serve a/b -tp 16\n")
    assert engine.num_gpus.count == gpus


@pytest.mark.parametrize(
    "line",
    [
        f"docker pull {IMAGE}", f"docker compose run {IMAGE}", f"docker build -t {IMAGE} .", "pip install vllm",
        "vllm bench serve --model a/b",

        "echo vllm serve a/b", f"echo 'docker run {IMAGE} --model a/b'", "docker exec vllm nvidia-smi", f"docker run -it {IMAGE} --help",
        "curl localhost:8000 # vllm serve a/b",
        f'CMD=(docker run {IMAGE} --model a/b)\\necho "$(join "${{CMD[@]}}")"',
        "cat <<'EOF'\nDon't run\n  vllm serve a/b\nEOF", ": <<'END'\nvllm serve a/b\nEND", "<<END\nvllm serve a/b\nEND",
        "sudo pkill -9 -f vllm.entrypoints.openai.api_server", "while /usr/bin/pgrep -f vllm.entrypoints.openai.api_server; do :; done",
        "docker run org/vllm-client:1.0 --server a --prompts 3",
    ],
)  # fmt: skip
def test_what_starts_no_engine(tmp_path: Path, line: str) -> None:
    assert engines(tmp_path, run__sh=f"{line}\n") == []


def test_a_script_has_variables_arrays_and_parameters(tmp_path: Path) -> None:
    script = (
        '#!/bin/bash\nMODEL=${1:-a/b}\nARGS=(--max-model-len 4096 --seed "$SEED")\nexport VLLM_USE_V1=1\n'
        f'docker run -e VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 -e HF_TOKEN {IMAGE} --model "$MODEL" "${{ARGS[@]}}"\n'
        'CUDA_VISIBLE_DEVICES=0,1 vllm serve $MODEL "$@"\n'
    )  # fmt: skip
    container, program = engines(tmp_path, serve=script, serve__sh=script)
    assert words(container) == ["--model", "a/b", "--max-model-len", "4096", "--seed", "$SEED"]
    assert (container.takes_any_length, container.name, container.is_in_a_pod) == (True, "serve", False)
    assert (words(program), program.visible_gpus.value, program.has_shared_memory) == (["a/b", "${@}"], 2, True)
    assert (
        container.document.position_of(container.arguments[2].path).line == 3 or container.document.position.line == 5
    )


def test_a_line_of_a_script_is_the_place_of_its_words(tmp_path: Path) -> None:
    (engine,) = engines(
        tmp_path, run__sh=f"\n\ndocker run \\\n  --gpus 2 \\\n  {IMAGE} \\\n  --model a/b \\\n  -tp 4\n"
    )
    lines = [engine.document.position_of(word.path).line for word in engine.arguments]
    assert (lines, engine.document.position_of(engine.num_gpus.path).line) == ([6, 6, 7, 7], 4)


def test_recipes_of_a_makefile(tmp_path: Path) -> None:
    text = f"MODEL ?= a/b\nTP := 2\n.PHONY: run\nrun: pull\n\t@docker run --gpus $(TP) {IMAGE} \\\n\t  --model $(MODEL) --seed $$SEED\n"
    (engine,) = engines(tmp_path, Makefile=text)
    assert (words(engine), engine.num_gpus.count) == (["--model", "a/b", "--seed", "$SEED"], 2)


def test_a_variable_of_a_makefile_may_have_several_lines(tmp_path: Path) -> None:
    text = "ARGS = --seed 1 \\\n  --max-model-len 4096\nrun:\n\tvllm serve a/b $(ARGS)\n"
    (engine,) = engines(tmp_path, Makefile=text)
    assert words(engine) == ["a/b", "--seed", "1", "--max-model-len", "4096"]


def test_a_unit_runs_a_script_beside_it_with_its_variables(tmp_path: Path) -> None:
    unit = "[Service]\nEnvironment=MODEL=a/b LENGTH=1\nEnvironmentFile=-/etc/vllm/vllm.env\nExecStart=/srv/serve.sh\n"
    script = '#!/bin/sh\nexec vllm serve "$MODEL" --max-model-len "${LENGTH:-4096}"\n'
    (tmp_path / "vllm.env").write_text("LENGTH=8192\n", encoding="utf-8")
    (engine,) = engines(tmp_path, vllm__service=unit, serve__sh=script)
    assert (engine.platform, words(engine)) == ("systemd", ["a/b", "--max-model-len", "8192"])


def test_what_systemd_knows_when_a_unit_starts_is_open(tmp_path: Path) -> None:
    start = "%h/venv/bin/vllm serve a/b --port 80%i --max-model-len ${LENGTH} --served-model-name 100%%"
    (engine,) = engines(tmp_path, v__service=f"[Service]\nEnvironment=LENGTH=%i\nExecStart={start}\n")
    assert words(engine) == ["a/b", "--port", "80$(%i)", "--max-model-len", "$(%i)", "--served-model-name", "100%"]
    judged = run((str(tmp_path),), CheckOptions()).items[0]
    assert {placed.rule for placed in judged.findings} == {"VariableUnknown"}


def test_keys_of_a_quadlet_are_options_of_podman(tmp_path: Path) -> None:
    text = (
        f'[Unit]\nDescription=vLLM\n[Container]\nImage={IMAGE}\nPodmanArgs=--gpus 2 --ipc=host\nEnvironment=VLLM_USE_V1=1 "A=b c"\n'
        "Exec=--model a/b \\\n  # a comment\n  --max-model-len ${LENGTH}\nMemory=32g\n[Service]\nExecStart=vllm serve c/d\n"
    )  # fmt: skip
    (engine,) = engines(tmp_path, q__container=text)
    assert (words(engine), engine.num_gpus.count) == (["--model", "a/b", "--max-model-len", "${LENGTH}"], 2)
    assert (engine.has_shared_memory, engine.host.limit_bytes) == (True, 32 << 30)


def test_a_long_script_is_passed_over(tmp_path: Path) -> None:
    start = "vllm serve a/b\n"
    found = read_manifests([str(tmp_path)])
    for name, text in (
        ("a.sh", "#" * MAX_LAUNCH_BYTES + f"\n{start}"),
        ("b.sh", "#" * (MAX_LAUNCH_BYTES + 9)),
        ("c.sh", start),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = read_manifests([str(tmp_path)])
    assert [each.file.rpartition("/")[2] for each in found.others] == ["c.sh"]
    assert [(why.name, count) for why, count in found.passed_over.items()] == [("LARGE_SCRIPT", 1)]


def test_a_command_of_very_many_words_is_cut_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_MAX_WORDS", 5)
    (engine,) = engines(
        tmp_path, v__service="[Service]\nExecStart=vllm serve a/b \\\n" + "--seed 1 \\\n" * 9 + "--x \\"
    )
    assert words(engine) == ["a/b", "--seed", "1", "`the words after the first 5`"]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve " + "$((" * 9999,
        "vllm serve ${A:-" * 999,
        'A+=("${A[@]}" x)\n' * 99 + "vllm serve a/b",
        "vllm serve 'a\n" * 99,
    ],
)
def test_odd_scripts_end_soon(tmp_path: Path, text: str) -> None:
    started = time.monotonic()
    assert len(engines(tmp_path, run__sh=text)) <= 2
    assert time.monotonic() - started < 5


def test_a_host_may_have_a_fork_with_options_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve Qwen/Qwen3-8B --max-model-length 4096\n", encoding="utf-8")
    (tmp_path / "b.sh").write_text(
        f"docker run {IMAGE} --model Qwen/Qwen3-8B --max-model-length 4096\n", encoding="utf-8"
    )
    items = run((str(tmp_path),), CheckOptions()).items
    found = [
        (str(each.finding.severity.value), each.rule)
        for item in items
        for each in item.findings
        if "OptionUnknown" in each.rule
    ]
    assert found == [("warning", "OptionUnknown"), ("error", "OptionUnknown")]

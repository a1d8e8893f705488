"""Starts of vLLM in containers, and the variables that reach them."""

from typing import Any

import pytest

from kvgate.documents.written import Written
from kvgate.manifests.pods.containers import Start, installed_release, starts_of, with_config_file
from kvgate.manifests.pods.volumes import file_sources, files_of
from kvgate.manifests.pods.which_engine import are_of_vllm, is_vllm_image
from kvgate.shell.environment import variables_of
from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import Kind
from support.tables import table

IMAGE = "vllm/vllm-openai:v0.32.0"


def started(command: Any = None, args: Any = None, image: str = IMAGE, env: Any = ()) -> tuple[Start, ...]:
    variables = variables_of(Written(value={"env": list(env)}, path="c"), lambda name: None)
    return starts_of(Written(value=command, path="c.command"), Written(value=args, path="c.args"), variables, image)


def words(start: Start) -> list[str]:
    return [word.text for word in start.arguments]


@table(
    ("command", "args"),
    [
        (None, ["--model", "x"]),
        (["vllm", "serve"], ["--model", "x"]),
        (["/opt/venv/bin/vllm", "serve", "--model"], ["x"]),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "x"], None),
        (["python3", "-m", "vllm.entrypoints.cli.main", "serve", "--model", "x"], None),
        (["python3", "-m", "vllm.entrypoints.grpc_server", "--model", "x"], None),
        (["python3", "-m", "vllm.entrypoints.launchers.grpc_server", "--model", "x"], None),
        (["sh", "-c", "cd / && FOO=1 exec vllm serve --model x | tee log"], None),
        (None, ["serve", "--model", "x"]),
        ("vllm serve", "--model x"),
    ],
)
def test_the_words_after_the_program_are_found(command: Any, args: Any) -> None:
    (start,) = started(command, args)
    assert words(start) == ["--model", "x"]
    assert not start.is_wrapped


@pytest.mark.parametrize(
    "program", ["dynamo.vllm", "huggingfaceserver", "vllm_tgis_adapter", "vllm.entrypoints.openai.run_batch"]
)
def test_a_program_around_vllm_is_one(program: str) -> None:
    (start,) = started(["python3", "-m", program, "--model", "x"])
    assert start.is_wrapped


@pytest.mark.parametrize(
    ("command", "kind", "own_options"),
    [
        (["vllm", "serve", "x"], Kind.SERVE, ""),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "x"], Kind.API_SERVER, ""),
        (["python3", "-m", "vllm.entrypoints.api_server", "--model", "x"], Kind.OTHER, ""),
        (["vllm", "serve", "x", "--omni"], Kind.SERVE, "vllm-omni"),
        (["vllm-omni", "serve", "x", "--omni", "--usp=2"], Kind.SERVE, "vllm-omni"),
        (["python3", "-m", "dynamo.vllm", "--model", "x"], Kind.OTHER, "dynamo"),
        (["python3", "/workspace/vllm/inference_api.py", "--model", "x"], Kind.OTHER, "kaito"),
    ],
)
def test_the_program_that_gets_the_words_is_known(command: list[str], kind: Kind, own_options: str) -> None:
    (start,) = started(command)
    assert (start.program.kind, start.program.own_options) == (kind, own_options)


@pytest.mark.parametrize("launcher", ["accelerate launch --num_processes 1", "torchrun --nproc_per_node 1"])
def test_a_server_of_transformers_is_no_start_of_vllm(launcher: str) -> None:
    script = f"{launcher} /workspace/tfs/inference_api.py --pipeline text-generation --torch_dtype bfloat16"
    assert started(["/bin/sh", "-c", script], image="mcr.microsoft.com/aks/kaito/kaito-base:0.0.5") == ()


@table(
    ("command", "args", "image", "is_whole", "kind", "repeated"),
    [
        (None, ["x"], IMAGE, True, Kind.OWN_IMAGE, []),
        (None, ["serve", "x"], IMAGE, True, Kind.OWN_IMAGE, ["serve"]),
        (None, ["vllm", "serve", "x"], IMAGE, True, Kind.OWN_IMAGE, ["vllm", "serve"]),
        (None, ["bash", "-c", "vllm serve x"], IMAGE, True, Kind.OWN_IMAGE, ["bash", "-c"]),
        (None, ["serve", "x"], IMAGE, False, Kind.OTHER, []),
        (None, ["serve", "x"], "lmcache/vllm-openai:v0.3.5", True, Kind.OTHER, []),
        (["vllm"], ["serve", "x"], IMAGE, True, Kind.SERVE, []),
        ([], ["vllm", "serve", "x"], IMAGE, True, Kind.SERVE, []),
    ],
)
def test_the_entrypoint_of_vllms_image_gets_the_words_where_no_command_replaces_it(
    *, command: Any, args: Any, image: str, is_whole: bool, kind: Kind, repeated: list[str]
) -> None:
    written = Written(value=command, path="c.command"), Written(value=args, path="c.args")
    (start,) = starts_of(*written, {}, image, is_whole=is_whole)
    assert words(start) == ["x"]
    assert start.program.kind is kind
    assert [word.text for word in start.program.repeated] == repeated


def test_a_batch_is_run_by_a_command_of_vllm() -> None:
    (start,) = started(["vllm", "run-batch", "-i", "in", "--model", "x"])
    assert start.is_wrapped
    assert words(start) == ["-i", "in", "--model", "x"]


@table(
    ("command", "args", "image"),
    [
        (["sleep", "infinity"], None, IMAGE),
        (None, ["bash", "-c", "sleep 1"], IMAGE),
        (["vllm", "bench", "serve", "--model", "x"], None, IMAGE),
        (["ray", "start", "--block"], None, IMAGE),
        (["vllm", "serve", "--help"], None, IMAGE),
        (["vllm", "serve", "x", "--help=ModelConfig"], None, IMAGE),
        (["sh", "-c", "vllm serve -h | head; sleep infinity"], None, IMAGE),
        (None, ["--help"], IMAGE),
        (None, ["--model", "x"], "lmcache/vllm-router:1"),
        (None, ["--model", "x"], "nginx:1.29"),
        (None, None, "quay.io/corp/gradio-rag-vllm-openai:1.0"),
        (None, None, "${REGISTRY:-corp}/vllm-rocm:latest"),
        (None, ["--model", "x"], "${IMAGE}"),
        (None, ["--model", "x", "--max-model-len", "8192"], "ghcr.io/corp/vllm-mock:latest"),
        (None, ["--model", "x", "--max-model-len", "8192"], "ghcr.io/corp/dynamo-mocker-vllm:v1"),
        (None, ["--model", "x", "--max-num-seqs", "8"], "lmsysorg/sglang:latest"),
        (None, ["--max-model-len", "8192"], "corp/writes-options-of-others:1"),
    ],
)
def test_what_does_not_start_vllm_is_no_start(command: Any, args: Any, image: str) -> None:
    assert started(command, args, image) == ()


def started_on_a_gpu(command: Any = None, args: Any = None, image: str = IMAGE, env: Any = ()) -> tuple[Start, ...]:
    variables = variables_of(Written(value={"env": list(env)}, path="c"), lambda name: None)
    written = Written(value=command, path="c.command"), Written(value=args, path="c.args")
    return starts_of(*written, variables, image, has_gpus=True)


@pytest.mark.parametrize(
    ("command", "image", "expected"),
    [
        (["/start.sh"], IMAGE, ["`/start.sh`"]),
        (["/bin/bash", "-x", "/opt/run_server.sh", "a"], IMAGE, ["`/opt/run_server.sh`"]),
        (["sh", "-c", "cd /app && exec ./serve.sh"], IMAGE, ["`./serve.sh`"]),
        (["/usr/local/bin/vllm-entrypoint"], IMAGE, ["`/usr/local/bin/vllm-entrypoint`"]),
        (["python3", "-u", "/app/server.py"], IMAGE, ["`/app/server.py`"]),
        (["python3", "-c", "from vllm import LLM\nLLM('x')"], IMAGE, ["`from vllm import LLM LLM('x')`"]),
        (None, "corp/vllm-cuda:1", ["`corp/vllm-cuda:1`"]),
    ],
)
def test_a_script_that_is_not_seen_starts_vllm_where_its_image_gets_gpus(
    command: Any, image: str, expected: list[str]
) -> None:
    (start,) = started_on_a_gpu(command, image=image)
    assert words(start) == expected
    assert started(command, image=image) == ()


def test_a_variable_names_the_model_of_a_script_that_is_not_seen() -> None:
    model, other = {"name": "MODEL_ID", "value": "Qwen/Qwen3-8B"}, {"name": "VLLM_MODEL", "value": "Qwen/Qwen3-4B"}
    (start,) = started_on_a_gpu(["/start.sh"], env=[model, {"name": "LORA_MODEL", "value": "a/b"}])
    assert words(start) == ["--model=Qwen/Qwen3-8B", "`/start.sh`"]
    (start,) = started_on_a_gpu(["/start.sh"], env=[model, other])
    assert words(start) == ["`/start.sh`"]


@table(
    ("command", "image"),
    [
        (["sleep", "infinity"], IMAGE),
        (["/bin/sleep", "infinity"], IMAGE),
        (["bash", "-c", "nvidia-smi; tail -f /dev/null"], IMAGE),
        (["vllm", "bench", "serve", "--model", "x"], IMAGE),
        (["python3", "/app/benchmarks/benchmark_serving.py"], IMAGE),
        (["bash", "-c", "/workspace/join.sh; ray start --address=head:6379 --block"], IMAGE),
        (["bash", "/vllm-workspace/examples/multi-node-serving.sh", "worker"], IMAGE),
        (["vllm", "serve", "--help"], IMAGE),
        (["python3", "-c", "import torch; print(torch.cuda.is_available())"], IMAGE),
        (["/start.sh"], "lmcache/vllm-router:1"),
        (["/start.sh"], "nginx:1.29"),
    ],
)
def test_other_programs_on_gpus_are_no_start(command: Any, image: str) -> None:
    assert started_on_a_gpu(command, image=image) == ()


@table(
    ("script", "release"),
    [
        ("pip install vllm==0.6.6 --quiet\npython3 -m vllm.entrypoints.openai.api_server", "0.6.6"),
        ("uv pip install --system 'vllm[audio,flashinfer]==0.11.0' && vllm serve x", "0.11.0"),
        ("pip3 install transformers==4.57.0 vllm==0.11.1rc2", "0.11.1rc2"),
        ("pip install transformers==4.57.0", ""),
        ("pip install 'vllm>=0.11.0'", ""),
        ("pip install nano-vllm==0.2.0", ""),
        ("echo vllm==0.6.6", ""),
        ("if x; then pip install vllm==0.6.6; else pip install vllm==0.11.0; fi", ""),
    ],
)
def test_a_script_states_the_release_that_it_installs(script: str, release: str) -> None:
    words = Written(value=["sh", "-c", script], path="command")
    assert (installed_release(words).text, installed_release(Written(value=script)).text) == (release, release)
    assert not release or installed_release(words).path == "command[2]"


def test_help_beside_a_start_is_none_of_it() -> None:
    (start,) = started(["sh", "-c", "vllm serve --help=listgroup; exec vllm serve x"])
    assert words(start) == ["x"]


def test_ranks_that_serve_nobody_are_part_of_their_leader() -> None:
    script = "if x; then vllm serve a; else vllm serve a --headless; fi; vllm serve b; vllm serve b"
    assert [words(start) for start in started(["sh", "-c", script])] == [["a"], ["b"]]


def test_a_variable_with_arguments_is_for_the_image_that_takes_it() -> None:
    env = [{"name": "VLLM_ARGS", "value": "--seed 1"}]
    (by_image,) = started(None, ["--model", "x"], env=env)
    assert [(word.text, word.path) for word in by_image.arguments][2:] == [
        ("--seed", "c.env[0].value"), ("1", "c.env[0].value"),
    ]  # fmt: skip
    (by_hand,) = started(["vllm", "serve", "x"], env=env)
    assert words(by_hand) == ["x"]
    assert "vLLM itself does not read it" in by_hand.remarks[0][1]
    (by_reference,) = started(["sh", "-c", "vllm serve x $VLLM_ARGS"], env=env)
    assert words(by_reference) == ["x", "--seed", "1"]
    assert by_reference.remarks == ()


def test_a_variable_with_arguments_that_are_not_in_the_input_is_an_open_word() -> None:
    (start,) = started(
        None, ["x"], env=[{"name": "VLLM_ARGS", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    )
    assert words(start) == ["x", "$(VLLM_ARGS)"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max-model-len: 8192\nenforce_eager: true\n", ["x", "--max-model-len=8192", "--enforce-eager", "--seed=1"]),
        ("lora-modules: []\nmiddleware: [a, b]\n", ["x", "--middleware", "a", "b", "--seed=1"]),
        ("", ["x", "--config=/c.yaml", "--seed=1"]),
        ("a: [", ["x", "--config=/c.yaml", "--seed=1"]),
        ("- a", ["x", "--config=/c.yaml", "--seed=1"]),
    ],
)
def test_options_of_a_file_stand_before_those_of_the_line(text: str, expected: list[str]) -> None:
    line = [Argument(text=word, path="c.args") for word in ("x", "--config=/c.yaml", "--seed=1")]
    assert [word.text for word in with_config_file(line, {"/c.yaml": text}.get)] == expected


def test_an_option_of_a_file_stands_on_its_line_there() -> None:
    line = [Argument(text=word, path="c.args") for word in ("x", "--config=/c.yaml", "--seed=1")]
    read = with_config_file(line, {"/c.yaml": "max-model-len: 1\n\nmiddleware:\n- a\n"}.get, lambda file: f"at {file}")
    assert [(word.text, word.path, word.line) for word in read] == [
        ("x", "c.args", 0),
        ("--max-model-len=1", "at /c.yaml", 0),
        ("--middleware", "at /c.yaml", 2),
        ("a", "at /c.yaml", 2),
        ("--seed=1", "c.args", 0),
    ]


@pytest.mark.parametrize(
    ("mount", "volume", "path", "expected"),
    [
        ({"mountPath": "/etc/vllm/"}, {}, "/etc/vllm/a.yaml", "A"),
        ({"mountPath": "/etc/vllm"}, {}, "/etc/vllm/c.yaml", None),
        ({"mountPath": "/etc/vllm"}, {}, "/etc/vllmore/a.yaml", None),
        ({"mountPath": "/x.yaml", "subPath": "a.yaml"}, {}, "/x.yaml", "A"),
        ({"mountPath": "/etc/vllm"}, {"items": [{"key": "a.yaml", "path": "d/b.yaml"}]}, "/etc/vllm/d/b.yaml", "A"),
        ({"mountPath": "/etc/vllm"}, {"items": [{"key": "a.yaml", "path": "b.yaml"}]}, "/etc/vllm/a.yaml", None),
        ({}, {}, "/a.yaml", None),
    ],
)
def test_files_of_config_maps_are_where_they_are_mounted(
    mount: dict[str, str], volume: dict[str, Any], path: str, expected: str | None
) -> None:
    pod = {"volumes": [{"name": "v", "configMap": {"name": "files", **volume}}]}
    container = {"volumeMounts": [{"name": "v", **mount}, {"name": "other", "mountPath": "/etc"}]}
    file_text = files_of(file_sources(Written(value=pod), Written(value=container)), {"files": {"a.yaml": "A"}}.get)
    assert file_text(path) == expected


@pytest.mark.parametrize("image", ["${VLLM_SERVER}", "$IMAGE", "{{ .Values.image }}", "corp/llm-serving:7", ""])
@pytest.mark.parametrize(
    "args", [["--model", "x", "--max-model-len", "8192"], ["x", "--gpu_memory_utilization=0.9", "--max-num-seqs=8"]]
)
def test_options_that_only_vllm_has_name_the_program(image: str, args: list[str]) -> None:
    (start,) = started(None, args, image)
    assert words(start) == args


def test_a_variable_of_vllm_and_a_model_name_the_program() -> None:
    backend = {"name": "VLLM_ATTENTION_BACKEND", "value": "FLASH_ATTN"}
    (start,) = started(None, ["--model=x", "--tensor-parallel-size=2"], "V_IMAGE_NAME", env=[backend])
    assert words(start) == ["--model=x", "--tensor-parallel-size=2"]
    assert started(None, ["--model=x"], "V_IMAGE_NAME") == ()


@table(
    ("image", "expected"),
    [
        (IMAGE, True), ("rocm/vllm:latest", True), ("quay.io/modh/vllm@sha256:0", True), ("ghcr.io/llm-d/llm-d-cuda:v0.4.0", True),
        ("registry/vllm-router:1", False), ("ghcr.io/llm-d/llm-d-inference-sim:v0.6.1", False), ("vllm-exporter", False), ("", False),
        ("llm-d", True), ("corp/llm-d-dev:1", True), ("a/llm-d-rocm", True), ("a/llm-d-xpu", True), ("a/llm-d-other", False),
        ("vllm/base/x:1", False), ("vllm-operator/x:1", False), ("corp/vllm-bench:1", False), ("corp/vllm-gateway", False),
        ("corp/vllm-sidecar", False), ("corp/vllm-proxy", False), ("corp/vllm-loader", False), ("corp/vllm-runtime", False),
        ("team/candle-vllm:1", False), ("team/nano-vllm:1", False), ("team/vllm.cpp:1", False), ("ollama-and-vllm/vllm:1", True),
    ],
)  # fmt: skip
def test_images_that_run_vllm_are_told_by_name(image: str, expected: bool) -> None:  # noqa: FBT001
    assert is_vllm_image(image) is expected


def test_variables_come_from_maps_values_and_each_other_and_not_from_secrets() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "all"}, "prefix": "P_"}, {"secretRef": {"name": "s"}}],
        "env": [
            {"name": "A", "value": "$(P_X)/$(NONE)/$$(P_X)"},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "all", "key": "X"}}},
            {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
    }
    found = variables_of(Written(value=container, path="c"), {"all": {"X": "1"}}.get)
    assert {name: value.value for name, value in found.items()} == {
        "P_X": "1",
        "A": "1/$(NONE)/$(P_X)",
        "B": "1",
        "C": None,
    }
    assert found["P_X"].path == "c.envFrom[0]"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--seed=$(A)", "--seed=1"), ("$$(A)", "$(A)"), ("$$$(A)", "$1"), ("$(x $(A))", "$(x $(A))"), ("$(A-B)", "2"), ("$A", "$A"),
    ],
)  # fmt: skip
def test_words_are_expanded_as_the_kubelet_does(word: str, expected: str) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "A-B", "value": "2"}]
    (start,) = started(["vllm", "serve"], [word], env=env)
    assert words(start) == [expected]


VARIABLES = ("VLLM_ARGS", "VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "VLLM_SERVE_ARGS", "EXTRA_ARGS", "MODEL_ARGS")


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_with_arguments_is_read(name: str) -> None:
    env = [{"name": name, "value": "--seed 1"}, {"name": "OTHER_ARGS", "value": "--no"}]
    assert [words(start) for start in started(None, None, env=env)] == [["--seed", "1"]]
    (by_hand,) = started(["vllm", "serve", "x"], env=env)
    assert [(path, told.partition(" ")[0]) for path, told in by_hand.remarks] == [("c.env[0].value", name)]
    assert [start.remarks for start in started("vllm serve", f"x ${{{name}}}", env=env)] == [()]


@table(
    "program",
    [
        "bash", "cat", "echo", "env", "huggingface-cli", "hf", "ls", "nvidia-smi", "python", "python3", "ray", "sh", "sleep", "tail",
        "vllm", "/usr/bin/env",
    ],
)  # fmt: skip
def test_a_first_word_that_is_a_program_is_no_model(program: str) -> None:
    assert started(None, [program, "x"]) == ()
    assert [words(start) for start in started(None, [f"corp/{program}-8b", "x"])] == [[f"corp/{program}-8b", "x"]]


@table(
    ("flags", "variable", "is_vllm"),
    [
        ("--gpu-memory-utilization=1 --max-model-len=1", "A", True),
        ("--max-num-seqs=1 --max_num_batched_tokens=1", "A", True),
        ("--kv-transfer-config={} --model=x", "A", True),
        ("--max-num-seqs=1", "A", False),
        ("--max-num-seqs=1", "VLLM_A", False),
        ("--model=x", "A", False),
        ("--model=x", "VLLM_A", True),
        ("--model=x --dtype=auto", "A", False),
        ("model --max-model-len-not=1 --model=x", "A", False),
    ],
)
def test_flags_that_only_vllm_has(flags: str, variable: str, *, is_vllm: bool) -> None:
    assert are_of_vllm(flags.split(), [variable]) is is_vllm
    env = [{"name": variable, "value": "1"}]
    assert bool(started(None, flags.split(), "corp/llm:1", env=env)) is is_vllm
    # what stands beside an engine has its variables too
    alone = is_vllm and variable == "A"
    assert bool(started(None, flags.split(), "corp/llm-proxy:1", env=env)) is alone


@pytest.mark.parametrize(
    ("script", "is_on_ray"),
    [
        ("ray start --head; vllm serve x", True),
        ("bash /vllm-workspace/multi-node-serving.sh leader; vllm serve x", True),
        ("echo ray; vllm serve x --start", False),
        ("start ray; vllm serve x", False),
        ("vllm serve x", False),
    ],
)
def test_a_start_of_ray_beside_vllm_is_known(script: str, *, is_on_ray: bool) -> None:
    assert [start.is_on_ray for start in started(["sh", "-c", script])] == [is_on_ray]


FILES = {"/a/serve.sh": "vllm serve x $@", "/serve.sh": "vllm serve y"}


@table(
    ("command", "expected"),
    [
        (["sh", "-c", "cd /a; ./serve.sh 1"], "x 1"),
        (["sh", "-c", "cd /a/; bash serve.sh 1"], "x 1"),
        (["sh", "-c", "cd /a b; ./serve.sh 1"], None),
        (["sh", "-c", "cd a; ./serve.sh 1"], None),
        (["sh", "-c", "cd /a; cd b; ./serve.sh 1"], None),
        (["sh", "-c", "./serve.sh 1"], None),
        (["/a/serve.sh", "1"], "x 1"),
        (["exec", "/a/serve.sh", "1"], "x 1"),
        (["bash", "/a/serve.sh", "1"], "x 1"),
        (["bash", "-e", "-o", "pipefail", "/a/serve.sh", "1"], "x 1"),
        (["bash", "-eo", "pipefail", "-c", "vllm serve z $@", "name", "2"], "z 2"),
        (["bash", "--norc", "--", "/a/serve.sh", "1"], "x 1"),
        (["sh", "-lec", "vllm serve z", "name"], "z"),
        (["tini", "--", "/usr/bin/env", "A=1", "sh", "-c", "vllm serve z"], "z"),
        (["a", "b", "c", "d", "e", "sh", "-c", "vllm serve z"], None),
        (["eval", "vllm", "serve z"], "z"),
        (["ash", "-c", "vllm serve z"], "z"),
        (["dash", "-c", "vllm serve z"], "z"),
        (["zsh", "-c", "vllm serve z"], "z"),
        (["fish", "-c", "vllm serve z"], None),
    ],
)
def test_scripts_run_as_shells_run_them(command: list[str], expected: str | None) -> None:
    given = Written(value=command, path="c.command"), Written(value=None, path="c.args")
    found = starts_of(*given, {}, "corp/image:1", file_text=FILES.get)
    assert [" ".join(words(start)) for start in found] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--config /c.yaml --seed=1", "--max-model-len=1 --seed=1"),
        ("x --seed=1 --config /c.yaml --dtype=auto", "x --max-model-len=1 --seed=1 --dtype=auto"),
        ("x --config=/c.yaml", "x --max-model-len=1"),
        ("x --config", "x --config"),
        ("x --configs=/c.yaml", "x --configs=/c.yaml"),
    ],
)
def test_a_file_of_options_may_stand_anywhere(arguments: str, expected: str) -> None:
    line = [Argument(text=word, path="c.args") for word in arguments.split()]
    assert " ".join(word.text for word in with_config_file(line, {"/c.yaml": "max-model-len: 1"}.get)) == expected

"""`kubectl kvgate`: what it asks a kubectl for, and what it does where that cannot answer all."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli import kubectl
from support.command_line import MISTAKEN_POD

LIST = {"apiVersion": "v1", "kind": "List", "items": []}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command lines of a kubectl that knows three kinds and lists nothing."""
    log = tmp_path / "asked"
    answering(tmp_path, monkeypatch, json.dumps(LIST))
    return log


def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, code: int = 0, error: str = "") -> None:
    program = tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{shlex.quote(str(tmp_path / "asked"))}\n'
        'if [ "$1" = api-resources ]; then printf "deployments.apps\\npods\\nconfigmaps\\n"; exit 0; fi\n'
        f"printf %s {shlex.quote(listed)}\nprintf %s {shlex.quote(error)} >&2\nexit {code}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(program))


def code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        kubectl.main(arguments)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("flags", "connection"),
    [
        ("-n x", ""),
        ("--context prod -n x", " --context prod"),
        ("--context=prod -A", " --context=prod"),
        ("-s https://host --insecure-skip-tls-verify -l a=b", " -s https://host --insecure-skip-tls-verify"),
    ],
)
def test_the_kinds_are_asked_once_and_of_the_same_server(asked: Path, flags: str, connection: str) -> None:
    assert code_of(*flags.split(), "--", "--nothing-is-fine") == 0
    assert asked.read_text().splitlines() == [
        f"api-resources --output=name{connection}",
        f"get deployments.apps,pods,configmaps --output=json --ignore-not-found {flags}",
    ]


def test_what_cannot_be_listed_is_told_and_the_rest_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pods = json.dumps({**LIST, "items": [yaml.safe_load(MISTAKEN_POD)]})
    answering(tmp_path, monkeypatch, pods, code=1, error="configmaps is forbidden")
    assert code_of() == 1
    told = capfd.readouterr()
    assert "configmaps is forbidden" in told.err
    assert "no-such-option" in told.out
    answering(tmp_path, monkeypatch, "", code=1, error="pods is forbidden")
    assert code_of() == 2


def owned(kind: str, uid: str, *owners: str) -> dict[str, Any]:
    item = yaml.safe_load(MISTAKEN_POD)
    template = {"metadata": {}, "spec": item["spec"]}
    references = [{"apiVersion": "v1", "kind": "Any", "name": "any", "uid": owner} for owner in owners]
    item["metadata"] = {"name": uid, "uid": uid, "ownerReferences": references}
    return item if kind == "Pod" else {**item, "apiVersion": "apps/v1", "kind": kind, "spec": {"template": template}}


@pytest.mark.parametrize(
    ("items", "judged"),
    [
        ([owned("Deployment", "a"), owned("ReplicaSet", "a-1", "a"), owned("Pod", "a-1-x", "a-1")], ["a"]),
        ([owned("Deployment", "b", "platform"), owned("ReplicaSet", "b-1", "b"), owned("Pod", "b-1-x", "b-1")], ["b"]),
        ([owned("Pod", "c", "platform"), owned("Pod", "d")], ["c", "d"]),
    ],
    ids=["its own", "of a platform that is not listed", "pods of such a platform"],
)
def test_what_an_object_owns_is_judged_through_it_and_nothing_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    items: list[dict[str, Any]],
    judged: list[str],
) -> None:
    answering(tmp_path, monkeypatch, json.dumps({**LIST, "items": items}))
    assert code_of("--", "-o", "json") == 1
    assert [each["name"] for each in json.loads(capfd.readouterr().out)["documents"]] == judged


def test_an_answer_that_is_not_json_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answering(tmp_path, monkeypatch, "apiVersion: v1")
    assert code_of("-o", "yaml") == 2
    assert "put flags of kvgate check behind --" in capfd.readouterr().err


def test_help_asks_nothing(asked: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert code_of("--help") == 0
    assert capfd.readouterr().out.startswith("usage: kubectl kvgate")
    assert not asked.exists()


def test_what_a_server_says_and_annotations_hold_is_passed_on_inert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = yaml.safe_load(MISTAKEN_POD)
    pod["metadata"] |= {"name": "a\nb", "annotations": {"mood": "\U0001f600", "half": "\ud83d"}}
    answering(
        tmp_path, monkeypatch, json.dumps({**LIST, "items": [pod]}), code=1, error="no\033[31m\n::error::x\nright"
    )
    assert code_of() == 1
    told = capfd.readouterr()
    assert told.err.splitlines() == ["no\\x1b[31m", "\\x3a:error::x", "right"]
    assert "pod a\\nb on L4-24GB" in told.out


def test_nothing_of_the_current_folder_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pods = json.dumps({**LIST, "items": [yaml.safe_load(MISTAKEN_POD)]})
    answering(tmp_path, monkeypatch, pods)
    here, canary = tmp_path / "here", tmp_path / "canary"
    here.mkdir()
    for module in ("yaml", "click", "json", "sitecustomize", "kvgate"):
        (here / f"{module}.py").write_text(f"open({str(canary)!r}, 'a').write({module!r})\n")
    (here / "kubectl").write_text(f"#!/bin/sh\necho kubectl >>{shlex.quote(str(canary))}\n")
    (here / "kubectl").chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", ".")
    assert code_of() == 1
    monkeypatch.delenv("KUBECTL")
    monkeypatch.setenv("PATH", f".::{here.name}")
    assert code_of() == 2
    assert "there is no kubectl on PATH" in capfd.readouterr().err
    assert not canary.exists()


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "vllm-0", "namespace": "serving"},
    "spec": {
        "nodeName": "gpu-1",
        "containers": [
            {
                "name": "vllm",
                "image": "vllm/vllm-openai:v0.11.0",
                "args": ["--model=Qwen/Qwen3-8B", "--max-model-len=40960"],
                "env": [{"name": "HF_TOKEN", "value": "mysecretvalue"}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ],
    },
    "status": {
        "containerStatuses": [
            {"name": "vllm", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}
        ]
    },
}
PREVIOUS = (
    "ValueError: No available memory for the cache blocks. Try it.\nRuntimeError: Engine core initialization failed.\n"
)


def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pod: dict[str, Any], *, refuses_nodes: bool = False
) -> Path:
    """Stand for kubectl: a pod, its node, its events and its last log; every call is written down."""
    for name, text in (("pod", json.dumps(pod)), ("list", json.dumps({"items": [pod]})), ("previous", PREVIOUS)):
        (tmp_path / name).write_text(text)
    deployment = {"kind": "Deployment", "spec": {"selector": {"matchLabels": {"app": "vllm"}}}}
    (tmp_path / "deployment").write_text(json.dumps(deployment))
    (tmp_path / "infd").write_text(json.dumps({"kind": "InferenceDeployment", "spec": {}}))
    node = "exit 1" if refuses_nodes else """echo '{"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-L4"}}}'"""
    program = tmp_path / "kubectl"
    program.write_text(f"""#!/bin/sh
cd {shlex.quote(str(tmp_path))}
echo "$@" >>asked
case "$1 $2 $*" in
*--previous*) cat previous;;
"get pod "*) cat pod;;
"get pods "*) cat list;;
"get deploy "*) cat deployment;;
"get infd "*) cat infd;;
"get node "*) {node};;
"describe pod "*) printf 'Name:   vllm-0\\nEvents:\\n  Warning  BackOff  1s  kubelet  Back-off restarting failed container vllm\\n';;
"logs "*) echo starting;;
*) exit 1;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(program))
    return tmp_path / "asked"


@pytest.mark.parametrize("target", ["pod/vllm-0", "deploy/vllm", "infd/vllm"])
def test_why_gathers_pod_node_events_and_both_logs_and_only_reads(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = cluster(tmp_path, monkeypatch, POD)
    assert code_of("why", target, "-n", "serving", "--", "-o", "json") == 0
    (answer,) = json.loads(capfd.readouterr().out)["answers"]
    assert (answer["happened"]["id"], answer["statement"]["gpu"]) == ("NoMemoryForKVCache", "L4-24GB")
    calls = asked.read_text().splitlines()
    assert {call.split()[0] for call in calls} == {"get", "describe", "logs"}
    assert all("-n serving" in call for call in calls if " node " not in call)


def test_why_goes_on_without_the_rights_to_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster(tmp_path, monkeypatch, POD, refuses_nodes=True)
    assert code_of("why", "pod/vllm-0") == 0
    assert "NoMemoryForKVCache" in capfd.readouterr().out


def test_no_secret_of_the_pod_is_in_the_answer_or_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster(tmp_path, monkeypatch, POD)
    code_of("why", "pod/vllm-0", "--", "-o", "json", "--bundle", str(tmp_path / "bundle.json"))
    assert "mysecretvalue" not in capfd.readouterr().out + (tmp_path / "bundle.json").read_text()


@pytest.mark.parametrize("target", ["", "vllm-0", "/vllm-0"])
def test_why_without_an_object_is_misuse(target: str, asked: Path) -> None:
    assert code_of("why", *([target] if target else [])) == 2
    assert not asked.exists()


FLEET = {
    **LIST,
    "items": [
        {
            "apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": name, "namespace": "serving"},
            "spec": {"model": {"name": "Qwen/Qwen3-8B"}, "accelerator": {"type": gpu}, "vllm": {"version": "0.10.0", "maxNumSeqs": 4}},
            "status": {"conditions": [{"type": "Accepted", "status": "True"}]},
        }
        for name, gpu in (("roomy", "H100-SXM-80GB"), ("tight", "L4-24GB"))
    ],
}  # fmt: skip


def test_preview_says_what_another_release_of_vllm_changes_for_each_live_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = {**FLEET["items"][0]["spec"], "vllm": {"image": "registry.example/vllm:1", "version": "0.10.0"}}
    fixed = {**FLEET["items"][0], "metadata": {"name": "fixed", "namespace": "serving"}, "spec": own}
    answering(tmp_path, monkeypatch, json.dumps({**FLEET, "items": [*FLEET["items"], fixed]}))
    code = code_of("preview", "--vllm-version", "0.33.0", "-A", "--", "--output=json")
    printed = capfd.readouterr()
    told = json.loads(printed.out)
    assert (tmp_path / "asked").read_text().splitlines() == ["get inferencedeployments.kvgate.io --output=json -A"]
    assert {engine["name"] for engine in told["engines"]} == {"roomy", "tight", "fixed"}
    assert "new pods for 2 of 3 InferenceDeployments" in printed.err, "one has an image of its own"
    assert "0.33.0" in json.dumps(told)
    assert code in (0, 1)


@pytest.mark.parametrize("flags", [(), ("--vllm-version",), ("--vllm-version=",)])
def test_preview_without_a_release_is_misuse(flags: tuple[str, ...], asked: Path) -> None:
    assert code_of("preview", *flags) == 2
    assert not asked.exists()

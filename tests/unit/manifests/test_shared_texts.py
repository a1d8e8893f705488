"""What containers share is written once and read for each of them: it has a limit, and nobody is passed over in silence."""

import json
from pathlib import Path

import pytest

from kvgate.documents.written import Written
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import EnginesFound, find_engines
from kvgate.manifests.platforms.charts import read_set
from kvgate.manifests.pods.volumes import file_sources, files_of
from kvgate.shell.environment import OutOfRoom, SharedRoom, variables_of
from kvgate.shell.words import commands_of
from kvgate.vllm.arguments import Argument

SERVE = "vllm serve Qwen/Qwen3-8B"


def found(tmp_path: Path, *documents: str, **files: str) -> EnginesFound:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    path = tmp_path / "docker-compose.yaml"
    path.write_text("---\n".join(documents), encoding="utf-8")
    return find_engines(read_manifests([str(path)]))


def config_map(**data: str) -> str:
    lines = "".join(f"  {key}: {json.dumps(text)}\n" for key, text in data.items())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata:\n{lines}"


def pod(*containers: str) -> str:
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: vllm}\nspec:\n  volumes: [{name: v, configMap: {name: m}}]\n  containers:\n"
        + "".join(f"  - {container}\n" for container in containers)
    )


def test_a_script_that_many_containers_run_is_an_error_beyond_the_limit_and_none_is_passed_over(tmp_path: Path) -> None:
    container = "{name: c, command: [sh, /s/run], volumeMounts: [{name: v, mountPath: /s}]}"
    script = config_map(run=f"# {'x' * 100_000}\nexec {SERVE}")
    few = found(tmp_path, script, pod(*[container] * 5))
    assert (len(few.engines), few.broken) == (5, [])
    many = found(tmp_path, script, pod(*[container] * 60), pod("{name: other, command: [sh, -c, 'vllm serve x']}"))
    assert not many.engines
    assert [each.finding.message for each in many.broken] == [
        "scripts and variables that containers share are too long in total, each counted once per container"
    ] * 2


@pytest.mark.slow
def test_a_config_map_that_is_added_again_and_again_is_an_error(tmp_path: Path) -> None:
    data = config_map(**{f"k{index}": "v" for index in range(1000)})
    sources = ", ".join(["{configMapRef: {name: m}}"] * 1000)
    answer = found(tmp_path, data, pod(f"{{name: c, command: [vllm, serve, x], envFrom: [{sources}]}}"))
    assert (len(answer.engines), len(answer.broken)) == (0, 1)


def test_a_file_of_variables_that_is_read_again_and_again_is_an_error(tmp_path: Path) -> None:
    service = f"services:\n  s: {{image: vllm/vllm-openai, command: {SERVE}, env_file: [{'a.env, ' * 1000}]}}\n"
    answer = found(tmp_path, service, **{"a.env": "".join(f"A{index}=1\n" for index in range(1000))})
    assert (len(answer.engines), len(answer.broken)) == (0, 1)


def test_every_variable_takes_of_the_room_that_all_containers_share() -> None:
    container = Written(value={"envFrom": [{"configMapRef": {"name": "m"}}]})
    with pytest.raises(OutOfRoom):
        variables_of(container, {"m": {"A": "x" * 50}}.get, shared=SharedRoom(left=50))


@pytest.mark.slow
def test_parameters_that_do_not_fit_are_not_measured_again() -> None:
    class Counted(Argument):
        read = 0

        def __getattribute__(self, name: str) -> object:
            Counted.read += name == "text"
            return super().__getattribute__(name)

    parameters = [Counted(text="a", path="p") for _ in range(10_000)]
    assert sum(1 for _ in commands_of("x $@\n" * 1000, "p", {}, parameters)) == 1000
    assert Counted.read < 5_000_000


def test_the_innermost_mount_of_a_file_counts_and_mounts_are_read_once() -> None:
    pod = Written(value={"volumes": [{"name": name, "configMap": {"name": name}} for name in ("a", "b")]})
    mounts = [{"name": "a", "mountPath": "/etc"}, {"name": "b", "mountPath": "/etc/own/"}]
    container = Written(value={"volumeMounts": [*mounts, *[{"name": "a", "mountPath": f"/x{n}"} for n in range(5000)]]})
    text_at = files_of(file_sources(pod, container), {"a": {"f": "outer"}, "b": {"f": "inner"}}.get)
    assert [text_at(path) for path in ("/etc/f", "/etc/own/f", "/other/f", "f")] == ["outer", "inner", None, None]
    assert not any(text_at(f"/bin/{n}") for n in range(5000))
    assert text_at("/etc" * 10_000) is None


@pytest.mark.parametrize(("name", "is_read"), [("a[999].b", True), ("a[999][1]", False), ("a" + "[999]" * 45, False)])
def test_a_parameter_of_helm_cannot_make_many_long_lists(name: str, *, is_read: bool) -> None:
    assert (read_set(name, "x", as_text=True) is not None) is is_read

"""Which object is meant where one input holds several of a name."""

from pathlib import Path

import pytest

from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.inputs import Nearest
from kvgate.manifests.judging.engine_budget import Defaults
from kvgate.manifests.judging.judgement import judge_engine
from support.tables import table

CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: cache}
spec: {resources: {requests: {storage: 1Gi}}}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: engine}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.32.0
    command: [vllm, serve, Qwen/Qwen3-4B, --max-model-len=8192]
    resources: {limits: {nvidia.com/gpu: 1}}
    volumeMounts: [{name: cache, mountPath: /root/.cache/huggingface}, {name: shm, mountPath: /dev/shm}]
  volumes:
  - {name: cache, persistentVolumeClaim: {claimName: cache}}
  - {name: shm, emptyDir: {medium: Memory}}
"""


@table(
    ("files", "asked", "expected"),
    [
        ({"a/x.yaml": 1}, "a/x.yaml", 1),
        ({"a/x.yaml": 1, "a/y.yaml": 2}, "a/x.yaml", 1),
        ({"a/x.yaml": 1, "a/y.yaml": 2}, "a/z.yaml", None),
        ({"a/x.yaml": 1, "a/y.yaml": 1}, "a/z.yaml", 1),
        ({"a/x.yaml": 1, "b/x.yaml": 2}, "a/z.yaml", 1),
        ({"a/x.yaml": 1, "a/deep/x.yaml": 2}, "a/z.yaml", 1),
        ({"a/x.yaml": 1}, "b/z.yaml", 1),
        ({"a/x.yaml": 1, "b/x.yaml": 2}, "c/z.yaml", None),
        ({"p/a/x.yaml": 1, "q/x.yaml": 2}, "p/b/z.yaml", 1),
        ({}, "a/z.yaml", None),
    ],
)
def test_the_nearest_object_counts(files: dict[str, int], asked: str, expected: int | None) -> None:
    objects = Nearest()
    for file, value in files.items():
        objects.add("name", file, value)
    assert objects.find("name", asked) == expected
    assert objects.find("other", asked) is None


def test_an_object_beside_is_none_in_another_folder() -> None:
    objects = Nearest()
    objects.add("name", "a/x.yaml", 1)
    assert objects.find("name", "a/z.yaml", only_beside=True) == 1
    assert objects.find("name", "z.yaml", only_beside=True) is None
    assert objects.find("name", "a/b/z.yaml", only_beside=True) is None


@pytest.mark.parametrize(
    ("files", "is_small"),
    [
        ({"x.yaml": f"{POD}---\n{CLAIM}"}, True),
        ({"x.yaml": POD, "claim.yaml": CLAIM}, True),
        ({"one/x.yaml": POD, "two/claim.yaml": CLAIM}, False),
        ({"x.yaml": POD, "claims/claim.yaml": CLAIM}, False),
        ({"x.yaml": f"{POD}---\n{CLAIM.replace('1Gi', '90Gi')}", "claim.yaml": CLAIM}, False),
    ],
)
def test_a_claim_of_another_example_is_not_the_engines(
    *, tmp_path: Path, files: dict[str, str], is_small: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (engine,) = find_engines(read_manifests([str(tmp_path)])).engines
    rules = [each.finding.rule.id for each in judge_engine(engine, Defaults()).findings]
    assert ("VolumeTooSmall" in rules) is is_small


def test_options_come_from_the_config_map_of_the_same_example(tmp_path: Path) -> None:
    for folder, length in (("one", 1024), ("two", 2048)):
        config = (
            f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{c.yaml: 'max-model-len: {length}'}}\n"
        )
        pod = POD.replace("--max-model-len=8192", "--config=/c/c.yaml").replace("name: engine", f"name: {folder}")
        pod = pod.replace("{name: shm, mountPath", "{name: c, mountPath: /c}, {name: shm, mountPath")
        pod += "  - {name: c, configMap: {name: c}}\n"
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.yaml").write_text(config, encoding="utf-8")
        (tmp_path / folder / "pod.yaml").write_text(pod, encoding="utf-8")
    engines = find_engines(read_manifests([str(tmp_path)])).engines
    lengths = {
        engine.name: word.text for engine in engines for word in engine.arguments if word.text.startswith("--max")
    }
    assert lengths == {"one": "--max-model-len=1024", "two": "--max-model-len=2048"}

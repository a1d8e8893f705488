"""What is taken from a stream: our own kind, and ConfigMaps as the source of configFrom."""

from pathlib import Path

import pytest

from kvgate.api.base import KeyRef
from kvgate.documents.discovery import Why
from kvgate.judgement.facts import ConfigMissing
from kvgate.manifests import InputDocuments, read_manifests
from kvgate.manifests.engines import find_engines

OURS = """\
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: one}
spec: {model: {name: Qwen/Qwen3-8B}, accelerator: {type: L4-24GB}}
"""
CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: shapes, namespace: serving}
data: {config.json: "{}", n: 3}
"""


def read(folder: Path, text: str) -> InputDocuments:
    (folder / "x.yaml").write_text(text, encoding="utf-8")
    return read_manifests([str(folder)])


def test_other_kinds_are_counted_and_not_judged(tmp_path: Path) -> None:
    found = read(tmp_path, f"kind: Deployment\n---\n{OURS}---\njust text\n---\n- 1\n---\n{CONFIG_MAP}")
    assert ([subject.name for subject in found.subjects], found.num_others) == (["one"], 4)


def test_the_status_that_kvgate_wrote_is_not_judged(tmp_path: Path) -> None:
    found = read(tmp_path, f"{OURS}status: {{fromALaterRelease: 1, observedGeneration: many}}\n")
    assert found.subjects[0].deployment is not None


@pytest.mark.parametrize(
    "text",
    [
        OURS.replace("metadata: {name: one}", "metadata: text"),
        OURS.replace("metadata: {name: one}", "metadata: {1: 2}"),
        OURS.split("spec:", maxsplit=1)[0],
        OURS.replace("spec: {", "spec: {1: 2, true: x, "),
        OURS.replace("v1alpha1", "v9"),
    ],
)
def test_an_object_that_the_schema_refuses_is_a_subject_with_findings(tmp_path: Path, text: str) -> None:
    subject = read(tmp_path, text).subjects[0]
    assert subject.deployment is None
    assert subject.findings


def test_findings_of_the_schema_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = OURS.replace("spec: {", "spec: {\n  zzz: 1,\n  aaa: 2,\n  replicas: x,\n")
    subject = read(tmp_path, text).subjects[0]
    lines = [subject.document.position_of(finding.field).line for finding in subject.findings]
    assert lines == [5, 6, 7]


@pytest.mark.parametrize(
    ("namespace", "name", "key", "expected"),
    [
        ("serving", "shapes", "config.json", "{}"),
        ("serving", "shapes", "none", "its keys: config.json, n"),
        ("serving", "shapes", "n", "no text under key n"),
        ("default", "shapes", "config.json", "is not among the files"),
        ("serving", "other", "config.json", "is not among the files"),
    ],
)
def test_config_from_is_looked_up_by_namespace_and_name(
    tmp_path: Path, namespace: str, name: str, key: str, expected: str
) -> None:
    found = read(tmp_path, CONFIG_MAP).lookup(namespace, str(tmp_path / "x.yaml"))(KeyRef(name=name, key=key))
    assert expected in (found.message if isinstance(found, ConfigMissing) else found)


@pytest.mark.parametrize(
    "text", ["a: [1\n", "a: *nobody\n", "a: &x 1\nb: &x 2\nc: *y\n", "a: \x01\n", "{a: 1}\n{b: 2}\n"]
)
def test_broken_yaml_is_told_also_where_nothing_speaks_of_an_engine(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, f"kind: Service\n---\n{text}---\nkind: Service\n")
    assert [item.finding.rule.id for item in found.broken] == ["InvalidYaml"]
    assert found.num_others == 2


def test_the_items_of_a_list_count_each(tmp_path: Path) -> None:
    assert (
        read(
            tmp_path, "kind: List\nitems: [{kind: A}, {kind: ConfigMap}]\n---\nkind: Service\n---\n# nothing\n"
        ).num_others
        == 3
    )


def test_a_comment_goes_to_the_document_after_it_and_to_no_later_one(tmp_path: Path) -> None:
    found = read(tmp_path, f"# kvgate:one\n---\nkind: Service\n---\n# kvgate:two\n---\n{OURS}")
    assert [comment.text for comment in found.subjects[0].document.comments] == ["two"]
    assert found.subjects[0].document.index == 1


def test_objects_of_nim_are_counted_unless_their_command_is_seen(tmp_path: Path) -> None:
    hidden = "apiVersion: apps.nvidia.com/v1alpha1\nkind: NIMService\nspec: {image: {repository: nvcr.io/nim/meta/llama, tag: '1.8'}}\n"
    seen = hidden.replace("}}\n", "}, command: [vllm, serve], args: [Qwen/Qwen3-8B]}\n")
    manifests = read(tmp_path, f"{hidden}---\n{seen}---\n{hidden.replace('Service', 'Cache')}")
    engines = find_engines(manifests)
    assert (len(engines.engines), manifests.passed_over, manifests.num_others) == (1, {Why.NIM: 1}, 1)

"""Streams that people and machines get wrong: everything that can be judged is, and the rest is told with its place."""

import errno
import os
import socket
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvgate.documents.launch_files import Form
from kvgate.documents.nodes import NodeRoom
from kvgate.documents.reading import Reading
from kvgate.manifests import Broken, Document, read_documents

OURS = """\
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata:
  name: one
spec:
  model: {name: Qwen/Qwen3-8B}
  vllm:
    maxModelLen: 4096
    extraArgs:
      - --seed
      - "7"
"""


def read(folder: Path, content: str | bytes, name: str = "x.yaml") -> list[Document | Broken]:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_documents([str(path)]))


def only_document(items: list[Document | Broken]) -> Document:
    assert len(items) == 1
    assert isinstance(items[0], Document), items[0]
    return items[0]


def only_broken(items: list[Document | Broken]) -> Broken:
    broken = [item for item in items if isinstance(item, Broken)]
    assert len(broken) == 1
    return broken[0]


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        ("spec.vllm.maxModelLen", 8, 5),
        ("spec.vllm.extraArgs[1]", 11, 9),
        ("spec.vllm.extraArgs[9]", 9, 5),
        ("spec.model.name", 6, 11),
        ("spec.vllm.maxNumSeqs", 7, 3),
        ("spec.admission.policy", 5, 1),
        ("", 1, 1),
    ],
)
def test_a_field_is_found_or_its_nearest_parent(tmp_path: Path, path: str, line: int, column: int) -> None:
    position = only_document(read(tmp_path, OURS)).position_of(path)
    assert (position.line, position.column) == (line, column)


def test_lines_count_from_the_start_of_the_file_in_every_document(tmp_path: Path) -> None:
    first, second = read(tmp_path, f"# head\n---\n{OURS}---\n# note\n{OURS}")
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert (first.position.line, second.position.line) == (3, 16)
    assert second.position_of("spec.vllm.maxModelLen").line == 23
    assert (first.index, second.index) == (0, 1)


@pytest.mark.parametrize(
    ("content", "change"),
    [
        (OURS.encode("utf-8-sig"), "a byte order mark"),
        (OURS.replace("\n", "\r\n").encode(), "CRLF"),
        (OURS.replace("\n", "\r").encode(), "CR"),
        (b"%YAML 1.2\n---\n" + OURS.encode(), "a directive"),
        (b"---\n" + OURS.encode() + b"...\n", "an end marker"),
        (b"---\n---\n" + OURS.encode() + b"---\n", "empty documents"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_document_reads_the_same_with(tmp_path: Path, content: bytes, change: str) -> None:
    document = only_document(read(tmp_path, content))
    assert document.load()["spec"]["vllm"]["maxModelLen"] == 4096, change


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n", "---\n---\n"])
def test_an_empty_file_holds_no_document(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, content) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: \0", "binary"),
        (b"\x7fELF\x02\x01\x01\0\0", "binary"),
        (b"ok: 1\nb: \xff\xfe\n", "not UTF-8"),
        ("a: 1\n".encode("utf-16"), "binary"),
        (b"a: [1, 2\n", "not YAML"),
        (b"a: \x01\n", "not YAML"),
        (b"[" * 300_000, "nested deeper"),
        (b"{a: " * 20_000, "nested deeper"),
        (b"- " * 20_000, "nested deeper"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    item = only_broken(read(tmp_path, content))
    assert words in item.finding.message
    assert item.finding.remediation


def test_invalid_bytes_are_told_with_their_line(tmp_path: Path) -> None:
    assert only_broken(read(tmp_path, b"ok: 1\nb: \xff\n")).position.line == 2


def test_one_broken_document_does_not_stop_the_others(tmp_path: Path) -> None:
    items = read(tmp_path, f"{OURS}---\na: [1,\n  2: }}\n---\n{OURS}")
    assert [type(item).__name__ for item in items] == ["Document", "Broken", "Document"]
    assert only_broken(items).position.line == 14


@pytest.mark.parametrize(
    ("content", "words", "line"),
    [
        ("kind: A\nspec:\n  x: 1\n  x: 2\n", "key x is written twice", 4),
        ("a: &a\n  b: *a\n", "an alias stands for a part that contains the alias", 1),
        ("a: 1\n[b]: c\n", "unhashable", 2),
        (f"a: {'9' * 5000}\n", "out of range", 1),
    ],
)
def test_what_yaml_allows_and_kubernetes_does_not_is_told(tmp_path: Path, content: str, words: str, line: int) -> None:
    item = only_document(read(tmp_path, content)).load()
    assert isinstance(item, Broken)
    assert words in item.finding.message
    assert item.position.line == line


def test_an_alias_bomb_costs_nothing(tmp_path: Path) -> None:
    levels = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))
    started = time.process_time()
    item = only_document(read(tmp_path, f"a0: &a0 [x, x]\n{levels}\n")).load()
    assert isinstance(item, Broken)
    assert "aliases" in item.finding.message
    assert time.process_time() - started < 2


def test_a_merge_bomb_costs_nothing(tmp_path: Path) -> None:
    levels = "\n".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 30))
    item = only_document(read(tmp_path, f"a0: &a0 {{x: 1}}\n{levels}\n")).load()
    assert isinstance(item, Broken)


def test_a_few_aliases_are_fine(tmp_path: Path) -> None:
    value = only_document(read(tmp_path, "a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n")).load()
    assert value == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_a_date_is_text_as_in_kubernetes(tmp_path: Path) -> None:
    assert only_document(read(tmp_path, "a: 2026-11-21T10:00:00Z\n")).load() == {"a": "2026-11-21T10:00:00Z"}


def test_a_template_is_told_to_be_rendered(tmp_path: Path) -> None:
    items = read(tmp_path, "a: 1\n{{- if .Values.x }}\nb: 2\n{{- end }}\n")
    assert "helm template" in only_broken(items).finding.remediation


@pytest.mark.slow
def test_ten_megabytes_are_read_in_reasonable_time(tmp_path: Path) -> None:
    entry = f"- {{name: a, value: {'b' * 500}}}\n"
    text = "kind: Other\nitems:\n" + entry * (10_000_000 // len(entry))
    started = time.process_time()
    assert only_document(read(tmp_path, text)).kind == "Other"
    assert time.process_time() - started < 10


@pytest.mark.slow
def test_more_than_32_mebibytes_are_refused(tmp_path: Path) -> None:
    item = only_broken(read(tmp_path, b"#" * ((32 << 20) + 1)))
    assert "32 MiB" in item.finding.message


@pytest.mark.slow
def test_a_stream_of_more_is_read_document_by_document(tmp_path: Path) -> None:
    text = f"---\na: {'b' * 1_000_000}\n" * 40
    documents = read(tmp_path, text)
    assert len(documents) == 40
    assert [item.position.line for item in documents[:3] if isinstance(item, Document)] == [2, 4, 6]


def test_what_is_not_utf_8_does_not_stop_the_documents_around_it(tmp_path: Path) -> None:
    items = read(tmp_path, f"{OURS}---\nb: ".encode() + b"\xff\n---\n" + OURS.encode())
    assert [type(item).__name__ for item in items] == ["Document", "Broken", "Document"]
    assert only_broken(items).position.line == 13


def test_the_items_of_a_list_are_documents_with_their_own_lines(tmp_path: Path) -> None:
    first, second = read(tmp_path, "apiVersion: v1\nkind: List\nitems:\n- kind: A\n  x: 1\n- kind: B\n")
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert [(d.kind, d.position.line) for d in (first, second)] == [("A", 4), ("B", 6)]


def test_json_is_read_with_positions(tmp_path: Path) -> None:
    document = only_document(read(tmp_path, '{\n  "kind": "A",\n  "spec": {\n\t"x": [1, 2]\n  }\n}\n', "x.json"))
    assert document.position_of("spec.x[1]").line == 4


def test_a_folder_is_read_in_order_without_hidden_parts_and_loops(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "c.json", "d.txt", ".hidden.yaml", ".git/x.yaml", "sub/e.YAML"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n" if name.endswith("json") else "a: 1\n")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    files = [Path(item.file).relative_to(tmp_path).as_posix() for item in read_documents([str(tmp_path)])]
    assert files == ["a.yml", "b.yaml", "c.json", "sub/e.YAML"]


def test_a_missing_path_is_told(tmp_path: Path) -> None:
    items = list(read_documents([str(tmp_path / "none.yaml")]))
    assert "No such file" in only_broken(items).finding.message


def test_a_link_to_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").symlink_to(tmp_path / "x.yaml")
    assert "cannot be read" in only_broken(list(read_documents([str(tmp_path / "x.yaml")]))).finding.message


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind(str(tmp_path / "x.yaml"))
        assert "cannot be read" in only_broken(list(read_documents([str(tmp_path)]))).finding.message


def test_a_folder_that_cannot_be_listed_is_told_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = os.scandir
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "a.yaml").write_text("a: 1\n")

    def listed_if_open(folder: str) -> object:
        if folder.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return listed(folder)

    monkeypatch.setattr(os, "scandir", listed_if_open)
    document, closed = read_documents([str(tmp_path)])
    assert document.file == str(tmp_path / "open" / "a.yaml")
    assert isinstance(closed, Broken)
    assert (closed.file, closed.finding.message) == (
        str(tmp_path / "closed"), "cannot be read: Permission denied",
    )  # fmt: skip


def test_a_pipe_in_a_folder_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    assert "is a pipe" in only_broken(list(read_documents([str(tmp_path)]))).finding.message


def test_standard_input_is_a_stream_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(OURS.encode())))
    document = only_document(list(read_documents(["-"])))
    assert document.file == "<stdin>"


def test_the_nodes_of_all_documents_of_an_input_are_counted_together() -> None:
    """A node takes a thousand times the memory of the two characters that it may be written with."""
    text = "\n---\n".join(["vllm: [1, 1, 1, 1]"] * 5)
    items = list(Reading(room=NodeRoom(left=21)).of_stream("x.yaml", BytesIO(text.encode())))
    assert [type(item).__name__ for item in items] == ["Document", "Document", "Document", "Broken", "Broken"]
    refused = items[3]
    assert isinstance(refused, Broken)
    assert refused.position.line == 6
    assert refused.finding.message == "the input holds more than 2000000 keys and values"
    assert refused.finding.remediation == "check its parts one by one"


def test_nodes_with_tags_are_counted_too() -> None:
    (item,) = Reading(room=NodeRoom(left=20)).of_stream("x.yaml", BytesIO(b"vllm: [" + b"!a 1," * 30 + b"]"))
    assert isinstance(item, Broken)
    assert "keys and values" in item.finding.message


@pytest.mark.slow
def test_values_beyond_the_limit_take_no_memory(tmp_path: Path) -> None:
    """In a process that has too little for them: four million would take more than a GiB, half of a million 200 MiB."""
    path = tmp_path / "x.yaml"
    path.write_bytes(b"vllm: [" + b"1,\n" * 4_000_000 + b"1]\n")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (700 << 20,) * 2)\n"
        "from pathlib import Path\n"
        "from kvgate.documents.reading import Reading\n"
        "from kvgate.documents.nodes import NodeRoom\n"
        "print([item.finding.message for item in Reading(room=NodeRoom(left=500_000)).of_file(Path(sys.argv[1]), None)])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=100)
    assert "keys and values" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("{apiVersion: v1, kind: Pod}", "Pod"),
        ("{apiVersion: kaito.sh/v1beta1, kind: Workspace}", "Workspace.kaito.sh"),
        ("{kind: Deployment}", "Deployment.apps"),
        ("{kind: Deployment, spec: {}, image: x}", "Deployment.apps"),
        ("{kind: Deployment, image: {tag: x}}", ".apps"),
        ("{apiVersion: v1, kind: Deployment.apps}", ""),
    ],
)
def test_a_kind_is_written_with_its_group(tmp_path: Path, head: str, expected: str) -> None:
    (tmp_path / "x.yaml").write_text(head)
    assert only_document(list(read_documents([str(tmp_path)]))).group_kind == expected


def test_a_script_is_called_one(tmp_path: Path) -> None:
    script = "#!/bin/sh\nset -e: x\nif true; then\n  vllm serve a\nfi\n"
    assert "is a script, and no manifest" in only_broken(read(tmp_path, script, "run.yaml")).finding.message
    for name in ("run.sh", "run"):
        document = only_document(read(tmp_path, script, name))
        assert (document.form, document.load()) == (Form.SCRIPT, script)
    assert read(tmp_path, "#!/bin/sh\necho nothing\n", "other.sh") == []
    assert isinstance(only_document(read(tmp_path, "#!/usr/bin/env apply\nkind: A\n")), Document)

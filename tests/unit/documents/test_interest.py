"""Documents without an engine are dropped by their bytes; a document with one never is, however it is written."""

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.api import GROUP
from kvgate.documents.interest import MAX_VALUES_BYTES, interest_of
from kvgate.documents.paths import read_documents
from kvgate.documents.reading import Document, Reading
from kvgate.documents.streams import NotText, documents
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.inputs import of_interest
from kvgate.manifests.platforms.readers import supporting_kinds
from kvgate.manifests.pods.which_engine import VLLM, engine_in
from support.tables import table

MANIFESTS = Path(__file__).parents[2] / "manifests"
WORDS = of_interest()
CRD = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nspec: {description: vllm, names: {kind: ConfigMap}}\n"
POD = "apiVersion: v1\nkind: Pod\nspec: {containers: [{image: vllm/vllm-openai}]}\n"


written = partial(yaml.dump, Dumper=yaml.CSafeDumper)


def documents_that_count() -> Iterator[tuple[str, Any]]:
    """Every document of the corpus in which an engine is found that is not certainly another than vLLM, or which a reader may look up."""
    for path in sorted(MANIFESTS.rglob("*.yaml")):
        engines = find_engines(read_manifests([str(path)])).engines
        lines = {each.document.position.line for each in engines if engine_in(each.stated.text) in ("", VLLM)}
        for document in read_documents([str(path)]):
            if not isinstance(document, Document):
                continue
            value = document.load()
            counts = document.kind in supporting_kinds() or document.api_version.startswith(GROUP)
            if isinstance(value, dict) and (counts or document.position.line in lines):
                yield f"{path.relative_to(MANIFESTS)}:{document.position.line}", value


def escaped(text: str, chance: random.Random) -> str:
    """JSON in which some letters inside of strings are escapes."""
    parts = text.split('"')
    for index in range(1, len(parts), 2):
        if "\\" not in parts[index]:
            parts[index] = "".join(
                f"\\u{ord(letter):04x}" if letter.isalpha() and chance.random() < 0.5 else letter
                for letter in parts[index]
            )
    return '"'.join(parts)


def in_other_clothes(value: Any) -> Iterator[str]:
    """The same value in other forms of YAML and JSON."""
    chance = random.Random(7)
    as_json = json.dumps(value, default=str)
    yield as_json
    yield escaped(as_json, chance)
    yield escaped(json.dumps(value, default=str, indent=1), chance)
    yield f"--- {as_json}"
    yield f"# values\n{as_json}"
    for style in ("'", '"', None):
        yield written(value, default_style=style, width=30)
    yield written(value, default_flow_style=True, width=20)
    yield written(dict(reversed(value.items())), sort_keys=False)
    if "kind" in value:
        kind = value["kind"]
        rest = written({key: child for key, child in value.items() if key != "kind"})
        yield f"? kind\n: {kind}\n{rest}"
        yield f"kind:\n  # a comment\n  {kind}\n{rest}"
        yield f"kind: !!str {kind}\n{rest}"
        yield f"kind: &k {kind}\n{rest}"
        yield f"x: &k {kind}\nkind: *k\n{rest}"
        yield f"x: &k kind\n*k : {kind}\n{rest}"
        yield f'"kind" : "{kind}"\n{rest}'
        yield f'"\\x6bi\\u006ed": "{kind[:2]}\\\n  {kind[2:]}"\n{rest}'


@pytest.mark.slow
def test_no_document_with_an_engine_is_dropped_whatever_its_form() -> None:
    checked = 0
    for place, value in documents_that_count():
        for text in in_other_clothes(value):
            interest = interest_of(text.encode(), WORDS)
            assert interest.is_read, f"{place}\n{text}"
            checked += 1
    assert checked > 2000


@table(
    ("text", "is_read"),
    [
        (POD, True),
        (CRD, False),
        (CRD.replace("apiextensions.k8s.io", "toy.io"), True),
        (f'{{"kind": "A", "more": {json.dumps(POD)}}}', True),
        ('{"backend": "vllm", "itls": [0.1, 0.2], "note": "image: a"}', False),
        ('[{"backend": "vllm"}]', False),
        ('{"name": "a", "dependencies": {"vllm-client": "1"}}', False),
        ('{"\\u006bind": "Pod", "x": "vllm"}', True),
        ('{"engine\\u0041rgs": ["\\u0076llm"]}', True),
        ("{backend: vllm, image: a}", True),
        ("kind: Namespace\n", False),
        ("kind: ConfigMap\n", True),
        ("a: ConfigMap\nkind: Namespace\n", False),
        ("kind: List\nitems:\n- {kind: ConfigMap}\n", True),
        ("kind: List\nitems:\n- {kind: Namespace}\n", False),
        ('"v\\\n  llm": 1\n', True),
        ("a: !!binary dmxsbQ==\n", True),
        ("x: KServe\n", True),
    ],
)  # fmt: skip
def test_a_document_is_read_where_its_words_and_its_kind_allow_an_engine(text: str, is_read: object) -> None:
    assert interest_of(text.encode(), WORDS).is_read is is_read


@pytest.mark.slow
def test_values_that_no_release_could_hold_are_skipped_and_counted(tmp_path: Path) -> None:
    values = "servingEngineSpec:\n  x:\n" + "  - vllm\n" * (MAX_VALUES_BYTES // 9)
    (tmp_path / "a.yaml").write_text(values)
    (tmp_path / "b.yaml").write_text(POD)
    read = read_manifests([str(tmp_path)])
    assert len(read.others) == 1
    assert [why.name for why in read.passed_over] == ["LARGE_DATA"]


@pytest.mark.slow
@pytest.mark.parametrize(("word", "outcome"), [("vllm", NotText), ("other", type(None))])
def test_a_document_that_is_too_long_hides_no_other_and_is_reported_only_if_it_may_hold_an_engine(
    word: str, outcome: type
) -> None:
    middle = b"kind: A\nx:\n" + b"- 0123456789\n" * (3 << 20) + f"- {word}\n".encode() + b"- 0123456789\n" * 100
    stream = BytesIO(POD.encode() + b"---\n" + middle + b"---\n" + POD.encode())
    found = list(documents(stream, lambda data: interest_of(data, WORDS).is_read))
    assert [type(data) for _, data in found] == [bytes, outcome, bytes]
    assert found[2][0] == POD.count("\n") * 1 + 1 + middle.count(b"\n")


def test_what_is_too_large_leaves_the_room_for_others() -> None:
    reading = Reading(words=WORDS)
    reading.room.left = 100
    large = b"vllm: [" + b"1," * 200 + b"1]\n"
    items = list(reading.of_stream("x.yaml", BytesIO(large + b"---\n" + POD.encode())))
    assert [type(item).__name__ for item in items] == ["Broken", "Document"]


@pytest.mark.parametrize("form", [lambda text: text, lambda text: json.dumps({"x": text})])
def test_data_without_a_word_of_an_engine_is_not_parsed(form: Callable[[str], str]) -> None:
    long = form("a: [1, 2\n" * 3000)
    assert list(Reading(words=WORDS).of_stream("x.yaml", BytesIO(long.encode()))) == [None]

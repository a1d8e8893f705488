"""upstream/PLATFORM/NAME.yaml beside NAME.answer.yaml: what a careful reader says of other people's manifests; upstream/README.md."""

import re

import pytest

from corpus.answers import Case, cases
from corpus.comparison import compare
from support.tables import table

CASES = list(cases())
_SOURCE = re.compile(r"# source: \S+ \S+")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kvgate_says_what_a_careful_reader_says(case: Case) -> None:
    told = compare(case).disagreements
    if told and case.answer.known:
        pytest.xfail(f"{case.answer.known}: {'; '.join(told)}")
    assert not told


@table("case", CASES, ids=lambda case: case.name)
def test_every_manifest_names_its_source(case: Case) -> None:
    files = [case.path] if case.path.is_file() else [path for path in case.path.rglob("*") if path.is_file()]
    assert any(_SOURCE.match(path.read_text(encoding="utf-8")) for path in files)

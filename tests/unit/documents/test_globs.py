"""Globs of paths and names: what they match, and that no glob takes long."""

import time

import pytest

from kvgate.documents.globs import name_matches, path_matches
from support.tables import table


@table(
    ("path", "glob", "matches"),
    [
        ("a/b.yaml", "a", True), ("a/b.yaml", "a/", True), ("a/b.yaml", "./a/*.yaml", True), ("a/b/c.yaml", "a/*.yaml", False),
        ("a/b/c.yaml", "a/**/c.yaml", True), ("a/c.yaml", "a/**/c.yaml", True), ("x/a/b.yaml", "a", False), ("x/a/b.yaml", "**/a", True),
        ("a.yaml", "?.yaml", True), ("ab.yaml", "?.yaml", False), ("a+b.yaml", "a+b.yaml", True), ("aab.yaml", "a+b.yaml", False),
        ("a/b.yaml", ".", True), ("a/b.yaml", "./", True), ("", ".", False), ("a", ".a", False),
        ("", "**", False), ("anything/at all", "**", True),
    ],
)  # fmt: skip
def test_a_glob_of_paths(path: str, glob: str, *, matches: bool) -> None:
    assert path_matches(path, glob) is matches


def test_a_glob_of_names_has_no_slashes_to_stop_at() -> None:
    assert name_matches("org/model", "org*")
    assert not name_matches("a.b", "a?b")
    assert name_matches("anything", None)


@table(
    ("name", "glob", "matches"),
    [
        ("llama-chat", "llama-*", True), ("llama", "*ll*a", True), ("llama", "*a*a*a", False), ("abab", "ab*ab", True),
        ("aba", "ab*ba", False), ("a[b]", "a[b]", True), ("ab", "a[b]", False), ("a\nb", "a*b", True),
    ],
)  # fmt: skip
def test_a_star_stands_for_any_text(name: str, glob: str, *, matches: bool) -> None:
    assert name_matches(name, glob) is matches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "glob"),
    [
        ("a" * 4000, "*a" * 200 + "b"),
        ("a" * 4000, "*a*" * 200 + "b"),
        ("a" * 4000, "?*" * 200 + "b"),
        ("x/" * 500 + "a", "**/x/" * 100 + "b"),
        ("x/" * 500 + "a", "**/" * 200 + "b"),
        ("x/" * 500 + "a", "**/*/" * 100 + "b"),
    ],
)
def test_no_glob_takes_long(path: str, glob: str) -> None:
    started = time.process_time()
    assert not path_matches(path, glob)
    assert not name_matches(path, glob)
    assert time.process_time() - started < 5  # a second on a busy machine; by backtracking, years

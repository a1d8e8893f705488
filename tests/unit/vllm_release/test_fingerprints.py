"""A fingerprint changes with what a function does, and with nothing else."""

import ast

import pytest

from support.vllm_source import new_source
from vllm_release.fingerprints import FOLLOWED, GONE, fingerprint, read_fingerprints
from vllm_release.source import Source

FUNCTION = '''
def profile(self, size: int) -> int:
    """Measure."""
    peak = self.run(size)  # once
    return peak * 2
'''


def of(text: str) -> str:
    return fingerprint(ast.parse(text).body[0])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Measure.", "Measure it well."),
        ("  # once", ""),
        (": int) -> int", ")"),
        ("peak = ", "peak =  "),
        ("    return", "\n    return"),
    ],
)
def test_words_and_layout_do_not_count(before: str, after: str) -> None:
    assert before in FUNCTION
    assert of(FUNCTION.replace(before, after)) == of(FUNCTION)


@pytest.mark.parametrize(
    ("before", "after"), [("* 2", "* 3"), ("run(size)", "run()"), ("peak * 2", "peak"), ("size:", "size=1, *, x:")]
)
def test_what_is_done_counts(before: str, after: str) -> None:
    assert before in FUNCTION
    assert of(FUNCTION.replace(before, after)) != of(FUNCTION)


def test_texts_below_the_fields_of_a_class_do_not_count() -> None:
    assert of('class A:\n    x: int = 1\n    """Words."""\n') == of("class A:\n    x = 1\n".replace("x", "x: float"))


def test_fingerprints_do_not_depend_on_the_release_of_python() -> None:
    """The committed ones were made by another one than the tests may run on."""
    assert of(FUNCTION) == "f42214e42b8f874d"


def test_a_function_that_moved_is_found_and_one_that_is_gone_is_said_so() -> None:
    path, name = FOLLOWED["hardware: shares of a rank"][0]
    here = Source("1.0.0", {path: f"def {name}():\n    return 1\n"})
    moved = Source("1.1.0", {"vllm/elsewhere.py": f"def {name}():\n    return 1\n"})
    key = f"{path}:{name}"
    assert read_fingerprints(here)[key] == read_fingerprints(moved)[key] != GONE
    assert read_fingerprints(new_source())[key] == GONE

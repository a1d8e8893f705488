"""What vLLM's parser has against single values: answers that are kept are those of a parse."""

import pytest

from kvgate.vllm.option_findings import _refused_value, refused_values
from kvgate.vllm.options import options, releases_read

VALUES = (
    1,
    2,
    16,
    17,
    4096,
    1_234_567,
    2**70,
    -1,
    0,
    1.0,
    0.5,
    True,
    "16",
    "8k",
    "x" * 100,
    "auto",
    None,
    [1, 2],
    {"a": 1},
)
"""Equal numbers of different types are different values."""


@pytest.mark.parametrize("release", [str(releases_read()[0]), "0.19.1", str(releases_read()[-1])])
def test_every_option_and_value_is_answered_as_if_it_were_asked_alone(release: str) -> None:
    release = release if release.count(".") == 2 else "0.19.1"
    for flag, value in ((flag, value) for flag in options() for value in VALUES):
        name = flag.removeprefix("--").replace("-", "_")
        alone = _refused_value.__wrapped__(name, value, release, is_stated=True)
        found = refused_values({name: value}, release, is_stated=True).get(name)
        assert (found is None) == (alone is None), (name, value)
        assert found is None or alone is None or found.message == alone.message

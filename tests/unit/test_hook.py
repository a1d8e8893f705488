"""The hook of other repositories: which of their files it is given."""

import re

import pytest
import yaml

from support.chart import ROOT


@pytest.mark.parametrize(
    ("path", "is_given"),
    [
        ("deploy/vllm.yaml", True),
        ("charts/serving/values.yaml", True),
        ("charts/serving/templates/vllm.yaml", False),
        ("templates/vllm.yaml", False),
        ("deploy/templates.yaml", True),
    ],
)
def test_templates_are_left_out(path: str, *, is_given: bool) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert (re.search(hook["exclude"], path) is None) == is_given

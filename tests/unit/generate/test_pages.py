"""docs/reference/pods.md: its example works, and every row of the tables behind it is there."""

import yaml

from generate.pages import pods_reference, unknown_reference
from kvgate.api.validation import parse_document
from kvgate.controller.decision import assess_owner
from kvgate.judgement.assessment import Decision
from kvgate.vllm.pod_options import OWNED_FLAGS, POD_OPTIONS, SECRET_FLAGS
from kvgate.vllm.settings import SETTINGS
from kvgate.vllm.variables import FOLDERS, MOVING, RESERVED

PAGE = pods_reference()


def test_the_example_with_an_api_key_is_admitted_without_a_word() -> None:
    owner = parse_document(yaml.safe_load(PAGE.partition("```yaml\n")[2].partition("```")[0]))
    judged = assess_owner(owner, "")
    assert judged.assessment.decision is Decision.ADMIT
    assert [finding.rule.id for finding in judged.assessment.findings if finding.severity != "info"] == []
    assert owner.spec.template.env is not None
    assert owner.spec.template.env[0].secret_key_ref is not None


def test_every_refusal_stands_on_the_page() -> None:
    named = [f"`{pattern}`".replace("|", "\\|") for group in RESERVED for pattern in group.patterns]
    named += [f"`{name}`" for name in (*FOLDERS, *(row.name for row in MOVING), *OWNED_FLAGS, *SECRET_FLAGS)]
    named += [f"| `--{option.name.replace('_', '-')}`" for option in POD_OPTIONS]
    assert [each for each in named if each not in PAGE] == []


def test_every_setting_without_a_formula_has_its_reason() -> None:
    page = unknown_reference()
    for setting in SETTINGS:
        assert (f"| `{setting.flag}` | " in page) is bool(setting.unmodelled), setting.name
    for variable in MOVING:
        assert (f"| `{variable.name}` | " in page) is bool(variable.unmodelled), variable.name

"""docs/reference/rules.md: every rule under an anchor of its own, with an example that fires and the change that silences it."""

from collections.abc import Iterator
from itertools import groupby

from kvgate.cli.rule_texts import RuleText, rule_texts

_INTRODUCTION = """\
# Rules

Every finding names its rule; the ids are stable. `kvgate rules` lists them. An error means that vLLM does not start or that what is
guaranteed does not hold, a warning that it may not or cannot be decided, an info is worth knowing.
[How to ignore one](config.md#ignoring-findings). Manifests below are checked with `kvgate check -`, JSON with
`kvgate explain --requests -`.
"""


def rules_reference(head: str) -> str:
    """An index by subject, then the rules."""
    texts = rule_texts().values()
    return "\n".join([head, _INTRODUCTION, *_index(), *(line for text in texts for line in _section(text))])


def _index() -> Iterator[str]:
    yield "| about | rules |"
    yield "|---|---|"
    for about, group in groupby(rule_texts().values(), key=lambda text: text.about):
        yield f"| {about} | {', '.join(f'[{text.rule}](#{text.rule.lower()})' for text in group)} |"
    yield ""


def _section(text: RuleText) -> Iterator[str]:
    yield f"## {text.rule}\n"
    yield f"{' or '.join(severity.value for severity in text.severities).capitalize()}. {text.says}\n"
    if text.kind == "process":
        yield "Only the webhook and the controller say it: `kvgate check` takes the time that it needs.\n"
    if text.example:
        yield f"{text.examples()}\n"

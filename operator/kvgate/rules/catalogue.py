"""Every rule by its id. Importing all of them is for commands about the rules."""

from collections.abc import Mapping

from kvgate.findings.finding import Rule, Scope
from kvgate.rules import (
    command_line,
    connectors,
    facts,
    host_memory,
    manifests,
    memory,
    pinned,
    repository,
    settings,
    sharing,
    support,
    weight_formats,
)

_FILES = (
    memory, host_memory, pinned, sharing, settings, support, connectors, weight_formats, facts, command_line, manifests,
    repository,
)  # fmt: skip
_FOUND = dict.fromkeys(each for file in _FILES for each in vars(file).values() if isinstance(each, Rule))
RULES: Mapping[str, Rule] = {rule.id: rule for scope in Scope for rule in _FOUND if rule.scope is scope}
"""Rules of one scope stand together, in the order in which their files define them."""
ALL_RULES = "`kvgate rules` lists the rules"


def rule_hint(name: str) -> str:
    """Return what to do about a name that no rule has; looking for the nearest rule takes a millisecond."""
    from difflib import get_close_matches

    near = get_close_matches(name, RULES, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else ALL_RULES

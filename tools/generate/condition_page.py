"""docs/reference/conditions.md: types and reasons of conditions, from their one table and the sentences below them."""

import ast
import inspect
from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise

from generate.reference import HEAD
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.pod_reasons import POD_REASONS
from kvgate.rendering.expectations import HUB, IMAGE, VOLUME

_INTRODUCTION = """\
# Conditions and their reasons

From this page you learn what each condition of an InferenceDeployment says, and what each reason means. Types and reasons are API: programs
may compare them. A new reason, or a change for the worse, is one event; a reason that lasts is none. `kubectl get` shows the reason of
`Ready` as `WHY`.
"""
_PODS = """\
## Why pods are not ready

`Ready` is `False` with the reason of the pod that needs somebody first; the condition in the table has it as well. `Degraded` is `True`
with it where all replicas of this spec were ready before. `Stalled` is `True` with the reasons that do not end by themselves, and with all
once the load budget is over. The reason of an engine that ends because of something around it (`GatedModel`, `PortInUse`, `Nccl`,
`DiskFull`, `TokenizerNotLoaded` …) is its name [in the table of failed starts](failures.md), with `Loading` `False`; it stalls from the
second restart.

| reason | condition | ends by itself | meaning |
|---|---|---|---|
"""
_LOADS = """\
## Time to load

`LoadingSlowly` follows after the longest usual time: weights of the ledger / slow speed + 3 minutes. It is a range and a guess: nothing
ends a pod for it. The limit is the load budget (`kvgate_load_budget_seconds`), near which `KvgateLoadingTooLong` fires.

| weights come from | MB/s | source |
|---|---|---|
"""


def conditions_reference() -> str:
    """Write the types, the table of reasons about pods, the usual speeds, and all other reasons."""
    reasons = sentences(Reason)
    types = [f"| `{each.value}` | {sentences(ConditionType)[each.name]} |\n" for each in ConditionType]
    pods = [
        f"| `{reason.value}` | `{row.condition.value}` `{row.status}` | {'yes' if row.passes else 'no'} | {reasons[reason.name]} |\n"
        for reason, row in POD_REASONS.items()
    ]
    speeds = [
        f"| {each.name} | {each.slow_bytes_per_second // 1_000_000} to {each.fast_bytes_per_second // 1_000_000} | {each.source} |\n"
        for each in (HUB, VOLUME, IMAGE)
    ]
    others = [f"| `{each.value}` | {reasons[each.name]} |\n" for each in Reason if each not in POD_REASONS]
    head = "| condition | meaning |\n|---|---|\n"
    parts = (_INTRODUCTION, f"{head}{''.join(types)}", _PODS + "".join(pods), _LOADS + "".join(speeds))
    return "\n".join([HEAD, *parts, f"## Other reasons\n\n| reason | meaning |\n|---|---|\n{''.join(others)}"])


def sentences(words: type[StrEnum]) -> Mapping[str, str]:
    """Return the sentence below each member of an enumeration, read from its source."""
    (definition,) = ast.parse(inspect.getsource(words)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        member.targets[0].id: inspect.cleandoc(text.value.value)
        for member, text in pairwise(body)
        if isinstance(member, ast.Assign)
        and isinstance(member.targets[0], ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }

"""The report of `kvgate diff` for programs."""

from typing import Any

from kvgate.cli.check.json_report import placed_json
from kvgate.cli.check.report import Item
from kvgate.cli.diff.report import FIELDS, Change, Diff, capacity_of
from kvgate.text.inert import inert_json

Json = dict[str, Any]


def render(diff: Diff) -> str:
    """{engines, unreadable, summary}; `before` is null for what is new, `after` for what is gone."""
    kinds = [change.kind for change in diff.changes]
    told = {
        "engines": [_engine(change) for change in diff.changes],
        "unreadable": [placed_json(placed) for placed in diff.unreadable],
        "summary": {
            "exit_code": int(diff.exit_code),
            **{kind: kinds.count(kind) for kind in ("changed", "new", "removed", "unchanged")},
            "worse": sum(change.is_worse for change in diff.changes),
        },
    }
    return inert_json(told, indent=2)


def _engine(change: Change) -> Json:
    item = change.item
    return {
        "file": change.file or item.document.file,
        "path": item.path,
        "kind": item.kind,
        "name": item.name,
        "namespace": item.namespace,
        "platform": item.platform,
        "change": change.kind,
        "worse": change.is_worse,
        "changed_defaults": [
            {"option": each.flag, "before": each.before, "after": each.after} for each in change.changed_defaults
        ],
        "before": _side(change.before),
        "after": _side(change.after),
    }


def _side(item: Item | None) -> Json | None:
    if item is None:
        return None
    capacity = capacity_of(item)
    return {
        "file": item.document.file,
        "line": item.line,
        "verdict": item.verdict,
        "refused": item.is_refused,
        "accelerator": item.accelerator,
        "vllm_version": item.vllm_version,
        "assumed": list(item.assumed),
        **{field: getattr(capacity, field) for field in FIELDS},
        "findings": [placed_json(placed) for placed in item.findings],
    }

"""What `kvgate explain` answers about one request: the ledger, and the views of it that are asked for (`why`, `paging`)."""

import json
from collections.abc import Mapping

from kvgate.cli.answers import Json, to_json
from kvgate.cli.explain_text import report, title
from kvgate.engine import Assessment


def answer(assessment: Assessment, asked: Mapping[str, str], output: str) -> str:
    """As `text`, `json` or `jsonl`. Raises Unusable for a view that does not exist."""
    if output == "text":
        return _text(assessment, asked)
    return json.dumps(_json(assessment, asked), indent=2 if output == "json" else None)


def _text(assessment: Assessment, asked: Mapping[str, str]) -> str:
    """The report, or the views alone; where nothing is known the report says why."""
    budget = assessment.budget
    parts = [*title(budget)] if budget and asked else [report(assessment)]
    if "why" in asked:
        from kvgate.cli.why import why_text

        parts += ["", why_text(budget, asked["why"])]
    if "paging" in asked:
        from kvgate.cli.paging_report import paging_text

        parts += ["", paging_text(budget, asked["paging"])]
    return "\n".join(parts)


def _json(assessment: Assessment, asked: Mapping[str, str]) -> Json:
    """The machine contract, and what is asked for beside it."""
    answered = to_json(None, assessment)
    if "why" in asked:
        from kvgate.cli.why import why_json

        answered["why"] = why_json(assessment.budget, asked["why"])
    if "paging" in asked:
        from kvgate.cli.paging_report import paging_json

        answered["paging"] = paging_json(assessment.budget, asked["paging"])
    return answered

"""Answer of `kvgate explain` about one request: the ledger, and the requested views of it (`why`, `paging`)."""

from collections.abc import Iterator, Mapping

from kvgate.cli.assessment_json import Json, to_json
from kvgate.cli.explain.text import report, title
from kvgate.cli.terminal import Line, text_of
from kvgate.judge.assess import Assessment
from kvgate.text.inert import inert_json


def answer(assessment: Assessment, asked: Mapping[str, str], output: str) -> str:
    """Write the answer as `text`, `json` or `jsonl`. Raises Unusable for a view that does not exist."""
    if output == "text":
        return text_of(_lines(assessment, asked))
    return inert_json(_json(assessment, asked), indent=2 if output == "json" else None)


def _lines(assessment: Assessment, asked: Mapping[str, str]) -> Iterator[Line]:
    """The report, or the views alone; where nothing is known the report says why."""
    budget = assessment.budget
    yield from title(budget) if budget and asked else report(assessment)
    if "why" in asked:
        from kvgate.cli.explain.why import why_lines

        yield ""
        yield from why_lines(budget, asked["why"])
    if "paging" in asked:
        from kvgate.cli.explain.paging_report import paging_lines

        yield ""
        yield from paging_lines(budget, asked["paging"])


def _json(assessment: Assessment, asked: Mapping[str, str]) -> Json:
    """The machine contract, and what is asked for beside it."""
    answered = to_json(None, assessment)
    if "why" in asked:
        from kvgate.cli.explain.why import why_json

        answered["why"] = why_json(assessment.budget, asked["why"])
    if "paging" in asked:
        from kvgate.cli.explain.paging_report import paging_json

        answered["paging"] = paging_json(assessment.budget, asked["paging"])
    return answered

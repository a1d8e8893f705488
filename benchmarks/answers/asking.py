"""Question → rows of its answer, as kvgate answers today."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir
from typing import Any

from msgspec import to_builtins

from answers.records import ROOT, Question, Row, rest_of
from contract.doors import DOORS
from kvgate.budget import Guarantee, Workload
from kvgate.cli.assessment_json import to_json
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.engine_records import FailedAnswer
from kvgate.cli.reports.json_report import document_record
from kvgate.findings.finding import Finding, vllm_name
from kvgate.judgement.assessment import NO_FIGURES
from kvgate.judgement.what_if import assess_request
from kvgate.statement.what_if import BadRequest
from support.command_line import invoked


def ask(questions: Iterable[Question]) -> Iterator[Row]:
    """Yield the rows of all answers, in the order of the questions. Paths in the answers are below the repository."""
    with chdir(ROOT):
        for question in questions:
            yield from _ASK[question.kind](question)


def _check(question: Question) -> Iterator[Row]:
    report = run((question.asked["path"],), CheckOptions())
    names: Counter[str] = Counter()
    for item in report.items:
        names[item.name] += 1
        number = f".{names[item.name]}" if names[item.name] > 1 else ""
        decided = f"{item.decision} {item.reason[0]}" if item.decision else ""
        yield Row(
            key=f"{question.key}#{item.name}{number}",
            verdict=item.verdict or "",
            guarantee=item.guarantee or "",
            outcome=decided or ("refused" if item.is_refused else ""),
            headroom_ratio=_number(item.figures.headroom_ratio),
            num_tokens=_number(item.figures.num_tokens),
            rules=_rules(placed.finding for placed in item.findings),
            rest=rest_of(to_builtins(document_record(item))),
        )
    rules = _rules(placed.finding for placed in report.unreadable)
    yield Row(key=question.key, outcome=f"exit {int(report.exit_code)}", rules=rules)


def _contract(question: Question) -> Iterator[Row]:
    outcome = DOORS[question.asked["door"]](ROOT / question.asked["path"])
    rest = rest_of({"message": outcome.message.replace(f"{ROOT}/", ""), "effective": outcome.effective})
    decided = f"{outcome.decision} {outcome.reason or ''}".rstrip()
    yield Row(key=question.key, verdict=outcome.verdict or "", outcome=decided, rest=rest)


def _what_if(question: Question) -> Iterator[Row]:
    """Ask as `kvgate explain --requests` does, and for any guarantee."""
    values = dict(question.asked)
    workload = Workload(**given) if (given := values.pop("workload", None)) else None
    asked = Guarantee(values.pop("guarantee", "Startup"))
    guarantee = Guarantee.WORKLOAD if workload else asked
    figures, findings, outcome = NO_FIGURES, tuple[Finding, ...](), ""
    try:
        assessment = assess_request(values, guarantee=guarantee, workload=workload, naming=vllm_name)
        answer, figures, findings = to_json(assessment), assessment.figures, assessment.findings
    except BadRequest as error:
        answer, outcome = to_builtins(FailedAnswer(error=str(error))), "BadRequest"
    yield Row(
        key=question.key,
        verdict=answer["verdict"],
        guarantee=guarantee,
        outcome=outcome,
        headroom_ratio=_number(figures.headroom_ratio),
        num_tokens=_number(figures.num_tokens),
        rules=_rules(findings),
        rest=rest_of(answer),
    )


def _command(question: Question) -> Iterator[Row]:
    result = invoked(*question.asked["arguments"], "-o", "json")
    try:
        answer = json.loads(result.stdout)
    except ValueError:  # an error of the command line
        answer = {"output": result.output}
    rules = [f"{finding['severity']}:{finding['rule']}" for finding in answer.get("findings", ())]
    yield Row(
        key=question.key,
        verdict=_verdicts(answer),
        outcome=f"exit {result.exit_code}",
        num_tokens=_number((answer.get("kv_cache") or {}).get("num_tokens")),
        rules=" ".join(sorted(rules)),
        rest=rest_of(answer),
    )


def _verdicts(answer: Mapping[str, Any]) -> str:
    """Return the verdict of explain, or the count of each among the candidates of size or the cells of sweep."""
    cells = [*answer.get("candidates", ()), *(cell for row in answer.get("cells", ()) for cell in row)]
    counts = Counter(each["verdict"] for each in cells)
    return answer.get("verdict") or " ".join(f"{verdict}:{count}" for verdict, count in sorted(counts.items()))


def _rules(findings: Iterable[Finding]) -> str:
    return " ".join(sorted(f"{finding.severity}:{finding.rule.id}" for finding in findings))


def _number(value: float | None) -> str:
    return "" if value is None else str(round(value, 4))


_ASK: Mapping[str, Callable[[Question], Iterator[Row]]] = {
    "check": _check,
    "contract": _contract,
    "what-ifs": _what_if,
    "commands": _command,
}

"""Requirements of a repository on its engines beyond their start: headroom, a guarantee, accelerators (`require` in `.kvgate.yaml`)."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import floor
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Budget, Guarantee, Verdict
from kvgate.cli.check.given_facts import GivenFacts
from kvgate.cli.reports.placed import placed_in
from kvgate.cli.reports.report import Item
from kvgate.findings.finding import Finding, Located, Severity, any_one
from kvgate.judgement.assess import field_name, judge
from kvgate.judgement.assessment import NOT_JUDGED, Confidence
from kvgate.judgement.summary import verdict_text
from kvgate.rules.memory import demanded, less_demand
from kvgate.rules.repository import (
    ACCELERATOR_NOT_ALLOWED,
    HEADROOM_BELOW_REQUIRED,
    REQUIRED_GUARANTEE_NOT_MET,
    REQUIREMENT_NOT_JUDGED,
)
from kvgate.vllm.arguments import option_name


class Required(Struct, frozen=True, kw_only=True):
    """One requirement, and the path of its field in the configuration."""

    path: str
    value: Any

    @property
    def words(self) -> str:
        value = ", ".join(self.value) if isinstance(self.value, tuple) else self.value
        return f"{self.path} of .kvgate.yaml is {value}"


def with_requirements(items: Sequence[Item], given: GivenFacts) -> Iterator[Item]:
    """Yield the items with what they lack of the requirements; an engine that is refused anyway has findings enough.

    Figures of a model whose facts are assumed or contradict each other make no error.
    """
    for item in items:
        required = {name: Required(path=path, value=value) for name, path, value in given.required(item)}
        found = [] if item.does_not_pass or item.verdict in (None, NOT_JUDGED) else list(_findings(item, required))
        if item.assessment and item.assessment.confidence is not Confidence.KNOWN:
            found = [each if each.rule is ACCELERATOR_NOT_ALLOWED else each.softened() for each in found]
        naming = field_name if item.subject else option_name
        placed = (placed_in(item.document, Located(finding=each.named(naming), path=item.path)) for each in found)
        yield replace(item, all_findings=(*item.all_findings, *placed)) if found else item


def _findings(item: Item, required: dict[str, Required]) -> Iterator[Finding]:
    if allowed := required.get("accelerators"):
        yield from _accelerator(item, allowed)
    guarantee, headroom = required.get("guarantee"), required.get("headroom")
    if not guarantee and not headroom:
        return
    budget = item.effective
    if budget is None or item.verdict is Verdict.UNKNOWN or (item.engine and item.engine.judged_on):
        missing = "no GPU is named" if item.engine and item.engine.judged_on else "its verdict is Unknown"
        yield from (_not_judged(each, missing) for each in (guarantee, headroom) if each)
        return
    if guarantee:
        wanted, judged = Guarantee(guarantee.value), item.assessment.budget if item.assessment else None
        workload = item.engine.workload if item.engine else judged.request.workload if judged else None
        if wanted is Guarantee.WORKLOAD and workload is None:
            yield _not_judged(guarantee, "no workload is declared")
        else:
            held = judge(replace(budget.request, guarantee=wanted, workload=workload)).budget or budget
            if held.verdict in (Verdict.DOES_NOT_FIT, Verdict.MAY_NOT_FIT):
                message = f"{guarantee.words}, and the engine {verdict_text(held.verdict, held)}"
                severity = Severity.ERROR if held.verdict is Verdict.DOES_NOT_FIT else Severity.WARNING
                remedy = any_one(less_demand(held), "use GPUs with more memory")
                yield REQUIRED_GUARANTEE_NOT_MET.finding("max_num_seqs", message, remedy, severity=severity)
            budget = held
    if headroom:
        yield from _headroom(budget, headroom)


def _accelerator(item: Item, allowed: Required) -> Iterator[Finding]:
    engine = item.engine
    several = (
        [each.name for each in engine.on_gpus.verdicts] if engine and engine.on_gpus and not engine.judged_on else []
    )
    names = several or ([item.accelerator] if item.accelerator else [])
    if not names:
        yield _not_judged(allowed, "no GPU is named")
        return
    listed = {found.name for name in allowed.value if (found := catalogue.find_accelerator(name))}
    known = [found.name if (found := catalogue.find_accelerator(name)) else name for name in names]
    if others := [name for name in known if name not in listed]:
        message = f"{allowed.words}, and the engine runs on {', '.join(others)}"
        remedy = any_one("use one of these accelerators", f"add {others[0]} to {allowed.path}")
        yield ACCELERATOR_NOT_ALLOWED.finding("accelerator", message, remedy)


def _headroom(budget: Budget, required: Required) -> Iterator[Finding]:
    shares = budget.headroom_shares
    if shares is None:
        yield _not_judged(required, "its KV cache is not known")
    elif budget.kv_cache and budget.kv_cache.groups and shares[1] < percent(required.value):
        beside = demanded(budget) or f"one request of {budget.resolved.max_model_len} tokens"
        message = f"{required.words}, and the headroom beside {beside} is {floor(shares[1] * 1000) / 10:g} %"
        remedy = any_one(less_demand(budget), "use GPUs with more memory")
        yield HEADROOM_BELOW_REQUIRED.finding("max_num_seqs", message, remedy)


def percent(text: str) -> Fraction:
    """`10%` → 1/10."""
    return Fraction(text.removesuffix("%").strip()) / 100


def _not_judged(required: Required, why: str) -> Finding:
    remedy = any_one("state what is missing in the manifest", "state it in a mapping of .kvgate.yaml")
    return REQUIREMENT_NOT_JUDGED.finding("", f"{required.words}, which cannot be judged: {why}", remedy)

"""Rules about a pinned capacity: what it gives and gives away, and why nothing could be pinned."""

from collections.abc import Iterable
from functools import partial

from kvgate.budget import PINNED_SAFETY_BYTES, Budget, Capacity, Verdict, verdict_of
from kvgate.budget.ground.units import format_gib
from kvgate.findings.finding import Action, Change, Finding, Rule, Scope, Severity, Words, change, words

_rule = partial(Rule, scope=Scope.MEMORY)

BUDGET_SKIPPED = _rule(
    id="BudgetSkipped",
    severities=(Severity.WARNING,),
    title="The budget would refuse the InferenceDeployment, and the annotation kvgate.io/skip-budget admits it.",
    explanation="The verdict and all figures stay as they are. It makes the exit code 1 with `--fail-on skipped`.",
)
BUDGET_NOT_SKIPPED = _rule(
    id="BudgetNotSkipped",
    severities=(Severity.WARNING,),
    title="The annotation kvgate.io/skip-budget does not count.",
    explanation="Its end in kvgate.io/skip-budget-until is over or cannot be read, or vLLM refuses a setting, which no annotation "
    "excuses. The policy decides as if the annotation was not there.",
)
CAPACITY_CONFLICT = Rule(
    id="CapacityConflict",
    severities=(Severity.ERROR,),
    scope=Scope.SETTINGS,
    title="The capacity is Pinned, and an option takes from the KV cache what is pinned.",
)
CAPACITY_PINNED = _rule(
    id="CapacityPinned",
    severities=(Severity.INFO,),
    title="The size of the KV cache is pinned: it is the same on every start, and smaller than vLLM is expected to find itself.",
    explanation=(
        "Where a start takes more memory than the low end of the prediction allows for, it runs out of memory in the profile run or in "
        "graph capture, and does not start with a smaller KV cache."
    ),
)
CAPACITY_NOT_PINNED = _rule(
    id="CapacityNotPinned",
    severities=(Severity.WARNING,),
    title="The capacity is Pinned, and there is no size that could be pinned.",
    explanation="vLLM measures the size of the KV cache itself on every start.",
)


def pinned_capacity_is_told(budget: Budget) -> Iterable[Finding]:
    pinned = budget.pinned
    if pinned is None or not budget.surely_starts:
        return
    yield CAPACITY_PINNED.finding(
        "capacity",
        words(
            "{capacity} Pinned gives the KV cache {given} per GPU on every start ({blocks} blocks, {tokens} tokens), {forgone} ({lost} "
            "tokens) less than vLLM is expected to find; a start that takes more than the low end allows for runs out of memory",
            given=format_gib(pinned.kv_cache_bytes),
            blocks=pinned.num_blocks,
            tokens=pinned.num_tokens,
            forgone=format_gib(pinned.forgone_bytes),
            lost=pinned.forgone_tokens,
        ),
        change(
            Change.SET,
            "capacity",
            Capacity.PROFILED.value,
            reason="vLLM then takes what it finds, another size on each start",
        ),
    )


def pinned_capacity_is_known(budget: Budget) -> Iterable[Finding]:
    if budget.request.capacity is Capacity.PROFILED or budget.request.settings.gives_cache_memory or budget.pin:
        return
    why = "the model keeps no KV cache" if budget.stages else "the size of the KV cache cannot be predicted"
    yield nothing_is_pinned(words("{capacity} Pinned has no effect: {why}", why=why))


def nothing_is_pinned(message: Words) -> Finding:
    """Report that vLLM measures, although the capacity is Pinned."""
    remedy = change(Change.SET, "capacity", Capacity.PROFILED.value, reason="it says what happens anyway")
    return CAPACITY_NOT_PINNED.finding("capacity", message, remedy)


def what_is_pinned(budget: Budget) -> Words:
    """Clause that says what a pinned capacity gives, and the interval that it comes from."""
    pinned = budget.pinned
    if pinned is None:
        raise ValueError("nothing is pinned")
    return words(
        "{capacity} Pinned gives it {given}: the low end of {low} to {high}, less {safety} that stay free",
        given=format_gib(pinned.kv_cache_bytes),
        low=format_gib(pinned.profiled_bytes.low),
        high=format_gib(pinned.profiled_bytes.high),
        safety=format_gib(PINNED_SAFETY_BYTES),
    )


def instead_of_pinned(budget: Budget, blocks: int) -> list[Action]:
    """Let vLLM measure, where it is expected to find that many blocks, or may."""
    if budget.pin is None:
        return []
    verdict = verdict_of(blocks, budget.pin.profiled_blocks.less(budget.accounting.null_blocks))
    if verdict is Verdict.DOES_NOT_FIT:
        return []
    reason = "it then fits" if verdict is Verdict.FITS else "it then may fit, and each start has another size"
    return [change(Change.SET, "capacity", "Profiled", before="Pinned", reason=reason)]

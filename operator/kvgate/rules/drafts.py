"""Rules about speculative decoding: values that vLLM refuses, and drafts that do not go with the model."""

from collections.abc import Iterable

from kvgate.budget import Budget
from kvgate.budget.answers.speculation import draft_refusals, mismatches
from kvgate.findings.finding import Finding, Rule, Scope, Severity, any_one, words

SPECULATION_REFUSED = Rule(
    id="SpeculationRefused",
    severities=(Severity.ERROR,),
    scope=Scope.SETTINGS,
    title="vLLM refuses a value of the speculative config.",
    explanation="The release has no such method, the draft does not go with the model, or a number does not divide another.",
)


def speculation_is_accepted(budget: Budget) -> Iterable[Finding]:
    """Methods, sizes and numbers of tokens that vLLM takes for this model."""
    for reason in draft_refusals(budget.request, budget.resolved, budget.accounting):
        yield SPECULATION_REFUSED.finding(
            "speculative_config",
            words("{speculative_config}: {reason}; vLLM refuses it", reason=reason),
            any_one("change that value", "leave speculative decoding out"),
        )


DRAFT_OF_ANOTHER_MODEL = Rule(
    id="DraftOfAnotherModel",
    severities=(Severity.WARNING,),
    scope=Scope.SETTINGS,
    title="The draft was made for another model.",
    explanation="vLLM does not compare the two; it fails while it loads the draft, or at the first request.",
)


def draft_goes_with_model(budget: Budget) -> Iterable[Finding]:
    """A draft that reads hidden states or tokens of another size than the model has."""
    draft = budget.request.draft
    for reason in mismatches(budget.request) if draft else ():
        yield DRAFT_OF_ANOTHER_MODEL.finding(
            "speculative_config",
            words("draft {name} was not made for {model}: {reason}", name=draft.shape.name if draft else "",
                  model=budget.request.shape.name, reason=reason),
            "use a draft that was made for the model",
        )  # fmt: skip


DRAFT_TOO_LARGE = Rule(
    id="DraftTooLarge",
    severities=(Severity.WARNING,),
    scope=Scope.SETTINGS,
    title="The draft is as large as the model, or larger.",
    explanation="Drafting then takes longer than what it saves.",
)


def draft_is_smaller(budget: Budget) -> Iterable[Finding]:
    """A draft whose weights are no less than those of the model, on the rank that holds both."""
    draft, stage = budget.request.draft, budget.stages[-1] if budget.stages else None
    if draft is None or stage is None or stage.ledger is None:
        return
    inputs = dict(stage.ledger.lines[0].inputs)
    own, whole = int(inputs.get("draft_bytes", 0)), stage.ledger.weights.expected
    if 2 * own >= whole:
        yield DRAFT_TOO_LARGE.finding(
            "speculative_config",
            words("draft {name} is as large as {model}", name=draft.shape.name, model=budget.request.shape.name),
            "use a smaller draft",
        )

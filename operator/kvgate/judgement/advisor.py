"""Advice on a question: changes that would fit, among the GPUs and checkpoints of the catalogue, and none that vLLM refuses."""

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import (
    COSTS,
    Alternative,
    Budget,
    BudgetRequest,
    Guarantee,
    Loss,
    ModelShape,
    Most,
    Scope,
    alternatives,
    most_context,
    most_users,
    parse_patch,
    plan,
)
from kvgate.findings.finding import Severity, error_rules
from kvgate.rules.checks import BUDGET_RULES, judge_budget

EVERYTHING = Scope()
OTHER_GPUS = frozenset(name for name, cost in COSTS.items() if cost.loss is Loss.MONEY) | {
    "decode_context_parallel_size"
}
ADMISSION = Scope(most_plans=40, wishes=(), keep=frozenset({"cpu_offload_gb"}), kept_in_sets=OTHER_GPUS)
"""Scope where somebody waits for an admission: single changes without a pod of another size, and one set on the same GPUs."""

_CLEARLY_SMALLER = 0.95
"""Share of the weights below which another checkpoint of the model is worth a name."""


def advice(request: BudgetRequest, scope: Scope = EVERYTHING, *, checkpoints: bool = True) -> tuple[Alternative, ...]:
    """Return the changes that would fit even at the low end, the cheapest first. Nothing in them is refused, or warned of where the
    question as it is written is not."""
    wishes = scope.wishes
    if wishes and (request.guarantee is Guarantee.FULL_CONTEXT or request.settings.max_num_seqs is not None):
        wishes = (*wishes, Loss.USERS)
    others = smaller_checkpoints(request) if checkpoints else ()
    return alternatives(request, replace(_known(request, scope), wishes=wishes, checkpoints=others))


def most(request: BudgetRequest, what: str, scope: Scope = EVERYTHING) -> Most:
    """Return the most `context` for the users that are stated, or the most `users` at the length that is."""
    return (most_context if what == "context" else most_users)(request, _known(request, scope))


def _known(request: BudgetRequest, scope: Scope) -> Scope:
    """Return the scope with what the catalogue and the release have, and with what the rules refuse."""
    from kvgate.vllm.options import options

    has_switch = options()["--language-model-only"].is_in(parse_patch(request.vllm_version))
    known = {each.rule for each in judge_budget(plan(request))}

    def refuses(budget: Budget) -> bool:
        findings = judge_budget(budget)
        warned = {each.rule for each in findings if each.severity is Severity.WARNING}
        return bool(error_rules(findings) - BUDGET_RULES) or bool(warned - known)

    return replace(
        scope,
        accelerators=tuple(catalogue.accelerators()),
        leaves_out_media="language_model_only" if has_switch else "limit_mm_per_prompt",
        refuses=refuses,
    )


def smaller_checkpoints(request: BudgetRequest) -> tuple[ModelShape, ...]:
    """Return the catalogue's checkpoints of the same model in smaller formats, the largest first; none where the user's own facts or
    options decide the weights."""
    from kvgate.judgement.models import look_up_model
    from kvgate.judgement.siblings import in_other_formats, plain_bytes

    shape, settings = request.shape, request.settings
    is_catalogued = shape.origin is None or shape.origin.kind == "catalogue"
    if not is_catalogued or request.weights_bytes is not None or shape.requested_format or request.draft is not None:
        return ()
    dtype = None if settings.dtype == "auto" else settings.dtype
    shapes = [look_up_model(name, dtype=dtype)[0] for name in in_other_formats(shape.name)]
    sized = {plain_bytes(each): each for each in shapes if each is not None and len(each.layers) == len(shape.layers)}
    return tuple(sized[size] for size in sorted(sized, reverse=True) if size < plain_bytes(shape) * _CLEARLY_SMALLER)

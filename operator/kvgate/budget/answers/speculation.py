"""Speculative decoding that vLLM refuses before it looks at memory: the checks of `SpeculativeConfig`, by release.

Read in vLLM 0.6.6 to 0.33.0. A release between two that were read is not judged.
"""

from collections.abc import Iterator

from kvgate.budget.engine.request import BudgetRequest
from kvgate.budget.engine.settings import Resolved, runs_on_v2
from kvgate.budget.model.draft import READS_STATES, Draft
from kvgate.budget.releases.accounting import Accounting
from kvgate.budget.releases.versions import parse_patch

Patch = tuple[int, int, int]

METHODS: dict[str, tuple[tuple[Patch | None, Patch | None], ...]] = {
    "eagle3": ((None, (0, 7, 3)),),
    "mtp": ((None, (0, 6, 6)),),
    "suffix": ((None, (0, 11, 0)),),
    "extract_hidden_states": ((None, (0, 16, 0)),),
    "ngram_gpu": ((None, (0, 17, 0)),),
    "dflash": ((None, (0, 19, 0)),),
    "custom_class": ((None, (0, 21, 0)),),
    "dspark": ((None, (0, 24, 0)),),
    "draft_model": (((0, 10, 0), (0, 14, 0)),),
    "mlp_speculator": (((0, 10, 0), None),),
    "medusa": (((0, 33, 0), None),),
}
"""Method → spans of releases that do not have it, first and last; None: from the oldest on, or up to the newest.

V1 took over the methods one by one: it runs another model as the draft since 0.16 (0.15 was not read), and never an MLP
speculator, which V0 had up to 0.9.
"""


def method_refusal(method: str, version: str) -> str | None:
    """Return the reason why this release cannot draft by the method; None where it can, or where that is not known."""
    release = parse_patch(version)
    for first, last in METHODS.get(method, ()):
        if (first is None or release >= first) and (last is None or release <= last):
            return f"vLLM {version} cannot draft by {method}"
    return None


def draft_refusals(request: BudgetRequest, resolved: Resolved, accounting: Accounting) -> Iterator[str]:
    """Yield a reason for every value of the speculative config that vLLM refuses with this model and these settings."""
    speculation, draft = request.settings.speculation, request.draft
    if speculation is None:
        return
    if reason := method_refusal(request.draft_method, request.vllm_version):
        yield reason
    tokens, tensor = request.draft_tokens, request.settings.parallelism.tensor
    needs_tokens = draft is not None or request.draft_method in ("ngram", "ngram_gpu", "mtp")
    if not tokens and needs_tokens and request.draft_method != "dspark":
        yield "num_speculative_tokens is missing, and no config states it"
    is_by_model = speculation.uses_another_model or speculation.uses_own_layers  # vLLM reads both for no other method
    own = speculation.draft_tensor_parallel_size if is_by_model else None
    length = speculation.max_model_len if is_by_model else None
    if own not in (None, 1, tensor):
        yield f"draft_tensor_parallel_size {own} is neither 1 nor the {tensor} of the model"
    elif (
        own not in (None, tensor)
        and draft is not None
        and draft.is_complete
        and accounting.cuts_draft_as_target
        and not runs_on_v2(request.shape, accounting, request.circumstances, request.accelerator.vendor)
    ):
        yield f"draft_tensor_parallel_size {own} is not the {tensor} of the model, which this release needs of a complete model"
    if length and length > resolved.max_model_len:
        yield f"max_model_len {length} of the draft is above the {resolved.max_model_len} of the model"
    if draft is not None:
        yield from _of_draft(request, draft, tokens, accounting)
    yield from _of_batch(request, resolved, accounting, tokens)


def _of_draft(request: BudgetRequest, draft: Draft, tokens: int, accounting: Accounting) -> Iterator[str]:
    cut, own = request.draft_parallelism.tensor, draft.shape.num_heads
    if own and own % cut:
        yield f"the {own} attention heads of the draft are not divisible by {cut}"
    if draft.method != "dspark" and draft.n_predict and tokens > draft.n_predict and tokens % draft.n_predict:
        yield f"num_speculative_tokens {tokens} is no multiple of the {draft.n_predict} that the draft was made for"
    speculation = request.settings.speculation
    wants_other = speculation is not None and speculation.takes_other_vocabulary
    compares = draft.is_complete and not wants_other and accounting.compares_vocabularies
    if compares and 0 < draft.vocab_size != request.shape.vocab_size:
        theirs, ours = draft.vocab_size, request.shape.vocab_size
        yield f"the draft reads a vocabulary of {theirs} tokens and the model has one of {ours}"


def _of_batch(request: BudgetRequest, resolved: Resolved, accounting: Accounting, tokens: int) -> Iterator[str]:
    """Yield where the slots that drafting adds to each request leave no room in a batch (`_set_max_num_scheduled_tokens`)."""
    slots = new_slots(request, tokens, dflash_keeps_none=accounting.scheduled_tokens_leave_draft_slots)
    batched = resolved.max_num_batched_tokens
    if not slots or not accounting.checks_draft_slots:
        return
    if accounting.scheduled_tokens_leave_draft_slots:
        sequences = resolved.max_num_seqs
        if slots * sequences >= batched:
            yield f"{slots} slots for the drafts of each of {sequences} sequences leave nothing of a batch of {batched} tokens"
    elif slots >= batched:
        yield f"{slots} slots for the drafts of a request leave nothing of a batch of {batched} tokens"


def new_slots(request: BudgetRequest, tokens: int, *, dflash_keeps_none: bool) -> int:
    """Slots of a batch that drafting adds to each request (`max_num_new_slots_for_drafting`, 0.20 to 0.32).

    Up to 0.27 DFlash has none for its first token. 0.33 counts none for DFlash and DSpark, and wants as large a batch by another check.
    """
    speculation, method = request.settings.speculation, request.draft_method
    is_parallel = speculation is not None and (speculation.parallel_drafting or method in ("dflash", "dspark"))
    masked = tokens - 1 if is_parallel else 0
    one_more = method == "draft_model" or (method == "dflash" and not dflash_keeps_none)
    return masked + one_more if tokens else 0


def mismatches(request: BudgetRequest) -> Iterator[str]:
    """Yield what says that the draft was made for another model, although vLLM does not check it."""
    draft, shape = request.draft, request.shape
    if draft is None or draft.method not in READS_STATES:
        return
    if draft.target_hidden_size and shape.hidden_size and draft.target_hidden_size != shape.hidden_size:
        yield f"it reads hidden states of width {draft.target_hidden_size}, and those of the model have {shape.hidden_size}"
    if draft.vocab_size and shape.vocab_size and draft.vocab_size != shape.vocab_size:
        yield f"it was made for a vocabulary of {draft.vocab_size} tokens, and the model has {shape.vocab_size}"

"""question(statement, facts) → BudgetRequest: the one translation into what the budget answers."""

from msgspec.structs import replace

from kvgate.budget import BudgetRequest, EngineSettings, accounting_of
from kvgate.budget.answers.sharing import part_of
from kvgate.judge.drafts import own_layers
from kvgate.judge.facts import Facts
from kvgate.statement.engine import EngineStatement
from kvgate.vllm.given_settings import circumstances_of, engine_settings, stretches_length, unmodelled_kinds


def question(statement: EngineStatement, facts: Facts) -> BudgetRequest:
    """Return the question of a statement. Raise ValueError where the model or the accelerator is not known."""
    if facts.shape is None or facts.accelerator is None:
        raise ValueError("a budget needs a model and an accelerator")
    known, accelerator = statement.known, facts.accelerator
    shared_by = known.get("shared_by", 1)
    if statement.sees_part_alone:
        accelerator, shared_by = part_of(accelerator, shared_by), 1
    return BudgetRequest(
        shape=facts.shape,
        accelerator=accelerator,
        shared_by=shared_by,
        draft=facts.draft,
        vllm_version=statement.version,
        settings=_settings(statement, {}),
        alternatives=tuple(_settings(statement, each) for each in statement.doubt.combinations()),
        circumstances=circumstances_of(known),
        guarantee=statement.guarantee,
        workload=statement.workload,
        least_model_len=statement.least_model_len,
        capacity=statement.capacity,
        is_whole=statement.is_whole,
        is_one_pod=statement.is_one_pod,
        weights_bytes=known.get("weights_bytes"),
        unmodelled_settings=unmodelled_kinds(statement.values, accounting_of(statement.version)),
        unmodelled_variables=statement.unmodelled_variables,
        is_stretched=stretches_length(statement.values),
        calibration=facts.calibration,
        image_digest=statement.image_digest if facts.calibration.starts else "",
        pod=statement.pod,
    )


def _settings(statement: EngineStatement, instead: dict[str, object]) -> EngineSettings:
    """Return the settings, with other values in place of those that are not known."""
    settings = engine_settings({**statement.known, **instead})
    drafts = own_layers(settings.speculation, statement.model)
    return settings if drafts is settings.speculation else replace(settings, speculation=drafts)

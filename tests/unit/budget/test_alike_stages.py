"""Pipeline stages that hold the same share a ledger: a stage's own arithmetic would say the same."""

from msgspec.structs import replace

from kvgate.budget.answers.answer import plan
from kvgate.budget.gpu.ledger import ledger_of
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.observed.calibration import Calibration
from kvgate.calibration.observed import start_of_bytes
from kvgate.catalogue import model_names
from support.builders import catalogue_accelerator, catalogue_shape, new_request
from support.tables import table

MODELS = (*model_names()[::12], "LGAI-EXAONE/EXAONE-4.5-33B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.6-27B-FP8")


@table("model", MODELS)
@table("pipeline", [3, 8, 64])
def test_a_shared_ledger_is_the_one_that_the_stage_would_have(model: str, pipeline: int) -> None:
    request = replace(new_request(), shape=catalogue_shape(model), accelerator=catalogue_accelerator("L4-24GB"))
    request = request.with_settings(parallelism=Parallelism(pipeline=pipeline))
    budget = plan(request)
    for stage in budget.stages:
        bounds = (stage.first, stage.last)
        assert stage.ledger == ledger_of(budget.request, budget.resolved, budget.accounting, bounds)


def test_a_stage_of_which_a_start_is_known_has_a_ledger_of_its_own() -> None:
    request = replace(new_request(), shape=catalogue_shape("LGAI-EXAONE/EXAONE-4.5-33B"))
    request = request.with_settings(parallelism=Parallelism(pipeline=64))
    tightest = plan(request).tightest
    assert tightest is not None
    seen = start_of_bytes(plan(request), tightest.available.expected - (1 << 30), source="a log")
    assert seen is not None
    corrected = plan(replace(request, calibration=Calibration(starts=(seen,)))).stages
    own = [
        stage.first
        for stage in corrected
        if stage.ledger and stage.ledger.correction and stage.ledger.correction.is_same_setting
    ]
    assert own == [tightest.first]


def test_many_stages_take_as_many_ledgers_as_there_are_kinds_of_them() -> None:
    request = replace(new_request(), shape=catalogue_shape("LGAI-EXAONE/EXAONE-4.5-33B"))
    budget = plan(request.with_settings(parallelism=Parallelism(pipeline=64)))
    assert len(budget.stages) == 64
    assert len({id(stage.ledger) for stage in budget.stages}) == 4

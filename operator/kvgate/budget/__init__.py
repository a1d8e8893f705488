"""The pure core: bytes of a GPU in, a verdict out. The standard library and msgspec only; no I/O, no clock, no logging.

`plan` answers a BudgetRequest with a Budget, which has the verdict.

Other packages import these names from here, and from the rooms inside it what the page of each room names; contracts in
pyproject.toml hold that. A name is loaded when it is first used, so that a command that needs one class does not load all of the
arithmetic.
"""

TYPE_CHECKING = False  # type checkers take it for typing's, which takes longer to import than all of this

if TYPE_CHECKING:
    from kvgate.budget.answers.advice import Most, alternatives, most_context, most_users
    from kvgate.budget.answers.answer import Budget, CacheFigures, Stage, plan
    from kvgate.budget.answers.changes import COSTS, TOGETHER, Alternative, Cost, Loss, Scope
    from kvgate.budget.answers.solver import (
        AdjustLimits,
        Adjustment,
        Knob,
        KnobChange,
        adjust,
        largest_max_model_len,
        largest_max_num_seqs,
    )
    from kvgate.budget.engine.circumstances import NO_CIRCUMSTANCES, Circumstances
    from kvgate.budget.engine.request import (
        AUTO_MAX_MODEL_LEN,
        GRAPH_MODES,
        BudgetRequest,
        Capacity,
        EngineSettings,
        GraphSettings,
        Guarantee,
        LoraSettings,
        OffloadSettings,
        Speculation,
        Workload,
    )
    from kvgate.budget.engine.settings import Resolved, accounting_for, resolve_settings
    from kvgate.budget.gpu.ledger import Ledger, observed_start
    from kvgate.budget.ground.hardware import SINGLE_GPU, Accelerator, Parallelism
    from kvgate.budget.ground.interval import (
        BudgetError,
        Interval,
        Term,
        UnknownVersion,
        UnmodelledKind,
        Verdict,
        verdict_of,
    )
    from kvgate.budget.kv_cache.capacity import PINNED_SAFETY_BYTES, Demand, KVCache, Pin, PinnedCapacity
    from kvgate.budget.model.draft import Draft
    from kvgate.budget.model.shape import ModelShape
    from kvgate.budget.observed.calibration import (
        NOTHING_OBSERVED,
        Calibration,
        CalibrationScope,
        Correction,
        StartState,
    )
    from kvgate.budget.observed.starts import (
        GpuAtStart,
        NextStart,
        ObservedStart,
        Origin,
        StartKey,
    )
    from kvgate.budget.observed.witnesses import HEALING_STARTS, MIN_WITNESSES, disagree, num_witnesses, outdated
    from kvgate.budget.releases.accounting import Accounting
    from kvgate.budget.releases.versions import (
        DEFAULT_VERSION,
        NEWEST,
        OLDEST,
        accounting_of,
        host_accounting,
        is_newer_than_known,
        is_unreleased,
        parse_patch,
        parse_release,
    )

_NAMES = {
    "answers.advice": "Most alternatives most_context most_users",
    "answers.answer": "Budget CacheFigures Stage plan",
    "answers.changes": "Alternative COSTS Cost Loss Scope TOGETHER",
    "answers.solver": "AdjustLimits Adjustment Knob KnobChange adjust largest_max_model_len largest_max_num_seqs",
    "engine.circumstances": "Circumstances NO_CIRCUMSTANCES",
    "engine.request": "AUTO_MAX_MODEL_LEN BudgetRequest Capacity EngineSettings GRAPH_MODES GraphSettings Guarantee "
    "LoraSettings OffloadSettings Speculation Workload",
    "engine.settings": "Resolved accounting_for resolve_settings",
    "gpu.ledger": "Ledger observed_start",
    "ground.hardware": "Accelerator Parallelism SINGLE_GPU",
    "ground.interval": "BudgetError Interval Term UnknownVersion UnmodelledKind Verdict verdict_of",
    "kv_cache.capacity": "Demand KVCache PINNED_SAFETY_BYTES Pin PinnedCapacity",
    "model.draft": "Draft",
    "model.shape": "ModelShape",
    "observed.calibration": "Calibration CalibrationScope Correction NOTHING_OBSERVED StartState",
    "observed.starts": "GpuAtStart NextStart ObservedStart Origin StartKey",
    "observed.witnesses": "HEALING_STARTS MIN_WITNESSES disagree num_witnesses outdated",
    "releases.accounting": "Accounting",
    "releases.versions": "DEFAULT_VERSION NEWEST OLDEST accounting_of host_accounting is_newer_than_known is_unreleased parse_patch "
    "parse_release",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    """Load the module of a name, and keep the name. Raises AttributeError for a name that is not exported."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value

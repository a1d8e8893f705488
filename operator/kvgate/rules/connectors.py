"""Rules about KV connectors and vLLM's hybrid KV cache manager, which keeps windows and recurrent states for what they are."""

from collections.abc import Iterable

from kvgate.budget import Budget
from kvgate.budget.kv_cache.hybrid_manager import hybrid_manager, manager_refusals
from kvgate.findings.finding import Finding, Remedy, Rule, Scope, SettingName, Severity, any_one, do, leave_out, words

HYBRID_MANAGER_OFF = Rule(
    id="HybridManagerOff",
    severities=(Severity.ERROR, Severity.WARNING, Severity.INFO),
    scope=Scope.SETTINGS,
    title="A KV connector, KV events or an option switch vLLM's hybrid KV cache manager off, or do not go with it.",
    explanation=(
        "Without the manager, layers with a window or a chunk keep the whole context, and vLLM refuses models with recurrent states beside "
        "attention: that is an error. It is a warning where nobody has read the connector, and the engine starts only with the manager."
    ),
)


def hybrid_manager_is_on(budget: Budget) -> Iterable[Finding]:
    """A manager that is needed and off, or on and not taken; windows that are kept whole because of a connector."""
    request = budget.request
    for setting, reason in manager_refusals(request, budget.accounting):
        message = words("{setting}: {reason}; vLLM does not start", setting=SettingName(setting), reason=reason)
        yield HYBRID_MANAGER_OFF.finding(setting, message, _remedy(setting))
    manager = hybrid_manager(request, budget.accounting)
    names = " and ".join(manager.connectors)
    if budget.fits_only_with_manager:
        message = words(
            "{setting}: whether {names} goes with vLLM's hybrid KV cache manager is not known, and the engine starts only with it",
            setting=SettingName(manager.setting),
            names=names,
        )
        yield HYBRID_MANAGER_OFF.finding(manager.setting, message, _remedy(manager.setting), severity=Severity.WARNING)
    windows = {
        bool(getattr(each, "sliding_window", 0) or getattr(each, "chunk_size", 0)) for each in request.shape.mixers
    }
    # layers with a window or a chunk beside full attention
    if not budget.fits_only_with_manager and manager.connectors and manager.is_certain and windows == {True, False}:
        message = words(
            "{setting}: {names} switches vLLM's hybrid KV cache manager off, so that layers with a window keep the whole context",
            setting=SettingName(manager.setting),
            names=names,
        )
        yield HYBRID_MANAGER_OFF.finding(manager.setting, message, _remedy(manager.setting), severity=Severity.INFO)


def _remedy(setting: str) -> Remedy:
    """Name what keeps the manager, or what goes without it."""
    if setting == "kv_transfer_config":
        return any_one(
            leave_out(setting),
            do("choose a connector that goes with the manager: NixlConnector in vLLM 0.22 and later"),
        )
    if setting == "kv_offloading_size":
        return any_one(leave_out(setting), do("add --disable-hybrid-kv-cache-manager"), do("use vLLM 0.22 or later"))
    return any_one(leave_out(setting))

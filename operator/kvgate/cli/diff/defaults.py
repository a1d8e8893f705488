"""One engine before and after → the defaults that its change of release brings."""

from kvgate.budget.errors import UnknownVersion
from kvgate.budget.versions import is_newer_than_known
from kvgate.cli.check.report import Item
from kvgate.judge.passed_through import read_extra_args
from kvgate.vllm.options import ChangedDefault, changed_defaults


def defaults_between(before: Item, after: Item) -> tuple[ChangedDefault, ...]:
    """Return the defaults of options that neither side sets; nothing where a release is unknown or the same."""
    try:
        old, new = _release(before), _release(after)
        set_before, set_after = _options_set(before), _options_set(after)
        if old is None or new is None or old == new or set_before is None or set_after is None:
            return ()
        budget = after.assessment.budget if after.assessment else None
        is_set = {"model", *set_before, *set_after}
        return changed_defaults(old, new, is_set=is_set, request=budget.request if budget else None)
    except UnknownVersion:
        return ()


def _release(item: Item) -> str | None:
    """None where it is not known, or nobody has read it yet."""
    version = item.vllm_version
    if version is None or (item.judged and not item.judged.is_release_known) or is_newer_than_known(version):
        return None
    return version


def _options_set(item: Item) -> frozenset[str] | None:
    """Return the options that are set, by vLLM's names; None where the input does not hold them all."""
    if item.judged:
        return item.judged.options_set
    deployment = item.checked.subject.deployment if item.checked else None
    if deployment is None:
        return frozenset()
    vllm = deployment.spec.vllm
    return frozenset(name for name, value in vllm if value is not None) | read_extra_args(vllm).given

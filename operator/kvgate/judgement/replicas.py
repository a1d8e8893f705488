"""The replicas that a promise needs, and those that a rollout or an eviction takes away. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget import Budget, Guarantee, Verdict, Workload, plan
from kvgate.findings.finding import Finding, Severity
from kvgate.rules.support import TOO_FEW_REPLICAS
from kvgate.statement.deployment import guarantee_of

if TYPE_CHECKING:
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec  # with pydantic, which other engines do not need


class Pace(Struct, frozen=True, kw_only=True):
    """Pods that a rollout adds and takes away at a time, as numbers or in percent."""

    surge: int | str
    unavailable: int | str


def pace_of(spec: InferenceDeploymentSpec) -> Pace | None:
    """Return the pace of a rollout; None where it ends all pods at first. By default an old pod ends first: no GPU is free for a surge."""
    given = spec.strategy
    if given is not None and given.type == "Recreate":
        return None
    update = given.rolling_update if given else None
    surge = (update.max_surge if update else None) or 0
    unavailable = update.max_unavailable if update else None
    if unavailable is None:
        unavailable = 0 if pods(surge, 100, is_surge=True) else 1
    return Pace(surge=surge, unavailable=unavailable)


def pods(amount: int | str, replicas: int, *, is_surge: bool = False) -> int:
    """Return a number of pods, or a percentage of the replicas as Kubernetes rounds it: a surge up, missing replicas down."""
    if isinstance(amount, int):
        return amount
    share = Fraction(int(amount[:-1]) * replicas, 100)
    return -(-share.numerator // share.denominator) if is_surge else int(share)


def missing_in_rollout(spec: InferenceDeploymentSpec) -> int:
    """Return how many replicas a rollout takes away at a time; a Deployment that could replace none takes one."""
    pace, replicas = pace_of(spec), spec.replicas
    if pace is None:
        return replicas
    missing = pods(pace.unavailable, replicas) or int(not pods(pace.surge, replicas, is_surge=True))
    return min(missing, replicas)


def replicas_needed(spec: InferenceDeploymentSpec, budget: Budget | None) -> int:
    """Return the least number of replicas that hold the promise together; 0 where each replica has a promise of its own.

    `budget` has the settings and facts of an engine. Its share of the workload is the larger, the fewer there are.
    """
    if spec.workload is None or guarantee_of(spec) is not Guarantee.WORKLOAD or budget is None or budget.demand is None:
        return 0
    whole, ranks = Workload(**spec.workload.model_dump()), spec.vllm.data_parallel_size

    def hold(replicas: int) -> bool:
        share = whole.shared_among(replicas * ranks)
        is_held = plan(replace(budget.request, workload=share)).verdict is Verdict.FITS
        return is_held and share.peak_concurrency <= budget.resolved.max_num_seqs

    return bisect_left(range(1, spec.replicas), 1, key=hold) + 1


def promise_findings(spec: InferenceDeploymentSpec, budget: Budget | None) -> Iterator[Finding]:
    """Report what takes away replicas that the promise needs; a default that does so is a note."""
    replicas, evicted = spec.replicas, spec.pod_disruption_budget
    needed = replicas_needed(spec, budget) if replicas > 1 else 0
    if not needed:
        return
    left = replicas - missing_in_rollout(spec)
    all_of = f"{needed} of {replicas} replicas"
    surge = "set spec.strategy.rollingUpdate.maxSurge to 1 where a GPU is free"
    if left < needed:
        yield TOO_FEW_REPLICAS.finding(
            "strategy",
            f"a rollout leaves {left} replicas, and the workload needs {all_of}",
            f"{surge}, or raise spec.replicas",
            severity=Severity.WARNING if spec.strategy else Severity.INFO,
        )
    stated = evicted.max_unavailable if evicted and evicted.enabled is not False else None
    if stated is not None and replicas - pods(stated, replicas, is_surge=True) < needed:
        message = f"evictions may leave fewer replicas than the workload needs: {all_of}"
        yield TOO_FEW_REPLICAS.finding("disruption_budget", message, "leave maxUnavailable out, or raise spec.replicas")

"""How a rollout replaces pods, how many may be evicted, how they are spread, and what is said before too few are left."""

from typing import Any

import pytest

from kvgate.api.status import Effective
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.controller.decision import Judged, Situation, assess_owner, decide
from kvgate.findings.finding import Severity
from kvgate.judgement.replicas import missing_in_rollout, pods, promise_findings, replicas_needed
from kvgate.rendering.outage import outage_warning
from kvgate.rendering.rollout import SPREAD_OVER, disruption_budget, spread_of, strategy_of
from support.manifests import a_document, an_owner
from support.tables import table

SELECTOR = {"matchLabels": {"kvgate.io/inferencedeployment": "qwen"}}
WORKLOAD = {"peakConcurrency": 38, "promptTokens": 20000, "outputTokens": 500}
SETTINGS = {"maxModelLen": 40960, "maxNumSeqs": 64}
"""An H100 holds 19 of such requests."""


def served(**spec: Any) -> InferenceDeployment:
    return an_owner(vllm=SETTINGS, workload=WORKLOAD, **spec)


def judged(owner: InferenceDeployment) -> Judged:
    return assess_owner(owner, "")


@table(
    ("strategy", "rendered", "missing"),
    [
        (None, (0, 1), 1),
        ({}, (0, 1), 1),
        ({"rollingUpdate": {"maxSurge": 1}}, (1, 0), 0),
        ({"rollingUpdate": {"maxSurge": "25%"}}, ("25%", 0), 0),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}, (0, 2), 2),
        ({"rollingUpdate": {"maxUnavailable": "60%"}}, (0, "60%"), 2),
        ({"rollingUpdate": {"maxUnavailable": "10%"}}, (0, "10%"), 1),
        ({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 9}}, (1, 9), 4),
    ],
)
def test_a_rolling_update_is_kubernetes_own_with_defaults_for_gpus(strategy: Any, rendered: Any, missing: int) -> None:
    """A Deployment whose percentage is rounded down to none replaces one pod."""
    spec = an_owner(strategy=strategy, replicas=4).spec
    update = strategy_of(spec)["rollingUpdate"]
    assert (update["maxSurge"], update["maxUnavailable"], missing_in_rollout(spec)) == (*rendered, missing)


def test_recreate_takes_all_at_once() -> None:
    spec = an_owner(strategy={"type": "Recreate"}, replicas=4).spec
    assert (strategy_of(spec), missing_in_rollout(spec)) == ({"type": "Recreate"}, 4)


def test_percentages_are_rounded_as_kubernetes_does() -> None:
    assert (pods("25%", 5), pods("25%", 5, is_surge=True), pods("100%", 3), pods(2, 1)) == (1, 2, 3, 2)


@table(
    ("replicas", "needed"),
    [(1, 1), (2, 2), (3, 2), (9, 2)],
)
def test_the_workload_says_how_many_replicas_it_needs(replicas: int, needed: int) -> None:
    owner = served(replicas=replicas)
    assert replicas_needed(owner.spec, judged(owner).assessment.effective) == needed


def test_a_promise_of_each_engine_needs_no_number_of_replicas() -> None:
    owner = an_owner(vllm=SETTINGS | {"maxNumSeqs": 2}, replicas=4)
    assert replicas_needed(owner.spec, judged(owner).assessment.effective) == 0
    full = served(replicas=4, admission={"guarantee": "Startup"})
    assert replicas_needed(full.spec, judged(full).assessment.effective) == 0


@table(
    ("spec", "needed", "unavailable"),
    [
        ({"replicas": 1}, 0, None), ({"replicas": 0}, 0, None), ({"replicas": 2}, 0, 1), ({"replicas": 2}, 2, 0), ({"replicas": 3}, 2, 1),
        ({"replicas": 9}, 2, 1), ({"replicas": 3, "suspend": True}, 0, None),
        ({"replicas": 3, "podDisruptionBudget": {"enabled": False}}, 0, None),
        ({"replicas": 3, "podDisruptionBudget": {"maxUnavailable": "50%"}}, 3, "50%"), ({"replicas": 3, "podDisruptionBudget": {}}, 0, 1),
    ],
)  # fmt: skip
def test_no_more_are_evicted_than_the_promise_leaves(spec: dict[str, Any], needed: int, unavailable: Any) -> None:
    budget = disruption_budget(an_owner(**spec), needed, SELECTOR)
    assert (budget and budget["spec"]["maxUnavailable"]) == unavailable
    if budget:
        assert budget["spec"]["selector"] == SELECTOR
        assert budget["metadata"]["ownerReferences"][0]["controller"]


def test_pods_are_spread_by_default_whatever_their_number() -> None:
    """Scaling replaces no pod, so the template is the same for one replica."""
    one, many = (spread_of(an_owner(replicas=number).spec.template, "qwen") for number in (1, 5))
    assert one == many
    assert [each["topologyKey"] for each in one] == list(SPREAD_OVER)
    assert all(each["whenUnsatisfiable"] == "ScheduleAnyway" and each["labelSelector"] == SELECTOR for each in one)


def test_a_stated_spread_takes_the_place_of_the_default() -> None:
    stated = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**stated, "topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
    template = an_owner(template={"topologySpreadConstraints": [stated, own]}).spec.template
    assert spread_of(template, "qwen") == [{**stated, "labelSelector": SELECTOR}, own]
    assert spread_of(an_owner(template={"topologySpreadConstraints": []}).spec.template, "qwen") == []


@table(
    ("spec", "severities"),
    [
        ({"replicas": 2}, [Severity.INFO]),
        ({"replicas": 3}, []),
        ({"replicas": 1}, []),
        ({"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": 1}}}, []),
        ({"replicas": 3, "strategy": {"type": "Recreate"}}, [Severity.WARNING]),
        ({"replicas": 4, "strategy": {"rollingUpdate": {"maxUnavailable": 3}}}, [Severity.WARNING]),
        ({"replicas": 3, "podDisruptionBudget": {"maxUnavailable": 2}}, [Severity.WARNING]),
        ({"replicas": 3, "podDisruptionBudget": {"maxUnavailable": "34%"}}, [Severity.WARNING]),
        ({"replicas": 3, "podDisruptionBudget": {"maxUnavailable": 2, "enabled": False}}, []),
    ],
)
def test_what_leaves_too_few_replicas_is_told(spec: dict[str, Any], severities: list[Severity]) -> None:
    owner = served(**spec)
    found = list(promise_findings(owner.spec, judged(owner).assessment.effective))
    assert [each.severity for each in found] == severities
    assert all("the workload needs" in each.message or "than the workload" in each.message for each in found)


def before_edit(**spec: Any) -> dict[str, Any]:
    values = Effective(max_model_len=8192, max_num_seqs=4, kv_cache_dtype="auto")
    status = {"effective": values.model_dump(by_alias=True, exclude_none=True) | {"chosen": ["maxNumSeqs"]}}
    return a_document(vllm={"maxModelLen": 8192, "maxNumSeqs": 4}, **spec) | {"status": status}


@table(
    ("old", "new", "words"),
    [
        ({}, {"vllm": {"maxModelLen": 4096, "maxNumSeqs": 4}}, "no replica answers until the model is loaded, up to 10 minutes"),
        ({}, {"template": {"labels": {"team": "a"}}}, "no replica answers"),
        ({}, {"replicas": 1, "workload": WORKLOAD | {"peakConcurrency": 1}, "admission": {"guarantee": "FullContext"}}, ""),
        ({}, {"template": {"labels": {"team": "a"}}, "strategy": {"rollingUpdate": {"maxSurge": 1}}}, ""),
        ({}, {"template": {"labels": {"team": "a"}}, "replicas": 0}, ""),
        ({}, {"template": {"labels": {"team": "a"}}, "suspend": True}, ""),
        ({"suspend": True}, {"template": {"labels": {"team": "a"}}}, ""),
        ({"replicas": 2}, {"replicas": 2, "template": {"labels": {"team": "a"}}}, ""),
        ({"replicas": 2}, {"replicas": 2, "strategy": {"type": "Recreate"}, "template": {"labels": {"a": "b"}}}, "no replica answers"),
    ],
)  # fmt: skip
def test_an_edit_that_interrupts_service_warns_before(old: dict[str, Any], new: dict[str, Any], words: str) -> None:
    owner = an_owner(**{"vllm": {"maxModelLen": 8192, "maxNumSeqs": 4}, **new})
    said = outage_warning(before_edit(**old), owner, judged(owner).assessment)
    assert (words in said) if words else said == ""


def test_an_object_that_had_no_pods_loses_none() -> None:
    owner = an_owner(template={"labels": {"team": "a"}})
    for old in (a_document(), None, {}, {**a_document(), "status": {"effective": {}}}, {**a_document(), "spec": 5}):
        assert outage_warning(old, owner, judged(owner).assessment) == ""


@pytest.mark.parametrize("suspend", [True, False])
def test_a_suspended_object_keeps_its_verdict_and_its_template(*, suspend: bool) -> None:
    owner = an_owner(replicas=3, suspend=suspend)
    intent = decide(Situation(document=a_document(), owner=owner), judged(owner))
    assert intent.deployment is not None
    spec = intent.deployment.wanted["spec"]
    running = decide(Situation(document=a_document(), owner=an_owner(replicas=3)), judged(owner)).deployment
    assert running is not None
    assert spec["replicas"] == (0 if suspend else 3)
    assert spec["template"] == running.wanted["spec"]["template"]
    assert (intent.budget is None) == suspend

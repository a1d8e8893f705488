"""What kstatus, Argo CD and Flux make of an InferenceDeployment: their own rules, by a kept interpreter of Lua and of CEL."""

from pathlib import Path
from typing import Any

import lupa
import pytest
import yaml
from cel_expr_python import cel

from kvgate.api.crd import custom_resource_definition

HEALTH = Path(__file__).resolve().parents[2] / "deploy" / "health"
LUA = (HEALTH / "argocd.lua").read_text(encoding="utf-8")
(FLUX,) = yaml.safe_load((HEALTH / "flux.yaml").read_text(encoding="utf-8"))["healthCheckExprs"]
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def an_object(generation: int = 1, observed: int = 1, **conditions: tuple[str, str]) -> dict[str, Any]:
    listed = [
        {"type": kind, "status": status, "reason": reason, "message": f"{reason} it is"}
        for kind, (status, reason) in conditions.items()
    ]
    return {"metadata": {"generation": generation}, "status": {"observedGeneration": observed, "conditions": listed}}


READY = {"Ready": ("True", "ReplicasReady"), "Reconciling": ("False", "UpToDate"), "Stalled": ("False", "UpToDate")}
ROLLING = {"Ready": ("False", "Loading"), "Reconciling": ("True", "Loading"), "Stalled": ("False", "UpToDate")}
REFUSED = {
    "Ready": ("False", "NotRendered"),
    "Reconciling": ("False", "BudgetExceeded"),
    "Stalled": ("True", "BudgetExceeded"),
}
OLD_RUNS = {**REFUSED, "Ready": ("True", "ReplicasReady")}
STATES: dict[str, tuple[dict[str, Any], str]] = {
    "nobody has looked at it": (
        {"metadata": {"generation": 1}, "status": SCHEMA["properties"]["status"]["default"]},
        "InProgress",
    ),
    "edited since": (an_object(generation=2, **READY), "InProgress"),
    "ready": (an_object(**READY), "Current"),
    "rolling out": (an_object(**ROLLING), "InProgress"),
    "refused": (an_object(**REFUSED), "Failed"),
    "an edit is refused and the earlier spec runs": (an_object(**OLD_RUNS), "Failed"),
}


def kstatus(document: dict[str, Any]) -> str:
    """The generic rules of sigs.k8s.io/cli-utils (pkg/kstatus/status), by which Helm 4 and Flux wait for kinds that they do not know."""
    status = document.get("status", {})
    if status.get("observedGeneration", document["metadata"]["generation"]) != document["metadata"]["generation"]:
        return "InProgress"
    conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "InProgress" if conditions.get("Ready", "True") != "True" else "Current"


def argo(document: dict[str, Any]) -> str:
    runtime = lupa.LuaRuntime(unpack_returned_tuples=True)
    check = runtime.eval(f"function(obj)\n{LUA}\nend")
    return {"Progressing": "InProgress", "Healthy": "Current", "Degraded": "Failed"}[
        check(runtime.table_from(document, recursive=True)).status
    ]


def flux(document: dict[str, Any]) -> str:
    """In the order in which Flux asks; without an answer it waits."""
    environment = cel.NewEnv(variables={"status": cel.Type.DYN, "metadata": cel.Type.DYN})
    for name, state in (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current")):
        if environment.compile(FLUX[name]).eval(data=document).value() is True:
            return state
    return "InProgress"


@pytest.mark.parametrize("name", STATES)
def test_all_three_say_the_same(name: str) -> None:
    document, expected = STATES[name]
    assert {check.__name__: check(document) for check in (kstatus, argo, flux)} == dict.fromkeys(
        ("kstatus", "argo", "flux"), expected
    )

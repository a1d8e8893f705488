"""The types of the API group kvgate.io."""

GROUP = "kvgate.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceDeployment"
PLURAL = "inferencedeployments"
SHORT_NAME = "infd"
SKIP_BUDGET_ANNOTATION = "kvgate.io/skip-budget"
"""Break-glass annotation with the reason as its value: the budget is computed and reported, and does not decide."""
SKIP_BUDGET_UNTIL_ANNOTATION = f"{SKIP_BUDGET_ANNOTATION}-until"
"""End of the break glass as RFC 3339 writes it (`2026-12-24T18:00:00Z`): from then on it admits nothing new and nothing changed."""
ADOPT_ANNOTATION = "kvgate.io/adopt"
"""With the value `true`: a Deployment and a Service of the object's name that somebody else made become its own."""
FIELD_MANAGER = "kvgate"
"""Name under which the API server records the fields that we wrote, and those that admission webhooks added to them."""

_ELSEWHERE = {
    "model": "spec.model.name",
    "config": "spec.model.configFrom",
    "model_config": "spec.model.configFrom",
    "revision": "spec.model.revision",
    "served_model_name": "spec.model.servedModelNames",
    "accelerator": "spec.accelerator.type",
    "shared_by": "spec.accelerator.sharedBy",
    "vllm_version": "spec.vllm.version",
    "replicas": "spec.replicas",
    "strategy": "spec.strategy",
    "disruption_budget": "spec.podDisruptionBudget.maxUnavailable",
    "workload": "spec.workload",
    "capacity": "spec.admission.capacity",
    "extra_args": "spec.vllm.extraArgs",
    "environment": "spec.template.env",
    "containers": "spec.template.containers",
    "min_max_model_len": "spec.admission.adjust.minMaxModelLen",
    "host_memory_limit_bytes": "spec.template.resources.limits.memory",
}
"""Subjects of findings whose path is not `spec.vllm.` and their name."""


def field_path(name: str) -> str:
    """Path in the spec of a subject of findings: `max_model_len` → `spec.vllm.maxModelLen`; a path stays as it is."""
    if "." in name or not name:
        return name
    first, *others = name.split("_")
    return _ELSEWHERE.get(name) or f"spec.vllm.{first}{''.join(map(str.capitalize, others))}"

"""Engine's field names (vLLM's, snake_case) ↔ paths in the spec."""

_ELSEWHERE = {
    "model": "spec.model.name",
    "config": "spec.model.configFrom",
    "revision": "spec.model.revision",
    "accelerator": "spec.accelerator.type",
    "vllm_version": "spec.vllm.version",
    "workload": "spec.workload",
    "extra_args": "spec.vllm.extraArgs",
    "environment": "spec.template.env",
}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def field_path(field: str) -> str:
    """`max_model_len` → `spec.vllm.maxModelLen`; what is a path already stays one."""
    if "." in field or not field:
        return field
    return _ELSEWHERE.get(field) or f"spec.vllm.{_camel(field)}"

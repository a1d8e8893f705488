"""template.env of an InferenceDeployment: what its variables change in the verdict, and what is to be said of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvgate.record import record
from kvgate.rules.finding import Finding, Severity
from kvgate.vllm.memory_settings import ALLOW_LONG, allows_any_length
from kvgate.vllm.variables import CACHE_MOUNT, FOLDERS, is_outside_cache, looks_secret, moving

if TYPE_CHECKING:  # a short run needs no pydantic: other platforms' manifests
    from kvgate.api.v1alpha1 import EnvVar, InferenceDeploymentSpec

REFERENCE = re.compile(r"\$\([A-Za-z_][-._A-Za-z0-9]*\)")
"""Text that Kubernetes would replace in a pod of the user's own."""

MEASURE_WITH_IT = "leave it out, or set spec.vllm.kvCacheMemoryBytes to what an engine with it has left"


@record
class PodEnvironment:
    """Meaning of a pod's variables for its verdict."""

    kinds: tuple[str, ...] = ()
    """Features without a formula that they switch on."""
    allows_any_length: bool = False
    findings: tuple[Finding, ...] = ()


def read_environment(spec: InferenceDeploymentSpec) -> PodEnvironment:
    """A value in a Secret is not known, and counts as one that changes something."""
    variables = spec.template.env or ()
    return PodEnvironment(
        kinds=tuple(row.kind for each in variables if (row := moving(each.name, _text(each))) and row.kind),
        allows_any_length=any(each.name == ALLOW_LONG and allows_any_length(each.value or "") for each in variables),
        findings=tuple(found for index, each in enumerate(variables) for found in _findings(each, index)),
    )


def not_expanded(text: str, path: str) -> Iterator[Finding]:
    """Say that rendering escapes what looks like a reference to a variable."""
    if reference := REFERENCE.search(text):
        yield Finding(
            rule="VariableNotExpanded",
            severity=Severity.WARNING,
            field=path,
            message=f"{reference[0][:60]} reaches vLLM as it is written: nothing is replaced in what was judged",
            remediation="write the value in its place; a secret goes into a variable of its own, by secretKeyRef",
        )


def _text(variable: EnvVar) -> str | None:
    return None if variable.secret_key_ref is not None else variable.value or ""


def _findings(variable: EnvVar, index: int) -> Iterator[Finding]:
    path, text = f"spec.template.env[{index}]", _text(variable)
    if text and looks_secret(variable.name, text):
        yield Finding(
            rule="SecretInPlainText",
            severity=Severity.WARNING,
            field=f"{path}.value",
            message=f"{variable.name} is in plain text for all who may read this object; give it by secretKeyRef",
            remediation=f"keep it in a Secret: {{name: {variable.name}, secretKeyRef: {{name: SECRET, key: KEY}}}}",
        )
    elif text:
        yield from not_expanded(text, f"{path}.value")
    if text is not None and is_outside_cache(variable.name, text):
        yield Finding(
            rule="OutsideCacheVolume",
            severity=Severity.WARNING,
            field=f"{path}.value",
            message=f"{variable.name} is {text[:40]}, outside the volume at {CACHE_MOUNT}: it is lost with the container",
            remediation=f"choose a folder in {CACHE_MOUNT}, or leave it out: {variable.name} is {FOLDERS[variable.name]}",
        )
    if (row := moving(variable.name, text)) and not row.kind:
        yield Finding(
            rule="SettingMovesMemory",
            severity=Severity.WARNING,
            field=f"{path}.name",
            message=f"{variable.name} changes how much GPU memory vLLM takes; the budget is that without it",
            remediation=MEASURE_WITH_IT,
        )

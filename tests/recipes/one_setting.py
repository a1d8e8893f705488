"""Run in the copy: every door takes the new setting, and extraArgs may not hold what a field owns."""

import pytest

from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.cli.main import main
from kvgate.judgement.assess import assess, effective_values
from kvgate.judgement.facts import ConfigMissing, gather, question
from kvgate.judgement.what_if import read_request
from kvgate.planning.sweep_axes import parse_axis
from kvgate.rendering.workload import arguments
from kvgate.statement.deployment import statement_of


def parsed(**vllm: object) -> InferenceDeploymentSpec:
    spec = {"model": {"name": "Qwen/Qwen3-0.6B"}, "accelerator": {"type": "L4-24GB"}, "vllm": vllm}
    head = {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "toy"}}
    return parse_document({**head, "spec": spec}).spec


spec = parsed(longPrefillTokenThreshold=777)
facts = gather(statement_of(spec), lambda _: ConfigMissing(message="", remediation=""))
judged = question(statement_of(spec), facts).settings
assert judged.long_prefill_token_threshold == 777  # type: ignore[attr-defined]
assert "--long-prefill-token-threshold=777" in arguments(spec, effective_values(spec, assess(spec, facts)))
with pytest.raises(InvalidDocument) as refused:
    parsed(extraArgs=["--long_prefill_token_thresh=3"])
assert refused.value.findings[0].field == "spec.vllm.extraArgs"
asked = {"model": "Qwen/Qwen3-0.6B", "gpu": "L4-24GB", "long_prefill_token_threshold": "777"}
what_if, _ = read_request(asked)
assert what_if.settings.long_prefill_token_threshold == 777  # type: ignore[attr-defined]
assert parse_axis("long-prefill-token-threshold=1,2").values == (1, 2)
main(["explain", *(f"--{name.replace('_', '-')}={value}" for name, value in asked.items()), "--max-model-len", "1k"])

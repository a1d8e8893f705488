"""Peak activation against logged starts: the figure that vLLM prints, not a fit."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from kvgate.budget.interval import Interval
from kvgate.budget.plan import plan
from kvgate.budget.units import GIB, gib
from support.builders import catalogue_accelerator, catalogue_shape, new_request

SERIES = "https://github.com/llm-d-incubation/llm-d-planner/tree/d3121e05/accuracy/results/v0.19.0/logs"
"""vLLM 0.19.0 on H100 80 GB: max_num_seqs 1024, max_num_batched_tokens 8192, one log per row."""
EXPLORER = "https://github.com/llm-d/llm-d-benchmark/blob/356b8e03/config_explorer/empirical-vllm-memory-results.md"
"""vLLM 0.11.0 on H100 80 GB, all defaults."""


@dataclass(frozen=True)
class Logged:
    """`torch peak memory increase` of one start."""

    model: str
    peak_gib: float
    source: str
    version: str = "0.19.0"
    gpu: str = "H100-SXM-80GB"
    settings: dict[str, Any] = field(default_factory=dict)

    def planned(self) -> Interval:
        request = new_request(
            shape=catalogue_shape(self.model), accelerator=catalogue_accelerator(self.gpu), vllm_version=self.version,
            **self.settings,
        )  # fmt: skip
        ledger = plan(request).stages[0].ledger
        assert ledger is not None
        return ledger.peak_activation


MIXTRAL = "mistralai/Mixtral-8x7B-Instruct-v0.1"
TWO = {"tensor": 2}
LOGGED = [
    Logged("Qwen/Qwen2.5-7B-Instruct", 2.21, f"{SERIES}/qwen-qwen2-5-7b-i--h100-80gb--tp1pp1dp1--8192-dtbf16.log"),
    Logged("meta-llama/Llama-3.1-8B-Instruct", 1.89, f"{SERIES}/meta-llama-llama-3-1-8b---h100-80gb--tp1pp1dp1--2048.log"),
    Logged("Qwen/Qwen2.5-72B-Instruct", 2.29, f"{SERIES}/qwen-qwen2-5-72b-instruc--h100-80gb--tp2pp1dp1--8192.log", settings=TWO),
    Logged("codellama/CodeLlama-7b-hf", 0.77, f"{SERIES}/codellama-codellama-7b-h--h100-80gb--tp1pp1dp1--8192.log"),
    Logged("google/gemma-7b", 3.63, f"{SERIES}/google-gemma-7b--h100-80gb--tp1pp1dp1--8192.log"),
    Logged("microsoft/phi-4", 1.52, f"{SERIES}/microsoft-phi-4--h100-80gb--tp1pp1dp1--8192.log"),
    Logged("microsoft/phi-2", 0.79, f"{SERIES}/microsoft-phi-2--h100-80gb--tp1pp1dp1--2048.log"),
    Logged("ibm-granite/granite-3.1-8b-instruct", 0.85, f"{SERIES}/granite-3-1-8b--h100-80gb--tp1pp1dp1--8192.log"),
    Logged("Qwen/Qwen3-30B-A3B", 2.68, f"{SERIES}/qwen-qwen3-30b-a3b--h100-80gb--tp1pp1dp1--8192.log"),
    Logged("Qwen/Qwen1.5-MoE-A2.7B", 2.47, f"{SERIES}/qwen-qwen1-5-moe-a2-7b--h100-80gb--tp1pp1dp1--8192.log"),
    Logged(MIXTRAL, 1.21, f"{SERIES}/mistralai-mixtral-8x7b-i--h100-80gb--tp2pp1dp1--8192.log", settings=TWO),
    Logged("deepseek-ai/DeepSeek-V2-Lite-Chat", 1.93, f"{SERIES}/deepseek-ai-deepseek-v2---h100-80gb--tp1pp1dp1--8192.log"),
    Logged("Qwen/Qwen3-0.6B", 5.56, EXPLORER, version="0.11.0"),
    Logged("Qwen/Qwen3-32B", 5.64, EXPLORER, version="0.11.0", settings=TWO),
    Logged("meta-llama/Llama-3.1-8B-Instruct", 4.76, EXPLORER, version="0.11.0"),
    Logged("meta-llama/Llama-3.3-70B-Instruct", 4.84, EXPLORER, version="0.11.0", settings=TWO),
]  # fmt: skip


@pytest.mark.parametrize("start", LOGGED, ids=lambda start: f"{start.model} {start.version}")
def test_the_peak_is_the_logged_one(start: Logged) -> None:
    peak = start.planned()
    assert peak.expected / GIB == pytest.approx(start.peak_gib, abs=0.03)
    assert peak.low <= gib(start.peak_gib) <= peak.high


def test_the_term_tells_its_parts() -> None:
    ledger = plan(new_request(vllm_version="0.19.0")).stages[0].ledger
    assert ledger is not None
    term = ledger.lines[1]
    inputs = dict(term.inputs)
    assert term.name == "peak_activation"
    assert (inputs["max_num_batched_tokens"], inputs["sampler_rows"], inputs["runner"]) == (8192, 1024, "V1")
    rows, vocabulary, tokens = 1024, 128_256, 8192
    logits, hidden = rows * vocabulary * 4, 4096 * 2
    assert inputs["sampler_bytes"] == logits * 7 // 2 + tokens * hidden + 2 * rows * hidden
    assert inputs["layer_bytes"] == tokens * 2 * (3 * 14_336 + 4 * 4096)
    assert term.amount.expected == inputs["sampler_bytes"] + inputs["blas_workspace_bytes"]


def test_a_rank_without_the_head_does_not_sample() -> None:
    first, last = plan(new_request(vllm_version="0.19.0", pipeline=2)).stages
    assert first.ledger is not None
    assert last.ledger is not None
    assert dict(first.ledger.lines[1].inputs)["sampler_bytes"] == 0
    assert first.ledger.peak_activation.expected < last.ledger.peak_activation.expected


def test_half_widths_add_up_in_squares() -> None:
    ledger = plan(new_request(vllm_version="0.19.0")).stages[0].ledger
    assert ledger is not None
    widths = [line.amount.high - line.amount.expected for line in ledger.lines]
    below = ledger.available.expected - ledger.available.low
    assert max(widths) <= below < sum(widths)
    assert below == int(sum(width**2 for width in (*widths, ledger.uncertainty_bytes)) ** 0.5)

"""How fast planning is: a sweep of 40 × 40 cells and a search over every accelerator, as whole processes.

    python benchmarks/planning_speed.py

Ends with 1 if a process fails.
"""

import tempfile
from pathlib import Path

from measured_process import kvgate, own_bytecode, run

SWEEP_SECONDS, SIZE_SECONDS = 2.0, 5.0
RUNS = 3
MODELS = ("Qwen/Qwen3-32B-FP8", "openai/gpt-oss-120b", "Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V3.2")
"""Plain, windows, recurrent states, sparse latent attention."""
GRID = ("--x", "max_model_len=1K..40K+1K", "--y", "max_num_seqs=1..40+1", "--gpu", "H200-SXM-141GB", "-tp", "8")
WORKLOAD = ("--peak-concurrency", "64", "--prompt-tokens", "6000", "--output-tokens", "500")


def measure(environment: dict[str, str]) -> None:
    """The best of three: what the machine does beside it only adds."""
    for model in MODELS:
        asked = ("--model", model, "--vllm-version", "0.33.0")
        commands = {
            "sweep 40 × 40": (SWEEP_SECONDS, ("sweep", *asked, *GRID)),
            "sweep 40 × 40, page": (SWEEP_SECONDS, ("sweep", *asked, *GRID, "-o", "html")),
            "size, all accelerators": (SIZE_SECONDS, ("size", *asked, *WORKLOAD)),
            "size, every candidate": (SIZE_SECONDS, ("size", *asked, *WORKLOAD, "--all")),
        }
        print(model)
        for name, (target, command) in commands.items():
            best = min(run(kvgate(*command), environment).seconds for _ in range(RUNS))
            verdict = "ok" if best <= target else "MISSED"
            print(f"  {name:<50}{best:8.3f} s    target {target:g} s   {verdict}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        measure(own_bytecode(Path(temporary)))

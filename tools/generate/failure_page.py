"""docs/reference/failures.md: the messages of failed starts, from the table that `kvgate why` and the controller read."""

from itertools import groupby

from generate.reference import HEAD
from kvgate.sources.start_failure import FailureRow, Rank, Stage, failure_rows

_INTRODUCTION = """\
# Troubleshooting by message

From this page you find the cause of a failed start by the message that was printed, and what to do about it. `kvgate why` looks the
messages up for you: paste the log, the command or the manifest.

```sh
kubectl logs vllm-0 --previous | kvgate why
kubectl kvgate why pod/vllm-0
```

A start has stages, and the page follows them. vLLM's engine runs in a process of its own, so that the last lines of a log are often the
end of another process's traceback: the cause stands above. A message that only follows from a cause is marked.
"""
_STAGES = {
    Stage.CONFIGURATION: "Options, model and release are read; no GPU memory is used yet.",
    Stage.DOWNLOAD: "Files come from the hub, a mirror or a volume.",
    Stage.LOAD: "Processes start, and weights are loaded.",
    Stage.PROFILE: "vLLM measures how much memory one full batch takes.",
    Stage.KV_CACHE: "What is left becomes the KV cache.",
    Stage.CAPTURE: "Kernels are compiled, and CUDA graphs captured, after the KV cache took its memory.",
    Stage.SERVE: "The server answers requests.",
    Stage.HOST: "Driver, libraries and memory of the host.",
    Stage.KUBERNETES: "The cluster, before or around vLLM.",
}
_LEDGERS = {
    "kv-cache": "the KV cache of the ledger against one request",
    "weights": "the weights of the ledger against the GPU",
    "gpu": "the ledger of the GPU",
    "states": "blocks of state against max_num_seqs",
    "host": "the ledger of the pod",
    "settings": "options, model, release and GPU",
}
_RANKS = {
    Rank.CONSEQUENCE: "It follows from another failure. ",
    Rank.WRAPPER: "It is the end of another process's traceback. ",
}


def failures_reference() -> str:
    """Write one section per stage and one entry per row."""
    order = list(Stage)
    rows = sorted(failure_rows().values(), key=lambda row: order.index(row.stage))
    lines = [HEAD, _INTRODUCTION]
    for stage, of_stage in groupby(rows, key=lambda row: row.stage):
        lines += [f"## Stage: {stage.value}\n", f"{_STAGES[stage]}\n"]
        for row in of_stage:
            lines += _entry(row)
    return "\n".join(lines)


def _entry(row: FailureRow) -> list[str]:
    judged = f" kvgate computes it before the start: {_LEDGERS[row.ledger]}." if row.ledger else ""
    return [
        f"### {row.id}\n",
        "```text",
        *row.text.rstrip("\n").split("\n"),
        "```\n",
        f"{_RANKS.get(row.rank, '')}{row.cause}{judged}\n",
        f"- **Do**: {row.do}",
        f"- Printed by vLLM {row.releases}" if row.releases != "any" else "- Printed with any release",
        f"- Source: {row.source}\n",
    ]

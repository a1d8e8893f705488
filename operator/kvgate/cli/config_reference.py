"""docs/reference/config.md: what `.kvgate.yaml` may hold, comments in manifests, and baselines."""

from kvgate.api.crd import structural_schema
from kvgate.cli.config import Config
from kvgate.cli.reference import object_tables

_PAGE = """\
# Configuration of `kvgate check`

`.kvgate.yaml` is looked for in the folder of what is checked and upward from there (for standard input: the current folder), or
named by `--config`. Everything in it is optional. The command line wins over it, and what a manifest says wins over both.
What is wrong with it is told all at once, with file and line, and the exit code is 2.

```yaml
vllmVersion: "0.33.0"              # where no image tells it
failOn: warning
ignore:
- rule: KVCacheKeepsModelDtype
  reason: measured, and bfloat16 is what we want
- rule: InvalidYaml
  reason: templates are checked when they are rendered
  paths: [charts/*/templates]
mappings:                          # of several that match, the first one that says something counts
- paths: [clusters/eu/**]
  accelerator: H200-SXM-141GB
- selector: {matchLabels: {pool: chat}, name: llama-*}
  accelerator: L4-24GB
  workload: {peakConcurrency: 64, promptTokens: 6000, outputTokens: 500}
```

## Ignoring findings

A comment ignores a rule where its finding stands: on the same line or the line above, or in the whole document where the comment
stands before it. A reason is required; an ignore that matches nothing is told.

```yaml
resources: {limits: {nvidia.com/gpu: 2}}  # kvgate:ignore IdleGpus the second one is for the sidecar
```

`ignore` in the configuration does the same for many files. Ignored findings stay in the report (SARIF: as suppressed), and an engine
whose errors are all ignored does not fail the run. What could not be read can be ignored by the configuration only.

## Workload of an engine

A manifest of another platform does not say how many requests it is for. A comment before the document, or at the engine, or a
mapping does; where the KV cache does not hold that, it is a warning:

```yaml
# kvgate:workload peakConcurrency=64 promptTokens=6000 outputTokens=500
```

## Baselines

`kvgate check --write-baseline kvgate-baseline.json PATH…` writes down what is found today; with `--baseline kvgate-baseline.json` only
what is new counts. Entries know a finding by its rule, its file, its engine and its setting: they stay valid when lines move or numbers
change, and are counted, so that a second finding of the same kind is new.
"""


def config_reference(head: str) -> str:
    """The prose, then a table per object."""
    return "\n".join([head, _PAGE, *object_tables(".kvgate.yaml", structural_schema(Config))])

"""docs/reference/config.md: what `.kvgate.yaml` may hold, comments in manifests, and baselines."""

from kvgate.api.crd import structural_schema
from kvgate.cli.check.repository_config import Config
from kvgate.cli.generate.reference import object_tables

_PAGE = """\
# Configuration of `kvgate check`

`.kvgate.yaml` is looked for in the folder of what is checked (for standard input: the current folder) and in the folders above it, up to
the top of the Git repository, or named by `--config`. Everything in it is optional. The command line wins over it, and what a manifest
says wins over both. A file with mistakes is not used: all of them are listed, with file and line, and the exit code is 2.

The files that it names are plain files of the same repository (without one: of its own folder, or below). A link that leads out of it, a
device or a pipe is refused. What lies elsewhere can be given on the command line: `--model-config`, `--calibration`.

```yaml
vllmVersion: "0.33.0"              # where no image tells it
failOn: warning
ignore:
- rule: KVCacheKeepsModelDtype
  reason: measured, and bfloat16 is what we want
- rule: InvalidYaml
  reason: its placeholders are filled in by another program
  paths: ["**/skeleton"]
mappings:                          # of several that match, the first one that says something counts
- paths: [clusters/eu/**]
  accelerator: H200-SXM-141GB
- selector: {matchLabels: {pool: chat}, name: llama-*}
  accelerator: L4-24GB
  workload: {peakConcurrency: 64, promptTokens: 6000, outputTokens: 500}
```

## Ignoring findings

A comment ignores the findings of a rule on its own line or, where it stands alone, on the line below; a comment before a document
ignores them in the whole document. A reason is required, and an ignore that matches no finding is reported.

```yaml
resources: {limits: {nvidia.com/gpu: 2}}  # kvgate:ignore IdleGpus the second one is for the sidecar
```

`ignore` in the configuration does the same for many files. Ignored findings stay in the report (SARIF: as suppressed), and an engine
whose errors are all ignored does not fail the run. What could not be read can be ignored by the configuration only.

## Workload of an engine

A manifest of another platform does not say how many requests it is for. A comment before the document or beside the engine can say
it, or a mapping of `.kvgate.yaml`; a KV cache that does not hold as many is a warning:

```yaml
# kvgate:workload peakConcurrency=64 promptTokens=6000 outputTokens=500
```

## Baselines

`kvgate check --write-baseline kvgate-baseline.json PATH…` writes down what is found today; with `--baseline kvgate-baseline.json` only
what is new counts. An entry identifies a finding by its rule, its file, its engine and its setting: it stays valid when lines move or
numbers change. Entries are counted, so that a second finding of the same kind is new.
"""


def config_reference(head: str) -> str:
    """The prose, then a table per object."""
    return "\n".join([head, _PAGE, *object_tables(".kvgate.yaml", structural_schema(Config))])

"""Pages of docs/reference with a text of their own: what `kvgate check` reads, its configuration, the pods that kvgate renders, and
what remains Unknown."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from textwrap import fill

from generate.reference import HEAD, object_tables
from kvgate.api import GROUP, KIND, field_path
from kvgate.api.crd import structural_schema
from kvgate.budget import COSTS
from kvgate.budget.answers.changes import SPARE_SEQUENCES
from kvgate.budget.answers.sharing import WORKSPACES
from kvgate.budget.ground.fitted import SLACK_CONTEXT
from kvgate.budget.ground.units import GIB
from kvgate.catalogue.models import newest_model_classes
from kvgate.cli.check.repository_config import Config
from kvgate.findings.finding import Severity, do
from kvgate.hf_config.architectures import is_read
from kvgate.manifests.platforms.readers import READERS
from kvgate.vllm.advisories import Advisory, Effect, advisories
from kvgate.vllm.pod_options import OWNED_FLAGS, POD_OPTIONS, SECRET_FLAGS
from kvgate.vllm.settings import MENTIONED, SETTINGS, Owner
from kvgate.vllm.variables import FOLDERS, MOVING, RESERVED

# ── docs/reference/manifests.md ───────────────────────────────────────────────────────────────────────────────────

_MANIFESTS = f"""\
# What `kvgate check` reads

`{KIND}` ({GROUP}) is judged by its policy, every other engine below by vLLM's own start condition, with requests beyond the
cache as a warning. Rendered manifests say most: `helm template CHART | kvgate check -`, `kustomize build DIR | kvgate check -`.
Streams of many documents, `List`s, OpenShift `Template`s (with their parameters' values), JSON, anchors and aliases are read; a finding
stands at its file, line, column and path.

In an `{KIND}` a field that the CRD does not have is an error, because the API server would remove it without a warning. The message
names the field that was probably meant: `maxModelLen` for `max_model_len`, or the same name one level deeper.

## Where each answer comes from

SOURCES

Where no document answers a question, kvgate assumes an answer, and the report lists it as assumed. Values of Secrets are never read.
A document that mentions vLLM and that kvgate does not understand is reported as an info. A template that is not rendered is reported
with the command that renders it.

Where a document that kvgate reads holds an engine that is not vLLM (SGLang, TensorRT-LLM, a simulator …), by its image or by a field such
as `backend.type`, `backendFramework` or `engine`, it is reported once as not judged. Where vLLM's program or image stands at the engine
itself, no other name counts. Settings that other engines have too refuse nothing where nothing says that the engine is vLLM.

A release refuses only where it is surely the one that runs: a release in the tag of vLLM's own images or of an image in kvgate's table, or
`--vllm-version`. Of a build before a release, for a model or of a fork, of a digest, and of a tag that is a variable, the tag is a guess:
an error needs that every release refuses, and what only some refuse is a warning. `latest` is the newest release; options that only older
ones have are warnings there.

Values of a chart are also read where a Flux `HelmRelease`, an Argo CD `Application` or an umbrella chart passes them on. Other sources
that may set them (files elsewhere, Secrets, patches) are reported as an info, and a finding that they could change is a warning, not
an error. YAML in a text field is read like the document around it; the path of a finding continues inside it.

## Platforms
"""
_SOURCES = {
    "which model": "the platform's field; `--model`; the word after `vllm serve`; of weights at a path their served name, or the folder's",
    "which GPU": "product labels; `nvidia.com/gpu.memory`, `gpu.family`; labels of clouds; MIG resources; device claims; `--gpu`",
    "how many": "limits, requests or device claims, times the pods; CUDA_VISIBLE_DEVICES; tensor × pipeline × data parallel size",
    "which release": "the tag of vLLM's own images; `--vllm-version`; else all that have the options and the model: both ends are judged",
    "which options": "command and args, through `sh -c`, `eval`, scripts and `--config`; variables and files of ConfigMaps of the input",
}
"""Question, and where the answer comes from, the surest first."""


def manifests_reference() -> str:
    """Write the rules of reading, then a table per platform, in the order in which readers are asked."""
    sources = [f"| {question} | {answer} |" for question, answer in _SOURCES.items()]
    table = "\n".join(["| question | answer, the surest first |", "|---|---|", *sources])
    lines = [HEAD, _MANIFESTS.replace("SOURCES", table)]
    platforms = list(dict.fromkeys(reader.platform for reader in READERS))
    by_platform = sorted(READERS, key=lambda reader: platforms.index(reader.platform))
    for platform, readers in groupby(by_platform, key=lambda reader: reader.platform):
        heading = platform.strip("()").capitalize() if platform.startswith("(") else platform
        rows = [f"| {reader.what} | {'; '.join(reader.reads)} |" for reader in readers]
        lines += [f"### {heading}\n", "| document | fields that are read |", "|---|---|", *rows, ""]
    return "\n".join(lines)


# ── docs/reference/config.md ──────────────────────────────────────────────────────────────────────────────────────

_CONFIGURATION = """\
# Configuration of `kvgate check`

kvgate looks for `.kvgate.yaml` in the folder that it checks (for standard input: in the current folder) and in the folders above it, up
to the top of the Git repository. `--config` names another file. Every key is optional. Options of the command line win over the file,
and what a manifest says wins over both. A file with mistakes is not used: all mistakes are listed with file and line, and the exit
code is 2.

The files that it names must be plain files of the same repository (outside of a repository: in its own folder or below). A link that
leads out of the repository, a device or a pipe is refused. Name files elsewhere on the command line: `--model-config`, `--calibration`.

Editors know the fields from [config.schema.json](config.schema.json).

```yaml
vllmVersion: "0.33.0"              # for images that do not state a release
pools:                             # an engine must start on each GPU of the pool that its node selector names
  gpu-small: [L4-24GB, A10G-24GB]
failOn: warning,unknown
require: {headroom: 10%}           # of the KV cache, beside the demand of the guarantee
ignore:
- rule: KVCacheKeepsModelDtype
  reason: measured, and bfloat16 is what we want
- rule: InvalidYaml
  reason: its placeholders are filled in by another program
  paths: ["**/skeleton"]
mappings:                          # for each key, the first entry that matches and has it counts
- paths: [clusters/eu/**]
  accelerator: H200-SXM-141GB
  require: {guarantee: Workload, accelerators: [H200-SXM-141GB, gpu-small]}
- selector: {matchLabels: {pool: chat}, name: llama-*}
  accelerator: L4-24GB
  workload: {peakConcurrency: 64, promptTokens: 6000, outputTokens: 500}
```

## GPUs of an engine

A manifest that names no GPU is judged on every GPU of the catalogue, and the answer says on which of them the engine starts. There are
three ways to state what the cluster has:

* `accelerator: L4-24GB`, or `--gpu L4-24GB`. Several names with commas between them are several kinds of GPU, on each of which
  the engine must start: it is refused if it does not start on one of them, and the finding names that one.
* `pools`, where the engine's node selector or affinity names its node pool: `cloud.google.com/gke-nodepool`, `eks.amazonaws.com/nodegroup`,
  `karpenter.sh/nodepool`, `kubernetes.azure.com/agentpool` and other labels of node pools. A pool wins over `accelerator`.
* `mappings`, whose `accelerator` may be the name of a pool as well.

A GPU that the manifest itself names wins over all of them. Where the manifest names several, those that are also stated here count.

## Values of other charts

In the values of a chart that kvgate does not know, an engine is recognised by vLLM's image, options and settings, and its facts by the
names that charts commonly have. Where a chart has other names, `fields` of a mapping states the paths:

```yaml
mappings:
- paths: [charts/chat/values*.yaml]
  fields:
    engines: fleet.*               # each entry of fleet, a list or an object; without it, the values are one engine's
    model: weights.hub
    image: server.image            # a text, or an object with repository and tag
    gpus: cards
    accelerator: hardware.card
    arguments: server.extra
    options: {max-model-len: context}
```

A path begins at the object of the engine, else at the top of the values; those in a `HelmRelease`, an `Application` or a `HelmChart` count
too. Values with such a mapping are read even if nothing in them names vLLM. Facts that the mapping does not state are still looked for
by name. A path that leads nowhere is a finding, `PathLeadsNowhere`: a warning where a field with a similar name stands there.

## Variables

`variables` of a mapping gives values to variables and fields of templates that nothing in the input fills in, in the words of the command
line, the model, the image and the number of GPUs. A finding about such a variable shows the row:

```yaml
mappings:
- paths: ["**/start.sh"]
  variables: {MODEL: Qwen/Qwen3-8B, "1": "8192", Values.image.tag: v0.24.0}
```

## Ignoring findings

A comment ignores the findings of a rule on its own line or, where it stands alone, on the line below; a comment before a document
ignores them in the whole document. A reason is required, and an ignore that matches no finding is reported.

```yaml
resources: {limits: {nvidia.com/gpu: 2}}  # kvgate:ignore IdleGpus the second one is for the sidecar
```

`ignore` in the configuration does the same for many files. Ignored findings stay in the report (SARIF: as suppressed), and an engine
whose errors are all ignored does not fail the run. A file that cannot be read can be ignored by the configuration only.

## Workload of an engine

A manifest of another platform does not say how many requests it is for. A comment before the document or beside the engine can say
it, and so can a mapping of `.kvgate.yaml`. A KV cache that does not hold that many requests is a warning:

```yaml
# kvgate:workload peakConcurrency=64 promptTokens=6000 outputTokens=500
```

## Requirements

`require` states what engines must have beyond their start, for all of them or in a mapping:

| field | an engine does not meet it where | rule |
|---|---|---|
| `headroom: 10%` | the expected headroom is smaller: (capacity − demand of the guarantee) / capacity | `HeadroomBelowRequired` |
| `guarantee: Workload` | its KV cache does not hold that guarantee; where it may hold it, that is a warning | `RequiredGuaranteeNotMet` |
| `accelerators: [L4-24GB]` | it runs on another GPU | `AcceleratorNotAllowed` |

The headroom is that of the required guarantee, else that of the guarantee that was judged. Each finding names the field and the figure, and
the engine is `not allowed`; its verdict stays. Where a fact is missing, `RequirementNotJudged` is a warning, and with `--fail-on unknown`
(`failOn: unknown`) it fails the run, as an engine whose verdict is Unknown does.

## Baselines

`kvgate check --write-baseline kvgate-baseline.json PATH…` writes a file with today's findings. With `--baseline kvgate-baseline.json`,
only new findings count. An entry identifies a finding by its rule, its file, its engine and its setting, so it stays valid when lines
move or numbers change. Entries are counted: a second finding of the same kind is new.
"""


def config_reference() -> str:
    """Write the text, then a table per object of `.kvgate.yaml`."""
    return "\n".join([HEAD, _CONFIGURATION, *object_tables(".kvgate.yaml", structural_schema(Config))])


# ── docs/reference/pods.md ────────────────────────────────────────────────────────────────────────────────────────

_PODS = """\
# Pods: what a spec may not set, and why

The verdict is about the GPUs, the program and the settings that a spec names, so the pod must run exactly these. Everything that would
replace them is refused: by `kvgate check` and the webhook, and by the API server itself where the schema can express it. Pods of other
platforms, which `kvgate check` only reads, may have all of it. This is not a sandbox: whoever may choose an image can run any program
in it. Limit that with a policy about images.

## Text

vLLM gets `extraArgs` and the values of `template.env` unchanged. Kubernetes would replace `$(NAME)` in them by a variable's value and
`$$` by `$`; kvgate escapes every `$`, so that no variable can add an option after the verdict. Give a secret value as a variable of
its own, with `secretKeyRef`.

## An API key

```yaml
# kubectl create secret generic qwen3-4b-api --from-literal=api-key="$(openssl rand -hex 24)"
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: qwen3-4b}
spec:
  model: {name: Qwen/Qwen3-4B}
  accelerator: {type: L4-24GB}
  vllm: {version: "0.33.0", maxModelLen: 8192, maxNumSeqs: 4}
  template:
    env:
      - name: VLLM_API_KEY
        secretKeyRef: {name: qwen3-4b-api, key: api-key}
```

vLLM requires the key for paths such as `/v1`. It does not require it for `/health`, which the probes request, and for `/metrics`, which
the controller and Prometheus read: use a NetworkPolicy to keep others away from these two.
vLLM listens only once its weights are loaded, so the startup probe on `/health` waits for them as one on `/v1/models` would.
"""
_MOVES = "it changes the use of GPU memory: the budget is computed without it"
_SECRETS = "put the value into a Secret instead of a plain `value`; messages do not repeat it"
_IMAGES = """\
## Images

`spec.vllm.image` and `spec.model.source.image.reference` are references as container runtimes take them: a name, a tag, a digest. Without
an image, the pod runs `vllm/vllm-openai` (AMD: `vllm/vllm-openai-rocm`) with the tag of `spec.vllm.version`. A build of a version is
written as in the tags that vLLM publishes: `0.19.0+cu130` becomes `v0.19.0-cu130`. Only a pull shows whether the registry has that tag.
"""


def pods_reference() -> str:
    """Write a table for each kind of refusal."""
    return "\n".join([HEAD, _PODS, *_variables(), *_options(), _IMAGES])


def _variables() -> Iterator[str]:
    yield "## Variables that are reserved\n"
    yield "| variables in `template.env` | because | instead |"
    yield "|---|---|---|"
    for group in RESERVED:
        patterns = ", ".join(f"`{pattern}`".replace("|", "\\|") for pattern in group.patterns)
        yield f"| {patterns} | {group.reason} | {group.instead} |"
    yield "\nEach is a regular expression for the whole name. You may set all others: `NCCL_*`, `HF_*`, `OMP_NUM_THREADS`, and more.\n"
    yield "## Variables with a warning\n"
    yield "| variable | warning |"
    yield "|---|---|"
    for variable in MOVING:
        yield f"| `{variable.name}` | {'it changes a layout: the verdict is Unknown' if variable.unmodelled else _MOVES} |"
    for name, folder in FOLDERS.items():
        yield f"| `{name}` | kvgate sets it to `{folder}`; a folder outside `/cache` is lost with the container |"
    yield f"| names that end in `API_KEY`, `TOKEN`, `PASSWORD`, `SECRET`, `ACCESS_KEY` | {_SECRETS} |\n"
    mentioned = ", ".join(f"`{setting.flag}`" for setting in MENTIONED)
    yield f"Options with the same warning: {mentioned}.\n"


def _options() -> Iterator[str]:
    yield "## Options that do not work in one pod with HTTP on port 8000\n"
    yield "| option in `extraArgs` | vLLM … | instead |"
    yield "|---|---|---|"
    for option in POD_OPTIONS:
        warning = "(a warning)" if option.severity is Severity.WARNING else ""
        spelling = " ".join(filter(None, (f"`--{option.name.replace('_', '-')}`", option.when, warning)))
        yield f"| {spelling} | {option.effect} | {option.instead} |"
    yield "\n## Options that a field owns, and secrets\n"
    yield "| option | instead |"
    yield "|---|---|"
    for flag, setting in OWNED_FLAGS.items():
        is_field = setting.owner is Owner.SPEC
        yield f"| `{flag}` | {f'`{field_path(setting.name)}`' if is_field else 'nothing: kvgate decides'} |"
    for flag, instead in SECRET_FLAGS.items():
        yield f"| `{flag}` | {instead}: arguments are no place for a secret |"
    yield ""


# ── docs/reference/changes.md ─────────────────────────────────────────────────────────────────────────────────────

_CHANGES = """\
# Changes that would fit

Where bytes are what lacks, kvgate searches changes with which the engine would fit: in `kvgate explain` of flags, `kvgate check`, the
webhook's refusal and `status.alternatives`. Each proposal fits at the low end of the prediction, starts, and breaks no rule that the
engine as it is written keeps. Several changes `together` are minimal: without one of them, or with one that goes less far, it does not
fit. The steps of max_num_seqs are halvings where it is stated or the guarantee counts it, else quarters; those of
max_num_batched_tokens are halvings down to 512.

Proposals are ordered by what they cost you. Points are added up, and 5 points are half of the context. After the cheapest one, kvgate
also looks for the cheapest without each loss that it has. A long search ends with the best that is known, and an admission has less time
than a command line: it leaves out smaller checkpoints and host memory, and its sets stay on the same GPUs.

Wishes: `--keep` names settings that stay; the floors `minMaxModelLen` and `minMaxNumSeqs` of `spec.admission.adjust` hold for proposals
too.

| setting | loss | points | why |
|---|---|---|---|
ROWS

A max_num_seqs that nobody states is vLLM's default, far above what runs: down to {spare} it costs 0.25 points per halving. Another GPU
counts by its memory, one doubling at least.

## The safe share of a GPU

gpu_memory_utilization is raised only where no other engine shares the GPU and CPU and GPU have memories of their own, and only up to a
limit. vLLM refuses to start where less than total × gpu_memory_utilization is free, and by then the CUDA context is gone, up to
{before:.2f} GiB. Later come attention workspaces of up to {later:.2f} GiB, the sampler's warm-up, and in some releases CUDA graphs. The
limit leaves room for all of them, in hundredths; `kvgate explain` names it. A monitor or another process on the card needs more.
"""


def changes_reference() -> str:
    """Write the cost of every change that may be proposed, the cheapest first."""
    rows = (
        f"| `{name}` | {cost.loss} | {cost.base + cost.points if cost.base else cost.points:g}"
        f"{'' if cost.per == 'change' else f', {cost.points:g} per further GiB' if cost.base else f' per {cost.per}'} | {cost.words} |"
        for name, cost in sorted(COSTS.items(), key=lambda each: each[1].base + each[1].points)
    )
    known = {"spare": SPARE_SEQUENCES, "before": SLACK_CONTEXT.interval.high / GIB, "later": WORKSPACES.high / GIB}
    return HEAD + "\n" + _CHANGES.format(**known).replace("ROWS", "\n".join(rows))


# ── docs/reference/unknown.md ─────────────────────────────────────────────────────────────────────────────────────

_UNKNOWN = """\
# What remains Unknown

`Unknown` is not a refusal: a part of the model, or a setting, has no formula here, and kvgate gives no guess instead of a number. The
finding `UnmodelledKind` names the part. A KV cache size that you set (`kvCacheMemoryBytes`, `--kv-cache-memory-bytes`) brings a verdict
back wherever the cache itself is understood.
"""
_WITHOUT_FORMULA: Mapping[str, str] = {
    "lora_config": "it is no option of vLLM; `--enable-lora` and the options beside it have a verdict",
    "load_format": "the loader may change the weights; formats that only read the same bytes in another way have a verdict",
    "quantization_config": "it changes weights by layer while they are loaded, and its keys are those of a plugin",
    "worker_cls": "another program then allocates the memory",
    "model_class_overrides": "another class then builds the model",
    "hf_config_path": "the config is elsewhere; give it by `configFrom` or `--model-config`",
    "hf_overrides": "transformers derives other values from the key, or nobody knows it; keys that decide the shape alone have a verdict",
    "rope_scaling": "the length of a request is then not known: give `max_model_len`, and it has a verdict",
}
"""Reason why a setting has no formula, where more can be said than what it switches on."""
_KINDS_WITHOUT_FORMULA: Mapping[str, str] = {
    "a model class that nobody has read (`architecture …`)": "its weights and caches may be anything; plug-ins bring classes of "
    "their own. With `--fetch`, a class whose tensors are those of a known one has a verdict",
    "`multimodal encoder`": "the encoder's weights and its share of the profile run are not known for this "
    "class; the cache of the language model is, and a KV cache size that you set has a verdict",
    "layers of an unknown kind": "the config names a kind of layer that no release of vLLM 0.6 to 0.33 has, or that nobody has read",
    "`mamba_cache_mode all` from 0.32 on": "these releases refuse it",
    "`prefill_context_parallel_size` in 0.25 and 0.26": "nobody has read these releases; older ones refuse it",
    "`prefill_context_parallel_size` with compressed MLA, or MLA beside other layers": "which ranks hold the other caches is not known",
    "overrides of a config that is assumed": "the model was found by its name only, so that there is no config to change",
    "a KV cache format of a plug-in": "vLLM 0.33 takes names that plug-ins register, and their pages are not known",
}
"""Parts of models, and combinations, without a formula; and the reason."""
_UNREAD = """
## Model classes

Nobody has read these {count} classes of vLLM's registry yet. Most have a vision or audio tower of their own, which is the part that lacks a
formula; `Transformers…` classes run whatever code transformers or the checkpoint brings. Classes for drafts are not listed.
"""
_DRAFTING = (
    "MTP",
    "Eagle",
    "EAGLE",
    "Draft",
    "DSpark",
    "DFlash",
    "Medusa",
    "Speculator",
    "Assistant",
    "XPress",
    "HiddenStates",
)
"""Words in the names of classes that only draft tokens."""


def unknown_reference() -> str:
    """Write the settings, the variables and the kinds that leave a verdict open, each with its reason."""
    yields = [HEAD, _UNKNOWN, "## Settings\n", "| setting | reason |", "|---|---|"]
    open_settings = {
        each.flag: _WITHOUT_FORMULA.get(each.name, each.unmodelled) for each in SETTINGS if each.unmodelled
    }
    yields += [f"| `{flag}` | {reason} |" for flag, reason in open_settings.items()]
    yields += ["\n## Variables\n", "| variable | it switches on |", "|---|---|"]
    named = (variable for variable in MOVING if variable.unmodelled)
    yields += [f"| `{variable.name}` | {variable.unmodelled.partition(', ')[2]} |" for variable in named]
    yields += ["\n## Models and combinations\n", "| part | reason |", "|---|---|"]
    yields += [f"| {kind} | {reason} |" for kind, reason in _KINDS_WITHOUT_FORMULA.items()]
    unread = [
        name for name in newest_model_classes() if not is_read(name) and not any(word in name for word in _DRAFTING)
    ]
    yields += [_UNREAD.format(count=len(unread)), fill(", ".join(f"`{name}`" for name in unread), width=140) + "."]
    return "\n".join([*yields, ""])


# ── docs/reference/advisories.md ──────────────────────────────────────────────────────────────────────────────────

_ADVISORIES = """\
# Known defects of vLLM

Defects of vLLM's releases that change what an engine takes, what it holds, or whether it starts. Where the release, the model, the GPU and
the settings meet one, the answer has a note (rule `KnownDefect`), and `kvgate diff` says whether a change leads into it or out of it. No
figure is changed for a note: what a formula knows is in the ledger already.

The releases are the first and the last that are known to have the defect, in vLLM's issue or in its sources. A newer release that is not
listed may have it too.
"""


def advisories_reference() -> str:
    rows = sorted(advisories(), key=lambda each: (tuple(map(int, each.since.split("."))), each.id))
    lines = [f"{HEAD}\n{_ADVISORIES}"]
    for effect in Effect:
        lines += [
            f"## {_EFFECTS[effect]}\n",
            "| vLLM | where | what happens | what to do | source |",
            "|---|---|---|---|---|",
        ]
        lines += [_advisory_row(each) for each in rows if each.effect is effect]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


_EFFECTS = {
    Effect.STARTS: "It may not start",
    Effect.MEMORY: "It takes other memory than it says",
    Effect.CAPACITY: "It holds another number of tokens",
    Effect.SERVING: "It ends, or grows, under load",
}
_SIGNS = {"": "", "=": " {}", "~": " with {}", ">": " above {}"}


def _advisory_row(advisory: Advisory) -> str:
    settings = (
        f"{'without ' if each.is_not else ''}`--{each.name.replace('_', '-')}`{_SIGNS[each.sign].format(each.operand)}"
        for each in advisory.conditions
    )
    kinds = (f"no {kind[1:]}" if kind.startswith("!") else kind for kind in advisory.kinds.split())
    capability = [f"compute capability {' or '.join(advisory.capability.split())}"] if advisory.capability else []
    where = [*advisory.classes.split(), *kinds, *([advisory.vendor] if advisory.vendor else []), *capability, *settings]
    fixed = f"; not in {advisory.fixed}" if advisory.fixed else ""
    says, remedy = (do(text).worded(_option) for text in (advisory.says, advisory.remedy))
    source = f"[{advisory.reference}]({advisory.source}), {advisory.day}"
    return f"| {advisory.releases}{fixed} | {', '.join(where) or 'every engine'} | {says} | {remedy} | {source} |"


def _option(setting: str) -> str:
    return f"`--{setting.replace('_', '-')}`"

"""docs/reference/pods.md: what a spec may not set on the pods that kvgate renders, why, and what to do instead."""

from collections.abc import Iterator

from kvgate.api import field_path
from kvgate.rules.finding import Severity
from kvgate.vllm.flags import FLAGS, SECRET_FLAGS
from kvgate.vllm.memory_settings import MENTIONED
from kvgate.vllm.pod_options import POD_OPTIONS, PodOption
from kvgate.vllm.variables import FOLDERS, MOVING, RESERVED

_INTRODUCTION = """\
# Pods: what a spec may not set, and why

The verdict is about the GPUs, the program and the settings that a spec names, so the pod runs exactly those. What would put something
else in their place is refused, by the API server itself where the schema can say it, and the same by `kvgate check` and the webhook.
Pods of other platforms, which `kvgate check` only reads, may have all of it. This is no sandbox: who may name an image runs what they
like in it, and a policy about images is where that is limited.

## Text

vLLM gets `extraArgs` and the values of `template.env` byte by byte. Kubernetes would replace `$(NAME)` in them by a variable's value
and `$$` by `$`; kvgate escapes every `$`, so that no variable brings an option in after the verdict. Give a value that is secret as a
variable of its own, by `secretKeyRef`.

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

vLLM asks for the key under `/v1` and its like. The probes ask `/health`, and
the controller and Prometheus `/metrics`, which it leaves open: a NetworkPolicy is what keeps others from them.
vLLM listens only once its weights are loaded, so the startup probe on `/health` waits for them as one on `/v1/models` would.
"""


def pods_reference(head: str) -> str:
    """A table for each kind of refusal."""
    lines = (*_variables(), *_warnings(), *_options(), *_owned())
    return "\n".join([head, _INTRODUCTION, *lines, _IMAGES])


def _variables() -> Iterator[str]:
    yield "## Variables that are reserved\n"
    yield "| variables in `template.env` | because | instead |"
    yield "|---|---|---|"
    for group in RESERVED:
        names = ", ".join(f"`{pattern}`".replace("|", "\\|") for pattern in group.patterns)
        yield f"| {names} | {group.reason} | {group.instead} |"
    yield "\nEach is a regular expression of the whole name. Others are yours, `NCCL_*`, `HF_*`, `OMP_NUM_THREADS`, and more.\n"


def _warnings() -> Iterator[str]:
    yield "## Variables with a warning\n"
    yield "| variable | what is said |"
    yield "|---|---|"
    for variable in MOVING:
        said = "it changes a layout: the verdict is Unknown" if variable.kind else _MOVES
        yield f"| `{variable.name}` | {said} |"
    for name, folder in FOLDERS.items():
        yield f"| `{name}` | kvgate sets it to `{folder}`; a folder outside `/cache` is lost with the container |"
    yield f"| names that end in `API_KEY`, `TOKEN`, `PASSWORD`, `SECRET`, `ACCESS_KEY` | {_SECRETS} |\n"
    names = ", ".join(f"`--{name.replace('_', '-')}`" for name in MENTIONED)
    yield f"Options with the same warning: {names}.\n"


_MOVES = "it moves GPU memory: the budget is that without it"
_SECRETS = "a `value` in plain text belongs into a Secret; no message repeats it"


def _options() -> Iterator[str]:
    yield "## Options that one pod with HTTP on port 8000 cannot hold\n"
    yield "| option in `extraArgs` | vLLM … | instead |"
    yield "|---|---|---|"
    for option in POD_OPTIONS:
        yield f"| {_flag(option)} | {option.effect} | {option.instead} |"
    yield ""


def _flag(option: PodOption) -> str:
    warning = "(a warning)" if option.severity is Severity.WARNING else ""
    return " ".join(filter(None, (f"`--{option.name.replace('_', '-')}`", option.when, warning)))


def _owned() -> Iterator[str]:
    yield "## Options that a field owns, and secrets\n"
    yield "| option | set |"
    yield "|---|---|"
    for owned in FLAGS:
        yield f"| `{owned.flag}` | {f'`{field_path(owned.field)}`' if owned.field else 'nothing: kvgate decides'} |"
    for flag, instead in SECRET_FLAGS.items():
        yield f"| `{flag}` | {instead}: arguments are no place for a secret |"
    yield ""


_IMAGES = """\
## Images

`spec.vllm.image` and `spec.model.source.image.reference` are references as container runtimes take them: a name, a tag, a digest. Without
an image it is `vllm/vllm-openai` (AMD: `vllm/vllm-openai-rocm`) with the tag of `spec.vllm.version`; the build of a version stands in the
tag as vLLM publishes it, `0.19.0+cu130` as `v0.19.0-cu130`. Whether the registry has that tag is only known when it is pulled.
"""

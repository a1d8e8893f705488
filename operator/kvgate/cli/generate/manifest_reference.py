"""What follows from READERS: docs/reference/manifests.md, and the resources that `kubectl kvgate` lists."""

from collections.abc import Iterator
from itertools import groupby

from kvgate.api import GROUP, KIND, PLURAL
from kvgate.manifests.platforms.reader import Reader
from kvgate.manifests.platforms.readers import READERS, resources_in_cluster

_INTRODUCTION = f"""\
# What `kvgate check` reads

`{KIND}` ({GROUP}) is judged by its policy, every other engine below by vLLM's own start condition, with requests beyond the
cache as a warning. Rendered manifests say most: `helm template CHART | kvgate check -`, `kustomize build DIR | kvgate check -`.
Streams of many documents, `List`s, JSON, anchors and aliases are read; a finding stands at its file, line, column and path.

In an `{KIND}` a field that the CRD does not have is an error, with the field that it was probably meant to be: the API server
would prune it without a word. `max_model_len` is such a field (`maxModelLen` is meant), and so is one that stands a level too high.

## What is taken from where

SOURCES

What was taken because nothing said it is listed as assumed. Values of Secrets are never read. What speaks of vLLM and is not understood
is told as an info. A template that nobody rendered is told with the command that renders it.

Values of a chart are also read where a Flux `HelmRelease`, an Argo CD `Application` or an umbrella chart hands them over. Whatever else
may set them (files of another place, Secrets, patches) is told as an info, and what it could change is a warning, no error.
YAML that stands as text in a field is read as if it stood there: the path of a finding goes on inside it.

## Platforms
"""
_SOURCES = {
    "which model": "the platform's field; `--model`; the word after `vllm serve`; of weights at a path their served name, or the folder's",
    "which GPU": "product labels; `nvidia.com/gpu.memory`, `gpu.family`; labels of clouds; MIG resources; device claims; `--accelerator`",
    "how many": "limits, requests or device claims, times the pods; CUDA_VISIBLE_DEVICES; against tensor × pipeline × data parallel size",
    "which release": "the tag of vLLM's own images; `--vllm-version`; else all that have the options and the model: both ends are judged",
    "which options": "command and args, through `sh -c`, `eval`, scripts and `--config`; variables and files of ConfigMaps of the input",
}
"""Question, and where the answer comes from, the surest first."""


def manifests_reference(head: str) -> str:
    """The rules of reading, then a table per platform, in the order in which readers are asked."""
    rows = [f"| {question} | {answer} |" for question, answer in _SOURCES.items()]
    table = "\n".join(["| question | answer, the surest first |", "|---|---|", *rows])
    lines = [head, _INTRODUCTION.replace("SOURCES", table)]
    by_platform = sorted(READERS, key=lambda reader: _order(reader.platform))
    for platform, readers in groupby(by_platform, key=lambda reader: reader.platform):
        lines += _section(platform, readers)
    return "\n".join(lines)


def _order(platform: str) -> int:
    return next(index for index, reader in enumerate(READERS) if reader.platform == platform)


def _section(platform: str, readers: Iterator[Reader]) -> Iterator[str]:
    yield f"### {platform.strip('()').capitalize() if platform.startswith('(') else platform}\n"
    yield "| document | fields that are read |"
    yield "|---|---|"
    for reader in readers:
        yield f"| {reader.what} | {'; '.join(reader.reads)} |"
    yield ""


def kubectl_resources() -> str:
    """One resource per line. The plugin reads this file, because importing the readers would take longer than the rest of its start."""
    return "".join(f"{resource}\n" for resource in (f"{PLURAL}.{GROUP}", *resources_in_cluster()))

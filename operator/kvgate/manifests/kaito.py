"""KAITO: Workspace, with the options of vLLM in a ConfigMap."""

from collections.abc import Iterator

import yaml

from kvgate.manifests.engine_found import FoundEngine, Hint
from kvgate.manifests.fields_as_options import any_options
from kvgate.manifests.pods import Input, engines_of_pod
from kvgate.manifests.vllm_args import Argument
from kvgate.manifests.written import Written

_CONFIG_KEY = "inference_config.yaml"


def read_workspace(given: Input) -> Iterator[FoundEngine]:
    """A preset with its ConfigMap, or a pod template of the user's own."""
    inference, resource = given.root.get("inference"), given.root.get("resource")
    template = inference.get("template")
    if template.is_set:
        yield from engines_of_pod(given, template.get("spec"), platform="kaito")
        return
    if not inference.get("preset").is_set:
        return
    arguments, remarks = _config(given, inference.get("config"))
    yield FoundEngine(
        platform="kaito",
        document=given.document,
        root=given.root,
        name=given.name,
        path=inference.path,
        arguments=arguments,
        model=inference.get("preset", "name"),
        hints=tuple(_hints(resource)),
        remarks=remarks,
    )


def _hints(resource: Written) -> Iterator[Hint]:
    instance = resource.get("instanceType")
    if instance.text:
        yield Hint(name="instanceType", value=instance.text, path=instance.path)
    for name, value in resource.get("labelSelector", "matchLabels").fields():
        yield Hint(name=name, value=value.text, path=value.path)


def _config(given: Input, reference: Written) -> tuple[tuple[Argument, ...], tuple[tuple[str, str], ...]]:
    if not reference.text:
        return (), ()
    text = given.config_value(reference.text, _CONFIG_KEY)
    if text is None:
        return (), ((reference.path, f"ConfigMap {reference.text} with {_CONFIG_KEY} is not in the input"),)
    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return (), ((reference.path, f"{_CONFIG_KEY} of ConfigMap {reference.text} is not YAML: {error}"),)
    options = any_options(Written(value=loaded, path="").get("vllm"))
    return tuple(Argument(text=word.text, path=reference.path) for word in options), ()

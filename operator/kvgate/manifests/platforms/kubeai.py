"""KubeAI: Model with a resource profile, and the catalog of its models chart."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kvgate.api.quantity import parse_quantity
from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import words_of
from kvgate.manifests.platforms.charts import dependencies
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpus_of
from kvgate.manifests.pods.host_memory import HostRoom

_TABLE = Path(__file__).parent / "data" / "kubeai_models.csv"
_CONFIG_MAP, _CONFIG_KEY = "kubeai-config", "system.yaml"


def values_with_profiles(root: Written) -> Iterator[Written]:
    """Yield the values of KubeAI's own chart: in a file or a HelmRelease, and there also under a dependency."""
    kind = root.get("kind").text
    if kind in ("", "HelmRelease"):
        values = root.get("spec", "values") if kind else root
        places = (values, *dependencies(values))
        yield from (place for place in places if place.get("resourceProfiles").is_set)


def has_profiles(root: Written) -> bool:
    """Return True for values of KubeAI itself, which its models refer to."""
    return any(values.get("modelServers").is_set for values in values_with_profiles(root))


def is_catalog(root: Written) -> bool:
    """Return True for values of the models chart, or of KubeAI's with these inside."""
    return any(_runs_vllm(model) for _, model in _models(root))


def _catalog(root: Written) -> Written:
    inside = root.get("models", "catalog")
    return inside if inside.is_set else root.get("catalog")


def _models(root: Written) -> Iterator[tuple[str, Written]]:
    """Yield the models of a catalog by name; one of the chart's own that is only switched on has the chart's values."""
    for name, model in _catalog(root).fields():
        own = _own_models().get(name) if isinstance(model.value, Mapping) else None
        yield name, model if own is None else Written(value={**own, **model.value}, path=model.path)


@lru_cache(maxsize=1)
def _own_models() -> Mapping[str, Mapping[str, Any]]:
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    rows = (line.split(",", 3) for line in lines if not line.startswith(("#", "name,")))
    return {
        name: {"engine": "VLLM", "resourceProfile": profile, "url": url, "args": args.split()}
        for name, profile, url, args in rows
    }


def _runs_vllm(model: Written) -> bool:
    return model.get("engine").text == "VLLM"


def read_catalog(given: ReaderInput) -> Iterator[FoundEngine]:
    for name, model in _models(given.values):
        if _runs_vllm(model) and model.get("enabled").value is True:
            engine = _engine(given, model, name)
            is_own = not _catalog(given.values).get(name, "url").is_set
            yield replace(engine, assumed=(f"{name} as KubeAI's chart 0.21.0 has it",)) if is_own else engine


def read_model(given: ReaderInput) -> Iterator[FoundEngine]:
    spec = given.root.get("spec")
    if spec.get("engine").text in ("VLLM", ""):
        yield _engine(given, spec, given.name)


_CPU_PROFILE, _CPU_IMAGE = "cpu", "substratusai/vllm:v0.6.3.post1-cpu"
"""A profile of KubeAI's chart 0.21.0 that has no GPU, and its image."""


def _engine(given: ReaderInput, spec: Written, name: str) -> FoundEngine:
    """Make the engine of a model; `resourceProfile: nvidia-gpu-l4:2` is two times the profile."""
    written = spec.get("resourceProfile")
    profile_name, _, count = written.text.partition(":")
    profile, images = _profile(given, profile_name)
    gpus, resource = gpus_of(profile)
    is_on_cpus = profile_name == _CPU_PROFILE and not profile.is_set
    per_profile = gpus.count if profile.is_set else None if is_on_cpus else 1
    times = int(count) if count.isdecimal() and len(count) < 5 else 1
    hints = (*((resource,) if resource else ()), *node_hints(profile))
    image = images.get(profile.get("imageName").text) if profile.is_set else NOTHING
    image = Written(value=_CPU_IMAGE) if is_on_cpus else image
    own = Hint(name="kubeai.org/resource-profile", value=profile_name, path=written.path)
    amount = profile.get("limits", "memory")
    single = parse_quantity(amount.text)
    limit = amount if single is None else Written(value=str(int(single * times)), path=amount.path)
    return FoundEngine(
        platform="kubeai",
        document=given.document,
        root=given.root,
        name=name,
        path=spec.path,
        arguments=tuple(words_of(spec.get("args"))),
        model=spec.get("url"),
        image=spec.get("image") if spec.get("image").text else Written(value=image.text, path=written.path),
        num_gpus=Written(value=(per_profile or 0) * times or None, path=written.path),
        hints=tuple(replace(hint, path=written.path) for hint in (own, *hints)) if profile_name else (),
        has_shared_memory=True,
        host=HostRoom(limit=limit),
    )


def _profile(given: ReaderInput, name: str) -> tuple[Written, Written]:
    """Return (the profile, images of vLLM), where values of KubeAI or its rendered ConfigMap are in the same input."""
    text = (given.config_data(_CONFIG_MAP) or {}).get(_CONFIG_KEY)
    try:
        rendered = Written(value=value_of(text) if isinstance(text, str) else None)
    except YamlError:
        rendered = NOTHING
    for values in (*given.collected(values_with_profiles), rendered):
        profile = values.get("resourceProfiles", name)
        if profile.is_set:
            return profile, values.get("modelServers", "VLLM", "images")
    return NOTHING, NOTHING

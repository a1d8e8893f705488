"""KubeAI: Model with a resource profile."""

from collections.abc import Iterator

from kvgate.manifests.containers import environment
from kvgate.manifests.engine_found import FoundEngine, Hint
from kvgate.manifests.fields_as_options import words_of
from kvgate.manifests.pods import Input
from kvgate.manifests.written import Written


def read_model(given: Input) -> Iterator[FoundEngine]:
    """`resourceProfile: nvidia-gpu-l4:2` is two of what the profile names; other engines than VLLM are not ours."""
    spec = given.root.get("spec")
    if spec.get("engine").text not in ("VLLM", ""):
        return
    profile = spec.get("resourceProfile")
    name, _, count = profile.text.partition(":")
    environment(spec, given.config_value)
    yield FoundEngine(
        platform="kubeai",
        document=given.document,
        root=given.root,
        name=given.name,
        path=spec.path,
        arguments=tuple(words_of(spec.get("args"))),
        model=spec.get("url"),
        image=spec.get("image"),
        num_gpus=Written(value=int(count) if count.isdecimal() else 1, path=profile.path),
        hints=(Hint(name="kubeai.org/resource-profile", value=name, path=profile.path),) if name else (),
    )

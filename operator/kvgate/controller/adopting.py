"""Whether an object may take over children of its name that somebody else made, and how that is said before it happens. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.api import ADOPT_ANNOTATION
from kvgate.rendering.adoption import controlled_by
from kvgate.rendering.live_deployment import differences, unrendered
from kvgate.vllm.arguments import Argument

_MAX_PATHS = 8
"""Most paths that are named of each child."""
Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A child that somebody else made, and what kvgate would render in its place."""


def obstacle_to(foreign: Sequence[Pair], *, wants_adoption: bool) -> str:
    """Return why these children are not taken over; empty where they are."""
    names = " and ".join(f"{live['kind']} {live['metadata']['name']}" for live, _ in foreign)
    problems = "; ".join(filter(None, (_problem(live) for live, _ in foreign)))
    if not problems and wants_adoption:
        return ""
    taken = f"{names} exist already and are not of this InferenceDeployment; rename one or the other"
    if problems:
        return f"{taken}: {problems}"
    return f'{taken}, or set the annotation {ADOPT_ANNOTATION}: "true", by which they become its own: {changes_of(foreign)}'


def changes_of(foreign: Sequence[Pair]) -> str:
    """Describe what becomes of these children."""
    return "; ".join(_changes(*pair) for pair in foreign)


def _changes(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    changed = [path for path in differences(live, wanted) if not path.startswith("metadata.")]
    paths = list(dict.fromkeys((*changed, *unrendered(live, wanted))))
    named = ", ".join(paths[:_MAX_PATHS]) + (f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else "")
    text = f"{live['kind']} {live['metadata']['name']}: {f'{named} change' if paths else 'nothing but its metadata changes'}"
    if live["kind"] != "Deployment":
        return text
    replaces = any(path.startswith("spec.template") for path in paths)
    return f"{text}, and its pods {'are replaced' if replaces else 'stay'}"


def _problem(live: Mapping[str, Any]) -> str:
    """Return why nobody's wish is enough to take this child; empty where it is."""
    name = f"{live['kind']} {live['metadata']['name']}"
    if controller := controlled_by(live):
        return f"{name} is controlled by {controller}, which would undo every change"
    pod = live.get("spec", {}).get("template", {}).get("spec", {})
    engines = [str(each.get("name")) for each in pod.get("containers") or () if _runs_vllm(each)]
    if len(engines) > 1:
        return f"{name} runs vLLM in {len(engines)} containers ({', '.join(engines)}), and an InferenceDeployment is one engine"
    return ""


def _runs_vllm(container: Mapping[str, Any]) -> bool:
    from kvgate.manifests.pods.which_engine import is_vllm_image, vllm_program  # rarely needed, and large

    words = " ".join(map(str, (*(container.get("command") or ()), *(container.get("args") or ())))).split()
    return is_vllm_image(str(container.get("image", ""))) or bool(
        vllm_program([Argument(text=word, path="") for word in words])
    )

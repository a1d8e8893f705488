"""`CUDA_VISIBLE_DEVICES`: which of a container's GPUs vLLM sees."""

import re
from collections.abc import Mapping

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.containers import Start

NAME = "CUDA_VISIBLE_DEVICES"
_SET = f"{NAME}="
_DEVICE = re.compile(r"\d+|(?:GPU|MIG)-[\w\-/]+")


def visible_gpus(start: Start, variables: Mapping[str, Written], *fields: Written) -> Written:
    """Count the visible GPUs by the command's variable, else the container's; unknown where a script in `fields` may set it."""
    for word in reversed(start.before):
        if word.text.startswith(_SET):
            return Written(value=_count(word.text.removeprefix(_SET)), path=word.path)
    if NAME not in variables or any(NAME in str(field.value) for field in fields):
        return NOTHING
    known = variables[NAME]
    return Written(value=_count(known.text) if known.value is not None else None, path=known.path)


def _count(text: str) -> int | None:
    """None where it is no list of devices that are all known."""
    devices = [device.strip() for device in text.split(",")]
    return len(devices) if all(map(_DEVICE.fullmatch, devices)) else None

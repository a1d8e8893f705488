"""`.kvgate.yaml`: what a repository tells `kvgate check` once, and not on every command line."""

import re
from typing import Annotated, Literal

from pydantic import Field

from kvgate.api.base import ApiModel
from kvgate.api.v1alpha1 import Workload

Text = Annotated[str, Field(strict=True, min_length=1)]
_RELEASE = r"^v?[0-9]{1,9}\.[0-9]{1,9}[.a-z0-9]{0,40}$"
"""Every repetition is bounded, so that no text takes long."""
Release = Annotated[str, Field(strict=True, pattern=_RELEASE)]
Paths = Annotated[tuple[Annotated[Text, Field(max_length=512)], ...], Field(max_length=100)]
MAX_ENTRIES = 1000
"""Length of a list: each engine, or each file with findings, is compared with all of it."""


def is_release(text: str) -> bool:
    """It has the form of one: `0.33.0`, `v0.9.0rc1`."""
    return re.fullmatch(_RELEASE, text) is not None


class Selector(ApiModel):
    """Selector of objects by their content; all given parts must match."""

    match_labels: Annotated[dict[str, Text], Field(default_factory=dict)]
    """Labels of the object or of its pods."""
    name: Text | None = None
    """The engine's or the object's name; * stands for any text."""
    namespace: Text | None = None
    """The object's namespace; * stands for any text."""


class Mapping(ApiModel):
    """Facts about some engines that their manifests do not state."""

    paths: Paths = ()
    """Files: globs below the folder of this file. A folder stands for all that is in it."""
    selector: Selector | None = None
    """Objects. With paths, both must match."""
    accelerator: Text | None = None
    """A name that `kvgate gpus` lists."""
    vllm_version: Release | None = None
    """The release of vLLM, such as "0.33.0"."""
    workload: Workload | None = None
    """Peak load of the engines; where it does not fit, that is a warning."""
    config_json: Annotated[Text | None, Field(alias="modelConfig")] = None
    """The config.json of models that are not in the catalogue; a path from the folder of this file."""


class IgnoredRule(ApiModel):
    """A rule whose findings do not count."""

    rule: Text
    """Its id, as `kvgate rules` lists it."""
    reason: Text
    """Why, for those who read the report."""
    paths: Paths = ()
    """Only in these files; everywhere where none are given."""


class Config(ApiModel):
    """Everything is optional; the command line wins over this file, and what a manifest says wins over both."""

    accelerator: Text | None = None
    """A name that `kvgate gpus` lists, for manifests that do not say what they run on."""
    vllm_version: Release | None = None
    """The release of vLLM, for manifests whose image does not say it."""
    config_json: Annotated[Text | None, Field(alias="modelConfig")] = None
    """The config.json of models that are not in the catalogue; a path from the folder of this file."""
    calibration: Text | None = None
    """Observed starts that `kvgate calibrate` wrote; a path from the folder of this file."""
    fail_on: Literal["error", "warning"] | None = None
    """Severity from which on the exit code is 1."""
    ignore: Annotated[tuple[IgnoredRule, ...], Field(max_length=MAX_ENTRIES)] = ()
    """Rules whose findings are told as ignored and do not count."""
    mappings: Annotated[tuple[Mapping, ...], Field(max_length=MAX_ENTRIES)] = ()
    """Mappings for some engines; of several that match, the first one that has the fact counts."""

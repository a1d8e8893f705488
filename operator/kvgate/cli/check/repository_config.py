"""`.kvgate.yaml`: what a repository states once for `kvgate check`, instead of on every command line.

Everything that is wrong with the file is reported at once, with the field, the value, and what to do.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field, ValidationError

from kvgate import catalogue
from kvgate.api.allowed import AllowedPods
from kvgate.api.base import ApiModel
from kvgate.api.v1alpha1 import Workload
from kvgate.api.validation import schema_findings
from kvgate.cli.exits import FAIL_ON, BadInput
from kvgate.cli.known_models import read_model_config
from kvgate.cli.reports.placed import placed_broken, placed_in, shown_file
from kvgate.documents.bounded_files import read_file, repository_of
from kvgate.documents.discovery import OtherRevision
from kvgate.documents.reading import STDIN_NAME, parsed
from kvgate.documents.written import Written
from kvgate.findings.finding import Finding, Located, Remedy, SettingName, Words, any_one, words
from kvgate.judgement import facts
from kvgate.manifests import Broken, Document
from kvgate.rules.catalogue import rule_hint
from kvgate.rules.repository import INVALID_CONFIG
from kvgate.vllm.options import options

MAX_BYTES = 256 << 10
"""Size of a `.kvgate.yaml`."""
MAX_PROBLEMS = 100
"""Mistakes that are shown at once; looking for the nearest name takes a millisecond for each."""
Text = Annotated[str, Field(strict=True, min_length=1)]
_RELEASE = r"^v?[0-9]{1,9}\.[0-9]{1,9}[.a-z0-9]{0,40}$"
"""Every repetition is bounded, so that no text takes long."""
Release = Annotated[str, Field(strict=True, pattern=_RELEASE)]
_PERCENT = r"^[0-9]{1,2}(\.[0-9]{1,2})? ?%$"
Paths = Annotated[tuple[Annotated[Text, Field(max_length=512)], ...], Field(max_length=100)]
_PATH = r'^[\w-]+(\.[\w-]+|\[([0-9]{1,3}|"[^"\]]{1,100}")\])*$'
ValuePath = Annotated[str, Field(strict=True, max_length=256, pattern=_PATH)]
_PATHS = _PATH.replace(r"[\w-]", r"[\w*-]").replace("{1,3}|", r"{1,3}|\*|")
ValuePaths = Annotated[str, Field(strict=True, max_length=256, pattern=_PATHS)]
"""A path among values in which a step * is every entry."""
MAX_ENTRIES = 1000
"""Length of a list: each engine, or each file with findings, is compared with all of it."""
Gpus = Annotated[tuple[Text, ...], Field(max_length=100)]


def is_release(text: str) -> bool:
    """Return True if the text has the form of a release: `0.33.0`, `v0.9.0rc1`."""
    return re.fullmatch(_RELEASE, text) is not None


class Selector(ApiModel):
    """Selector of objects by their content; all given parts must match."""

    match_labels: Annotated[dict[str, Text], Field(default_factory=dict)]
    """Labels of the object or of its pods."""
    name: Text | None = None
    """The engine's or the object's name; * stands for any text."""
    namespace: Text | None = None
    """The object's namespace; * stands for any text."""


class Require(ApiModel):
    """Requirements of engines beyond their start; an engine that does not meet one is an error."""

    headroom: Annotated[Text | None, Field(pattern=_PERCENT)] = None
    """Least expected headroom, in percent of the KV cache: (capacity − demand of the guarantee) / capacity, such as 10%."""
    guarantee: Literal["Startup", "Workload", "FullContext"] | None = None
    """Guarantee that the KV cache must hold: one request, the declared workload, or max_num_seqs requests of max_model_len."""
    accelerators: Gpus | None = None
    """Accelerators that engines may run on: names that `kvgate gpus` lists, or names of pools."""


class Fields(ApiModel):
    """Paths of facts among the values of a chart that kvgate does not know, such as llm.model.id or models[0].name.

    They begin at the object of the engine, else at the top of the values.
    """

    engines: ValuePaths | None = None
    """The object of each engine: models.* is every entry of models, a list or an object; without it, the values are one engine's."""
    model: ValuePath | None = None
    """The model: its name, or an object with its id."""
    image: ValuePath | None = None
    """The image of vLLM: a text, or an object with repository and tag."""
    gpus: ValuePath | None = None
    """The number of GPUs of one pod, or the resources of the container."""
    arguments: ValuePath | None = None
    """The arguments of `vllm serve`: a list, a text, or an object with options under vLLM's names."""
    accelerator: ValuePath | None = None
    """The GPU."""
    vllm_version: ValuePath | None = None
    """The release of vLLM, where the image does not state it."""
    options: Annotated[dict[Text, ValuePath], Field(max_length=100)] = Field(default_factory=dict)
    """Options of vLLM that have a field of their own, such as max-model-len: llm.contextLength."""


class Mapping(ApiModel):
    """Facts about some engines that their manifests do not state."""

    paths: Paths = ()
    """Files, as globs below the folder of this file. A folder stands for everything in it."""
    selector: Selector | None = None
    """Objects. Where paths are given too, both must match."""
    accelerator: Text | None = None
    """A name that `kvgate gpus` lists, several with commas between them, or the name of a pool: the engines must start on each."""
    vllm_version: Release | None = None
    """The release of vLLM, such as "0.33.0"."""
    workload: Workload | None = None
    """Peak load of the engines; where it does not fit, that is a warning."""
    config_json: Annotated[Text | None, Field(alias="modelConfig")] = None
    """The config.json of models that are not in the catalogue; a path relative to the folder of this file."""
    fields_at: Annotated[Fields | None, Field(alias="fields")] = None
    """Places of the facts in values of a chart that kvgate does not know."""
    variables: Annotated[
        dict[Text, Annotated[str, Field(strict=True, max_length=4096)]] | None, Field(max_length=100)
    ] = None
    """Values of variables and of fields of templates that stand open in these engines, by their names: MODEL, Values.image.tag, 1."""
    require: Require | None = None
    """Requirements of these engines; for each of them the first mapping that states it counts, else that for all engines."""


class Models(ApiModel):
    """Models that the catalogue does not know."""

    lock: Text | None = None
    """Published models that `kvgate models lock` wrote; a path relative to the folder of this file. They win over the catalogue."""
    fetch: Annotated[bool, Field(strict=True)] = False
    """Fetch models that neither knows from huggingface.co, or from HF_ENDPOINT."""


class IgnoredRule(ApiModel):
    """A rule whose findings do not count."""

    rule: Text
    """Its id, as `kvgate rules` lists it."""
    reason: Text
    """Reason, for those who read the report."""
    paths: Paths = ()
    """Only in these files; in all files where none are given."""


class Config(ApiModel):
    """Everything is optional. The command line wins over this file, and what a manifest states wins over both."""

    accelerator: Text | None = None
    """The GPU of manifests that do not state it: a name that `kvgate gpus` lists, several with commas between them, or the name of a pool.
    The engines must start on each."""
    pools: Annotated[dict[Text, Gpus], Field(max_length=MAX_ENTRIES)] = Field(default_factory=dict)
    """GPUs of node pools, by the name of the pool: engines whose node selector or affinity names the pool must start on each of them."""
    vllm_version: Release | None = None
    """The release of vLLM, for manifests whose image does not state it."""
    config_json: Annotated[Text | None, Field(alias="modelConfig")] = None
    """The config.json of models that are not in the catalogue; a path relative to the folder of this file."""
    calibration: Text | None = None
    """Observed starts that `kvgate calibrate` wrote; a path relative to the folder of this file."""
    models: Models | None = None
    """Models that the catalogue does not know."""
    fail_on: Annotated[Text | None, Field(pattern=FAIL_ON)] = None
    """Findings that make the exit code 1: error, warning, unknown or skipped, or several with commas between them; errors always do."""
    require: Require | None = None
    """Requirements of all engines beyond their start."""
    pods: AllowedPods | None = None
    """Parts of the pods of InferenceDeployments that your cluster's administrator allows, as `pods` in the values of kvgate's chart."""
    ignore: Annotated[tuple[IgnoredRule, ...], Field(max_length=MAX_ENTRIES)] = ()
    """Rules whose findings are reported as ignored and do not count."""
    mappings: Annotated[tuple[Mapping, ...], Field(max_length=MAX_ENTRIES)] = ()
    """Facts about some engines; of several mappings that match an engine, the first one that states a fact counts."""


class ConfigFile(Struct, frozen=True):
    """A configuration that was read, and the place of its file."""

    path: Path
    config: Config
    root: Path
    """The files that it names lie below this folder."""
    document: Document | None = None
    """Its text with positions; None where it is empty."""
    other: OtherRevision | None = None
    """The revision that it was read from; None: it is a file of the checkout."""

    def path_below(self, file: str) -> str:
        """Return a file's path as the globs name it; empty where the file lies elsewhere, or is standard input."""
        folder = self.folder
        if self.other and folder.is_relative_to(self.other.copy):
            folder = self.other.top / folder.relative_to(self.other.copy)
        return _path_below(folder, file)

    def shown(self, path: Path) -> str:
        """Return the name of a file that it states, or of itself, for people."""
        return self.other.shown(path) if self.other else shown_file(str(path))

    def place_of(self, field: str) -> str:
        return f"{self.shown(self.path)}:{self.document.position_of(field).line if self.document else 1}"

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def has_requirements(self) -> bool:
        return bool(self.config.require) or any(each.require for each in self.config.mappings)

    @property
    def calibration(self) -> Path | None:
        return self.folder / self.config.calibration if self.config.calibration else None

    @property
    def lock(self) -> Path | None:
        models = self.config.models
        return self.folder / models.lock if models and models.lock else None


@lru_cache(maxsize=1024)
def _path_below(folder: Path, file: str) -> str:
    """Remember the path, because every engine and every finding of a file needs it."""
    full, folder = Path(file).resolve(), folder.resolve()
    is_below = file != STDIN_NAME and full.is_relative_to(folder)
    return full.relative_to(folder).as_posix() if is_below else ""


def read_repository_config(
    path: Path, *, inside: Path | None = None, root: Path | None = None, other: OtherRevision | None = None
) -> ConfigFile:
    """Read a configuration.

    `inside`: the folder that the path must not lead out of; `root`: the folder that the files which it names must not lie outside
    of, else its repository; `other`: the revision whose file it is. Raises BadInput with everything that is wrong.
    """
    root = root or repository_of(path.parent) or path.parent.resolve()
    try:
        data = read_file(path, max_bytes=MAX_BYTES, inside=inside)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    documents = list(parsed(other.shown(path) if other else str(path), BytesIO(data)))
    if not documents:
        return ConfigFile(path, Config(), root, other=other)
    document, *others = documents
    if isinstance(document, Broken):
        raise BadInput(problems=[placed_broken(document)])
    value = document.load()
    if isinstance(value, Broken):
        raise BadInput(problems=[placed_broken(value)])
    if others:
        raise BadInput(f"{path} has {len(documents)} documents; a configuration is one document: remove the lines ---")
    problems: list[Finding] = []
    try:
        config = Config.from_document(value)
    except ValidationError as error:
        problems += schema_findings(error, Config, "see docs/reference/config.md")
    problems += islice(_problems(Written(value=value), ConfigFile(path, Config(), root)), MAX_PROBLEMS + 1)
    if problems:
        cut = f"more than {MAX_PROBLEMS} mistakes: the first {MAX_PROBLEMS} are shown"
        shown = [replace(finding, rule=INVALID_CONFIG) for finding in problems[:MAX_PROBLEMS]]
        raise BadInput(
            cut if len(problems) > MAX_PROBLEMS else "",
            problems=[placed_in(document, Located(finding=f, path=f.field)) for f in shown],
        )
    return ConfigFile(path, config, root, document, other)


def _problems(root: Written, file: ConfigFile) -> Iterator[Finding]:
    """Yield the problems that a schema cannot express, also beside those that it can."""
    from kvgate.rules.catalogue import RULES

    yield from _value_problems(root, root, file)
    yield from _pool_problems(root.get("pools"))
    for entry in root.get("ignore").items()[:MAX_ENTRIES]:
        rule = entry.get("rule")
        if rule.text and rule.text not in RULES:
            yield _problem(rule, f" is {rule.text}, which is not the id of a rule", rule_hint(rule.text))
    for mapping in root.get("mappings").items()[:MAX_ENTRIES]:
        yield from _value_problems(mapping, root, file)
        if not mapping.get("paths").is_set and not mapping.get("selector").is_set:
            yield _problem(
                mapping,
                " has neither paths nor selector, so it is for no engine",
                any_one("add paths", "add selector", "add both"),
            )
        for option, path in islice(mapping.get("fields", "options").fields(), MAX_ENTRIES):
            flag = f"--{option.lstrip('-').replace('_', '-')}"
            if flag not in options():
                near = get_close_matches(flag, options(), n=1, cutoff=0.7)
                remedy = f"did you mean {near[0][2:]}?" if near else "write the name of an option of `vllm serve`"
                yield _problem(path, f" is for {option}, which is no option of vLLM", remedy)
        if isinstance(mapping.get("fields").value, dict) and not mapping.get("fields").value:
            yield _problem(mapping.get("fields"), " names no field", "name at least one, such as model: llm.model.id")
        if isinstance(mapping.value, dict) and not mapping.value.keys() - {"paths", "selector"}:
            remedy = "add at least one of: accelerator, vllmVersion, workload, modelConfig, fields, variables, require"
            yield _problem(mapping, " states no fact about its engines", remedy)


def _pool_problems(pools: Written) -> Iterator[Finding]:
    """Yield pools that are named like a GPU, pools without a GPU, and names that the catalogue does not have."""
    for name, gpus in islice(pools.fields(), MAX_ENTRIES):
        if catalogue.find_accelerator(name):
            yield _problem(gpus, f" is a pool with the name of a GPU, {name}", "give the pool another name")
        if gpus.value == []:
            yield _problem(gpus, " names no GPU", "name at least one that `kvgate gpus` lists")
        for gpu in gpus.items():
            for finding in facts.look_up_accelerator(gpu.text)[1] if gpu.text else ():
                yield _problem(gpu, words(": {message}", message=finding.words), finding.remedy)


def _value_problems(node: Written, root: Written, file: ConfigFile) -> Iterator[Finding]:
    """Yield names that no catalogue has, releases that kvgate does not know, and files that cannot be read."""
    accelerator, version, config = node.get("accelerator"), node.get("vllmVersion"), node.get("modelConfig")
    unknown: list[tuple[Written, Finding]] = []
    if isinstance(accelerator.value, str) and accelerator.value:
        pools = [name for name, _ in root.get("pools").fields()]
        unknown += ((accelerator, finding) for finding in facts.unknown_accelerators(accelerator.value, pools))
    for gpu in node.get("require", "accelerators").items()[:MAX_ENTRIES]:
        if gpu.text and not root.get("pools", gpu.text).is_set:
            unknown += ((gpu, finding) for finding in facts.look_up_accelerator(gpu.text)[1])
    if isinstance(version.value, str) and is_release(version.value):
        unknown += ((version, finding) for finding in facts.look_up_version(version.value.removeprefix("v")))
    for field, finding in unknown:
        yield _problem(field, words(": {message}", message=finding.words), finding.remedy)
    if isinstance(config.value, str) and config.value:
        try:
            read_model_config(file.folder / config.value, inside=file.root)
        except BadInput as error:
            remedy = "give the path of a config.json, relative to the folder of .kvgate.yaml"
            yield _problem(config, f": {error}", remedy)


def _problem(at: Written, predicate: str | Words, remedy: str | Remedy) -> Finding:
    """Make a finding whose sentence begins with the field; `predicate` is the rest of the sentence."""
    message = words("{subject}{predicate}", subject=SettingName(at.path), predicate=predicate)
    return INVALID_CONFIG.finding(at.path, message, remedy)

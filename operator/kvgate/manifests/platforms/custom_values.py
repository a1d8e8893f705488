"""Values of charts that nobody knows: an engine is recognised by vLLM's image, options and settings, wherever they stand.

Facts stand beside them under the names that charts of public repositories have: `image.repository`, `model.id`, `modelParameters`,
`resources`, `nodeSelector`, `extraArgs`. The chart may add options, so that no number is certain.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from kvgate.documents.positions import steps_of
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import as_option
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.containers import starts_of
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpu_part_of, gpus_of
from kvgate.manifests.pods.which_engine import (
    SETTINGS_LIKE_VLLM,
    SETTINGS_OF_VLLM,
    VLLM,
    are_of_vllm,
    engine_in,
    engine_stated,
    is_of_another,
    is_vllm_image,
    snake,
)
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import UNKNOWN_PROGRAM, Program

_SETTINGS = frozenset({
    *SETTINGS_LIKE_VLLM, "data_parallel_size", "dtype", "quantization", "enable_expert_parallel", "cpu_offload_gb",
})  # fmt: skip
_VALUES = pattern(
    r"\d{1,9}|0?\.\d{1,4}|[01]\.\d{1,4}|true|false|True|False|auto|half|float16|bfloat16|float32|fp8\w{0,10}|awq|gptq"
)
"""Values that a setting is read with: a chart may give other ones a meaning of its own."""
_UNSET = "0"
"""Charts write it for what they leave to vLLM: `{{- if .Values.maxNumSeqs }}`."""
_MODELS = frozenset({
    "model", "model_name", "model_id", "model_uri", "model_url", "model_path", "model_repo", "model_ref", "model_tag", "hf_model",
    "hf_model_id", "hf_model_name", "hf_repo", "huggingface_id", "hugging_face_id", "huggingface_model", "llm_model_id", "llm_model",
    "llm_model_name", "repo_id", "vllm_model", "model_reference", "storage_uri",
})  # fmt: skip
_PARTS_OF_A_MODEL = ("id", "repo", "repository", "name", "hf_id", "model_id", "huggingface_id", "uri", "path")
_ID = pattern(r"(?:hf://)?[A-Za-z0-9][\w.-]{1,95}/[A-Za-z0-9][\w.-]{1,95}")
_COUNTS = frozenset({
    "num_gpus", "gpu_count", "gpus", "gpu", "gpu_request_count", "request_gpu", "gpus_per_replica", "gpu_limit", "num_gpu",
    "amd_gpus", "nvidia_gpus",
})  # fmt: skip
_PRODUCTS = frozenset({"gpu_type", "gpu_product", "accelerator_type", "gpu_model", "gpu_name"})
_OF_DEPLOYMENTS = frozenset({
    "image", "resources", "replicas", "replica_count", "node_selector", "affinity", "tolerations", "limits", *_COUNTS, *_PRODUCTS,
})  # fmt: skip
_GENERAL = frozenset({
    "env", "config", "configuration", "values", "args", "model", "model_parameters", "vllm_config", "engine_args", "settings", "vllm",
})  # fmt: skip
"""Names of objects that name no engine."""
_ENDS_OF_COUNTS = ("_gpu_count", "_num_gpus")
_INSTANCES = pattern(r"(?:\w*_)?(?:node_shape|instance_type|machine_type|vm_size)")
_SLICE = pattern(r"\dg\.\d{1,3}gb")
_NAMES = (
    "name", "deployment_name", "modelName", "serviceName", "deployName", "app", "fullnameOverride", "nameOverride",
)  # fmt: skip
_ARGUMENTS = pattern(r"(?:\w*_)?(?:args|arguments|flags|options|cmd_args|params)")
_OF_A_CONTAINER = pattern(r"(?:.*\.)?workload\.[\w-]+\.podSpec\.containers\.[\w-]+\.args")
"""Arguments that TrueCharts' library `common` writes into a container as they are."""
_REFERENCE = pattern(r"\{\{-?\s*\.Values\.([\w.]{1,200}?)\s*-?\}\}")
_NOT_ENGINES = pattern(
    r"router|gateway|proxy|dashboard|client|webui|open_webui|test|benchmark\w*|eval\w*|schema|properties|crd\w*"
)
_OPTION_WITH_VALUE = pattern(r"--[\w-]{1,60} +[^ -].*")
_MAX_DEPTH = 6
MAX_ENGINES = 200


class Facts(Struct, kw_only=True):
    model: Written = NOTHING
    image: Written = NOTHING
    settings: dict[str, Written] = {}
    words: list[Written] = []
    command: Written = NOTHING
    script: Written = NOTHING
    """Arguments of a shell that is the command beside them."""
    resources: Written = NOTHING
    num_gpus: Written = NOTHING
    node: Written = NOTHING
    product: Written = NOTHING
    instance: Written = NOTHING
    slice: Written = NOTHING
    """Profile of a slice of a GPU."""
    variables: dict[str, Written] = {}
    """Variables of a list, as `$(NAME)` in arguments."""
    version: Written = NOTHING
    options: tuple[Argument, ...] = ()
    """Options that stand as fields under names of vLLM's own."""
    stated: Written = NOTHING
    is_among_settings: bool = False
    """The model stands among vLLM's settings: one that stands elsewhere may name a pod."""
    is_deployed: bool = False
    """Something stands there that only a deployment needs."""
    is_mixed: bool = False
    """Lists of arguments stand in several objects: they are alternatives, as of a recipe."""

    @property
    def num_own(self) -> int:
        return sum(name in SETTINGS_LIKE_VLLM for name in self.settings)

    @property
    def is_engine(self) -> bool:
        """Return whether a model stands beside something that only vLLM has, and something that a deployment needs."""
        if self.is_mixed or not self.is_deployed:
            return False
        if "--num-prompts" in self.texts:  # a benchmark of vLLM
            return False
        if self.model.is_set:
            return self.num_own > 1 or self.image.is_set or self.is_named
        return (self.is_named or self.image.is_set) and any(
            word.startswith("--model=") or word in ("--model", "serve") for word in self.texts
        )

    @property
    def is_surely_vllm(self) -> bool:
        """Return whether something beside settings that others have too says that it is vLLM."""
        is_stated = self.image.is_set or self.is_named or engine_in(self.stated.text) == VLLM
        return is_stated or not SETTINGS_OF_VLLM.isdisjoint(self.settings)

    @property
    def texts(self) -> list[str]:
        return [
            word
            for field in (*self.words, self.command, self.script)
            for text in _texts(field)
            for word in text.split()
        ]

    @property
    def is_named(self) -> bool:
        """Return whether a command line starts vLLM, or has options that only vLLM has."""
        line = " ".join(self.texts)
        return are_of_vllm(self.texts) or "vllm serve" in line or "vllm.entrypoints" in line


def _texts(field: Written) -> list[str]:
    return [item.text for item in field.items()] or field.text.split()


def read_custom_values(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of the values; what stands beside an engine further up is taken where the engine has none of its own."""
    found: list[tuple[Written, ...]] = []
    _collect(given.values, (), found)
    places = {way[-1].path for way in found}
    for way in found[:MAX_ENGINES]:
        facts = Facts()
        for node in reversed(way):
            gather(node, facts, lambda path: path in places)
        yield engine_of(given, way[-1], facts)
    if not found and names_an_engine(given.values.value):
        yield from _of_another(given)


def _of_another(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine that values name, or whose settings they hold, where it is another one than vLLM."""
    top = given.values
    children = [child for _, child in top.fields()]
    nodes = [top, *children, *(each for child in children for _, each in child.fields())]
    stated = [field for node in nodes if (field := engine_stated(node)).is_set and names_an_engine(node.value)]
    named = [(name, child) for node in nodes for name, child in node.fields()]
    blocks = [child for name, child in named if is_of_another(name) and names_an_engine(child.value)]
    if any(engine_in(field.text) == VLLM for field in stated) or not (stated or blocks):
        return
    if not stated and any("vllm" in name.lower() for name, _ in named):  # one of several that the chart may start
        return
    sign = stated[0] if stated else replace(blocks[0], value=blocks[0].path.rpartition(".")[2])
    yield FoundEngine(
        platform="values",
        document=given.document,
        root=given.root,
        name=_name(given, top, Facts()),
        path=top.path,
        stated=sign,
    )


def _collect(node: Written, above: tuple[Written, ...], found: list[tuple[Written, ...]]) -> None:
    """Add the ways to the innermost objects that are engines."""
    if len(above) > _MAX_DEPTH or node.get("enabled").value is False:
        return
    way, before = (*above, node), len(found)
    for name, child in node.fields():
        for each in child.items() or [child]:  # of a list those that name a model
            is_one = not _holds_none(name) if each is child else _has_own_model(each)
            if isinstance(each.value, dict) and is_one:
                _collect(each, way, found)
    if len(found) > before:
        return
    facts = Facts()
    gather(node, facts)
    if not facts.is_engine and above and _has_own_model(node):  # one of several, whose image stands above them
        for name, child in (field for up in reversed(above) for field in up.fields()):
            if "image" in snake(name) and not facts.image.is_set:
                facts.image = _vllm_image_of(child)
    if facts.is_engine:
        found.append(way)


def _holds_none(name: str) -> bool:
    """Return whether an object of this name holds no engine of vLLM, whatever stands in it."""
    return _NOT_ENGINES.fullmatch(snake(name)) is not None or is_of_another(name)


def _has_own_model(node: Written) -> bool:
    """Return whether an object names a model, or a folder of one beside vLLM's settings."""
    is_named = any(snake(name) in _MODELS and model_of(child).is_set for name, child in node.fields())
    return is_named or (bool(node.get("subPath").text) and _has_settings(node))


def _has_settings(node: Written) -> bool:
    """Return whether settings that few servers but vLLM have stand in an object below this one."""
    return any(sum(snake(name) in SETTINGS_LIKE_VLLM for name, _ in child.fields()) > 1 for _, child in node.fields())


def _add_model(node: Written, facts: Facts) -> None:
    """Add the folder of a model beside vLLM's settings; a model that stands among these wins over one that stands elsewhere."""
    if not facts.model.is_set and _has_settings(node):
        facts.model = node.get("subPath")
    fields = {snake(name): child for name, child in node.fields()}
    named = (model_of(child) for name, child in fields.items() if name in _MODELS)
    model = next((model for model in named if model.is_set), NOTHING)
    if model.is_set and not facts.is_among_settings and sum(name in fields for name in SETTINGS_LIKE_VLLM) > 1:
        facts.model, facts.is_among_settings = model, True


def gather(node: Written, facts: Facts, is_other: Callable[[str], bool] = lambda _: False, depth: int = 0) -> None:
    """Add the facts of an object that are not known yet: its own, then those below. `is_other`: the path of another engine."""
    if depth > _MAX_DEPTH:
        return
    is_named, num_own = facts.image.is_set or facts.stated.is_set, facts.num_own
    if not facts.image.is_set:
        facts.image = _vllm_image_of(node)
    command, args = node.get("command"), node.get("args")
    if command.is_set and not facts.command.is_set and "vllm" in " ".join(_texts(args)).split():
        facts.command, facts.script = (
            command,
            args,
        )  # a shell and its line: `command: [sh, -c]` with `args: [vllm serve …]`
    for name, child in node.fields():
        _add(snake(name), child, facts)
    _add_model(node, facts)
    if not facts.node.is_set and (node.get("nodeSelector").is_set or node.get("affinity").is_set):
        facts.node = node
    if not facts.resources.is_set and gpus_of(node)[0].is_set:
        facts.resources = node
    for name, child in node.fields():
        is_off = child.get("enabled").value is False or is_other(child.path)
        if isinstance(child.value, dict) and not is_off and not _holds_none(name):
            gather(child, facts, is_other, depth + 1)
    # a field far from the settings may name something else, as the backend of a kernel
    if not is_named and not facts.stated.is_set and (depth == 0 or facts.num_own > num_own + 1):
        facts.stated = engine_stated(node)


def model_of(field: Written) -> Written:
    if field.text:
        return field if _ID.fullmatch(field.text.strip()) else NOTHING
    parts = {snake(name): child for name, child in (*field.get("storage").fields(), *field.fields())}
    return next(
        (parts[part] for part in _PARTS_OF_A_MODEL if part in parts and _ID.fullmatch(parts[part].text)), NOTHING
    )


def image_of(node: Written) -> str:
    if node.text:
        return node.text if "/" in node.text or ":" in node.text else ""
    repository, tag = node.get("repository").text or node.get("name").text, node.get("tag").text
    registry, whole = node.get("registry").text, node.get("version").text
    if not repository and "/" in whole:
        return whole
    return f"{f'{registry}/' if registry else ''}{repository}{f':{tag}' if tag else ''}" if "/" in repository else ""


def _vllm_image_of(field: Written) -> Written:
    image = image_of(field)
    return Written(value=image, path=field.path) if is_vllm_image(image) else NOTHING


_READS: Mapping[str, tuple[Callable[[str], bool], Callable[[Written], Written]]] = {
    "model": (_MODELS.__contains__, model_of),
    "num_gpus": (lambda name: name in _COUNTS or name.endswith(_ENDS_OF_COUNTS), lambda field: field if field.count else NOTHING),
    "image": (lambda name: name.endswith(("image", "image_uri")), _vllm_image_of),
    "command": ("command".__eq__, lambda field: field if any("vllm" in word for word in _texts(field)) else NOTHING),
    "product": (_PRODUCTS.__contains__, lambda field: field if field.text else NOTHING),
    "instance": (lambda name: _INSTANCES.fullmatch(name) is not None, lambda field: field if field.text else NOTHING),
}  # fmt: skip
"""Fact → (whether a field of this name, in small letters, may be it; the fact as the field has it)."""


def _add(name: str, child: Written, facts: Facts) -> None:
    """Add what one field says, if it is not known yet."""
    for fact, (is_about, read) in _READS.items():
        if is_about(name) and not getattr(facts, fact).is_set:
            setattr(facts, fact, read(child))
    is_of_a_deployment = name in _OF_DEPLOYMENTS or name.endswith((*_ENDS_OF_COUNTS, "_replica_count"))
    facts.is_deployed = facts.is_deployed or (is_of_a_deployment and child.is_set)
    if name in _SETTINGS and name not in facts.settings and _VALUES.fullmatch(child.text) and child.text != _UNSET:
        facts.settings[name] = child
    elif _ARGUMENTS.fullmatch(name) and any(word.startswith("--") for word in _texts(child)):
        parents = {each.path.rpartition(".")[0] for each in (*facts.words[:1], child)}
        facts.is_mixed = facts.is_mixed or len(parents) > 1
        facts.words += [child] if len(parents) == 1 else []
    elif "mig" in name.split("_") and _SLICE.fullmatch(child.text):
        facts.slice = child
    elif name.endswith("_env"):
        named = ((item.get("key").text or item.get("name").text, item.get("value")) for item in child.items())
        facts.variables = {**{key: value for key, value in named if key}, **facts.variables}


def engine_of(given: ReaderInput, node: Written, facts: Facts) -> FoundEngine:
    """Make an engine of its facts: fields become options, and lists of arguments come after them."""
    options = list(facts.options)
    for name, field in facts.settings.items():
        options += as_option(field, f"--{name.replace('_', '-')}")
    words, program = _command_line(given, facts)
    gpus, resource = gpus_of(facts.resources)
    named = (
        ("accelerator", facts.product, ""),
        ("resource", facts.slice, "nvidia.com/mig-"),
        ("node.kubernetes.io/instance-type", facts.instance, ""),
    )
    product = [
        Hint(name=name, value=f"{start}{each.text}", path=each.path) for name, each, start in named if each.is_set
    ]
    return FoundEngine(
        platform="values",
        document=given.document,
        root=given.root,
        name=_name(given, node, facts),
        path=node.path,
        arguments=(*options, *words),
        model=facts.model,
        image=facts.image,
        version=facts.version,
        stated=facts.stated,
        num_gpus=gpus if gpus.is_set else facts.num_gpus,
        gpu_part=gpu_part_of(facts.resources),
        hints=(*((resource,) if resource else ()), *product, *node_hints(facts.node)),
        is_partial=True,
        is_overridden=not facts.is_surely_vllm,
        program=program or UNKNOWN_PROGRAM,
        is_wrapped=program is None,
        assumed=("the chart, which is not rendered, passes these values to vLLM under its names",),
        option_paths={name: field.path for name, field in facts.settings.items()},
    )


def _command_line(given: ReaderInput, facts: Facts) -> tuple[list[Argument], Program | None]:
    """Return the words of the lists and the command; and the program where the lists are certain to be a container's, else None."""
    words, program = list[Argument](), UNKNOWN_PROGRAM
    is_container = any(_OF_A_CONTAINER.fullmatch(field.path) for field in facts.words) and not any(
        given.root.get(*map(str, [*steps_of(field.path)][:-1]), "command").is_set for field in facts.words
    )
    start = partial(starts_of, variables=facts.variables, image=facts.image.text, shared=given.shared)
    for field in map(_in_one_line, facts.words):
        starts = start(NOTHING, field, own_program=True, is_whole=is_container)
        words += (_filled_in(given, word) for word in starts[0].arguments) if starts else ()
        program = starts[0].program if starts else program
    if facts.command.is_set:
        starts = start(facts.command, facts.script)
        words = [*(starts[0].arguments if starts else ()), *words]
    return words, program if is_container else None


def _filled_in(given: ReaderInput, word: Argument) -> Argument:
    """Return a word with the value of the same values that it refers to: a chart that takes templates in values runs `tpl` over them."""
    reference = _REFERENCE.fullmatch(word.text)
    value = given.values.get(*reference[1].split(".")).text if reference else ""
    return replace(word, text=value) if value else word


def _in_one_line(words: Written) -> Written:
    """Return a list as one text where options stand in it with their values, which a chart joins."""
    items = _texts(words)
    is_joined = isinstance(words.value, list) and any(map(_OPTION_WITH_VALUE.fullmatch, items))
    return replace(words, value=" ".join(items)) if is_joined else words


def _name(given: ReaderInput, node: Written, facts: Facts) -> str:
    """Return the name that the engine has among the values, else that of the object, else the model's."""
    own = next((node.get(field).text for field in _NAMES if node.get(field).text), "")
    steps = [step for step in steps_of(node.path.removeprefix(given.values.path)) if isinstance(step, str)]
    label = next((step for step in reversed(steps) if snake(step) not in _GENERAL), steps[-1] if steps else "")
    is_object = not node.path.endswith("]")
    named = own if own and not _ID.fullmatch(own) else label if is_object else ""
    return named or given.name or facts.model.text.rpartition("/")[2]


def names_an_engine(values: object, depth: int = 0) -> bool:
    """Return whether a document without a kind has vLLM's image, settings or options: a workflow or a package has none of these."""
    if depth > 2 * _MAX_DEPTH:
        return False
    if isinstance(values, list):
        texts = [each for each in values if isinstance(each, str)]
        return are_of_vllm(texts) or any(
            names_an_engine(each, depth + 1) for each in values if not isinstance(each, str)
        )
    if not isinstance(values, dict):
        return False
    names = {snake(str(name)) for name in values}
    written = (value for name, value in values.items() if isinstance(value, str) and (name == "image" or ":" in value))
    images = (image_of(Written(value=values)), *written)
    own = sum(name in SETTINGS_LIKE_VLLM for name in names) > 1
    is_image = any(len(image.split()) == 1 and is_vllm_image(image) for image in images)
    return own or is_image or any(names_an_engine(each, depth + 1) for each in values.values())

"""Findings about a command line by itself, and about surroundings that break a start: probes that kill it while it loads, small volumes."""

from collections.abc import Collection, Iterator
from fractions import Fraction
from json import dumps
from pathlib import PurePath

from kvgate import catalogue
from kvgate.api.quantity import parse_quantity
from kvgate.budget import accounting_of
from kvgate.budget.engine.settings import longest_context
from kvgate.budget.ground.units import cdiv, format_gib
from kvgate.documents.reading import STDIN_NAME
from kvgate.findings.finding import Located, Place, Remedy, SettingName, Severity, any_one, located, words
from kvgate.hf_config import read_config
from kvgate.manifests.pods.engine_found import COMPOSE, FoundEngine
from kvgate.rules.command_line import (
    LOADS_UNJUDGED,
    OPTION_AMBIGUOUS,
    OPTION_UNKNOWN,
    PARSER_UNKNOWN,
    UNEXPECTED_WORD,
    VARIABLE_UNKNOWN,
)
from kvgate.rules.manifests import NOT_UNDERSTOOD, PROBE_TOO_IMPATIENT, VOLUME_TOO_SMALL, WRAPPER_OPTIONS
from kvgate.rules.settings import length_above
from kvgate.statement.engine import is_known_release
from kvgate.vllm.arguments import Argument, GivenOption, is_placeholder, shown, variable_in
from kvgate.vllm.option_findings import problem_findings, repetitions
from kvgate.vllm.parser import CommandLine
from kvgate.vllm.parser_problems import ArgumentProblem
from kvgate.vllm.settings import DECIDING
from kvgate.vllm.variables import loading

_STRETCHING = frozenset({"hf_overrides", "rope_scaling", "rope_theta"})
_PARSER_RULES = (OPTION_UNKNOWN, OPTION_AMBIGUOUS, UNEXPECTED_WORD)
"""Problems that are none where another program takes the options first."""
FASTEST_LOAD_BYTES_PER_SECOND = 2_000_000_000
"""Speed that a disk or a network hardly ever reaches; a start that needs more is reported."""
FASTEST_START_SECONDS = 15
"""Imports, CUDA contexts and the profile run, at their least: no start was seen to answer sooner."""


def line_findings(
    line: CommandLine,
    engine: FoundEngine,
    *,
    is_beyond: bool,
    is_stated: bool,
    elsewhere: Collection[ArgumentProblem] = (),
) -> Iterator[Located]:
    """Everything, in the order of the line. `is_beyond`: the release is newer than those that kvgate knows; `elsewhere`: problems with
    words that another release takes, where nobody knows that it is this one.
    """
    may_bring_parsers = engine.is_wrapped or engine.is_partial  # beside vLLM's and those of the options that are seen
    named = {f"--{name.replace('_', '-')}" for name in line.given}
    at = [word.path for word in engine.arguments if word.text.strip().partition("=")[0] in named]
    at += [option.path for option in line.given.values()]
    lists = {path.rpartition("[")[0] for path in at}  # of words for vLLM, not for docker
    sure = [each for each in line.problems if each.is_sure and each.path.rpartition("[")[0] in lists]
    wrapped = [each for each in line.problems if engine.is_wrapped and each.rule in _PARSER_RULES and each not in sure]
    doubtful = [problem for problem in line.problems if may_bring_parsers and problem.rule == PARSER_UNKNOWN]
    if engine.document.form and not engine.image.is_set:  # the host may have a fork with options of its own
        doubtful += [each for each in line.problems if each.rule == OPTION_UNKNOWN and each not in wrapped]
    others = [*wrapped, *doubtful, *elsewhere]
    yield from problem_findings(line, is_beyond=is_beyond, is_stated=is_stated, others=others)
    yield from _of_wrapper(wrapped)
    others_take = "; other releases take it, and nothing here says surely which one runs"
    unsure = [(each, others_take) for each in elsewhere if each not in wrapped and each not in doubtful]
    unsure += [(each, ", unless something that is not seen here brings it along") for each in doubtful]
    for problem, doubt in unsure:
        message = f"{problem.message}{doubt}"
        yield located(problem.rule, _place(problem.at), message, problem.remedy, severity=Severity.WARNING)
    yield from repetitions(line)
    for word in line.open_words:
        unseen = words("{text} is not known here: any options in it are not judged", text=shown(word.text))
        yield located(VARIABLE_UNKNOWN, _place(word), unseen, _ways_to_fill_in(word.text, engine))
    for path, remark in engine.remarks:
        yield located(NOT_UNDERSTOOD, Place(name="", path=path), remark)
    yield from engine.findings


def _place(word: Argument) -> Place:
    return Place(name="arguments", path=word.path, line=word.line)


def undecided_settings(line: CommandLine, engine: FoundEngine, *, knows_model: bool) -> list[Located]:
    """Settings that would decide, and whose value nobody knows here; the model may be named elsewhere."""
    names = [name for name in line.unknown if name in DECIDING and not (name == "model" and knows_model)]
    return [undecided(line.unknown[name], engine) for name in names]


def undecided(setting: GivenOption, engine: FoundEngine) -> Located:
    """The finding about a setting whose value is a variable that nobody has filled in."""
    name, text = SettingName(setting.name), shown(setting.text)
    remedy = _ways_to_fill_in(setting.text, engine)
    message = "{name} is {text}, which has no value here"
    if is_placeholder(setting.text):
        message, remedy = "{name} is {text}, which is a placeholder", any_one("put a value in its place")
    return located(VARIABLE_UNKNOWN, setting, words(message, name=name, text=text), remedy)


def _ways_to_fill_in(text: str, engine: FoundEngine) -> Remedy:
    """Return the commands that settle what stands for a text that is filled in later."""
    remedies = ["give the variable a value in the same input"]
    if "{{" in text or engine.document.is_template:
        remedies = ["render this template first: helm template CHART | kvgate check -"]
    elif text.startswith("`"):
        remedies = ["write the options that it gives to vLLM into the manifest"]
    elif text.startswith("--"):
        remedies = ["check it together with the ConfigMap, or the mounted file, that it names"]
    elif engine.document.form is None and not text.startswith("$("):  # Kubernetes expands it, and no program before
        command = "docker compose config" if engine.platform == COMPOSE else "envsubst < FILE"
        remedies.append(f"check what is rendered: {command} | kvgate check -")
    if name := variable_in(text):
        file = engine.document.file
        which = f'selector: {{name: "{engine.name}"}}' if file == STDIN_NAME else f'paths: ["**/{PurePath(file).name}"]'
        row = f"mappings: [{{{which}, variables: {{{dumps(name)}: VALUE}}}}]"
        remedies.append(f"state it in .kvgate.yaml: `{row}`")
    return any_one(*remedies)


def _of_wrapper(problems: list[ArgumentProblem]) -> Iterator[Located]:
    """A misspelling is reported; all others together are the wrapper's own."""
    own = []
    for problem in problems:
        name = problem.at.text.partition("=")[0]
        # what wrappers keep for themselves
        if problem.is_slip and not name.startswith(("--dyn-", "--kaito-")):
            message = f"{shown(name)} is no option of vLLM; is it one of the program around it?"
            yield located(problem.rule, _place(problem.at), message, problem.remedy, severity=Severity.WARNING)
        elif problem.rule != UNEXPECTED_WORD:
            own.append(problem)
    if own:
        names = ", ".join(dict.fromkeys(shown(problem.at.text.partition("=")[0]) for problem in own))
        yield located(WRAPPER_OPTIONS, _place(own[0].at), f"taken for options of the program around vLLM: {names}")


def _impatient_probe(engine: FoundEngine, stored_bytes: int | None) -> Iterator[Located]:
    """A startup probe replaces the liveness probe until it succeeds; readiness kills nothing."""
    probe = next(iter(engine.probes), None)
    if probe is None or not probe.get("httpGet").is_set:
        return
    initial, period, failures = (
        probe.get(name).count for name in ("initialDelaySeconds", "periodSeconds", "failureThreshold")
    )
    patience = (initial or 0) + (10 if period is None else period) * (3 if failures is None else failures)
    needed = FASTEST_START_SECONDS + cdiv(stored_bytes or 0, FASTEST_LOAD_BYTES_PER_SECOND)
    if patience < needed:
        name = probe.path.rpartition(".")[2]
        weights = f", reading {format_gib(stored_bytes)} of weights at 2 GB/s" if stored_bytes else ""
        yield located(
            PROBE_TOO_IMPATIENT,
            Place(name="probe", path=probe.path),
            f"{name} kills the container after {patience} s; a start takes at least {needed} s{weights}",
            "give a startupProbe whose periodSeconds × failureThreshold covers download, load and compilation",
        )


def length_by_config_path(line: CommandLine, engine: FoundEngine, version: str) -> Iterator[Located]:
    """Yield a length above that of `--hf-config-path`, whose config vLLM takes in place of the model's (0.8.5 to 0.33, `get_config`)."""
    given, length = line.given.get("hf_config_path"), line.given.get("max_model_len")
    entry = catalogue.find_model(str(given.value)) if given else None
    is_stretched = engine.takes_any_length or not _STRETCHING.isdisjoint(line.names)
    if (
        entry is None
        or length is None
        or not isinstance(length.value, int)
        or is_stretched
        or not is_known_release(version)
    ):
        return
    limit = longest_context(read_config(entry.config, name=entry.name), accounting_of(version))
    if limit and length.value > limit:
        yield Located(finding=length_above(length.value, limit, entry.name), path=length.path, line=length.line)


def start_advice(engine: FoundEngine, model: str, weights_bytes: int | None) -> Iterator[Located]:
    """Yield what breaks a start or changes what it loads, with its numbers. `weights_bytes`: of all ranks, where they are known."""
    entry = catalogue.find_model(model) if model else None
    stored_bytes = (entry.safetensors_bytes if entry else None) or weights_bytes
    yield from _impatient_probe(engine, stored_bytes)
    for store in engine.stores:
        size = parse_quantity(store.size.text)
        if stored_bytes is not None and size is not None and 0 < size < Fraction(stored_bytes):
            room, weights = format_gib(int(size)), format_gib(stored_bytes)
            yield located(
                VOLUME_TOO_SMALL,
                Place(name="volume", path=store.path or store.size.path),
                f"{store.name} has {room}, and the weights that are downloaded to it take {weights}",
                f"give it more than {weights}",
            )
    for name, value in engine.loading.items():  # beside the image and the model; who writes a whole pod may want that
        if row := loading(name, value.text):
            place, remedy = Place(name="env", path=value.path), f"leave {name} out, if nothing needs it"
            yield located(LOADS_UNJUDGED, place, f"{name}: {row.effect}", remedy, severity=Severity.INFO)

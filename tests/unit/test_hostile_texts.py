"""Every pattern and every loop over other people's text, with the text that is worst for it: four times as long takes about four
times as long, where a pattern that goes back takes sixteen times and more.
"""

import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kvgate
from kvgate.cli.check.ignoring import directives
from kvgate.cli.check.repository_config import is_release
from kvgate.cli.explain.requests import answers
from kvgate.cli.reports.markdown import cell
from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.reading import parsed
from kvgate.documents.streams import comments_in
from kvgate.documents.written import Written
from kvgate.judgement import facts
from kvgate.manifests.judging.model_names import model_id
from kvgate.manifests.pasted import commands_in, described_in
from kvgate.manifests.platforms.charts import read_set
from kvgate.manifests.platforms.compose import Interpolation
from kvgate.manifests.pods.containers import starts_of, unwrapped
from kvgate.manifests.pods.which_engine import engine_in, is_simulator, is_vllm_image, server_in
from kvgate.shell.words import calculated, commands_of, split
from kvgate.sources.log_streams import streams
from kvgate.sources.start_failure import recognise
from kvgate.sources.startup_log import UnusableLog, read_startup_log
from kvgate.text import expansion
from kvgate.text.patterns import pattern as a_pattern
from kvgate.vllm.arguments import Argument, is_open
from kvgate.vllm.images import release_of_image
from kvgate.vllm.redacting import redacted

pytestmark = pytest.mark.slow

LENGTH = 10_000
"""Characters of the shorter text."""
MOST = 9.0
"""Times that four times as many characters may take."""
FLOOR_SECONDS = 0.03
"""Less than this is noise."""


def taken(function: Callable[[str], object], make: Callable[[int], str], length: int) -> float:
    text = make(length)
    started = time.process_time()
    function(text)
    return time.process_time() - started


def check(function: Callable[[str], object], make: Callable[[int], str]) -> None:
    """Measured again where it seems slow: another process may have disturbed it, and never four times."""
    short = min(taken(function, make, LENGTH) for _ in range(2))
    assert short < 2, "even the shorter text takes long"
    assert any(taken(function, make, 4 * LENGTH) < MOST * max(short, FLOOR_SECONDS) for _ in range(4))


def repeated(piece: str, before: str = "", after: str = "") -> Callable[[int], str]:
    return lambda length: before + piece * (length // len(piece)) + after


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.split("\n"), 1))


def shell(text: str) -> None:
    for line in commands_of(text, "args[0]", {"x": Written(value="a" * 100, path="env[0]")}):
        assert isinstance(line, list)


def started(text: str) -> None:
    words = [Argument(text=word, path="args") for word in ("sh", "-c", text)]
    list(unwrapped(words, {}))


def told(text: str) -> None:
    list(comments_in(text, 0))


def yaml_value(text: str) -> None:
    with suppress(YamlError):
        value_of(text)


def log(text: str) -> None:
    with suppress(UnusableLog):
        read_startup_log(text)


def asked(text: str) -> None:
    assert len(list(answers(BytesIO(text.encode())))) == 1


def container(text: str) -> None:
    starts_of(Written(value=["vllm", "serve", text]), Written(value=[text]), {}, text)


FUNCTIONS: dict[str, tuple[Callable[[str], object], dict[str, Callable[[int], str]]]] = {
    "releases": (
        is_release,
        {"0.1a…!": repeated("a", "0.1", "!"), "0.11…!": repeated("1", "0.1", "!"), ".a": repeated(".a", "0.1", "!")},
    ),
    "known releases": (
        facts.look_up_version,
        {"0.1a…!": repeated("a", "0.1", "!"), "0.11…": repeated("1", "0.1"), ".1": repeated(".1", "0")},
    ),
    "images": (
        is_vllm_image,
        {
            "vllm": repeated("vllm", "", "!"),
            "/": repeated("/"),
            "/vllm": repeated("/vllm"),
            "a": repeated("a", "", "!"),
        },
    ),
    "simulators": (is_simulator, {"-sim": repeated("-sim"), "/": repeated("/")}),
    "servers": (server_in, {"a": repeated("tensorrt-"), "b": repeated("text-generation-")}),
    "engines": (engine_in, {"-": repeated("-"), "llama-": repeated("llama-"), "hf-": repeated("hf-")}),
    "tags": (
        release_of_image,
        {
            "1.": repeated("1.", "vllm/vllm-openai:v"),
            "-1": repeated("-1", "vllm/vllm-openai:"),
            "1": repeated("1", "vllm/vllm-openai:"),
            "vllm1": repeated("vllm1.1.", "a/b:"),
            "gpu": repeated("1.1.1-gpu-py3", "a/vllm:"),
            "flavours": repeated("-cu129", "vllm/vllm-openai:v0.11.0", "!"),
            "${": repeated("${a{"),
            "${a": repeated("${a"),
            "{{": repeated("{{a"),
            "{{a…": repeated("a", "{{" * 99, "!"),
            "${a…": repeated("a", "${a", "!"),
            "${{": repeated("{}", "${a"),
        },
    ),
    "tags of one": (
        release_of_image,
        {
            "-": repeated("-", "vllm/vllm-openai:v0.11.0"),
        },
    ),
    "models": (
        model_id,
        {
            "models--": repeated("models--"),
            "models--a": repeated("models--a-"),
            "/": repeated("/"),
            "@": repeated("@"),
            "a:": repeated("a:"),
        },
    ),
    "Kubernetes' variables": (
        lambda text: expansion.expand_references(text, lambda _: None),
        {
            "$(": repeated("$("),
            "$(a": repeated("$(a"),
            "$$": repeated("$$"),
            "$(a)": repeated("$(a)"),
            "$()": repeated("$(", "", ")"),
        },
    ),
    "variables of compose": (
        Interpolation({"a": "x"}).filled,
        {
            "${a:-": repeated("${a:-"),
            "${a": repeated("${a"),
            "${a}": repeated("${a}"),
            "$a": repeated("$a"),
            "closed": repeated("${a:-", "", "}"),
        },
    ),
    "arithmetic": (
        lambda text: calculated(text, {"a": Written(value="1", path="")}),
        {
            "$((": repeated("$(("),
            "$((a": repeated("$((a"),
            "$((a+": repeated("a+", "$((", "))"),
            "(": repeated("(", "$((", ""),
            "()": repeated("(a)", "$((", ""),
            "${a:-": repeated("$((${a:-", "", "}))"),
        },
    ),
    "open words": (
        is_open,
        {
            "$(": repeated("$("),
            "${": repeated("${"),
            "{{": repeated("{{"),
            "{{a": repeated("{{ a"),
            "`": repeated("`a b", "$"),
            "$(a(": repeated("$(a(b)"),
            "$": repeated("$"),
        },
    ),
    "words": (
        split,
        {
            "a'b'": repeated("a'b'"),
            '"': repeated('"'),
            '\\"': repeated('\\"', '"'),
            "'": repeated("'"),
            "$(": repeated("$("),
            "`": repeated("`"),
            "${": repeated("${"),
            "a": repeated("a"),
            "\\": repeated("\\"),
        },
    ),
    "scripts": (
        shell,
        {
            "a'b'": repeated("a'b'"),
            '"${a:-': repeated("${a:-", '"', '"'),
            '"$((a': repeated("$((a", '"', '"'),
            "then": repeated("then "),
            "if": repeated("if a; then x=1; else x=2; fi\n"),
            "a+=(x)": repeated("a+=(x)\n"),
            "x+=a": repeated("x+=a\n"),
            "case": repeated("case a in a) b;; esac\n"),
            "x=$x$x": repeated("x=$x$x\n"),
            "$x": repeated("$x "),
            '"$x"': repeated('"$x"'),
            "(": repeated("("),
            "$(": repeated("$("),
            "<(": repeated("<("),
            "`": repeated("`a"),
            '"\\"': repeated('\\"', '"'),
            "&&": repeated("a && "),
            "||": repeated("a || "),
            "{": repeated("{ "),
            "#": repeated("#"),
            "# a": repeated("# a\n"),
            ">": repeated("> "),
            "nested": repeated("$((((("),
        },
    ),
    "scripts in scripts": (
        started,
        {"eval": repeated("eval a\n"), "sh": repeated("sh -c 'sh -c a'\n")},
    ),
    "containers": (
        container,
        {
            "a": repeated("a"),
            "api_server.py": repeated("api_server.py"),
            "/": repeated("/"),
            "vllm.": repeated("vllm.entrypoints."),
        },
    ),
    "values that are set": (
        lambda text: read_set(text, "1", as_text=False),
        {
            "a.": repeated("a.", "", "b"),
            "[1]": repeated("[1]", "a"),
            "\\": repeated("\\.", "a"),
            "a": repeated("a", "", "["),
        },
    ),
    "comments": (
        told,
        {
            "#": repeated("#", "kvgate:"),
            "# ": repeated("# ", "kvgate:"),
            "blank": repeated(" ", "kvgate:\n#"),
            "many": repeated("# kvgate:a\n"),
            "lines": repeated("#\n", "# kvgate:a\n"),
        },
    ),
    "Markdown": (cell, {"_": repeated("_"), "@": repeated("@a"), "a_": repeated("a_ "), "#": repeated("#1")}),
    "YAML": (
        yaml_value,
        {
            "1:1": repeated(":59", "a: 1"),
            "1_": repeated("1_", "a: "),
            "1.": repeated("1", "a: ", "."),
            "0x": repeated("f", "a: 0x"),
            "0b": repeated("1", "a: 0b"),
            "digits": repeated("1", "a: "),
            "e": repeated("1", "a: 1e"),
            "date": repeated(" ", "a: 2001-01-01", "x"),
            "<<": lambda n: "a: &a {x: 1}\n" + "".join(f"k{i}: {{<<: [*a, *a]}}\n" for i in range(n // 25)),
            "keys": lambda n: "".join(f"k{i}: 1\n" for i in range(n // 8)),
            "&": repeated("&a 1\n", "- "),
            "quotes": repeated("''", "a: '", "'"),
        },
    ),
    "start-up logs": (
        log,
        {
            "one line": repeated("Model loading took 1.0 G "),
            "lines": repeated("Model loading took 1.0 G\n"),
            "marks": repeated("vLLM API server version 0 "),
            "processes": repeated("(a pid=1) vLLM API server version 0\n"),
            "(": repeated("(a "),
            "{": repeated("{", "non-default args: {"),
            "-": repeated("-", "non-default args: {'a': ", "1}"),
            "objects": repeated("<a", "non-default args: {", "}"),
            "blocks": repeated("█", "", " version"),
            "colours": repeated("\x1b[1;"),
            "digits": repeated("1", "# GPU blocks: "),
            "config": repeated("LLM engine (v a with config: "),
        },
    ),
    "failures": (
        recognise,
        {
            "digits": repeated("1", "", " KV cache is needed"),
            "sizes": repeated("1.1 GiB "),
            "Error: ": repeated("Error: ", "", "CUDA out of memory"),
            "] ": repeated("] ", "", "CUDA out of memory"),
            "Config": repeated("Config", "validation error for ", "x"),
            "phrases": repeated("User-specified max_model_len (1) is greater than the derived "),
            "free": repeated("Free memory on device "),
            "put": repeated("Weight input_size_per_partition "),
            "models": repeated("Model architectures [a "),
            "argument": repeated("error: argument "),
        },
    ),
    "lines of logs": (
        lambda text: streams(numbered(text)),
        {
            "colours": repeated("\x1b[1;"),
            "pods": repeated("[pod/a/b] "),
            "|": repeated("a | "),
            "{": repeated("{", "", "}"),
            "time": repeated("2025-11-25T12:34:56Z "),
            "stern": repeated("a-b "),
        },
    ),
    "pasted": (
        lambda text: list(commands_in(numbered(text))),
        {
            "'": repeated("'", "vllm serve "),
            "A=b": repeated("A=b "),
            "sudo": repeated("sudo "),
            "`": repeated("`vllm serve "),
            "lines": repeated("vllm serve a \\\n"),
            "exports": repeated("export A=b\n"),
        },
    ),
    "described": (
        lambda text: list(described_in(numbered(text))),
        {
            "names": repeated("Name:  a\n"),
            "containers": repeated("  a:\n", "Name:  a\nContainers:\n"),
            "words": repeated("      a\n", "Name:  a\nContainers:\n  a:\n    Args:\n"),
        },
    ),
    "secrets": (
        redacted,
        {
            "token=": repeated("token="),
            "Bearer": repeated("Bearer "),
            "://": repeated("://x:"),
            "name:": repeated("name: A\nvalue: "),
            "_key": repeated("_key "),
            "blank": repeated(" ", "token", "x"),
        },
    ),
    "requests": (
        asked,
        {
            '\\"': repeated('\\"', '{"a":"'),
            '\\"id': repeated('\\"id\\":', '{"id":"'),
            "id": repeated('"id":1', "{"),
            "blank": repeated(" ", '{"id"', "x"),
            "digits": repeated("1", '{"id":'),
            "dots": repeated(".", '{"id":1'),
            "deep": repeated("["),
            "keys": lambda n: "{" + ",".join(f'"k{i}":1' for i in range(n // 9)) + "}",
        },
    ),
}


def cases() -> Iterator[Any]:
    for name, (function, texts) in FUNCTIONS.items():
        for text, make in texts.items():
            yield pytest.param(function, make, id=f"{name}: {text}".encode("unicode_escape").decode())


@pytest.mark.parametrize(("function", "make"), list(cases()))
def test_the_time_grows_with_the_length_of(function: Callable[[str], object], make: Callable[[int], str]) -> None:
    check(function, make)


def test_comments_and_directives_of_a_document() -> None:
    def read(text: str) -> None:
        (document,) = parsed("x.yaml", BytesIO(text.encode()))
        assert list(directives(document))  # type: ignore[arg-type]

    for piece in (
        "# kvgate:ignore A, ",
        "# kvgate:ignore A" + ",B" * 100 + " x\n",
        "# kvgate:workload a=1 b=2\n",
        "# kvgate:ignore " + "a " * 50 + "\n",
    ):
        check(read, repeated(piece, "", "\nkind: A\n"))


@pytest.mark.parametrize(
    "script",
    [
        "A='" + "echo b;" * 3000 + "'\n" + "eval $A\n" * 3000,
        f"B='{'eval c;' * 50}'\nA='{'eval $B;' * 50}'\n" + "eval $A\n" * 3000,
        f"A='{'eval $A;' * 50}'\n" + "eval $A\n" * 3000,
    ],
    ids=["many times", "many times each", "itself"],
)
def test_a_script_that_is_run_again_and_again_is_read_up_to_a_limit(script: str) -> None:
    begun = time.process_time()
    started(script)
    assert time.process_time() - begun < 10


NOT_ALONE = {
    "kvgate.text.expansion._REFERENCE": "it sees the text up to the last ), so that each one that begins also ends",
    "kvgate.manifests.platforms.compose._INTERPOLATED": "it sees the text up to the last }",
    "kvgate.shell.words._BRACED": "it sees the text up to the last }",
}
"""Patterns whose callers keep from them what would take long; each has a text of its own in the table above."""
PACKAGE = Path(kvgate.__file__).parent
DOORS = ("controller", "webhook", "cluster", "monitoring")
"""They need more packages, and see no files."""


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages([str(PACKAGE)], "kvgate."):
        if found.name.split(".")[1] not in (*DOORS, "__main__"):
            yield import_module(found.name)


def patterns(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern | type(a_pattern(""))):
        yield value
    elif isinstance(value, dict):
        yield from patterns(tuple(value.values()))
    elif isinstance(value, tuple | list | frozenset):
        for each in value:
            yield from patterns(each)


def pieces(pattern: re.Pattern[Any]) -> list[str]:
    """The words and signs that stand in a pattern, and what is usual in hostile texts."""
    written = pattern.pattern.decode() if isinstance(pattern.pattern, bytes) else pattern.pattern
    own = re.findall(r"[A-Za-z]{2,}[-_: ]*|[^\w\s\\]", written)
    joined = [f"{first}{second}" for first, second in pairwise(own)]
    more = [f"{text}{sign}" for text in own for sign in "a1"]
    return list(dict.fromkeys([*own, *joined, *more, *"a1 .", "a1", '\\"', "${a:-"]))


_CALL = re.compile(r"\b(\w+)(?:\[\w+\])?\.(match|fullmatch|search|sub|finditer|findall|split)\(")


@cache
def calls(path: Path) -> dict[str, set[str]]:
    """How each name is used in a file, or in all of a folder."""
    found: dict[str, set[str]] = {}
    for each in path.rglob("*.py") if path.is_dir() else [path]:
        for name, use in _CALL.findall(each.read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(use)
    return found


def uses(name: str, module: ModuleType) -> set[str]:
    """How a pattern of this name is used, in its module or else anywhere; one of a table is searched for."""
    found = calls(Path(module.__file__ or "")).get(name) or calls(PACKAGE).get(name, set())
    return {"finditer" if use in ("sub", "findall", "split") else use for use in found} or {"finditer"}


def seconds(pattern: re.Pattern[Any], use: str, text: str) -> float:
    given: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
    begun = time.process_time()
    result = getattr(pattern, use)(given)
    if use == "finditer":
        list(result)
    return time.process_time() - begun


def slow_texts(pattern: re.Pattern[Any], use: str) -> Iterator[str]:
    """Each piece again and again, with something before it and something else at the end."""
    of_pattern = pieces(pattern)
    for piece in of_pattern:
        for before in ("", *of_pattern[:1]):
            short, long = (f"{before}{piece * (length // len(piece))}\x01" for length in (1500, 6000))
            begun = seconds(pattern, use, short)
            if begun > 0.001 and min(seconds(pattern, use, long) for _ in range(3)) > MOST * begun:
                yield f"{use} {before!r} + {piece!r} * n"


def test_no_pattern_of_the_package_goes_back_over_a_long_text() -> None:
    """Whatever is added to a module is tried here without being named."""
    tried: set[str] = set()
    slow: dict[str, list[str]] = {}
    for module in modules():
        for name, value in vars(module).items():
            key = f"{module.__name__}.{name}"
            for pattern in patterns(value):
                if pattern.pattern not in tried and key not in NOT_ALONE:
                    tried.add(pattern.pattern)
                    texts = [text for use in uses(name, module) for text in slow_texts(pattern, use)]
                    slow |= {key: texts} if texts else {}
    assert slow == {}
    assert len(tried) > 100

"""Streams of documents for `kvgate check`: examples with odd parts, and texts that are hardly YAML, between two that are right.

Each stream begins and ends with an InferenceDeployment that fits. Whatever stands between, both are judged, nothing raises, no
document vanishes, and every form of the report can be read by the program that it is for.
"""

import random
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fuzz.mutation import HOSTILE, mutated, odd
from fuzz.outputs import unreadable_outputs
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.vllm.options import options

TESTS = Path(__file__).parents[1]
DOCUMENTS_PER_STREAM = 8
MAX_BYTES = 40_000
"""Of one document: a rate of a few hundred a second is worth more than size, which has tests of its own."""
SENTINELS = ("sentinel-first", "sentinel-last")
GPUS = (None, "L4-24GB", "H100-SXM-80GB", "NVIDIA-A100-SXM4-40GB")

PIECES: tuple[str, ...] = (
    "&a ", "*a", "<<: *a", "<<: [*a, *b]", "!!python/object:os.system ", "!!binary ", "!!set ", "!!float ", "!!int ", "!!str ", "!x ", "? ",
    "- ", ": ", "|\n", ">-\n", "|9\n", "{", "}", "[", "]", ",", "#", "# kvgate:ignore KVCacheTooSmall x\n", "# kvgate:workload 4\n", "'",
    '"', "\\", "\\x00", "\\ud800", "%YAML 1.2\n", "%TAG ! !\n", "\n---\n", "\n...\n", "--- x", "\t", "\n\t", "\r", "\n", "  ", "0x1F",
    "0o17",
    "1_000", "1:60:60", ".inf", ".nan", "2026-01-01", "~", "yes", "off", "=", "@", "`", "{{ .Values.x }}", "{{- if x }}", "$(A)", "\u00a0",
    "\u2028", "\ufeff", "\x85", "\x1b", "\x7f", "9" * 5000, "[" * 100, "{a: " * 60, "- " * 100, "a: " * 30, "*" * 20,
)  # fmt: skip
"""What a text is spoilt with."""
VALUES: tuple[str, ...] = (
    "!!int ''", "!!int x", "!!int -", "!!int 0x", "!!int 0b", "!!float ''", "!!float x", "!!float 1:2:3", "!!bool x", "!!null x",
    "!!timestamp x", "!!binary '*'", "!!binary é", "!!omap x", "!!omap [a]", "!!pairs [{a: 1, b: 2}]", "!!set [a]", "!!merge x",
    "!!seq x", "!!map x",
    "!!str [a]",     "!!int [1]", "!!value =", "!local x", "!!python/name:os.system", "!!python/object/apply:os.system [ls]",
    "!<tag:yaml.org,2002:int> x",
    "2026-13-45", "0000-00-00", "2026-02-30T25:61:61Z", "0b", "0x", "0o", "+", "-_", "1__0", "._", "1e", ".e1", "0_", "08", "1:99", "-.inf",
    "&a [*a]", "&a {b: *a}", "{<<: &a {<<: *a}}", "{<<: x}", "{<<: [x]}", "{? [a] : b}", "{? {a: b} : c}",
    "{{a: b}: c}", "{[a]: b}",
    "{null: 1, ~: 2}", "{1: a, 1.0: b, true: c}", "{!!int '': a}", "*nowhere", "&é x", "@x", "`x`", "%x", "|", ">", "? x", "- x",
)  # fmt: skip
"""What stands in the place of a value: tags that do not suit it, numbers and dates that are none, keys that cannot be, loops."""
_VALUE = re.compile(r"(?m)^([\w\s.-]*[\w.-]:|\s*-) (\S.*)$")
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}, *{before}, *{before}, *{before}, *{before}, *{before}, *{before}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@lru_cache(maxsize=1)
def examples() -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """(text, documents) of every example of every platform, in the order of their paths."""
    paths = (*TESTS.glob("manifests/*/*/input.yaml"), *TESTS.glob("contract/*/request.yaml"))
    texts = [path.read_text(encoding="utf-8") for path in sorted(paths)]
    return tuple((text, _loaded(text)) for text in texts if len(text) < MAX_BYTES)


def _loaded(text: str) -> tuple[Any, ...]:
    try:
        return tuple(document for document in yaml.load_all(text, yaml.CSafeLoader) if document is not None)
    except yaml.YAMLError:
        return ()


def sentinel(name: str) -> str:
    return (
        f"apiVersion: kvgate.io/v1alpha1\nkind: InferenceDeployment\nmetadata: {{name: {name}, namespace: fuzz}}\nspec:\n"
        "  model: {name: Qwen/Qwen3-8B}\n  accelerator: {type: H100-SXM-80GB}\n  vllm: {maxNumSeqs: 4}\n"
    )


def stream_of(seed: int) -> bytes:
    """The stream of a seed, its two good documents included."""
    chance = random.Random(f"documents {seed}")
    between = [_document(chance) for _ in range(DOCUMENTS_PER_STREAM)]
    texts = [sentinel(SENTINELS[0]), *between, sentinel(SENTINELS[1])]
    return "\n---\n".join(texts).encode("utf-8", "surrogatepass")


def _document(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.62:
        return _structured(chance)
    if kind < 0.70:
        return _command_line(chance)
    if kind < 0.93:
        return _spoilt(chance)
    if kind < 0.98:
        return "".join(chance.choice(PIECES) for _ in range(chance.randint(1, 60)))
    return chance.choice(
        (
            BOMB,
            f"x: {HOSTILE[0]}",
            "",
            "# nothing",
            "~",
            "[]",
            "kind: List\nitems: [{kind: List, items: []}]",
            "a" * MAX_BYTES,
        )
    )


def _command_line(chance: random.Random) -> str:
    """A pod with options of vLLM in any number, order and form: words, one text, or a line for a shell."""
    words = [word for _ in range(chance.randint(0, 14)) for word in _option(chance)]
    words.insert(
        chance.randint(0, min(2, len(words))),
        chance.choice(("Qwen/Qwen3-8B", "--model=Qwen/Qwen3-8B", "x/unknown", "/models/x")),
    )
    container: dict[str, Any] = {"name": "vllm", "image": f"vllm/vllm-openai:v{chance.choice(RELEASES)}"}
    match chance.randrange(4):
        case 0:
            container["command"] = [
                "sh",
                "-c",
                f"exec vllm serve {' '.join(words)}{chance.choice(('', ' &', ' | tee x', '; sleep 1'))}",
            ]
        case 1:
            container |= {"command": ["vllm", "serve"], "args": words}
        case 2:
            container["args"] = [" ".join(words)]
        case _:
            container["args"] = words
    container["env"] = [{"name": "A", "value": chance.choice(("4096", "$(A)", "--x", ""))}]
    container["resources"] = {"limits": {"nvidia.com/gpu": chance.choice((1, "2", "x", 0))}}
    spec = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}, "containers": [container]}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "engine"}, "spec": spec})[:MAX_BYTES]


def _option(chance: random.Random) -> list[str]:
    name = chance.choice(_option_names())
    name = chance.choice(
        (
            name,
            name,
            name,
            name.replace("-", "_").replace("__", "--", 1),
            name[:-2],
            f"{name}s",
            "-tp",
            "-O3",
            "--no-" + name[2:],
        )
    )
    value = str(chance.choice((1, 2, 4096, "32k", "auto", "fp8", '{"a": 1}', "{", "$(A)", "${A:-1}", odd(chance))))[
        :300
    ]
    return [[name], [f"{name}={value}"], [name, value], [f"{name}.x={value}"]][chance.randrange(4)]


@lru_cache(maxsize=1)
def _option_names() -> tuple[str, ...]:
    return tuple(options())


RELEASES = ("0.33.0", "0.32.0", "0.25.0", "0.14.0", "0.11.0", "0.8.5", "0.6.6", "latest", "nightly")


def _structured(chance: random.Random) -> str:
    """One document of an example with odd parts, written as YAML or as JSON."""
    _, documents = chance.choice([example for example in examples() if example[1]])
    document = mutated(chance.choice(documents), chance)
    try:
        text = yaml.safe_dump(
            document, sort_keys=False, allow_unicode=chance.random() < 0.5, width=chance.choice((40, 120))
        )
    except (yaml.YAMLError, UnicodeError):
        text = repr(document)
    if chance.random() < 0.25 and (places := list(_VALUE.finditer(text))):
        place = chance.choice(places)
        text = f"{text[: place.start(2)]}{chance.choice(VALUES)}{text[place.end(2) :]}"
    return text[:MAX_BYTES].encode("utf-8", "replace").decode()


def _spoilt(chance: random.Random) -> str:
    """The text of an example with pieces put in, taken out or doubled; it is one document no longer."""
    text, _ = chance.choice(examples())
    for _ in range(chance.randint(1, 6)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice((0, 0, 0, 1, 5, 40)))
        piece = chance.choice((chance.choice(PIECES), str(odd(chance))[:2000], text[start:end]))
        text = text[:start] + piece + text[end:]
    return text[:MAX_BYTES].replace("\0", "").encode("utf-8", "replace").decode()


def num_documents(stream: bytes) -> int:
    """The documents that a reader of YAML finds at least: none may vanish without a word."""
    texts = stream.decode("utf-8", "replace").split("\n---\n")
    return sum(_counts(text) for text in texts)


def _counts(text: str) -> bool:
    """Lists may be empty, and what is no YAML may be no document either."""
    try:
        loaded = list(yaml.load_all(text, yaml.CSafeLoader))
    except Exception:  # noqa: BLE001 - PyYAML raises IndexError for `!!int ''`
        return False
    return any(d is not None and not (isinstance(d, dict) and str(d.get("kind", "")).endswith("List")) for d in loaded)


def violations(stream: bytes, folder: Path, gpu: str | None = None) -> Iterator[str]:
    """What the check of a stream does that it must not."""
    path = folder / "stream.yaml"
    path.write_bytes(stream)
    report = run([str(path)], CheckOptions(accelerator=gpu))
    if int(report.exit_code) not in (0, 1, 2):
        yield f"the exit code is {report.exit_code}"
    verdicts = {item.name: item.verdict for item in report.items if item.namespace == "fuzz"}
    yield from (
        f"{name} is {verdicts.get(name)} in place of Fits" for name in SENTINELS if verdicts.get(name) != "Fits"
    )
    places = {(item.document.line_offset, item.document.index, item.document.position.line) for item in report.items}
    found = len(places) + len(report.broken) + report.num_others
    if found < num_documents(stream):
        yield f"{num_documents(stream)} documents are written and {found} accounted for"
    yield from (p.finding.message for p in report.broken if p.finding.message.startswith("kvgate failed"))
    if report.broken and report.exit_code == 0:
        yield "a document cannot be read and the exit code is 0"
    yield from unreadable_outputs(report)


def check_seed(seed: int, folder: Path) -> list[str]:
    return list(violations(stream_of(seed), folder, GPUS[seed % len(GPUS)]))

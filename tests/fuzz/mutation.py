"""Odd values, hostile texts, and values with parts of them replaced; every choice comes from the `Random` that is given."""

import copy
import random
from collections.abc import Iterator
from typing import Any

At = tuple[Any, ...]

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, 3, -1, 7, 4096, 10**6, 10**9, 10**18, 10**30, -(10**30), 0.5, -0.5, 1e308, float("inf"), float("-inf"),
    float("nan"), "", " ", "x", "0", "1", "many", "auto", "null", "true", "yes", "NaN", "Infinity", "1e3", "4k", "80Gi", "1_000", "0x10",
    "1:60", "9" * 40, [], [None], [[]], [{}], [0], [1, 2], {}, {"a": 1}, {"": 1}, {"name": "x"}, ["--"], ["="], "--", "=", "vllm",
    "{{ .Values.x }}", "$(A)", "$$(A)", "${A}", "é", "日本語", "\U0001f600", "'", '"', "a\nb", "a\tb",
)  # fmt: skip
HOSTILE: tuple[str, ...] = (
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "::error file=a,line=1::forged", "\n::error::forged", "\r\n::stop-commands::x", "a\rb",
    "\x7f", "\x85", "\u2028", "\u2029", "\u202eevil", "\u2066x\u2069", "\u200b", "\ufeff",
    "<script>alert(1)</script>", "]]>", "&amp;&lt;",
    "<!--", "| a | b |\n|---|---|", "[x](http://example.com)", "`code`", "![x](http://example.com)", "@everyone", "$(OTHER)", "$$",
    "$(", "%0A%0D", "%s%n", "../../../etc/passwd", "/dev/zero", "a" * 5000, "(" * 200, "[" * 200, "a,b=c;d", "--max-model-len=1",
    "--max-model-len", "#!/bin/sh", "; rm -rf /", "\\", "re:(a+)+$", "*" * 60, "\x01", "\x08", "\x1f", "A100\x1b[2J", "é" * 300,
    "\ud800", "x\udfff",
)  # fmt: skip
"""Texts that mean something to a terminal, to GitHub, to Markdown, to XML, to a shell or to the kubelet."""
MAX_DEPTH = 40


def odd(chance: random.Random) -> Any:
    """Something that does not belong there; a fresh copy."""
    kind = chance.random()
    if kind < 0.6:
        return copy.deepcopy(chance.choice(ODD))
    if kind < 0.9:
        return chance.choice(HOSTILE)
    return nested(chance, chance.randint(1, MAX_DEPTH))


def nested(chance: random.Random, depth: int) -> Any:
    value: Any = chance.choice(ODD[:20])
    for _ in range(depth):
        value = [value] if chance.random() < 0.5 else {chance.choice(("a", "spec", "items", "args", "name")): value}
    return value


def paths_in(value: Any, path: At = ()) -> Iterator[At]:
    """The path of every value, of the whole one too."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths_in(child, (*path, key))


def at(value: Any, path: At) -> Any:
    for key in path:
        value = value[key]
    return value


def mutated(value: Any, chance: random.Random, *, times: int = 0) -> Any:
    """A copy with some of its parts replaced, taken out, doubled, renamed, or put elsewhere."""
    value = copy.deepcopy(value)
    for _ in range(times or chance.randint(1, 4)):
        paths = list(paths_in(value))
        path = chance.choice(paths)
        if not path:
            continue
        parent, key = at(value, path[:-1]), path[-1]
        _change(value, parent, key, paths, chance)
    return value


def _change(whole: Any, parent: Any, key: Any, paths: list[At], chance: random.Random) -> None:
    match chance.randrange(8):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, list):
            parent.insert(chance.randint(0, len(parent)), copy.deepcopy(parent[key]))
        case 1 | 2 if isinstance(parent, dict):
            parent[odd_key(key, chance)] = parent.pop(key)
        case 3:
            parent[key] = copy.deepcopy(at(whole, chance.choice(paths)))
        case 4 if isinstance(parent[key], str):
            parent[key] = spoilt(parent[key], chance)
        case _:
            parent[key] = odd(chance)


def odd_key(key: Any, chance: random.Random) -> Any:
    text = str(key)
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in text)
    return chance.choice(
        (snake, text.upper(), f"{text}s", text[:-1], chance.choice(HOSTILE[:-2]), "", "kind", "metadata", "spec")
    )


def spoilt(text: str, chance: random.Random) -> str:
    """A text with a hostile one in it, or some of it doubled or lost."""
    start, end = sorted(chance.randint(0, len(text)) for _ in range(2))
    return text[:start] + chance.choice((chance.choice(HOSTILE), text[start:end] * 2, "", text.upper())) + text[end:]

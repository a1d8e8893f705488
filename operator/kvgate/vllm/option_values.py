"""Values of vLLM's options, read from text by the types of its parser (`FlexibleArgumentParser`, `human_readable_int`)."""

import json
from collections.abc import Sequence
from typing import Any

from kvgate.vllm.values import UnusableValue, read_size


class BadValue(ValueError):
    """The parser would refuse the value; the message says what it must be."""


def takes_no_value(kind: str) -> bool:
    """Return whether the type is that of a switch."""
    return kind == "bool"


def takes_several(kind: str) -> bool:
    """Return whether the type is that of a list, which takes all words up to the next option."""
    return kind.startswith("list[")


_IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "int(1k,1K)": "a whole number such as 32768, 32k (32000) or 32K (32768)",
    "json": "JSON",
    "kv-list": "pairs such as image=4",
}


def described(kind: str, choices: Sequence[str]) -> str:
    """Describe the values that an option takes: `a whole number`, `one of auto, fp8`."""
    if choices:
        return f"one of {', '.join(choices)}"
    if takes_several(kind):
        return "one or more values"
    return _IN_WORDS.get(kind.partition("|")[0].partition(":")[0].removesuffix("?"), "a text")


def read_value(texts: Sequence[str], kind: str, choices: tuple[str, ...], key: str = "") -> Any:
    """Read the words of one option. `key` is that of a dotted option: `--compilation-config.mode 3`, `.custom_ops+ a,b`.

    Raise BadValue.
    """
    if key:
        value = texts[0].split(",") if key.endswith("+") else _json_or_text(texts[0])
        for name in reversed(key.removesuffix("+").split(".")):
            value = {name: value}
        return value
    base = kind.removesuffix("?")
    if base != kind and texts[0] in ("None", ""):
        return None
    several = takes_several(kind)
    values = [_read_word(text, base[5:-1] if several else base) for text in (texts if several else texts[:1])]
    if choices and not all(str(value) in choices for value in values):
        raise BadValue(f"it must be one of {', '.join(choices)}")
    return values if several else values[0]


def _read_word(text: str, kind: str) -> Any:
    """Read one word by its type; a type that is not listed here takes any text."""
    if kind == "str|bare" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    kind = kind.removesuffix("|bare")
    if kind.endswith("|auto") and text.strip().lower() == "auto":
        return -1
    is_object = text.strip().startswith("{")
    value: Any = text
    match kind.removesuffix("|auto").partition(":")[0]:
        case "int" | "int(1k,1K)" | "float" as number:
            value = _number(text, number)
        case "str(a-B)":  # `FlashInfer-CUTLASS` is `flashinfer_cutlass`
            value = text.lower().replace("-", "_")
        case "json":
            value = _json(text)
        case "json|str" if is_object and text.strip().endswith("}"):
            value = _json(text)
        case "json|kv-list" if is_object:
            value = _json(text)
        case "kv-list" | "json|kv-list":
            # `image=4,video=1`: the only form before 0.8, and one beside JSON before 0.10 (`nullable_kvs`).
            pairs = (pair.partition("=") for pair in text.split(","))
            value = {name: _number(count, "int") for name, _, count in pairs}
    return value


def _number(text: str, kind: str) -> int | float:
    try:
        return float(text) if kind == "float" else int(text)
    except ValueError:
        if kind != "int(1k,1K)":
            raise BadValue(f"it must be {_IN_WORDS[kind]}") from None
    try:
        return read_size(text)
    except UnusableValue as error:
        raise BadValue(str(error)) from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadValue("it must be JSON") from None


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

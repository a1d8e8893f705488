"""Values of vLLM's options from text, by the types of its parser (`FlexibleArgumentParser`, `human_readable_int`)."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from kvgate.vllm.values import Unusable, read_size


class BadValue(ValueError):
    """The parser would refuse it; the message says what it must be."""


def takes_no_value(kind: str) -> bool:
    """Switches."""
    return kind == "bool"


def takes_several(kind: str) -> bool:
    """Lists take all words up to the next option."""
    return kind.startswith("list[")


def described(kind: str, choices: Sequence[str]) -> str:
    """Describe the values that an option takes: `a whole number`, `one of auto, fp8`."""
    if choices:
        return f"one of {', '.join(choices)}"
    if takes_several(kind):
        return "one or more values"
    return _IN_WORDS.get(kind.partition("|")[0].partition(":")[0].removesuffix("?"), "a text")


def read_value(texts: Sequence[str], kind: str, choices: tuple[str, ...], key: str = "") -> Any:
    """The value; `key` is that of a dotted option: `--compilation-config.mode 3`, `.custom_ops+ a,b`. Raises BadValue."""
    if key:
        return _nested(key.removesuffix("+"), texts[0].split(",") if key.endswith("+") else _loose(texts[0]))
    base = kind.removesuffix("?")
    if base != kind and texts[0] in ("None", ""):
        return None
    several = takes_several(kind)
    values = [_scalar(text, base[5:-1] if several else base) for text in (texts if several else texts[:1])]
    if choices and not all(str(value) in choices for value in values):
        raise BadValue(f"it must be one of {', '.join(choices)}")
    return values if several else values[0]


def _scalar(text: str, kind: str) -> Any:
    if kind == "str|bare" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    kind = kind.removesuffix("|bare")
    if kind.endswith("|auto") and text.strip().lower() == "auto":
        return -1
    reader = _READERS.get(kind.removesuffix("|auto").partition(":")[0])
    return reader(text) if reader else text


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadValue("it must be a whole number") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValue("it must be a number") from None


def _sized(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return read_size(text)
    except Unusable as error:
        raise BadValue(str(error)) from None


def _snake_case(text: str) -> str:
    """`FlashInfer-CUTLASS` is `flashinfer_cutlass`."""
    return text.lower().replace("-", "_")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadValue("it must be JSON") from None


def _json_or_text(text: str) -> Any:
    """An object where it stands in braces."""
    written = text.strip()
    return _json(text) if written.startswith("{") and written.endswith("}") else text


def _pairs(text: str) -> dict[str, int]:
    """`image=4,video=1`, as releases before 0.8 took it, and those before 0.10 beside JSON (deprecated by `nullable_kvs`)."""
    pairs = (pair.partition("=") for pair in text.split(","))
    return {name: _int(number) for name, _, number in pairs}


def _json_or_pairs(text: str) -> Any:
    return _json(text) if text.strip().startswith("{") else _pairs(text)


def _loose(text: str) -> Any:
    """The value of a dotted key: JSON where it is some, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _nested(key: str, value: Any) -> dict[str, Any]:
    """`a.b` → {a: {b: value}}."""
    for name in reversed(key.split(".")):
        value = {name: value}
    nested: dict[str, Any] = value
    return nested


_READERS: dict[str, Callable[[str], Any]] = {
    "int": _int,
    "float": _float,
    "int(1k,1K)": _sized,
    "str(a-B)": _snake_case,
    "json": _json,
    "json|str": _json_or_text,
    "kv-list": _pairs,
    "json|kv-list": _json_or_pairs,
}
_IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "int(1k,1K)": "a whole number such as 32768, 32k (32000) or 32K (32768)",
    "json": "JSON",
    "kv-list": "pairs such as image=4",
}

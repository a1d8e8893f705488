"""Readers of setting values, and of the words of vLLM's options by the types of its parser (`FlexibleArgumentParser`).

A value comes from JSON, or is a text from a command line; UnusableValue, or BadValue for a word, says what it must be.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ParamSpec, TypeVar

from kvgate.budget import AUTO_MAX_MODEL_LEN, Capacity
from kvgate.budget.ground.units import GIB
from kvgate.budget.model.shape import DTYPE_BYTES
from kvgate.text.patterns import pattern

P = ParamSpec("P")
T = TypeVar("T")
Reader = Callable[[Any], Any]
"""It returns the typed value, or raises UnusableValue."""


class UnusableValue(ValueError):
    """A value of the wrong type or range; the message says what it must be."""


class UnknownWord(UnusableValue):
    """A word that is none of those that kvgate knows; a newer vLLM, or a plug-in, may take it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"it must be one of {', '.join(names)}")
        self.names = names
        """The words that kvgate knows."""


class ValueProblems:
    """Problems of several readings, reported together: each reading may raise UnusableValue."""

    def __init__(self, found: Iterable[str] = ()) -> None:
        self._found = list(found)

    def read_or(self, otherwise: T, read: Callable[P, T], *given: P.args, **options: P.kwargs) -> T:
        """Return what `read` returns. After a problem return `otherwise`, which is only a placeholder: `check` will raise."""
        try:
            return read(*given, **options)
        except UnusableValue as error:
            self._found.append(str(error))
            return otherwise

    def check(self) -> None:
        """Raise UnusableValue with all problems, each once."""
        if self._found:
            raise UnusableValue("; ".join(dict.fromkeys(self._found)))


_SIZE = pattern(r"(\d+)([kKmMgGtT]?)|(\d+\.\d+)([kmgt])")
_DECIMAL = pattern(r"[+-]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def text(value: Any) -> str:
    """A name of at most 512 characters."""
    if not isinstance(value, str) or not value.strip() or len(value) > 512:
        raise UnusableValue("it must be text")
    return value.strip()


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnusableValue("it must be true or false")
    return value


def one_of(*names: str) -> Reader:
    """Make the reader of a word; vLLM knows these words only."""

    def read(value: Any) -> str:
        if value not in names:
            raise (
                UnknownWord(names) if isinstance(value, str) else UnusableValue(f"it must be one of {', '.join(names)}")
            )
        return str(value)

    return read


def capacity(value: Any) -> Capacity:
    """Profiled or Pinned, in any case."""
    found = next((each for each in Capacity if str(value).lower() == each.lower()), None)
    if found is None:
        raise UnusableValue(f"it must be one of {', '.join(Capacity)}")
    return found


def whole(at_most: int, *, units: bool = False) -> Reader:
    """Make the reader of a whole number from 1 to `at_most`; with `units` it also takes vLLM's 32k (32000) and 32K (32768)."""
    hint = "a whole number" + (" such as 32768, 32k (32000) or 32K (32768)" if units else "")

    def read(value: Any) -> int:
        number = _sized(value, units=units) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= at_most:
            raise UnusableValue(f"it must be {hint} from 1 to {at_most}")
        return number

    return read


def read_size(value: str) -> int:
    """Read `32768`, `32k` (decimal), `32K` (binary) or `1.5k`. Raise UnusableValue for any other text."""
    number = _sized(value, units=True)
    if number is None:
        raise UnusableValue("it must be a whole number such as 32768, 32k (32000) or 32K (32768)")
    return number


def _sized(value: str, *, units: bool) -> int | None:
    match = _SIZE.fullmatch(value.strip()) if len(value) < 30 else None
    if match is None:
        return None
    digits, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
    return int(Fraction(digits) * _UNITS[unit]) if units or not unit else None


def exact_decimal(value: Any) -> Fraction | None:
    """Return 9/10 for 0.9. None: it is no number, or one whose digits would fill the memory (1e999999999)."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 20:
        return None
    match = _DECIMAL.fullmatch(str(value).strip())
    return Fraction(match[0]) if match else None


def gibibytes(value: Any) -> int:
    """Bytes of a number of GiB, which may have decimals."""
    exact = exact_decimal(value)
    if exact is not None and 0 <= exact <= 1 << 20:
        return int(exact * GIB)
    raise UnusableValue("it must be a number of GiB, such as 10 or 2.5")


_BINARY = pattern(r"(\d{1,15}(?:\.\d{1,6})?)([KMGTP])i")


def memory(value: Any) -> int:
    """Bytes of a memory, from 1: a whole number, vLLM's 64G, or Kubernetes' 64Gi."""
    match = _BINARY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match:
        value = int(Fraction(match[1]) * 1024 ** ("KMGTP".index(match[2]) + 1))
    try:
        return int(_memory(value))
    except UnusableValue:
        raise UnusableValue(
            f"it must be a number of bytes from 1 to {MOST_MEMORY}, such as 64Gi or 68719476736"
        ) from None


MOST_MEMORY = 1 << 50
_memory: Reader = whole(MOST_MEMORY, units=True)


def share(value: Any) -> Fraction:
    """A share of a GPU's memory, above 0 and up to 1."""
    exact = exact_decimal(value)
    if exact is not None and 0 < exact <= 1:
        return exact
    raise UnusableValue("it must be a number above 0 and up to 1, such as 0.9")


read_tokens: Reader = whole(100_000_000, units=True)
"""Reader of a number of tokens."""


def tokens_or_auto(value: Any) -> int:
    """A length in tokens; -1 and `auto` mean the longest that fits."""
    return AUTO_MAX_MODEL_LEN if value in (AUTO_MAX_MODEL_LEN, "-1", "auto") else int(read_tokens(value))


def installation(value: Any) -> str:
    """`image` for vLLM's own image, which may be written `docker image`; `pip` for anything else."""
    return str(one_of("image", "pip")("image" if value == "docker image" else value))


model_dtype = one_of("auto", "half", "float", *DTYPE_BYTES)
"""Reader of the format of weights and activations."""
state_dtype = one_of("auto", "float32", "float16", "bfloat16")
"""Reader of the format of recurrent states."""


def optimization_level(value: Any) -> int | None:
    """A level from 0 to 3. None: the value holds keys of a compilation config, which `-O.mode` meant in old releases."""
    if isinstance(value, Mapping):
        return None
    if isinstance(value, bool) or str(value) not in ("0", "1", "2", "3"):
        raise UnusableValue("it must be 0, 1, 2 or 3")
    return int(value)


MANY = 1024
"""Layers of a model, and tokens that are drafted at once, at most."""


def mapping(value: Any) -> Mapping[str, Any]:
    """A model's config as a JSON object."""
    if not isinstance(value, Mapping):
        raise UnusableValue("it must be an object: the content of the model's config.json")
    return value


def layers(value: Any) -> tuple[str, ...]:
    """Indices of layers, or `sliding_window`: a list, or a text with spaces or commas between them."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if isinstance(words, list | tuple) and len(words) <= MANY:
        names = tuple(str(word) for word in words)
        if all(name == "sliding_window" or name.isdecimal() for name in names):
            return names
    raise UnusableValue("it must be a list of layers, such as 0,1 or sliding_window")


def names(value: Any) -> tuple[str, ...]:
    """Names of modules or parameters: a list, or a text with spaces or commas between them."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    is_list = isinstance(words, list | tuple | set | frozenset) and len(words) <= MANY
    if is_list and all(isinstance(word, str) and 0 < len(word) <= 200 for word in words):
        return tuple(words)
    raise UnusableValue("it must be a list of names, such as q_proj,v_proj")


def count(at_most: int) -> Reader:
    """Make the reader of a whole number from 0."""
    return lambda value: whole_number(value, at_most, "it")


def whole_number(value: Any, at_most: int, subject: str) -> int:
    """A number from 0. Text is taken too: vLLM's configuration classes take it for a number."""
    value = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= at_most:
        raise UnusableValue(f"{subject} must be a whole number up to {at_most}")
    return value


class BadValue(ValueError):
    """The parser would refuse the value; the message says what it must be."""


def takes_no_value(kind: str) -> bool:
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
        is_bare = text.startswith("{") and '"' not in text  # of `{"a": 1}` the shell leaves `{a: 1}`
        raise BadValue(
            f"it must be JSON{': put it in single quotes, which the shell keeps' if is_bare else ''}"
        ) from None


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

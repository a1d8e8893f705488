"""Readers of setting values. A value comes from JSON, or is a text from a command line; UnusableValue says what it must be."""

import json
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, ParamSpec, TypeVar

from kvgate.budget import AUTO_MAX_MODEL_LEN, GRAPH_MODES, Capacity, GraphSettings, Speculation
from kvgate.budget.host_settings import KVConnector
from kvgate.budget.model_shape import DTYPE_BYTES
from kvgate.budget.units import GIB
from kvgate.text.patterns import pattern

P = ParamSpec("P")
T = TypeVar("T")
Reader = Callable[[Any], Any]
"""It returns the typed value, or raises UnusableValue."""


class UnusableValue(ValueError):
    """A value of the wrong type or range; the message says what it must be."""


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
    """A JSON truth value."""
    if not isinstance(value, bool):
        raise UnusableValue("it must be true or false")
    return value


def one_of(*names: str) -> Reader:
    """Make the reader of a word; vLLM knows these words only."""

    def read(value: Any) -> str:
        if value not in names:
            raise UnusableValue(f"it must be one of {', '.join(names)}")
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
            f"it must be a number of bytes from 1 to {_MOST_MEMORY}, such as 64Gi or 68719476736"
        ) from None


_MOST_MEMORY = 1 << 50
_memory: Reader = whole(_MOST_MEMORY, units=True)


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


_MANY = 1024
"""Layers of a model, and tokens that are drafted at once, at most."""
_MODES_BY_NUMBER = {0: "NONE", 1: "PIECEWISE", 2: "FULL"}
"""Members of vLLM's `CUDAGraphMode` that are one number each."""


def mapping(value: Any) -> Mapping[str, Any]:
    """A model's config as a JSON object."""
    if not isinstance(value, Mapping):
        raise UnusableValue("it must be an object: the content of the model's config.json")
    return value


def layers(value: Any) -> tuple[str, ...]:
    """Indices of layers, or `sliding_window`: a list, or a text with spaces or commas between them."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if isinstance(words, list | tuple) and len(words) <= _MANY:
        names = tuple(str(word) for word in words)
        if all(name == "sliding_window" or name.isdecimal() for name in names):
            return names
    raise UnusableValue("it must be a list of layers, such as 0,1 or sliding_window")


def names(value: Any) -> tuple[str, ...]:
    """Names of modules or parameters: a list, or a text with spaces or commas between them."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    is_list = isinstance(words, list | tuple | set | frozenset) and len(words) <= _MANY
    if is_list and all(isinstance(word, str) and 0 < len(word) <= 200 for word in words):
        return tuple(words)
    raise UnusableValue("it must be a list of names, such as q_proj,v_proj")


def count(at_most: int) -> Reader:
    """Make the reader of a whole number from 0."""
    return lambda value: _count(value, at_most, "it")


def item_limits(value: Any) -> tuple[tuple[str, int], ...]:
    """`--limit-mm-per-prompt`: numbers of items, or objects with their `count`.

    Before 0.9 it was a text: `image=2,video=0`. vLLM prints it as Python does: `{'image': 2}`.
    """
    if isinstance(value, str) and (("=" in value and "{" not in value) or "'" in value):
        pairs = (part.replace(":", "=").partition("=") for part in value.strip("{} ").split(","))
        value = {name.strip(" '"): int(count) if count.strip().isdecimal() else None for name, _, count in pairs}
    limits = _object(value, '{"image": 1, "video": 0}')
    counts = {
        str(name): limit.get("count", 1) if isinstance(limit, Mapping) else limit for name, limit in limits.items()
    }
    return tuple((name, _count(count, _MANY * _MANY, "a count of items")) for name, count in counts.items())


def graph_settings(value: Any) -> GraphSettings:
    """`--compilation-config`: its keys about CUDA graphs. A number is a level of optimisation."""
    if isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal()):
        return GraphSettings(mode="NONE" if int(value) == 0 else None, compiles=_compiles(int(value)))
    config = _object(value, '{"cudagraph_mode": "PIECEWISE"}')
    mode, sizes, largest = (
        config.get(key) for key in ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
    )
    if isinstance(mode, int):
        mode = _MODES_BY_NUMBER.get(mode, mode)
    if mode is not None and str(mode).upper() not in GRAPH_MODES:
        raise UnusableValue(f"cudagraph_mode must be one of {', '.join(GRAPH_MODES)}")
    if sizes is not None and not isinstance(sizes, list | tuple):
        raise UnusableValue("cudagraph_capture_sizes must be a list of numbers")
    return GraphSettings(
        mode=None if mode is None else str(mode).upper(),
        capture_sizes=None if sizes is None else tuple(_count(size, 1 << 20, "a capture size") for size in sizes),
        max_capture_size=None if largest is None else _count(largest, 1 << 20, "max_cudagraph_capture_size"),
        tries_kernels=_tries_kernels(config.get("inductor_compile_config")),
        compiles=_compiles(config.get("mode", config.get("level"))),
    )


def _tries_kernels(inductor: Any) -> bool | None:
    """Return whether the compiler measures combined kernels; vLLM sets it only where neither key is given (0.11.1 to 0.33)."""
    given = inductor if isinstance(inductor, Mapping) else {}
    keys = ("combo_kernels", "benchmark_combo_kernel")
    return all(given.get(key) for key in keys) if any(key in given for key in keys) else None


def speculation(value: Any) -> Speculation:
    """`--speculative-config`: an object, or its JSON text, with all problems of its keys at once.

    The draft's config decides the method where neither the object nor the name of its model does (vLLM 0.32, `SpeculativeConfig`).
    """
    config = _object(value, '{"method": "mtp", "num_speculative_tokens": 1}')
    if not config:
        raise UnusableValue('it is empty; it must have keys such as {"method": "mtp", "num_speculative_tokens": 1}')
    read = _Keys({str(key).replace("-", "_"): each for key, each in config.items()})
    model = read.text("model")
    method = _method(read.text("method"), model)
    if method not in METHODS:
        read.problems.append(
            f"method {method[:40]!r} is none of vLLM's: {', '.join(METHODS)} or a name that ends in _mtp"
        )
    if not model and method in _NEEDS_A_MODEL:
        read.problems.append(f"method {method} needs the name of a model")
    found = Speculation(
        method=method,
        num_speculative_tokens=read.count("num_speculative_tokens", _MANY) or 0,
        model="" if model in _NO_MODELS else model,
        revision=read.text("revision"),
        quantization=read.text("quantization") or None,
        draft_tensor_parallel_size=read.count("draft_tensor_parallel_size", _MANY) or None,
        max_model_len=read.count("max_model_len", 1 << 40) or None,
        kv_cache_dtype=read.text("kv_cache_dtype") or None,
        parallel_drafting=read.truth("parallel_drafting"),
        draws_probabilities=read.text("draft_sample_method") == "probabilistic",
        takes_other_vocabulary=read.truth("use_heterogeneous_vocab"),
    )
    if read.values.get("tensor_parallel_size") is not None:
        read.problems.append("tensor_parallel_size is refused in it; it must be draft_tensor_parallel_size")
    if read.problems:
        raise UnusableValue("; ".join(read.problems))
    return found


_MAX_CONNECTORS = 16
"""Connectors of a MultiConnector; nobody has more than a few."""
_BUFFERS_OF_VLLM = frozenset({"CPUOffloadingSpec", "TieringOffloadingSpec"})
"""Ways of offloading of vLLM's own, whose buffer `cpu_bytes_to_use` sizes."""


def kv_connectors(value: Any) -> tuple[KVConnector, ...]:
    """`--kv-transfer-config`: the connectors and their host memory, with all problems at once. What else they do is not read."""
    config = _object(value, '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}')
    extra = config.get("kv_connector_extra_config")
    parts = extra.get("connectors") if isinstance(extra, Mapping) else None
    is_multiple = config.get("kv_connector") == "MultiConnector" and isinstance(parts, list)
    problems: list[str] = []
    found = [_connector(each, problems) for each in (parts[:_MAX_CONNECTORS] if is_multiple and parts else [config])]
    if problems:
        raise UnusableValue("; ".join(problems))
    return tuple(connector for connector in found if connector.name)


def _connector(config: Any, problems: list[str]) -> KVConnector:
    config = config if isinstance(config, Mapping) else {}
    extra = config.get("kv_connector_extra_config")
    read = _Keys(extra if isinstance(extra, Mapping) else {})
    if (spec := read.values.get("spec_name")) and spec not in _BUFFERS_OF_VLLM:
        read = _Keys({})  # a way of offloading of somebody else's
    name, local = config.get("kv_connector"), read.gibibytes("lmcache.max_local_cpu_size")
    found = KVConnector(
        name=name if isinstance(name, str) and len(name) <= _LONGEST_NAME else "",
        cpu_bytes=read.bytes("cpu_bytes_to_use"),
        cpu_bytes_per_rank=read.bytes("cpu_bytes_to_use_per_rank") or local,
        cpu_blocks=read.bytes("num_cpu_blocks"),
        buffer_on_host=config.get("kv_buffer_device") == "cpu",
    )
    problems += read.problems
    return found


_NO_MODELS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states")
"""Names that vLLM takes in place of a model's."""
METHODS = (
    "", "ngram", "ngram_gpu", "suffix", "mtp", "eagle", "eagle3", "dflash", "dspark", "draft_model", "medusa", "mlp_speculator",
    "extract_hidden_states", "custom_class",
)  # fmt: skip
"""Methods of every release; empty: the draft decides."""
_NEEDS_A_MODEL = frozenset({"eagle", "eagle3", "dflash", "draft_model", "medusa", "mlp_speculator", "custom_class"})


def _method(given: str, model: str) -> str:
    """Return the method: the given one, else what the name of the model alone decides (`SpeculativeConfig.__post_init__`)."""
    given = "ngram" if given == "[ngram]" else given
    if given.endswith("_mtp"):
        return "mtp"
    if given or not model:
        return given or "draft_model"
    if model in _NO_MODELS:
        return model.strip("[]")
    parts = model.split(".")
    is_class = "/" not in model and len(parts) >= 2 and all(part.isidentifier() for part in parts)
    return "custom_class" if is_class else ""


class _Keys:
    """The keys of an object that the user writes; what is wrong with them is collected."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.problems: list[str] = []

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if value is None or (isinstance(value, str) and len(value) <= _LONGEST_NAME):
            return (value or "").strip()
        self.problems.append(f"{key} must be a text of at most {_LONGEST_NAME} characters")
        return ""

    def count(self, key: str, at_most: int) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        try:
            found = _count(value, at_most, key)
        except UnusableValue as error:
            self.problems.append(str(error))
            return None
        if found == 0:
            self.problems.append(f"{key} must be at least 1")
        return found

    def bytes(self, key: str) -> int | None:
        """A number above 0, which may have decimals: `kv_offloading_size` becomes one."""
        value = exact_decimal(self.values.get(key)) if self.values.get(key) is not None else 0
        if value is None or not 0 <= value <= _MOST_MEMORY:
            self.problems.append(f"{key} must be a number from 1 to {_MOST_MEMORY}")
            return None
        return int(value) or None

    def gibibytes(self, key: str) -> int | None:
        value = self.values.get(key)
        try:
            return None if value is None else gibibytes(value)
        except UnusableValue as error:
            self.problems.append(f"{key} is {str(value)[:40]!r}; {error}")
            return None

    def truth(self, key: str) -> bool:
        value = self.values.get(key)
        value = {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value
        if value is None or isinstance(value, bool):
            return bool(value)
        self.problems.append(f"{key} must be true or false")
        return False


_LONGEST_NAME = 500
"""Characters of a name in an object; file paths are longer than the names of a hub, but not by so much."""


def _object(value: Any, example: str) -> Mapping[str, Any]:
    """A JSON object, or its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise UnusableValue(f"it must be an object such as {example}")
    return value


def _count(value: Any, at_most: int, subject: str) -> int:
    """A number from 0. Text is taken too: vLLM's configuration classes take it for a number."""
    value = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= at_most:
        raise UnusableValue(f"{subject} must be a whole number up to {at_most}")
    return value


def _compiles(mode: Any) -> bool | None:
    """Return whether a mode of compilation (`level` before 0.12) compiles; None where that is not certain."""
    if mode is None:
        return None
    return {"0": False, "NONE": False, "3": True, "VLLM_COMPILE": True}.get(str(mode).upper())

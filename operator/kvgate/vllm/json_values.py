"""Readers of the settings that are objects with keys of their own, given as JSON: limits, CUDA graphs, speculation, connectors."""

import json
from collections.abc import Mapping
from typing import Any

from kvgate.budget import GRAPH_MODES, GraphSettings, Speculation
from kvgate.budget.host.settings import KVConnector
from kvgate.vllm.values import MANY, MOST_MEMORY, UnusableValue, exact_decimal, gibibytes, whole_number

_MODES_BY_NUMBER = {0: "NONE", 1: "PIECEWISE", 2: "FULL"}
"""Members of vLLM's `CUDAGraphMode` that are one number each."""
_MAX_CONNECTORS = 16
"""Connectors of a MultiConnector; nobody has more than a few."""
_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_TIERED = "TieringOffloadingSpec"
_BUFFERS_OF_VLLM = frozenset({"CPUOffloadingSpec", _TIERED})
"""Ways of offloading of vLLM's own, whose buffer `cpu_bytes_to_use` sizes."""
_NO_MODELS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states")
"""Names that vLLM takes in place of a model's."""
METHODS = (
    "", "ngram", "ngram_gpu", "suffix", "mtp", "eagle", "eagle3", "dflash", "dspark", "draft_model", "medusa", "mlp_speculator",
    "extract_hidden_states", "custom_class",
)  # fmt: skip
"""Methods of every release; empty: the draft decides."""
_NEEDS_A_MODEL = frozenset({"eagle", "eagle3", "dflash", "draft_model", "medusa", "mlp_speculator", "custom_class"})
_LONGEST_NAME = 500
"""Characters of a name in an object; file paths are longer than the names of a hub, but not by so much."""


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
    return tuple((name, whole_number(count, MANY * MANY, "a count of items")) for name, count in counts.items())


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
    # vLLM measures combined kernels only where neither key is given (0.11.1 to 0.33)
    inductor = config.get("inductor_compile_config")
    given = inductor if isinstance(inductor, Mapping) else {}
    keys = ("combo_kernels", "benchmark_combo_kernel")
    return GraphSettings(
        mode=None if mode is None else str(mode).upper(),
        capture_sizes=None if sizes is None else tuple(whole_number(size, 1 << 20, "a capture size") for size in sizes),
        max_capture_size=None if largest is None else whole_number(largest, 1 << 20, "max_cudagraph_capture_size"),
        tries_kernels=all(given.get(key) for key in keys) if any(key in given for key in keys) else None,
        compiles=_compiles(config.get("mode", config.get("level"))),
    )


def _compiles(mode: Any) -> bool | None:
    """Return whether a mode of compilation (`level` before 0.12) compiles; None where that is not certain."""
    if mode is None:
        return None
    return {"0": False, "NONE": False, "3": True, "VLLM_COMPILE": True}.get(str(mode).upper())


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
        num_speculative_tokens=read.count("num_speculative_tokens", MANY) or 0,
        model="" if model in _NO_MODELS else model,
        revision=read.text("revision"),
        quantization=read.text("quantization") or None,
        draft_tensor_parallel_size=read.count("draft_tensor_parallel_size", MANY) or None,
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


def kv_connectors(value: Any) -> tuple[KVConnector, ...]:
    """`--kv-transfer-config`: the connectors and their host memory, with all problems at once. What else they do is not read."""
    config = _object(value, '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}')
    extra = config.get("kv_connector_extra_config")
    parts = extra.get("connectors") if isinstance(extra, Mapping) else None
    is_multiple = config.get("kv_connector") == "MultiConnector" and isinstance(parts, list)
    problems: list[str] = []
    each_of = parts[:_MAX_CONNECTORS] if is_multiple and parts else [config]
    found = [_connector(each, problems) for each in each_of]
    problems += dict.fromkeys(problem for each in (config, *each_of) if (problem := _problem_of_role(each)))
    if problems:
        raise UnusableValue("; ".join(problems))
    return tuple(connector for connector in found if connector.name)


def kv_events(value: Any) -> bool:
    """`--kv-events-config`: whether there is one; what it says moves no memory of the GPU."""
    return value not in (None, "", "null", "None")


def _problem_of_role(config: Any) -> str:
    """vLLM 0.8.5 to 0.33, `KVTransferConfig.__post_init__`: a connector has a role, and there are three."""
    role = config.get("kv_role") if isinstance(config, Mapping) else None
    if role is not None and role not in _ROLES:
        return f"kv_role is {str(role)[:_LONGEST_NAME]!r}, and not one of {', '.join(_ROLES)}"
    is_without = role is None and isinstance(config, Mapping) and config.get("kv_connector") is not None
    return f"kv_role is missing: it is one of {', '.join(_ROLES)}" if is_without else ""


def _connector(config: Any, problems: list[str]) -> KVConnector:
    config = config if isinstance(config, Mapping) else {}
    extra = config.get("kv_connector_extra_config")
    read = _Keys(extra if isinstance(extra, Mapping) else {})
    if (spec := read.values.get("spec_name")) and spec not in _BUFFERS_OF_VLLM:
        read = _Keys({})  # a way of offloading of somebody else's
    name, local = config.get("kv_connector"), read.gibibytes("lmcache.max_local_cpu_size")
    found = KVConnector(
        name=name if isinstance(name, str) and len(name) <= _LONGEST_NAME else "",
        role=role if isinstance(role := config.get("kv_role"), str) and role in _ROLES else "",
        cpu_bytes=read.bytes("cpu_bytes_to_use"),
        cpu_bytes_per_rank=read.bytes("cpu_bytes_to_use_per_rank") or local,
        cpu_blocks=read.bytes("num_cpu_blocks"),
        is_plug_in=bool(config.get("kv_connector_module_path")),
        has_tiers=spec == _TIERED,
        buffer_on_host=config.get("kv_buffer_device") == "cpu",
    )
    problems += read.problems
    return found


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
            found = whole_number(value, at_most, key)
        except UnusableValue as error:
            self.problems.append(str(error))
            return None
        if found == 0:
            self.problems.append(f"{key} must be at least 1")
        return found

    def bytes(self, key: str) -> int | None:
        """A number above 0, which may have decimals: `kv_offloading_size` becomes one."""
        value = exact_decimal(self.values.get(key)) if self.values.get(key) is not None else 0
        if value is None or not 0 <= value <= MOST_MEMORY:
            self.problems.append(f"{key} must be a number from 1 to {MOST_MEMORY}")
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

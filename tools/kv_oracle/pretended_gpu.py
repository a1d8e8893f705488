"""Makes a CPU build of vLLM take its CUDA paths on a machine without a GPU, for this process only; nothing on disk is changed.

vLLM then chooses attention backends, block sizes and cache formats as on the pretended card, and builds a model's layers on torch's meta
device, which knows shapes and types and holds no data. Import this module before any of vLLM.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
import typing

CAPABILITY = tuple(int(part) for part in os.environ.get("PRETENDED_CAPABILITY", "9.0").split("."))
NAME = os.environ.get("PRETENDED_GPU", "NVIDIA H100 80GB HBM3")
MEMORY_BYTES = 80 * 2**30
NUM_GPUS = 8
ABSENT = (
    "flashinfer",
    "deep_gemm",
    "flash_mla",
    "fast_hadamard_transform",
    "tilelang",
    "cutlass",
    "quack",
    "triton_kernels",
    "cuda",
    "torchvision",
    "torchaudio",
    "torchcodec",
    "gguf",
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._C",
    "vllm._moe_C",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm._flashkda_C",
    "vllm._qutlass_C",
    "vllm.third_party",
    "vllm.vllm_flash_attn",
    "vllm.model_executor.kernels.attention.dsa.dcp_indexer_cutedsl",
)
"""Modules of the CUDA wheel, and those that only kernels need: where one is not installed, importing it gives placeholders."""
OPERATORS = (
    "_C",
    "_moe_C",
    "_C_cache_ops",
    "_C_cuda_utils",
    "_C_custom_ar",
    "_C_utils",
    "_flashmla_C",
    "_flashkda_C",
    "_qutlass_C",
    "_vllm_fa2_C",
    "_vllm_fa3_C",
)
"""Namespaces of torch operators that the CUDA wheel registers; none is called on the meta device."""

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HAS_FLASHINFER_CUBIN": "1",
    "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(NUM_GPUS))),
}


class _Placeholder:
    """Stands for a function, constant, decorator or object that is named while modules are read."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(f"{self.__name__}.{name}")

    def __call__(self, *arguments: object, **named: object) -> object:
        if len(arguments) == 1 and not named and isinstance(arguments[0], types.FunctionType | type):
            return arguments[0]  # a decorator
        return _answer(self.__name__)

    def __getitem__(self, item: object) -> object:
        return self

    def __or__(self, other: object) -> object:
        return typing.Any

    __ror__ = __or__

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return (object,)


class _Kind(type):
    """A placeholder that is a class: modules derive from it and name its members."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Word(name)

    def __or__(cls, other: object) -> object:
        return typing.Any

    __ror__ = __or__

    def __getitem__(cls, item: object) -> object:
        return cls


class _Word(str):
    """A member of an enumeration that is combined with others while modules are read."""

    def _itself(self, *_: object) -> "_Word":
        return self

    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __or__ = __ror__ = __and__ = __lshift__ = __rshift__ = (
        __call__
    ) = _itself  # type: ignore[assignment]

    def __index__(self) -> int:
        return 0

    __int__ = __index__


def _placeholder(name: str) -> object:
    if name.rpartition(".")[2][:1].isupper():
        return _Kind(name, (), {"__init__": lambda self, *arguments, **named: None})
    return _Placeholder(name)


def _answer(name: str) -> object:
    """Support is there, sizes are zero."""
    if "support" in name:
        return True
    return 0 if "size" in name else _placeholder(f"{name}()")


class _Module(types.ModuleType):
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _placeholder(name)
        setattr(self, name, found)
        return found


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == root or name.startswith(root + ".") for root in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        module.__file__ = f"<absent {spec.name}>"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Idle:
    """A stream or an event on which nothing is ever waited for."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self

    def __enter__(self) -> typing.Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def _constant(value: object) -> typing.Callable[..., object]:
    return lambda *_, **__: value


def _transformers_sees_what_is_installed() -> None:
    """transformers looks for packages by name and keeps the answer; it must ask before placeholders exist."""
    from transformers.utils import import_utils

    for name in ("torchvision", "torchvision_v2", "torchaudio", "torchcodec", "flash_attn_2", "flash_attn_3"):
        with contextlib.suppress(Exception):
            getattr(import_utils, f"is_{name}_available")()


def _pretend_torch() -> None:
    """Give torch's questions about the device the card's answers."""
    import torch
    import torch._dynamo
    import torch._inductor.config
    import torch._inductor.utils

    device = torch.device("cuda", 0)
    properties = types.SimpleNamespace(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=MEMORY_BYTES,
        multi_processor_count=132,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=50 * 2**20,
        gcnArchName="",
    )
    shared = {
        "is_available": True,
        "device_count": NUM_GPUS,
        "synchronize": None,
        "empty_cache": None,
        "current_stream": _Idle(),
    }
    cuda = {
        "_is_compiled": True,
        "current_device": 0,
        "set_device": None,
        "get_device_properties": properties,
        "get_device_capability": CAPABILITY,
        "get_device_name": NAME,
        "default_stream": _Idle(),
        "memory_allocated": 0,
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        "is_current_stream_capturing": False,
        "device": contextlib.nullcontext(),
    }
    accelerator = {
        "current_accelerator": torch.device("cuda"),
        "current_device_index": 0,
        "current_device_idx": 0,
        "set_device_index": None,
        "memory_stats": {},
    }
    torch.version.cuda = "13.0"
    torch.cuda.Stream = torch.cuda.Event = _Idle
    for module, answers in ((torch.cuda, shared | cuda), (torch.accelerator, shared | accelerator)):
        for name, value in answers.items():
            setattr(module, name, _constant(value))
    torch.cuda.is_bf16_supported = _constant(True)
    _pretend_operators(torch)
    _pretend_triton(device)


def _pretend_operators(torch: typing.Any) -> None:
    found = torch._ops._OpNamespace.__getattr__
    register_fake = torch.library.register_fake

    def operator(namespace: typing.Any, name: str) -> object:
        try:
            return found(namespace, name)
        except AttributeError:
            if namespace.name not in OPERATORS or name.startswith("__"):
                raise
            return _Placeholder(name)

    def register(op: object, *arguments: object, **named: object) -> object:
        is_absent = isinstance(op, str) and op.partition("::")[0] in OPERATORS
        return (lambda function: function) if is_absent else register_fake(op, *arguments, **named)

    torch._ops._OpNamespace.__getattr__ = operator
    torch.library.register_fake = register


def _pretend_triton(device: typing.Any) -> None:
    with contextlib.suppress(ImportError):
        import triton.runtime
        from triton.backends import backends
        from triton.backends.compiler import GPUTarget

        if "nvidia" in backends:
            backends["nvidia"].driver.is_active = staticmethod(_constant(True))
        sizes = {"multiprocessor_count": 132, "max_shared_mem": 232448, "max_num_regs": 65536, "warpSize": 32}
        answers = {
            "get_current_target": GPUTarget("cuda", CAPABILITY[0] * 10 + CAPABILITY[1], 32),
            "get_current_device": 0,
            "get_current_stream": 0,
            "set_current_device": None,
            "get_active_torch_device": device,
            "is_active": True,
        }
        driver = types.SimpleNamespace(**{name: _constant(value) for name, value in answers.items()})
        driver.utils = types.SimpleNamespace(get_device_properties=_constant(sizes))
        triton.runtime.driver.set_active(driver)


def _pretend_vllm() -> None:
    """The platform is vLLM's own for CUDA; only what it would ask the driver is answered here."""
    import vllm
    from vllm import platforms
    from vllm.platforms import interface

    if importlib.util.find_spec("vllm.vllm_flash_attn").loader is None:  # a folder without its Python modules
        spec = importlib.machinery.ModuleSpec("vllm.vllm_flash_attn", _Absent(), is_package=True)
        sys.modules[spec.name] = vllm.vllm_flash_attn = _Absent().create_module(spec)

    # The CPU build says so in its version, and reads that once more when it looks for CUDA.
    by_version = getattr(platforms, "vllm_version_matches_substr", None)
    if by_version:
        platforms.vllm_version_matches_substr = lambda text: text != "cpu" and by_version(text)
    from vllm.platforms import cuda

    answers = {
        "get_device_capability": interface.DeviceCapability(*CAPABILITY),
        "get_device_name": NAME,
        "get_device_uuid": "GPU-0",
        "get_device_total_memory": MEMORY_BYTES,
        "is_fully_connected": True,
        "device_count": NUM_GPUS,
        "num_compute_units": 132,
        "get_cuda_runtime_major": 13,
        "log_warnings": None,
        "import_kernels": None,
        "is_pin_memory_available": False,
        "get_all_device_numa_nodes": None,
        "get_current_memory_usage": 0.0,
    }
    methods = {name: classmethod(lambda cls, *_, _value=value, **__: _value) for name, value in answers.items()}
    platform = type("PretendedCudaPlatform", (cuda.CudaPlatformBase,), methods)
    cuda.CudaPlatform = platform
    platforms._current_platform = platform()
    for name in ("vllm.utils", "vllm.utils.torch_utils"):
        module = sys.modules.get(name)
        if hasattr(module, "cuda_device_count_stateless"):
            module._cuda_device_count_stateless = _constant(NUM_GPUS)
    _pretend_kernels()


def _pretend_kernels() -> None:
    from vllm import _custom_ops
    from vllm.model_executor.models import registry

    for name in dir(_custom_ops):
        if "support" in name and callable(getattr(_custom_ops, name)):
            setattr(_custom_ops, name, _constant(True))
    with contextlib.suppress(ImportError):
        from vllm.vllm_flash_attn import flash_attn_interface

        for name in ("FA2_AVAILABLE", "FA3_AVAILABLE", "FA4_AVAILABLE"):
            if hasattr(flash_attn_interface, name):
                setattr(flash_attn_interface, name, True)
                setattr(flash_attn_interface, name.replace("AVAILABLE", "UNAVAILABLE_REASON"), None)
    registry._run_in_subprocess = lambda function: function()


def on_meta() -> contextlib.AbstractContextManager[object]:
    """Tensors that a model puts on the card are created on the meta device."""
    import torch
    from torch.overrides import TorchFunctionMode

    def is_card(device: object) -> bool:
        return str(device).startswith("cuda") or (isinstance(device, int) and not isinstance(device, bool))

    class CardToMeta(TorchFunctionMode):
        def __torch_function__(self, function, kinds, arguments=(), named=None):  # type: ignore[no-untyped-def]
            named = dict(named or {})
            if named.get("device") is not None and is_card(named["device"]):
                named["device"] = "meta"
            if named.get("pin_memory"):
                named["pin_memory"] = False
            match getattr(function, "__name__", ""):
                case "cuda":
                    return arguments[0].to("meta")
                case "to" if len(arguments) > 1 and str(arguments[1]).startswith("cuda"):
                    arguments = (arguments[0], "meta", *arguments[2:])
            return function(*arguments, **named)

    stack = contextlib.ExitStack()
    stack.enter_context(torch.device("meta"))
    stack.enter_context(CardToMeta())
    return stack


_transformers_sees_what_is_installed()
_pretend_torch()
sys.meta_path.append(_Absent())
_pretend_vllm()

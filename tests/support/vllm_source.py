"""A source tree of a made-up engine, laid out as vLLM's is: texts of our own for the program that reads releases."""

from vllm_release.source import Source

CONFIG = '''
import enum
from typing import Annotated, Any, Literal, TYPE_CHECKING
from pydantic import Field
if TYPE_CHECKING:
    from elsewhere import Names
else:
    Names = str

Common = Literal["auto", "half"]
CacheDType = Literal["auto", "fp8", "tiny_2bit"]


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 2


class Limits(dict[str, int]):
    pass


@config
class CacheConfig:
    dtype: CacheDType | str = "auto"
    """Format of the cache."""
    share: float = Field(default=0.92, gt=0)
    size: int | None = None
    skipped: list[str] = Field(default_factory=list)
    old: bool = False
    """Deprecated: use something else."""
    keeps_deprecated: bool = True
    """Whether to keep deprecated things."""


@config
class ModelConfig:
    name: str = "org/model"
    kind: Common = "auto"
    level: Level = Level.HIGH
    length: int = Field(default=None, ge=-1)
    limits: Limits = Field(default_factory=Limits)
    cache: CacheConfig = Field(default_factory=CacheConfig)
    quantization: Names | None = None
    token: bool | str | None = None
    sizes: list[int] | None = None
    choice: Literal[2, 1] | None = None
    extra: dict[str, Any] | str = Field(default_factory=dict)
    _registry: ClassVar[dict] = {}
'''

ARGUMENTS = """
import argparse
import sys
from vllm.config import CacheConfig, ModelConfig
from vllm.platforms import current_platform


def get_kwargs(cls):
    for field in fields(cls):
        sized = {"size"}
        if name == "length":
            kwargs[name]["type"] = human_readable_int_or_auto
        elif name in sized:
            kwargs[name]["type"] = human_readable_int
        if nullable:
            kwargs[name]["choices"].append(None)


def human_readable_int(value):
    return int(value)


class EngineArgs:
    model: str = ModelConfig.name

    @staticmethod
    def get_batch_defaults(world_size):
        try:
            device_memory = current_platform.memory()
        except Exception:
            device_memory = 0
        if device_memory >= 160 * GiB_bytes:
            default_max_num_batched_tokens = {Usage.LLM_CLASS: 5, Usage.OPENAI_API_SERVER: 4 * 1024}
            default_max_num_seqs = {Usage.LLM_CLASS: 5, Usage.OPENAI_API_SERVER: 64}
        elif device_memory >= 70 * GiB_bytes and "a100" not in device_name and not is_gb10:
            default_max_num_batched_tokens = {Usage.LLM_CLASS: 5, Usage.OPENAI_API_SERVER: 2048}
            default_max_num_seqs = {Usage.LLM_CLASS: 5, Usage.OPENAI_API_SERVER: 32}
        else:
            default_max_num_batched_tokens = {Usage.LLM_CLASS: 5, Usage.OPENAI_API_SERVER: 1024}
            default_max_num_seqs = {Usage.LLM_CLASS: 5, Usage.OPENAI_API_SERVER: 16}
        return default_max_num_batched_tokens, default_max_num_seqs

    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="Model", description=ModelConfig.__doc__)
        if not ("serve" in sys.argv[1:] and "--help" in sys.argv[1:]):
            group.add_argument("--model", **model_kwargs["name"])
        group.add_argument("--kind", "-k", **model_kwargs["kind"])
        group.add_argument("--level", **model_kwargs["level"])
        group.add_argument("--max-length", **model_kwargs["length"])
        group.add_argument("--limits", **model_kwargs["limits"])
        group.add_argument("--cache-config", **model_kwargs["cache"])
        group.add_argument("--quantization", "-q", **model_kwargs["quantization"])
        group.add_argument("--token", **model_kwargs["token"])
        group.add_argument("--sizes", **model_kwargs["sizes"])
        group.add_argument("--choice", **model_kwargs["choice"])
        group.add_argument("--extra", **model_kwargs["extra"])
        backend = get_kwargs(ModelConfig)["kind"]
        backend["choices"].remove("half")
        backend["type"] = lambda text: text.lower().replace("-", "_")
        group.add_argument("--backend", **{**backend, "default": None})
        cache_kwargs = get_kwargs(CacheConfig)
        group.add_argument("--cache-dtype", **cache_kwargs["dtype"])
        group.add_argument("--share", "--memory-share", dest="memory_share", **cache_kwargs["share"])
        group.add_argument("--cache-size", **cache_kwargs["size"])
        group.add_argument("--skipped", **cache_kwargs["skipped"])
        group.add_argument("--old", **cache_kwargs["old"])
        group.add_argument("--keeps-deprecated", **cache_kwargs["keeps_deprecated"])
        group.add_argument("--device", choices=["auto"] + ([current_platform.name] if current_platform.name else []))
        parser.add_argument("--quiet", action="store_true", help="Say less.")
        return parser
"""

SERVE = """
from vllm.entrypoints.frontend import make_arg_parser


class ServeSubcommand:
    name = "serve"

    def subparser_init(self, subparsers):
        parser = subparsers.add_parser(self.name, description="words")
        parser = make_arg_parser(parser)
        parser.epilog = "words".format(subcmd=self.name)
        return parser
"""

FRONTEND = """
import json
from vllm.engine.arg_utils import EngineArgs, get_kwargs


@config
class Base:
    role: str = "assistant"
    hosts: list[str] = field(default_factory=lambda: ["*"])

    @classmethod
    def customized(cls, kwargs):
        kwargs["hosts"]["type"] = json.loads
        del kwargs["hosts"]["nargs"]
        return kwargs

    @classmethod
    def add_cli_args(cls, parser):
        for key, value in cls.customized(get_kwargs(cls)).items():
            parser.add_argument(f"--{key.replace('_', '-')}", **value)
        return parser


@config
class Frontend(Base):
    http_port: int = 8000

    @classmethod
    def customized(cls, kwargs):
        kwargs = super().customized(kwargs)
        kwargs["http_port"]["help"] += "more words"
        return kwargs


def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser = Frontend.add_cli_args(parser)
    return EngineArgs.add_cli_args(parser)
"""

METRICS = """
class Logger:
    def __init__(self):
        self.running = self._gauge_cls(name="vllm:running", documentation="as many as vllm:others")
        self.preempted = self._counter_cls(name="vllm:preempted", documentation="")
        self.read = self._counter_cls(name="vllm:read_total", documentation="")
        self.waits = self._histogram_cls("vllm:wait_seconds", "")
        name = "vllm:cache_info"
"""

CONNECTOR = """
class Names:
    LOADED = "vllm:loaded_bytes"
    SIZE = "vllm:load_size"
    SKIPPED = "vllm:skipped"


FAILED = "vllm:failed"
PREFIX = "vllm:of_a_tier_"
DEFINITIONS = {Names.LOADED: CounterMetadata(documentation=""), Names.SIZE: HistogramMetadata(documentation="")}
DEFINITIONS[Names.SKIPPED] = CounterMetadata(documentation="")


class Stats:
    def __init__(self):
        self.failed = self._counter_cls(name=FAILED, documentation="of vllm:others")
"""

ATTENTION = """
class Attention:
    def __init__(self, num_heads, cache_config=None, attn_type="decoder"):
        pass


class WindowAttention(Attention):
    def __init__(self, window, cache_config=None):
        super().__init__(1, cache_config=cache_config)
"""

MODELS = """
from vllm.model_executor.layers.attention.attention import Attention, WindowAttention


class Plain:
    def __init__(self, config, cache_config=None):
        if config.rotates:
            self.attn = Attention(config.heads)
        elif config.slides:
            self.attn = WindowAttention(config.window, cache_config)
        else:
            self.attn = Attention(config.heads, cache_config=cache_config)


class A:
    def __init__(self, vllm_config):
        cache_config = vllm_config.cache_config
        self.layers = make_layers(2, lambda: Plain(vllm_config.config, cache_config=cache_config))


class Encoder:
    def __init__(self):
        self.attn = Attention(1, attn_type=AttentionType.ENCODER_ONLY)


class Whole:
    def __init__(self, config, cache_config=None):
        kind = WindowAttention if config.slides else Attention
        self.attn = kind(config.heads, cache_config)


class B:
    def __init__(self, vllm_config):
        self.encoder = Encoder()
        if vllm_config.drafts:
            self.layer = Whole(vllm_config.config)
        else:
            self.layer = Whole(vllm_config.config, None)


class _Layer(Whole):
    pass


class C:
    layer_type = _Layer

    def __init__(self, vllm_config):
        self.layer = self.layer_type(vllm_config.config, cache_config=vllm_config.cache_config)
        self.text = init_model(vllm_config, architectures=["AForCausalLM"])
"""

FILES = {
    "vllm/model_executor/layers/attention/attention.py": ATTENTION,
    "vllm/model_executor/models/a.py": MODELS,
    "vllm/model_executor/models/b.py": "from vllm.model_executor.models.a import B\n",
    "vllm/model_executor/models/c.py": "from vllm.model_executor.models.a import C\n",
    "vllm/distributed/kv_transfer/offloading.py": CONNECTOR,
    "vllm/config/__init__.py": "from vllm.config.cache import CacheConfig, ModelConfig\n",
    "vllm/config/cache.py": CONFIG,
    "vllm/engine/arg_utils.py": ARGUMENTS,
    "vllm/entrypoints/cli/serve.py": SERVE,
    "vllm/entrypoints/frontend.py": FRONTEND,
    "vllm/v1/metrics/loggers.py": METRICS,
    "vllm/model_executor/models/registry.py": (
        '_ONE = {"AForCausalLM": ("a", "A"), "BModel": ("b", "B")}\n'
        '_VLLM_MODELS = {**_ONE, **{name: where for name, where in _ONE.items() if name == "AForCausalLM"}, "C": ("c", "C")}\n'
    ),
    "vllm/reasoning/__init__.py": '_REASONING_PARSERS_TO_REGISTER = {"deep": ("deep", "Deep")}\n',
    "vllm/tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"hermes": ("hermes", "Hermes"), "xml": ("xml", "Xml")}\n',
}


def new_source(version: str = "0.34.0", **changed: tuple[str, str]) -> Source:
    """The tree; `changed` replaces a text by another one in the file that ends so: `serve=("words", "more")`."""
    files = dict(FILES)
    for end, (before, after) in changed.items():
        path = next(path for path in files if path.removesuffix(".py").endswith(end))
        assert before in files[path], before
        files[path] = files[path].replace(before, after)
    return Source(version, files)

"""Options that vLLM refuses together, or of which one takes the other's effect away."""

from collections.abc import Iterator, Mapping

from kvgate.findings.finding import Located, SettingName, Severity, any_one, do, leave_out, located, words
from kvgate.rules.command_line import LORA_NOT_ENABLED, NO_EFFECT, TOOL_CALL_PARSER_MISSING
from kvgate.rules.settings import batch_below_max_model_len
from kvgate.vllm.arguments import GivenOption
from kvgate.vllm.parser import CommandLine

_GRAPHS = ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "cuda_graph_sizes", "compilation_config")
"""Settings of CUDA graphs; in the last one only some keys are."""


def contradictions(line: CommandLine) -> Iterator[Located]:
    """Find contradictions among the options that are written; defaults are not held against them."""
    settings = line.given
    yield from _batch_below_length(settings)
    yield from _options_without_effect(settings)
    yield from _adapters_without_lora(settings)
    yield from _tools_without_parser(line)


def _batch_below_length(settings: Mapping[str, GivenOption]) -> Iterator[Located]:
    """vLLM 0.33, `SchedulerConfig`: a prompt that is not chunked must fit one batch."""
    chunked, tokens, length = (
        settings.get(name) for name in ("enable_chunked_prefill", "max_num_batched_tokens", "max_model_len")
    )
    if chunked is None or tokens is None or length is None:
        return
    is_chunked = chunked.value is True or str(chunked.value).lower() in ("true", "1")
    if not is_chunked and isinstance(tokens.value, int) and isinstance(length.value, int):
        for finding in batch_below_max_model_len(tokens.value, length.value):
            yield Located(finding=finding, path=tokens.path, line=tokens.line)


def _options_without_effect(settings: Mapping[str, GivenOption]) -> Iterator[Located]:
    """CUDA graphs beside eager mode; the share of the memory beside the bytes of the KV cache."""
    eager = settings.get("enforce_eager")
    written = [settings[name] for name in _GRAPHS if name in settings] if eager and eager.value is True else []
    for graphs in written:
        config = graphs.value if isinstance(graphs.value, dict) else {}
        is_about_graphs = any(
            "cudagraph" in str(key) and value not in (None, "NONE", 0, []) for key, value in config.items()
        )
        if graphs.name == "compilation_config" and not is_about_graphs:
            continue
        name = SettingName(graphs.name)
        message = words("{name} configures CUDA graphs, and {enforce_eager} switches them off", name=name)
        yield located(NO_EFFECT, graphs, message, any_one(leave_out(name), leave_out("enforce_eager")))
    share, given = settings.get("gpu_memory_utilization"), settings.get("kv_cache_memory_bytes")
    if share and given and given.value:
        message = words(
            "{gpu_memory_utilization} does not size the KV cache beside {kv_cache_memory_bytes}: it only decides whether vLLM starts, "
            "because that share of the GPU must be free"
        )
        alone = do(
            "leave {gpu_memory_utilization} out where nothing else uses the GPU: vLLM's default must then be free"
        )
        remedy = any_one(alone, leave_out("kv_cache_memory_bytes"))
        yield located(NO_EFFECT, share, message, remedy, severity=Severity.INFO)


def _adapters_without_lora(settings: Mapping[str, GivenOption]) -> Iterator[Located]:
    """vLLM loads the adapters that it is started with, and refuses to without LoRA."""
    enabled, modules = settings.get("enable_lora"), settings.get("lora_modules")
    if modules and modules.value and not (enabled and enabled.value is True):
        message = words("{lora_modules} is given, and LoRA is not enabled; vLLM does not start")
        yield located(LORA_NOT_ENABLED, modules, message, do("add {enable_lora}"))


def _tools_without_parser(line: CommandLine) -> Iterator[Located]:
    """vLLM 0.6 to 0.33, `validate_parsed_serve_args`: tools are chosen automatically only with a parser of their calls."""
    enabled, parser = line.given.get("enable_auto_tool_choice"), line.given.get("tool_call_parser")
    is_unseen = "tool_call_parser" in line.unknown or line.open_words
    if enabled and enabled.value is True and not is_unseen and not (parser and parser.value):
        message = words("{enable_auto_tool_choice} is on, and there is no {tool_call_parser}; vLLM does not start")
        remedy = any_one(do("add {tool_call_parser} with the one for the model"), leave_out("enable_auto_tool_choice"))
        yield located(TOOL_CALL_PARSER_MISSING, enabled, message, remedy)

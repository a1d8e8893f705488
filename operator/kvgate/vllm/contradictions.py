"""Options that vLLM refuses together, or of which one takes the other's effect away."""

from collections.abc import Iterator, Mapping

from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import GivenOption, Located, located
from kvgate.vllm.parser import CommandLine


def contradictions(line: CommandLine) -> Iterator[Located]:
    """Find contradictions among the options that are written; defaults are not held against them."""
    settings = line.given
    yield from _batch_below_length(settings)
    yield from _graphs_without_graphs(settings)
    yield from _adapters_without_lora(settings)
    yield from _utilization_without_effect(settings)
    yield from _tools_without_parser(line)


def _batch_below_length(settings: Mapping[str, GivenOption]) -> Iterator[Located]:
    """vLLM 0.33, `SchedulerConfig`: a prompt that is not chunked must fit one batch."""
    chunked, tokens, length = (
        settings.get(name) for name in ("enable_chunked_prefill", "max_num_batched_tokens", "max_model_len")
    )
    if chunked is None or tokens is None or length is None or _is_true(chunked):
        return
    if isinstance(tokens.value, int) and isinstance(length.value, int) and tokens.value < length.value:
        yield located(
            rule="BatchBelowMaxModelLen",
            severity=Severity.ERROR,
            at=tokens,
            message=(
                f"max_num_batched_tokens {tokens.value} is below max_model_len {length.value}, and chunked prefill is off; "
                "vLLM does not start"
            ),
            remediation=f"set it to {length.value} or more, or leave chunked prefill on",
        )


def _graphs_without_graphs(settings: Mapping[str, GivenOption]) -> Iterator[Located]:
    eager = settings.get("enforce_eager")
    if eager is None or eager.value is not True:
        return
    for name in ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "cuda_graph_sizes", "compilation_config"):
        graphs = settings.get(name)
        if graphs and (name != "compilation_config" or _is_about_graphs(graphs)):
            yield located(
                rule="NoEffect",
                severity=Severity.WARNING,
                at=graphs,
                message=f"{name} says how CUDA graphs are captured, and enforce_eager switches them off",
                remediation="leave out one of them",
            )


def _is_about_graphs(setting: GivenOption) -> bool:
    config = setting.value if isinstance(setting.value, dict) else {}
    return any("cudagraph" in str(key) and value not in (None, "NONE", 0, []) for key, value in config.items())


def _adapters_without_lora(settings: Mapping[str, GivenOption]) -> Iterator[Located]:
    """vLLM loads the adapters that it is started with, and refuses to without LoRA."""
    enabled, modules = settings.get("enable_lora"), settings.get("lora_modules")
    if modules and modules.value and not (enabled and enabled.value is True):
        yield located(
            rule="LoraNotEnabled",
            severity=Severity.ERROR,
            at=modules,
            message="lora_modules are given, and LoRA is not enabled; vLLM does not start",
            remediation="add --enable-lora",
        )


def _utilization_without_effect(settings: Mapping[str, GivenOption]) -> Iterator[Located]:
    share, given = settings.get("gpu_memory_utilization"), settings.get("kv_cache_memory_bytes")
    if share and given and given.value:
        yield located(
            rule="NoEffect",
            severity=Severity.WARNING,
            at=share,
            message="gpu_memory_utilization has no effect beside kv_cache_memory_bytes",
            remediation="leave out one of them",
        )


def _tools_without_parser(line: CommandLine) -> Iterator[Located]:
    """vLLM 0.6 to 0.33, `validate_parsed_serve_args`: tools are chosen automatically only with a parser of their calls."""
    enabled, parser = line.given.get("enable_auto_tool_choice"), line.given.get("tool_call_parser")
    is_unseen = "tool_call_parser" in line.unknown or line.open_words
    if enabled and enabled.value is True and not is_unseen and not (parser and parser.value):
        yield located(
            rule="ToolCallParserMissing",
            severity=Severity.ERROR,
            at=enabled,
            message="enable_auto_tool_choice is on, and there is no tool_call_parser; vLLM does not start",
            remediation="add --tool-call-parser with the one for the model, or leave out --enable-auto-tool-choice",
        )


def _is_true(setting: GivenOption) -> bool:
    return setting.value is True or str(setting.value).lower() in ("true", "1")

"""Help of every command: what it does, its options in groups, and examples that a test runs. It wraps at the width of the terminal."""

from collections.abc import Iterable, Iterator, Sequence

import click

NARROW = 80
"""Columns below which the meaning of an option stands under it."""
WIDEST = 110
"""Columns of the widest help."""
_SHORT = 20
"""Longest name that leaves room for its meaning beside it on any terminal."""
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("The model", ("model", "model_config", "draft_config", "lock", "facts", "fetch", "fetch_seconds")),
    ("GPUs and release", ("gpu", "gpus", "max_gpus", "prices", "gpu_memory_bytes", "shared_by", "accelerator", "vllm_version")),
    (
        "The load",
        ("users", "peak_concurrency", "requests_per_second", "seconds_per_request", "prompt_tokens", "output_tokens", "request_lengths",
         "shared_prefix_tokens", "guarantee", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
    ),
    ("The observed starts", ("path", "place", "context", "namespace", "setting", "scope")),
    (
        "Facts from files",
        ("config", "config_from", "calibration", "root", "path_map"),
    ),
    ("Charts and kustomizations", ("values", "sets", "helm_arguments", "render")),
    (
        "The answer",
        ("x", "y", "at", "requests", "why", "lengths", "baseline", "write_baseline", "fail_on", "nothing_is_fine", "show", "choose",
         "every", "outputs", "output", "form", "file", "into"),
    ),
    (
        "The KV cache",
        ("kv_cache_dtype", "dtypes", "capacity", "kv_cache_memory_bytes", "num_gpu_blocks_override", "block_size",
         "kv_cache_dtype_skip_layers", "enable_prefix_caching", "disable_hybrid_kv_cache_manager", "mamba_cache_mode",
         "mamba_block_size", "mamba_cache_dtype", "mamba_ssm_cache_dtype"),
    ),
    (
        "Weights",
        ("gpu_memory_utilization", "dtype", "quantization", "allow_deprecated_quantization", "load_format", "language_model_only",
         "checkpoint_bytes", "weights_bytes"),
    ),
)  # fmt: skip
"""Title → parameters, in the order of the help. A setting of vLLM that has none of these titles has one by the budget's record."""
_RECORDS = {
    "parallelism": "Parallel sizes",
    "": "Scheduling, graphs, drafts and media",
    "lora": "Adapters (LoRA)",
    "offload": "Weights in host memory",
    "host": "Memory of the host",
    "circumstances": "Circumstances of the start",
}
"""Record of the budget → title of its settings."""
OTHER = "Options"
"""Title of all others, `--help` among them."""


class HelpText(click.HelpFormatter):
    """Text that wraps between words only, so that names stay whole."""

    def write_text(self, text: str) -> None:
        for paragraph in text.split("\n\n"):
            words = paragraph.replace("\b\n", "").split()
            self.write("\n".join(_wrapped(words, self.width, self.current_indent)) + "\n\n")
        self.buffer[-1] = self.buffer[-1].removesuffix("\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        listed = list(rows)
        if self.width >= NARROW or max(len(name) for name, _ in listed) <= _SHORT:
            super().write_dl(listed, col_max, col_spacing)
            return
        for name, meaning in listed:
            self.write("\n".join(_wrapped(name.split(), self.width, self.current_indent, 4)) + "\n")
            self.write("\n".join(_wrapped(meaning.split(), self.width, self.current_indent + 6)) + "\n")


def _wrapped(words: Sequence[str], width: int, indent: int, hanging: int = 0) -> list[str]:
    """Put words on lines; a word that is longer than a line stands alone on one."""
    lines, line = [], " " * indent
    for word in words:
        if line.strip() and len(line) + len(word) >= width:
            lines.append(line.rstrip())
            line = " " * (indent + hanging)
        line += f"{word} "
    return [*lines, line.rstrip()]


class Context(click.Context):
    """A context whose help is written in this way."""

    formatter_class = HelpText


class Command(click.Command):
    """A command whose help has options in groups, and examples at the end."""

    context_class = Context

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in grouped(self, ctx):
            with formatter.section(title):
                formatter.write_dl([record for each in group if (record := each.get_help_record(ctx))])
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not (shown := examples_of(ctx)):
            return
        with formatter.section("Examples"):
            for number, (says, line) in enumerate(shown):
                if number:
                    formatter.write_paragraph()
                formatter.write_text(says)
                for part in continued(line, formatter.width - 6):
                    formatter.write(f"    {part}\n")


class Group(Command, click.Group):
    """A group of such commands, one of which may be left out: `kvgate models llama` is `kvgate models list llama`."""

    command_class = Command
    default = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_named or not self.default else [self.default, *args])


def grouped(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, list[click.Option]]]:
    """Yield the titles with the options of a command that have a help, those of one title in the order of the command."""
    titles = {name: title for title, names in _GROUPS for name in names}
    options = [each for each in command.get_params(ctx) if isinstance(each, click.Option) and not each.hidden]
    if not isinstance(command, click.Group):
        from kvgate.vllm.settings import WHAT_IFS

        records = {each.name: "host" if each.is_of_pod else each.budget.rpartition(".")[0] for each in WHAT_IFS}
        titles = {**{name: _RECORDS.get(record, _RECORDS[""]) for name, record in records.items()}, **titles}
    found: dict[str, list[click.Option]] = {title: [] for title in (*dict(_GROUPS), *_RECORDS.values(), OTHER)}
    for option in options:
        found[titles.get(option.name or "", OTHER)].append(option)
    yield from ((title, group) for title, group in found.items() if group)


def examples_of(ctx: click.Context) -> Sequence[tuple[str, str]]:
    """Return (what it is for, the command line) of the command, by its path without the program's name."""
    from kvgate.cli.examples import EXAMPLES

    return EXAMPLES.get(ctx.command_path.partition(" ")[2], ())


def continued(line: str, width: int) -> list[str]:
    """Break a command line between its words, with the backslash that a shell needs; a quoted text stays whole."""
    words: list[str] = []
    for word in line.split(" "):
        if words and words[-1].count("'") % 2:
            words[-1] += f" {word}"
        else:
            words.append(word)
    lines = _wrapped(words, width - 2, 0, 2)
    return [*(f"{part} \\" for part in lines[:-1]), lines[-1]]

"""Help of every command: `--help` fits one screen, `--help-all` has the whole text and every option in its group.

Both end with exit codes and with examples that a test runs. Lines wrap at the width of the terminal.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import cleandoc

import click

from kvgate.cli.terminal import show

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
         "every", "keep", "maximize", "outputs", "output", "form", "file", "into"),
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
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "check": ("accelerator", "vllm_version", "values", "baseline", "fail_on", "outputs"),
    "why": ("accelerator", "vllm_version", "model_config", "bundle", "output"),
    "diff": ("accelerator", "vllm_version", "config", "guarantee", "output"),
    "explain": ("model", "gpu", "max_model_len", "max_num_seqs", "tensor_parallel_size", "why", "requests", "output"),
    "size": ("model", "gpus", "prompt_tokens", "output_tokens", "peak_concurrency", "choose", "output"),
    "sweep": ("model", "gpu", "x", "y", "at", "file", "output"),
    "calibrate logs": ("into", "gpu", "model", "vllm_version"),
}
"""Path of a command → the options that most people need, which `--help` shows; it shows all of any other command."""
_BRIEF, _FEW = 28, 3
"""Columns of the names, and examples, in `--help`."""
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
        longest = max(len(name) for name, _ in listed)
        indent, beside = self.current_indent, self.current_indent + min(longest, col_max) + col_spacing
        if self.width < NARROW and longest > _SHORT and col_max > _BRIEF:
            beside, col_max = indent + 6, 0
        for name, meaning in listed:
            head = _wrapped(name.split(), self.width, indent, 4)
            says = _wrapped(meaning.split(), self.width, beside)
            if len(name) <= col_max:
                head, says[0] = [], f"{head[0]:<{beside}}{says[0].lstrip()}"
            self.write("\n".join([*head, *says]) + "\n")


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


def _show_all(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:  # noqa: FBT001 - click's signature
    if is_asked and not ctx.resilient_parsing:
        ctx.meta[_WHOLE] = True
        show(ctx.get_help())
        ctx.exit()


_WHOLE = "kvgate.help_all"
_HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
    help="Show every option, and the whole description.",
)  # fmt: skip


class Command(click.Command):
    """A command whose help has options in groups, exit codes, and examples at the end."""

    context_class = Context

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), _HELP_ALL]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        with formatter.indentation():
            paragraphs = cleandoc(self.help or "").split("\n\n")
            formatter.write_text("\n\n".join(paragraphs if _is_whole(ctx) else paragraphs[:1]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not _is_whole(ctx):
            named = {each.name: each for each in self.get_params(ctx) if isinstance(each, click.Option)}
            shown = _NEEDED.get(path_of(ctx)) or (name for name, each in named.items() if not each.is_eager)
            with formatter.section("Options"):
                formatter.write_dl([_in_short(named[name], ctx) for name in (*shown, "help_all")], _BRIEF)
            return
        for title, group in grouped(self, ctx):
            with formatter.section(title):
                formatter.write_dl([record for each in group if (record := each.get_help_record(ctx))])
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if exits := exit_codes(path_of(ctx)):
            with formatter.section("Exit codes"):
                formatter.write_dl([(str(code), f"{meaning}.") for code, meaning in exits])
        if not (shown := examples_of(ctx)):
            return
        with formatter.section("Examples"):
            for says, line in shown if _is_whole(ctx) else shown[:_FEW]:
                formatter.write_text(says)
                for part in continued(line, formatter.width - 6):
                    formatter.write(f"    {part}\n")


def _is_whole(ctx: click.Context) -> bool:
    return _WHOLE in ctx.meta or isinstance(ctx.command, click.Group)


def _in_short(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    """Return one name of an option with its value, and the first clause of its meaning."""
    flag = f"--{(option.name or '').replace('_', '-')}"
    name = next((each for each in ("--gpu", flag) if each in option.opts), option.opts[-1])
    value = "" if option.is_flag else f" {option.make_metavar(ctx)}"
    meaning = re.split(r"[;.] ", option.help or "")[0].rstrip(".")
    return f"{name}{value}", f"{meaning}."


class Group(Command, click.Group):
    """A group of such commands, one of which may be left out: `kvgate models llama` is `kvgate models list llama`."""

    command_class = Command
    default = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and args[0] in (*self.commands, *ctx.help_option_names, *_HELP_ALL.opts)
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


def path_of(ctx: click.Context) -> str:
    """Return the path of a command without the program's name; empty for the program itself."""
    return ctx.command_path.partition(" ")[2]


def exit_codes(path: str) -> list[tuple[int, str]]:
    """Return each exit code of a command with its meaning; 2 is also that of a command that was misused."""
    from kvgate.cli.exits import EXITS, Exit

    misused = {Exit.UNDECIDED: ", or the command was misused"}
    return [(code.value, f"{meaning}{misused.get(code, '')}") for code, meaning in EXITS.get(path, {}).items()]


def examples_of(ctx: click.Context) -> Sequence[tuple[str, str]]:
    """Return (what it is for, the command line) of the command, by its path without the program's name."""
    from kvgate.cli.examples import EXAMPLES

    return EXAMPLES.get(path_of(ctx), ())


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

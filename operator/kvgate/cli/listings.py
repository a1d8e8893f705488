"""`kvgate gpus`, `kvgate models` and `kvgate rules`: what kvgate knows, as a table or as JSON."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from kvgate.cli import completion
from kvgate.cli.exits import Exit
from kvgate.cli.help import Command
from kvgate.cli.terminal import show, show_error, show_lines, table, width_of_terminal
from kvgate.text.inert import inert_json

Row = Mapping[str, Any]


def _listing(command: Callable[..., None]) -> click.Command:
    """Make a command with the argument and the option that all listings have."""
    complete = {"gpus": completion.gpus, "models": completion.a_model, "rules": completion.a_rule}[command.__name__]
    filtered = click.argument("filter_", metavar="[FILTER]", default="", shell_complete=complete)
    output = click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="For people or programs."
    )
    return click.command(cls=Command)(filtered(output(command)))


def _print(rows: Sequence[Row], table_rows: Sequence[Sequence[str]], *, output: str, what: str) -> None:
    """Print the rows as JSON, or those of the table; `what` names what is missing where there are none."""
    if output == "json":
        show(inert_json(rows, indent=2))
    elif rows:
        show_lines(*table(table_rows, width=width_of_terminal()))
    if not rows:
        show_error(f"no {what}")
        sys.exit(Exit.UNDECIDED)


@_listing
def gpus(filter_: str, output: str) -> None:
    """List accelerators. FILTER is a part of the name or of the product; case does not matter."""
    from kvgate import catalogue
    from kvgate.budget.ground.units import format_gib

    rows: list[Row] = [
        {
            "name": a.name,
            "memory_bytes": a.memory_bytes,
            "compute_capability": "{}.{}".format(*a.compute_capability) if a.compute_capability else None,
            "memory_bandwidth_bytes_per_second": a.memory_bandwidth_bytes_per_second,
            "vendor": a.vendor,
            "product": a.product,
        }
        for a in catalogue.every_accelerator()
        if filter_.lower() in f"{a.name}\n{a.product}".lower()
    ]
    cells = [
        (
            r["name"],
            format_gib(r["memory_bytes"]),
            f"{bandwidth / 1e9:.0f} GB/s" if (bandwidth := r["memory_bandwidth_bytes_per_second"]) else "not known",
            r["compute_capability"] or "-",
            r["vendor"],
            r["product"],
        )
        for r in rows
    ]
    header = ("NAME", "MEMORY", "BANDWIDTH", "CAPABILITY", "VENDOR", "PRODUCT")
    _print(rows, [header, *cells], output=output, what=f"GPU matches {filter_!r}")


@_listing
def models(filter_: str, output: str) -> None:
    """List models. FILTER is a part of the name or of an alias; case does not matter."""
    from kvgate import catalogue
    from kvgate.hf_config import read_config

    rows: list[Row] = []
    for entry in map(catalogue.load_model, catalogue.model_names()):
        if filter_.lower() not in "\n".join((entry.name, *entry.aliases)).lower():
            continue
        shape = read_config(entry.config, name=entry.name)
        row = {
            "name": entry.name,
            "aliases": list(entry.aliases),
            "architecture": shape.architecture,
            "attention": list(dict.fromkeys(mixer.kind for mixer in shape.mixers)),
            "num_layers": len(shape.layers),
            "max_model_len": shape.max_model_len,
            "parameters": entry.parameters,
            "safetensors_bytes": entry.safetensors_bytes,
            "source": entry.source,
            "confidence": entry.confidence,
            "unmodelled": list(shape.unmodelled_kinds),
        }
        rows.append(row)
    header = ("NAME", "ATTENTION", "LAYERS", "MAX LENGTH", "PARAMETERS", "BUDGET")
    _print(rows, [header, *map(_model_cells, rows)], output=output, what=f"model matches {filter_!r}")


def _model_cells(row: Row) -> Sequence[str]:
    parameters, unmodelled = row["parameters"], row["unmodelled"]
    return (
        row["name"],
        ", ".join(kind for kind in row["attention"] if kind not in unmodelled) or "-",
        str(row["num_layers"]),
        str(row["max_model_len"] or "-"),
        f"{parameters / 1e9:.1f} B" if parameters else "-",
        f"unknown: {', '.join(unmodelled)}" if unmodelled else "yes",
    )


@_listing
def rules(filter_: str, output: str) -> None:
    """List the rules that findings come from. FILTER is a part of the id or of its sentence; case does not matter."""
    from kvgate.cli.rule_examples import address_of, page_of
    from kvgate.rules.catalogue import RULES

    rows: list[Row] = [
        {
            "rule": rule.id,
            "severities": [severity.value for severity in rule.severities],
            "about": rule.scope.value,
            "says": rule.words,
            "page": page_of(rule),
            "url": address_of(page_of(rule)) or None,
        }
        for rule in RULES.values()
        if filter_.lower() in f"{rule.id}\n{rule.scope}\n{rule.words}".lower()
    ]
    cells = [(r["rule"], ", ".join(r["severities"]), r["about"], r["says"]) for r in rows]
    _print(rows, [("RULE", "SEVERITY", "ABOUT", "SAYS"), *cells], output=output, what=f"rule matches {filter_!r}")
    if len(rows) == 1 and output == "text":
        show_lines("", f"An example that fires, and one that does not: {rows[0]['url'] or rows[0]['page']}")

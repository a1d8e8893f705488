"""Changes of settings written into what somebody gave: a command, or the lines of a manifest."""

import re
import shlex
from functools import partial

from kvgate.api import field_path
from kvgate.cli.reports.report import Item
from kvgate.cli.why.cases import Case
from kvgate.text.inert import json_text
from kvgate.vllm.arguments import option_name

Changes = dict[str, int | str | None]
"""vLLM's names of settings → their values."""
REMOVED = None
"""Value of an option that is left out."""


_END_OF_COMMAND = re.compile(r"\s{0,20}(?:[|;&>]|2>)")


def with_changes(command: str, changes: Changes, model: str = "") -> str:
    """Return a command with other values of options: at their place where they are written, else at its end.

    `model`: the name that a change of the model replaces, wherever it stands.
    """
    for name, value in changes.items():
        flag = option_name(name)
        spelled = "--" + flag[2:].replace("-", "[-_]")
        written = re.compile(
            rf"(?P<flag>(?<!\S){spelled})(?P<sign>=|\s+)(?P<value>'[^']*'|\"[^\"]*\"|[^\s-]\S*)|(?<!\S){spelled}(?!\S)"
        )
        if name == "model" and model in command:
            command = command.replace(model, str(value), 1)
        elif written.search(command):
            command = re.sub(r"  +", " ", written.sub(partial(_replaced, value), command)).rstrip()
        elif value is not REMOVED:
            end = _END_OF_COMMAND.search(command)
            at = end.start() if end and not re.search(r"['\"]", command[end.start() :]) else len(command)
            command = f"{command[:at]} {flag}{_after_option(value)}{command[at:]}"
    return command


def _after_option(value: int | str | None) -> str:
    """Return a value behind its option; nothing for a switch."""
    return "" if value == "" or value is True else f" {shlex.quote(str(value))}"


def _replaced(value: int | str | None, match: re.Match[str]) -> str:
    if value is REMOVED:
        return ""
    after = f"{match['sign']}{shlex.quote(str(value))}" if match["sign"] else _after_option(value)
    return f"{match['flag'] or match[0]}{after}"


_LEFT_OUT = (
    "model",
    "gpu",
    "gpu_memory_bytes",
    "vllm_version",
    "usage_context",
    "sampler",
    "compile_cache",
    "model_config",
)


def command_of(case: Case, changes: Changes) -> str:
    """Return `vllm serve …` of the options that a log printed, with the changes; empty where it printed none."""
    if case.start is None or not case.start.log.arguments or case.values is None:
        return ""
    options = {
        key: value for key, value in case.values.items() if key not in _LEFT_OUT and key in case.start.log.arguments
    }
    if len(options) > 40:  # until 0.8 vLLM printed all options with their defaults
        from kvgate.vllm.settings import SETTINGS

        known = {setting.name for setting in SETTINGS}
        options = {key: value for key, value in options.items() if key in known and value not in ("auto", False, 1)}
    options = {**options, **changes}
    words = ["vllm", "serve", str(options.pop("model", None) or case.values.get("model", "MODEL"))]
    for name, value in options.items():
        if value is REMOVED or value is False or (value == "auto" and name not in changes):
            continue
        words.append(option_name(name))
        if isinstance(value, dict | list):
            words.append(shlex.quote(json_text(value)))
        elif value is not True and value != "":
            words.append(shlex.quote(str(value)))
    return " ".join(words)


def with_value(text: str, item: Item, name: str, value: int | str | None) -> str:
    """Return the file with another value of a setting; empty where its place is not certain."""
    if name == "model":
        old = Case(item=item).model
        return text.replace(old, str(value), 1) if old and text.count(old) == 1 else ""
    if item.spec is not None:
        field = re.escape(field_path(name).rpartition(".")[2])
        found = list(re.finditer(rf"(?<![\w-]){field}:[ \t]*(?P<value>[^\s,}}#]+)", text))
    else:
        flag = "--" + name.replace("_", "[-_]")
        found = list(re.finditer(rf"{flag}(?:=|[ \t]+|[\"']?,?\s*\n?\s*-?[ \t]*)[\"']?(?P<value>[\w./:-]+)", text))
    if value is REMOVED:  # the element of a list that is one option with its value; other places are not certain
        written = re.compile(rf"^[ \t]*- [\"']?--{name.replace('_', '[-_]')}(?:=[^\n]*)?[\"']?[ \t]*\n", re.MULTILINE)
        return written.sub("", text) if item.spec is None and len(written.findall(text)) == 1 else ""
    if len(found) == 1:
        begin, end = found[0].span("value")
        return f"{text[:begin]}{value}{text[end:]}"
    if found or item.spec is not None or item.engine is None:
        return ""
    words = [word for word in item.engine.engine.arguments if word.path.endswith("]")]
    if not words:
        return ""
    line = item.document.position_of(words[-1].path).line
    lines = text.split("\n")
    indent = re.match(r"(\s*- )", lines[line - 1]) if line <= len(lines) else None
    if indent is None or "|" in lines[line - 1]:
        return ""
    added = f"{indent[1]}{option_name(name)}" + ("" if value == "" or value is True else f"={value}")
    return "\n".join([*lines[:line], added, *lines[line:]])

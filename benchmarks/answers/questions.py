"""The questions whose answers are frozen: manifests, contract cases, and what-ifs and commands that are drawn from drawn.yaml.

Every drawn question has its own seed, its number: another draw changes no other question.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from answers.records import ROOT, Question, digest
from contract.doors import DOORS
from corpus.answers import cases

DRAWN = ("what-ifs", "commands")
"""Kinds whose questions are drawn here: the frozen ones have to be the same."""
_COMMANDS = (
    ("explain", 190, "facts gpu load engine rare"),
    ("explain", 30, "facts gpu of_workloads load"),
    ("size", 40, "facts of_workloads of_size"),
    ("sweep", 30, "facts gpu engine axis"),
    ("sweep", 10, "facts gpu engine point"),
)
"""Command, how many of it, lists that its options are drawn from."""


@cache
def _lists() -> dict[str, dict[str, tuple[float, list[Any]]]]:
    """Return name of a list → setting → (share of the questions that set it, values)."""
    read: dict[str, dict[str, tuple[float, list[Any]]]] = yaml.safe_load(
        Path(__file__).with_name("drawn.yaml").read_text("utf-8")
    )
    return read


def _drawn(seed: int, names: str) -> dict[str, Any]:
    """Draw one question. Only `random()` is used: Python promises the same numbers for it in every release."""
    source = Random(seed)
    settings = ((name, *row) for each in names.split() for name, row in _lists()[each].items())
    return {
        name: values[int(source.random() * len(values))] for name, share, values in settings if source.random() < share
    }


def _manifests() -> Iterator[Question]:
    yield from (_about_file("check", case.name, case.path) for case in cases())
    yield from (_about_file("check", f"contract/{path.parent.name}", path) for path in _contract_cases())


def _contract() -> Iterator[Question]:
    for path in _contract_cases():
        yield from (_about_file("contract", f"{path.parent.name}@{door}", path, door=door) for door in DOORS)


def _contract_cases() -> list[Path]:
    return sorted(ROOT.glob("tests/contract/*/request.yaml"))


def _about_file(kind: str, name: str, path: Path, **asked: str) -> Question:
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    content = digest([each.read_text(encoding="utf-8") for each in files])
    return Question(kind=kind, key=f"{name}~{content}", asked={"path": str(path.relative_to(ROOT)), **asked})


def _what_ifs() -> Iterator[Question]:
    for number in range(5000):
        asked = _drawn(number, "facts gpu load engine rare of_what_ifs")
        yield Question(kind="what-ifs", key=f"{number:04}~{digest(asked)}", asked=asked)


def _commands() -> Iterator[Question]:
    commands = [(command, names) for command, count, names in _COMMANDS for _ in range(count)]
    for number, (command, names) in enumerate(commands):
        given = _drawn(10_000 + number, names)
        words = (
            (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])) for name, value in given.items()
        )
        arguments = [command, *(word for option in words for word in option)]
        yield Question(
            kind="commands", key=f"{command}-{number:03}~{digest(arguments)}", asked={"arguments": arguments}
        )


QUESTIONS: Mapping[str, Callable[[], Iterator[Question]]] = {
    "check": _manifests,
    "contract": _contract,
    "what-ifs": _what_ifs,
    "commands": _commands,
}

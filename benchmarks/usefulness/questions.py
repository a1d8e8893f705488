"""Public questions, the answers that kvgate should give, and what it says when it is asked."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct, convert

HERE = Path(__file__).resolve().parent
_GIB, _GB = 2**30, 10**9
_SECONDS = 120
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
_IDS = frozenset({"rule", "cause", "id", "code"})
_QUOTES = frozenset(
    {"quote", "quoted", "evidence", "line", "text", "given", "input", "file", "path", "source", "title", "sentence"}
    | {"statement", "command", "patch", "not_known"}
)
"""Keys whose values repeat what the person wrote, or ask for more of it: a fix that is named only there is not kvgate's."""
_RULE = re.compile(r"([A-Z]\w+): ")
"""Head of a sentence of `kvgate why` that repeats an error."""


class Number(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"means": "is"}):
    """A number that the answer must state."""

    means: str
    value: float
    unit: str
    tolerance: float
    at: str = ""
    """Keys of the JSON, joined by dots; empty: anywhere."""

    def is_near(self, found: float) -> bool:
        scales = {"GiB": (1.0, _GIB), "GB": (1.0, _GB, _GB / _GIB), "capability": (1.0, 10.0)}.get(self.unit, (1.0,))
        return any(abs(abs(found) - self.value * scale) <= self.tolerance * self.value * scale for scale in scales)


class Expected(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of the thread, or of a careful reader."""

    cause: str
    by: str
    says: str
    verdict: list[str] = []
    """Any one of them is right; empty where the cause is the answer."""
    numbers: list[Number] = []
    fixes: list[list[str]] = []
    """One name of each line has to be named."""


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person held and asked."""

    id: str
    url: str
    date: Any
    form: str
    question: str
    given: str
    observed: str
    expected: Expected
    command: str
    reconstructed: bool = False
    corrected: str = ""
    """Reason why the question or its expected answer is not the one of the first contact."""
    missed: str = ""
    """Reason why an answer that states another cause is left as it is."""


class Cause(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A word of the vocabulary, and kvgate's own ids for it."""

    means: str
    said_as: list[str] = []


class Said(Struct, frozen=True, kw_only=True):
    """What kvgate said: fields, and the texts that are its own words."""

    exit_code: int
    document: Any
    text: str

    @property
    def ids(self) -> frozenset[str]:
        """Ids of causes and of rules that are more than a note."""
        records = [
            each for each in _records(self.document) if str(each.get("severity", "error")) in {"error", "warning"}
        ]
        named = {
            str(value) for record in records for key, value in record.items() if key in _IDS and isinstance(value, str)
        }
        told = (_RULE.match(str(sentence)) for record in records for sentence in record.get("why") or ())
        return frozenset(named | {found[1] for found in told if found})

    @property
    def verdict(self) -> str:
        """The first verdict; `kvgate why` may compute one and yet leave the cause open, or take it from a message."""
        first = next((record for record in _records(self.document) if "outcome" in record), {})
        outcome = first.get("outcome")
        if outcome in {"CauseUnknown", "Unknown"} or first.get("happened"):
            return "Unknown"
        if outcome == "NotJudged":
            return "NotJudged"
        found = (record["verdict"] for record in _records(self.document) if isinstance(record.get("verdict"), str))
        return next(found, {"NothingWrong": "Fits", "MayFail": "MayNotFit"}.get(str(outcome), ""))

    @property
    def numbers(self) -> tuple[float, ...]:
        return tuple(float(found.replace(",", "")) for found in _NUMBER.findall(self.text))

    def at(self, path: str) -> float | None:
        value = self.document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) else None


def read_questions() -> list[Question]:
    return convert(yaml.safe_load((HERE / "questions.yaml").read_text(encoding="utf-8")), list[Question])


def read_causes() -> dict[str, Cause]:
    return convert(yaml.safe_load((HERE / "causes.yaml").read_text(encoding="utf-8")), dict[str, Cause])


def ask(question: Question, folder: Path) -> Said:
    """Run the one command in a process of its own, on a file with what the person held. Raises ValueError where it prints no JSON."""
    file = folder / f"{question.id}.{'yaml' if question.form == 'manifest' else 'txt'}"
    file.write_text(question.given, encoding="utf-8")
    words = [str(file) if word == "FILE" else word for word in shlex.split(question.command)[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "kvgate", *words, "-o", "json"],
        capture_output=True, text=True, timeout=_SECONDS, check=False, cwd=folder,
    )  # fmt: skip
    document = json.loads(done.stdout or "null")
    if document is None and words[0] == "why" and done.returncode == 2:
        return Said(exit_code=2, document={}, text=done.stderr)  # nothing in it is a log, a command or a manifest
    if document is None:
        raise ValueError(f"{question.id}: no JSON from {shlex.join(words)}: {done.stderr}")
    return Said(exit_code=done.returncode, document=document, text="\n".join(_own_words(document)))


def _records(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _records(child)


def _own_words(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            if key == "changes" and isinstance(child, dict):
                yield from (f"{name} {new}" for name, new in child.items())
            elif key not in _QUOTES:
                yield from _own_words(child)
    elif isinstance(value, list):
        for child in value:
            yield from _own_words(child)
    elif value is not None:
        yield str(value)

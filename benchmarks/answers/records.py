"""Questions and compact rows of their answers, and the files of frozen answers."""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, fields

ROOT = Path(__file__).resolve().parents[2]
BASE = Path(__file__).parent / "base"


class Question(Struct, frozen=True, kw_only=True):
    """One question to kvgate."""

    kind: str
    """`check`, `contract`, `what-ifs` or `commands`: the name of its file."""
    key: str
    """A name, and a digest of what is asked: a question that is asked otherwise is another question."""
    asked: Mapping[str, Any]
    """`path` of a manifest, and `door` of a contract case; the settings of a what-if; `arguments` of a command."""


class Row(Struct, frozen=True, kw_only=True):
    """One answer; a part that it does not have is empty."""

    key: str
    """Key of the question, and `#` with the name of the engine where an answer is about several."""
    verdict: str = ""
    """One verdict, or how often each appears where the answer is a table."""
    guarantee: str = ""
    outcome: str = ""
    """Decision and reason of an InferenceDeployment, `refused` for another engine, exit code, or BadRequest."""
    headroom_ratio: str = ""
    num_tokens: str = ""
    rules: str = ""
    """The rules with their severities, sorted."""
    rest: str = ""
    """`key=digest` for every key of the JSON, so that any other change is seen, and in which part."""

    @property
    def question(self) -> str:
        return self.key.partition("#")[0]


def digest(value: object) -> str:
    """Return four hexadecimal digits that differ where the value does."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=2).hexdigest()


def rest_of(answer: Mapping[str, Any]) -> str:
    """Return the digests of all keys but those that a row has as they are."""
    return " ".join(f"{key}={digest(answer[key])}" for key in sorted({*answer} - {"id", "verdict", "guarantee"}))


def frozen(kind: str) -> Iterator[Row]:
    """Yield the frozen rows of a kind."""
    with _file(kind).open(encoding="utf-8", newline="") as file:
        yield from (Row(**row) for row in csv.DictReader(line for line in file if not line.startswith("# ")))


def freeze(kind: str, rows: Iterable[Row], *, commit: str) -> None:
    """Write the rows of a kind; the first line names the commit that gave these answers."""
    BASE.mkdir(exist_ok=True)
    with _file(kind).open("w", encoding="utf-8", newline="") as file:
        file.write(f"# answers of commit {commit}; written by `python -m answers --write`\n")
        written = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        written.writeheader()
        written.writerows(map(asdict, rows))


def _file(kind: str) -> Path:
    return BASE / f"{kind}.csv"

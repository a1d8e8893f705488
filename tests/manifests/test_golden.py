"""PLATFORM/CASE/input.yaml → expected.json: what is found in other people's manifests, where, and what is assumed; engines.json: what
the readers make of them; README.md."""

import json
import os
import re
import shlex
from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from kvgate.budget.releases.versions import DEFAULT_VERSION
from kvgate.cli.check.command import check
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.placed import Placed
from kvgate.cli.reports.report import Item, Report
from kvgate.documents.written import Written
from kvgate.manifests.platforms.readers import READERS
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, MountedText
from kvgate.statement.engine import newest_understood
from kvgate.vllm.arguments import Argument
from support.tables import table

FOLDER = Path(__file__).parent
CASES = sorted(path.parent.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*/input.*"))
MANIFESTS = sorted(
    [
        *FOLDER.glob("*/*/input.*"),
        *(path for path in FOLDER.glob("upstream/*/*.yaml") if not path.name.endswith(".answer.yaml")),
    ]
)
_FACTS = ("accelerator", "vllm_version", "guarantee")
_LEFT_OUT = {
    FoundEngine: ("document", "root", "platform", "name", "path", "findings", "assumed", "remarks"),
    MountedText: ("document",),
}
"""Fields of records that expected.json has, that are the input itself, or that are sentences."""
_OPTIONS = re.compile(r"^# check: (.*)$", re.MULTILINE)


def report_of(case: str) -> Report:
    path = next((FOLDER / case).glob("input.*"))
    stated = _OPTIONS.search(path.read_text(encoding="utf-8"))
    options = check.make_context("check", [str(path), *shlex.split(stated[1] if stated else "")]).params
    return run((str(path),), CheckOptions(**{name: options[name] for name in _FACTS}))


def told(case: str, report: Report) -> dict[str, Any]:
    """The report of a case, without its numbers."""
    text = next((FOLDER / case).glob("input.*")).read_text(encoding="utf-8")
    return {
        "exit_code": int(report.exit_code),
        "engines": [_engine(item, text) for item in report.items],
        "unreadable": [_told(placed) for placed in report.unreadable],
        "other_documents": report.num_others,
    }


def engines_told(report: Report) -> list[Any]:
    """What the readers make of a case: words with their places, model, GPUs, memory of the host; and the settings that findings name."""
    return [
        {
            "at": f"{item.line} {item.path}".strip(),
            **(_plain(item.engine.engine) | {"model_named": item.engine.model} if item.engine else {}),
            "findings": [f"{placed.rule} {placed.finding.field}".strip() for placed in item.findings],
        }
        for item in report.items
    ]


def _plain(value: Any) -> Any:
    """Values of JSON; of a record only the fields that are not as they are by default."""
    match value:
        case Written():
            return f"{_plain(value.value)} @ {value.path}" if value.value is not None else None
        case Argument():
            place = f"{value.path}+{value.line}" if value.line else value.path
            return f"{value.text} @ {place}{' (field)' if value.is_field else ''}"
        case Hint():
            together = f" of {value.one_of}" if value.one_of else ""
            return f"{value.name}: {value.value} @ {value.path}{together}{'' if value.term is None else f' ({value.term})'}"
        case Struct():
            named = {each.name: (getattr(value, each.name), each) for each in fields(value)}
            told = {
                name: _plain(found)
                for name, (found, each) in named.items()
                if name not in _LEFT_OUT.get(type(value), ()) and (each.default is NODEFAULT or found != each.default)
            }
            return {name: found for name, found in told.items() if found not in (None, "", [], {})}
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case set() | frozenset():
            return sorted(map(_plain, value))
        case list() | tuple():
            return list(map(_plain, value))
        case Enum():
            return value.value
        case Fraction():
            return str(value)
    return value.replace(f"{FOLDER}/", "") if isinstance(value, str) else value


def _engine(item: Item, text: str) -> dict[str, Any]:
    """Releases that nobody wrote have a name: they are others with the next release of vLLM."""
    release, name = (newest_understood(), "{newest}") if item.assumed else (DEFAULT_VERSION, "{default}")
    name = name if item.assumed or release not in text else release
    return {
        "at": f"{item.line} {item.path}".strip(),
        "platform": item.platform,
        "name": item.name,
        "verdict": item.verdict,
        "accelerator": item.accelerator,
        "vllm_version": name if item.vllm_version == release else item.vllm_version,
        "assumed": [each.text.replace(release, name) for each in item.assumed],
        "findings": [_told(placed) for placed in item.findings],
    }


def _told(placed: Placed) -> str:
    return f"{placed.finding.severity.value} {placed.rule} {placed.line}:{placed.column} {placed.path}".strip()


@pytest.mark.parametrize("case", CASES)
def test_the_report_is_the_golden_one(case: str) -> None:
    report = report_of(case)
    for name, found in (("expected", told(case, report)), ("engines", engines_told(report))):
        text = json.dumps(found, indent=1 + (name == "expected"), ensure_ascii=False) + "\n"
        golden = FOLDER / case / f"{name}.json"
        if os.environ.get("KVGATE_UPDATE_GOLDEN") == "1":
            golden.write_text(text, encoding="utf-8")
        assert text == golden.read_text(encoding="utf-8")


@pytest.mark.slow
@table("path", MANIFESTS, ids=[path.relative_to(FOLDER).as_posix() for path in MANIFESTS])
def test_nothing_beside_fits_says_that_it_does_not_start(path: Path) -> None:
    report = run((str(path),), CheckOptions())
    messages = [placed.finding.message for item in report.items if item.verdict == "Fits" for placed in item.findings]
    assert [
        each for each in messages if re.search(r"\b(does not start|refuses)\b", each) and "not on" not in each
    ] == []


@pytest.mark.parametrize("platform", sorted({reader.platform for reader in READERS if reader.platform.isascii()}))
def test_every_platform_has_real_examples(platform: str) -> None:
    cases = [case for case in CASES if case.startswith(f"{platform}/")]
    assert len(cases) >= 3 or platform.startswith("("), cases

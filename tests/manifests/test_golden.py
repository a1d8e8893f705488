"""PLATFORM/CASE/input.yaml → expected.json: what is found in other people's manifests, where, and what is assumed; README.md."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvgate.budget.versions import DEFAULT_VERSION
from kvgate.cli.check.command import check
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.report import Item, Placed
from kvgate.manifests.judging.releases import newest_understood
from kvgate.manifests.platforms.readers import READERS

FOLDER = Path(__file__).parent
CASES = sorted(path.parent.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*/input.*"))
_FACTS = ("accelerator", "vllm_version", "guarantee")
_OPTIONS = re.compile(r"^# check: (.*)$", re.MULTILINE)


def told(case: str) -> dict[str, Any]:
    """The report of a case, without its numbers."""
    path = next((FOLDER / case).glob("input.*"))
    stated = _OPTIONS.search(path.read_text(encoding="utf-8"))
    options = check.make_context("check", [str(path), *shlex.split(stated[1] if stated else "")]).params
    report = run((str(path),), CheckOptions(**{name: options[name] for name in _FACTS}))
    text = path.read_text(encoding="utf-8")
    return {
        "exit_code": int(report.exit_code),
        "engines": [_engine(item, text) for item in report.items],
        "unreadable": [_told(placed) for placed in report.unreadable],
        "other_documents": report.num_others,
    }


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
    text = json.dumps(told(case), indent=2, ensure_ascii=False) + "\n"
    golden = FOLDER / case / "expected.json"
    if os.environ.get("KVGATE_UPDATE_GOLDEN") == "1":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("platform", sorted({reader.platform for reader in READERS if reader.platform.isascii()}))
def test_every_platform_has_real_examples(platform: str) -> None:
    cases = [case for case in CASES if case.startswith(f"{platform}/")]
    assert len(cases) >= 3 or platform.startswith("("), cases

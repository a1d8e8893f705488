"""The report of `kvgate check` as SARIF 2.1.0: GitHub and editors show every finding on its line, with the rule's help."""

import os
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from kvgate import __version__
from kvgate.cli.check.report import Placed, Report
from kvgate.cli.check.results import Result, all_results, shown_file
from kvgate.cli.rule_texts import RuleText, rule_text
from kvgate.rules.finding import Severity
from kvgate.text.inert import inert_values, json_text

Json = dict[str, Any]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
DOCS = "KVGATE_DOCS_URL"
"""The environment's name for where docs/ is published: a GitHub Action knows the address of its own repository."""
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(report: Report) -> str:
    """One run; only the rules that found something are described."""
    found = list(all_results(report))
    rules = list(dict.fromkeys(result.placed.rule for result in found))
    run = {
        "tool": {"driver": {"name": "kvgate", "semanticVersion": __version__, "rules": list(map(_rule, rules))}},
        "columnKind": "unicodeCodePoints",
        "results": inert_values([_result(result, rules.index(result.placed.rule)) for result in found]),
    }
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(rule: str) -> Json:
    text = rule_text(rule)
    return {
        "id": rule,
        "name": rule,
        "shortDescription": {"text": text.says},
        "help": {"text": f"{text.says}\n\nSee {text.page}.", "markdown": _help(text)},
        "helpUri": _help_uri(text),
        "defaultConfiguration": {"level": _LEVELS[text.severities[0]]},
    }


def _help(text: RuleText) -> str:
    return f"{text.says}\n\n{text.examples()}" if text.example else text.says


def _help_uri(text: RuleText) -> str:
    """SARIF wants a scheme; where the pages are published, only the environment knows."""
    base = os.environ.get(DOCS)
    return f"{base.rstrip('/')}/{text.page.removeprefix('docs/')}" if base else f"kvgate:{text.page}"


def _result(result: Result, index: int) -> Json:
    placed = result.placed
    logical = [{"fullyQualifiedName": placed.path, "kind": "member"}] if placed.path else []
    location = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(placed.file)},
            "region": {"startLine": placed.line, "startColumn": placed.column},
        },
        **({"logicalLocations": logical} if logical else {}),
    }
    return {
        "ruleId": placed.rule,
        "ruleIndex": index,
        "level": _LEVELS[result.level],
        "message": {"text": result.message},
        "locations": [location],
        "partialFingerprints": {"kvgate/v1": result.fingerprint},
        **_suppressions(placed),
    }


def _suppressions(placed: Placed) -> Json:
    """Return the suppression of an ignored finding, which stands in the report and is closed."""
    if placed.ignored is None:
        return {}
    kind = "inSource" if placed.ignored.by == "comment" else "external"
    return {"suppressions": [{"kind": kind, "justification": placed.ignored.reason}]}


def _uri(file: str) -> str:
    """Relative to the checkout where it can be; the bytes of a name that is not UTF-8 stay what they are."""
    path = PurePosixPath(shown_file(file))
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path))

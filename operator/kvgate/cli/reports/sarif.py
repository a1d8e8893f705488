"""The report of `kvgate check` as SARIF 2.1.0: GitHub and editors show every finding on its line, with the rule's help."""

import os
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from kvgate import __version__
from kvgate.cli.reports.placed import shown_file
from kvgate.cli.reports.report import Report, Result, all_results
from kvgate.cli.reports.wording import Note, notes
from kvgate.cli.rule_examples import address_of, example_of, page_of
from kvgate.findings.finding import Rule, Severity
from kvgate.text.inert import inert_values, json_text

Json = dict[str, Any]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(report: Report) -> str:
    """Write one run; only the rules that found something are described."""
    results = list(all_results(report))
    rules = list(dict.fromkeys(result.placed.finding.rule for result in results))
    run = {
        "tool": {"driver": {"name": "kvgate", "semanticVersion": __version__, "rules": list(map(_rule, rules))}},
        "invocations": [
            {"executionSuccessful": True, "toolExecutionNotifications": list(map(_notification, notes(report)))}
        ],
        "columnKind": "unicodeCodePoints",
        "results": inert_values([_result(result, rules.index(result.placed.finding.rule)) for result in results]),
    }
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _notification(note: Note) -> Json:
    """Return what changed the result beside the manifests; a notification opens no alert."""
    place = {"artifactLocation": {"uri": _uri(note.file)}, "region": {"startLine": note.line}}
    notification = {"descriptor": {"id": note.title}, "level": "note", "message": {"text": note.text}}
    shown: Json = inert_values({**notification, "locations": [{"physicalLocation": place}]})
    return shown


def _rule(rule: Rule) -> Json:
    example, page = example_of(rule), page_of(rule)
    markdown = f"{rule.words}\n\n{example.markdown()}" if example else rule.words
    uri = address_of(page)
    return {
        "id": rule.id,
        "name": rule.id,
        "shortDescription": {"text": rule.title},
        "help": {"text": f"{rule.words}\n\nSee {page}.", "markdown": markdown},
        **({"helpUri": uri} if uri else {}),
        "defaultConfiguration": {"level": _LEVELS[rule.severities[0]]},
    }


def _uri(file: str) -> str:
    """Return the file relative to the checkout where it can be; the bytes of a name that is not UTF-8 stay what they are."""
    path = PurePosixPath(shown_file(file))
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path))


def _result(result: Result, index: int) -> Json:
    placed = result.placed
    location: Json = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(placed.file)},
            "region": {"startLine": placed.line, "startColumn": placed.column},
        }
    }
    if placed.path:
        location["logicalLocations"] = [{"fullyQualifiedName": placed.path, "kind": "member"}]
    shown: Json = {
        "ruleId": placed.rule,
        "ruleIndex": index,
        "level": _LEVELS[result.placed.finding.severity],
        "message": {"text": result.message},
        "locations": [location],
        "partialFingerprints": {"kvgate/v1": result.fingerprint},
    }
    if placed.ignored:  # an ignored finding stands in the report and is closed
        kind = "inSource" if placed.ignored.by == "comment" else "external"
        shown["suppressions"] = [{"kind": kind, "justification": f"{placed.ignored.reason} ({placed.ignored.place})"}]
    return shown

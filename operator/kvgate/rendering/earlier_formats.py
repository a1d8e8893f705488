"""Formats in which kvgate 0.1 kept an admission before AdmissionRecord. Nothing else reads them.

Records stood in status.standing, with a digest beside it. Such a status is turned into a record once, so that an upgrade changes no pod.
Before that there were none, and no digest of the pods: a hash that these have of themselves says that they are as they were rendered.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from kvgate.api.base import Document
from kvgate.api.status import AdmissionRecordSpec
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.budget.answers.figures import FIGURES
from kvgate.rendering.admission import Admitted, admitted_as, is_plausible, sha256_of, spec_digest
from kvgate.rendering.labels import HASH_ANNOTATION, render_hash
from kvgate.rendering.live_deployment import applied, template_digest

_UNSIGNED = ("digest", "budget")
"""Fields outside the digest. `budget` stood there while status.budget was that of a refused generation."""
_RECORDED = ("decision", "accepted", "reason", "message", "changes", "skipReason", "configDigest", "modelSource", "calibrationRevision",
             "effective", "placement", "loadSeconds", "generation")  # fmt: skip


def admitted_earlier(document: Mapping[str, Any], owner: InferenceDeployment | None) -> Admitted | None:
    """Return the admission that the status of such a release has; None where there is none, or where its digest is wrong.

    `owner` is the object as it is now: the spec is its own where the record has none and is of the same generation.
    """
    status = document.get("status")
    written = status.get("standing") if isinstance(status, Mapping) else None
    if not isinstance(status, Mapping) or not isinstance(written, Mapping):
        return None
    # Its budget is in the record, else in the status, or there is none and the status has another generation's.
    budgets = (written["budget"],) if "budget" in written else (status.get("budget"), None)
    signed = {key: value for key, value in written.items() if key not in _UNSIGNED}
    for budget in budgets:
        if written.get("digest") == sha256_of([document["metadata"].get("uid", ""), budget, signed]):
            return _converted(document, owner, written, budget, status.get("provenance"))
    return None


def _converted(
    document: Mapping[str, Any], owner: InferenceDeployment | None, written: Mapping[str, Any], budget: Any, provenance: Any
) -> Admitted | None:  # fmt: skip
    more = provenance if isinstance(provenance, Mapping) else {}
    spec, skip_reason = written.get("spec"), written.get("skipReason")
    is_of_now = written.get("generation") == document["metadata"].get("generation", 1)
    try:
        admitted = parse_document({**document, "spec": spec}) if spec is not None else (owner if is_of_now else None)
        if admitted is None:
            return None
        record = AdmissionRecordSpec.from_document({
            **{name: written[name] for name in _RECORDED if name in written},
            **{name: more[name] for name in ("kvgateVersion", "modelAssumed", "recalibrations") if name in more},
            "inferenceDeployment": document["metadata"]["name"],
            "specDigest": spec_digest(admitted, skip_reason),
            **({"admitted": spec} if spec is not None else {}),
            **({"verdict": budget["verdict"], "guarantee": budget["guarantee"]} if isinstance(budget, Mapping) else {}),
            "figures": dict(_shown(budget)) | dict(_derived(budget)) if isinstance(budget, Mapping) else {},
        })  # fmt: skip
        found = admitted_as(record, admitted)
    except (ValidationError, InvalidDocument, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    digest = more.get("templateDigest")
    return Admitted(
        record=found.record, owner=found.owner, prediction=found.prediction, digest=found.digest,
        template_digest=digest if isinstance(digest, str) else None,
    ) if is_plausible(found) else None  # fmt: skip


def _shown(budget: Mapping[str, Any]) -> Iterator[tuple[str, Document]]:
    """Yield the figures of status.budget, whose paths the table of figures has."""
    for row in FIGURES.values():
        value: Any = {"budget": budget}
        for name in row.status.split(".") if row.status else ():
            value = value.get(name) if isinstance(value, Mapping) else None
        if row.status and value is not None:
            yield to_camel(row.name), dict(value) if isinstance(value, Mapping) else {"expected": value}


def _derived(budget: Mapping[str, Any]) -> Iterator[tuple[str, Document]]:
    """Yield the figures that only the metrics had: each is the expected one, in the proportion of the bytes."""
    available, headroom = budget["availableKvCacheBytes"], budget["headroomBytes"]
    capacity = {end: max(0, available[end]) for end in ("low", "expected", "high")}
    yield "capacityBytes", capacity
    whole = capacity["expected"]
    if whole <= 0:
        return
    tokens, requests = budget["capacityTokens"], float(budget["maxConcurrency"])
    yield "capacityTokens", {end: tokens * size // whole for end, size in capacity.items()}
    yield "fullLengthRequests", {end: repr(requests * size / whole) for end, size in capacity.items()}
    yield "headroomRatio", {end: repr(headroom[end] / whole) for end in capacity}
    yield "demandTokens", {"expected": round(tokens * budget["demandBytes"] / whole)}


def earlier_template(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return the digest of the pods that an earlier release rendered, where nobody changed them and they run what is wanted now.

    That is the same image with the same command and arguments; probes, requests and the like may be rendered otherwise by now.
    """
    template = applied(live).get("spec", {}).get("template", {})
    metadata = template.get("metadata", {})
    others = dict(metadata.get("annotations") or {})
    noted = others.pop(HASH_ANNOTATION, "")
    if noted != render_hash({**template, "metadata": {**metadata, "annotations": others}}):
        return None
    runs = [
        [{name: each.get(name) for name in _RUNS} for each in found["spec"]["containers"]]
        for found in (template, wanted)
    ]
    return template_digest(template) if runs[0] == runs[1] else None


_RUNS = ("name", "image", "command", "args")

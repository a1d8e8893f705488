"""Admissions and their records as the API server stores them."""

import json
from typing import Any

from kvgate.api.validation import parse_document
from kvgate.controller.decision import assess_owner
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.skipping import skip_of
from kvgate.rendering.admission import Admitted, admitted_now, read_record, record_manifest
from kvgate.rendering.workload import PodFigures, figures_of_verdict
from kvgate.webhook.review import ALWAYS
from support.manifests import a_document


def admission_of(document: dict[str, Any], config: object = None) -> Admitted:
    """The admission of a spec that is judged for the first time."""
    owner = parse_document(document)
    judged = assess_owner(owner, "", skip=skip_of(owner, ALWAYS))
    figures = figures_of_verdict(owner, judged.assessment, judged.accelerator)
    assert isinstance(figures, PodFigures)
    return admitted_now(document, owner, judged.assessment, figures, calibration_revision=0, config=config)


def assessment_of(**spec: Any) -> Assessment:
    """The judgement of a spec, with what the catalogues know."""
    return assess_owner(parse_document(a_document(**spec)), "").assessment


def stored(admitted: Admitted, document: dict[str, Any]) -> dict[str, Any]:
    """The object with the record, after its way through JSON."""
    found: dict[str, Any] = json.loads(json.dumps(record_manifest(admitted, document)))
    return found


def read_back(admitted: Admitted | None, document: dict[str, Any]) -> Admitted | None:
    """The admission as the next process reads it from its record."""
    return None if admitted is None else read_record(document, stored(admitted, document))


_RECORDS: dict[str, dict[str, Any]] = {}
"""Records by their names, which follow from what is in them."""


def kept(admitted: Admitted | None, document: dict[str, Any]) -> None:
    """Store the record of what is rendered, as the controller does."""
    if admitted is not None:
        _RECORDS[admitted.name] = stored(admitted, document)


def standing_of(document: dict[str, Any]) -> Admitted | None:
    """The admission whose record the status names, as the next process reads it."""
    name = (document.get("status") or {}).get("admission", {}).get("record")
    return read_record(document, _RECORDS[name]) if name else None

"""Answers to AdmissionReviews (`admission.k8s.io/v1`): pure, from the request, the catalogues and what was learnt before alone.

A body that is no review for this webhook raises ReviewError, which is the caller's mistake. A bad InferenceDeployment gets an answer.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from msgspec import Struct
from pydantic import ValidationError

from kvgate.api import GROUP, KIND, PLURAL, VERSION
from kvgate.api.allowed import NOTHING_ALLOWED, AllowedPods, parse_allowed
from kvgate.api.status import AdmissionStatus
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import InvalidDocument
from kvgate.budget import NOTHING_OBSERVED, Calibration
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.judgement import summary
from kvgate.judgement.assess import assessments, undecided
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.facts import ConfigMissing, Facts, gather, names_to_fetch
from kvgate.judgement.skipping import skip_of
from kvgate.rendering.admission import admission_status, spec_digest
from kvgate.rendering.earlier_formats import admitted_earlier
from kvgate.rendering.outage import outage_warning
from kvgate.statement.deployment import statement_of
from kvgate.text.inert import inert_line
from kvgate.text.json_values import MAX_DEPTH, NOT_UNICODE, is_nested_beyond, parsed_has_lone_surrogate

REVIEW_API_VERSION = "admission.k8s.io/v1"
REVIEW_KIND = "AdmissionReview"
OPERATIONS = ("CREATE", "UPDATE")
INVALID = "Invalid"
"""Decision where the schema refuses the object, before any budget."""
NO_POLICY = "None"
"""Policy of an object that could not be read; its own text must not become the value of a label."""
MAX_WARNINGS = 4096
"""Characters of all warnings together; the API server drops the rest."""

_MAX_NAME = 253
_NOT_READ_HERE = ConfigMissing(
    message="spec.model.configFrom is not read at admission: the controller reads it and decides", remediation=""
)
_FETCHED_FIRST = "rendered after the hub was asked (see the condition ModelResolved): {}"
_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"

Json = Mapping[str, Any]


class ReviewError(ValueError):
    """The body is not an AdmissionReview that this webhook answers; the message says what is wrong."""


class Request(Struct, frozen=True, kw_only=True):
    """The parts of an AdmissionRequest that are used."""

    uid: str
    operation: str
    namespace: str
    name: str


class Answer(Struct, frozen=True, kw_only=True):
    """The AdmissionReview to send, and what to count and log."""

    request: Request
    decision: str
    policy: str
    body: dict[str, Any]


class Mistake(Struct, frozen=True, kw_only=True):
    """The answer to a body that is no review."""

    message: str


class Known(Struct, frozen=True, kw_only=True, eq=False):
    """Facts that the controller has gathered, and that the webhook reads."""

    calibration: Calibration = NOTHING_OBSERVED
    models: PublishedModels = NO_MODELS
    allowed: AllowedPods = NOTHING_ALLOWED
    """Parts of pods that the administrator allows."""
    asks_hub: bool = False
    """True where the controller asks the hub for models that are not known."""
    audits: bool = False
    """True where everything is admitted, with a warning in the place of a refusal."""
    max_skip_days: int = 0
    """Days for which a break glass may last; 0: for ever."""


NOTHING_KNOWN = Known()
ALWAYS = datetime.min.replace(tzinfo=UTC)
"""A time at which no break glass has ended."""


def answers(text: bytes, known: Known, now: datetime) -> Iterator[Answer | Mistake]:
    """Yield the answers to a body that came in at `now`, for a worker; each one stands if there is no time for the next."""
    try:
        yield from reviews(_parsed(text), known, now)
    except ReviewError as error:
        yield Mistake(message=str(error))


def _parsed(text: bytes) -> Any:
    """Parse a body. An object that is nested too deeply passes, because it gets an answer of its own. Raises ReviewError."""
    try:
        decoded = text.decode()
        body = json.loads(decoded)
    except RecursionError:
        raise ReviewError(f"the body is not JSON that an API server sends: {_TOO_DEEP}") from None
    except ValueError as error:
        raise ReviewError(f"the body is not JSON: {error}") from None
    if not is_nested_beyond(body, MAX_DEPTH):
        if parsed_has_lone_surrogate(decoded, body):
            raise ReviewError(f"the body is not text: {NOT_UNICODE}")
        return body
    request = body.get("request") if isinstance(body, Mapping) else None
    if not is_nested_beyond(request.get("object") if isinstance(request, Mapping) else None, MAX_DEPTH):
        raise ReviewError(f"the body is no review: {_TOO_DEEP}")
    return body


def review(body: Any, known: Known = NOTHING_KNOWN, now: datetime = ALWAYS) -> Answer:
    """Judge the object of a review; a dry run is judged in the same way. Raises ReviewError."""
    *_, last = reviews(body, known, now)
    return last


def reviews(body: Any, known: Known, now: datetime) -> Iterator[Answer]:
    """Yield the answer without a verdict, then the one with the verdict, then the one with what would fit. Raises ReviewError."""
    request, document = read_request(body)
    try:
        deployment = parse_allowed(document, known.allowed)
    except InvalidDocument as error:
        texts = [f.message + (f" ({f.remediation})" if f.remediation else "") for f in error.findings]
        message = "; ".join(texts)
        if known.audits:
            yield _allowed(
                request, Decision.WOULD_REFUSE.value, NO_POLICY, [summary.WOULD_BE_REFUSED, *map(_warning, texts)]
            )
            return
        yield _refused(request, INVALID, NO_POLICY, code=422, reason="Invalid", message=message)
        return
    standing = _standing(body["request"].get("oldObject"), deployment)
    skip = skip_of(deployment, now, known.max_skip_days)
    if standing is not None:
        lines = [] if standing.decision == Decision.ADMIT.value else [f"as admitted before: {standing.message}"]
        if skip is not None and skip.problem and standing.decision == Decision.SKIPPED.value:
            lines.append(skip.problem)
        yield _allowed(request, standing.decision, deployment.spec.admission.policy, map(_warning, lines))
        return
    spec = deployment.spec
    yield _judged(request, deployment, undecided(spec, Facts(shape=None, accelerator=None)))
    calibration = known.calibration.seen_from(request.namespace, request.name)
    facts = gather(statement_of(spec), lambda _: _NOT_READ_HERE, calibration, known.models)
    wanted = names_to_fetch(spec) if known.asks_hub else ()
    missing = [str(name) for name in wanted if known.models.fetched.get(name.key) is None]
    announced = [_FETCHED_FIRST.format(" and ".join(missing))] if missing and not (skip and skip.counts) else []
    for assessment in assessments(spec, facts, skip=skip, audits=known.audits):
        is_edit = request.operation == "UPDATE" and assessment.decision is not Decision.REFUSE
        outage = outage_warning(body["request"].get("oldObject"), deployment, assessment) if is_edit else ""
        yield _judged(request, deployment, assessment, [*announced, outage] if outage else announced)


def _judged(
    request: Request, deployment: InferenceDeployment, assessment: Assessment, announced: Sequence[str] = ()
) -> Answer:
    decision, policy = assessment.decision.value, deployment.spec.admission.policy
    if assessment.decision is Decision.REFUSE:
        message = summary.refusal(assessment)
        return _refused(request, decision, policy, code=403, reason="Forbidden", message=message)
    return _allowed(request, decision, policy, (*summary.warnings(assessment), *map(_warning, announced)))


def _warning(text: str) -> str:
    return summary.shortened(inert_line(text), summary.MAX_WARNING)


def _allowed(request: Request, decision: str, policy: str, lines: Iterable[str]) -> Answer:
    warnings = within_limit(list(lines))
    return _answer(request, decision, policy, {"allowed": True, **({"warnings": warnings} if warnings else {})})


def _standing(old: Any, deployment: InferenceDeployment) -> AdmissionStatus | None:
    """Return the admission of this very spec, where there is one: as the controller, scaling judges nothing anew."""
    status = old.get("status") if isinstance(old, Mapping) and isinstance(old.get("metadata"), Mapping) else None
    written = status.get("admission") if isinstance(status, Mapping) else None
    if written is None and isinstance(status, Mapping) and (earlier := admitted_earlier(old, None)):
        written = admission_status(earlier)  # an upgrade is on its way
    try:
        admission = AdmissionStatus.from_document(written)
    except ValidationError:
        return None
    return admission if admission.spec_digest == spec_digest(deployment, deployment.skip_reason) else None


def within_limit(lines: Sequence[str]) -> list[str]:
    """Return as many warnings as the API server passes on; the last line counts those that are left out."""
    room = MAX_WARNINGS - summary.MAX_WARNING
    kept = [line for line, end in zip(lines, accumulate(map(len, lines)), strict=True) if end <= room]
    left = len(lines) - len(kept)
    return [*kept, f"and {left} more: see the condition Accepted"] if left else kept


def read_request(body: Any) -> tuple[Request, Json]:
    """Return the request of a review and its object. Raises ReviewError where it is not for this webhook."""
    if not isinstance(body, Mapping) or body.get("kind") != REVIEW_KIND or body.get("apiVersion") != REVIEW_API_VERSION:
        raise ReviewError(
            f"the body is not an {REVIEW_KIND} of {REVIEW_API_VERSION}; list v1 in admissionReviewVersions"
        )
    request = _mapping(body, "request")
    uid, operation = request.get("uid"), request.get("operation")
    if not isinstance(uid, str) or not uid:
        raise ReviewError("request.uid is missing or empty; the API server always sends one")
    if operation not in OPERATIONS:
        raise ReviewError(
            f"request.operation is {_shown(operation)}; the webhook's rules may only name {' and '.join(OPERATIONS)}"
        )
    # a mistake in the webhook configuration must not give a verdict
    expected = {
        "kind": {"group": GROUP, "version": VERSION, "kind": KIND},
        "resource": {"group": GROUP, "version": VERSION, "resource": PLURAL},
    }
    for key, value in expected.items():
        if request.get(key) != value:
            raise ReviewError(f"request.{key} is {_shown(request.get(key))}; this webhook answers for {value} only")
    if request.get("subResource"):
        raise ReviewError(
            f"request.subResource is {_shown(request['subResource'])}; this webhook answers for the object only"
        )
    found = Request(
        uid=uid,
        operation=operation,
        namespace=str(request.get("namespace") or "")[:_MAX_NAME],
        name=str(request.get("name") or "")[:_MAX_NAME],
    )
    return found, _mapping(request, "object")


def _mapping(parent: Json, key: str) -> Json:
    value = parent.get(key)
    if not isinstance(value, Mapping):
        where = "the review" if key == "request" else "the request"
        raise ReviewError(f"{where} has no {key}; it must be an object")
    return value


def _shown(value: Any) -> str:
    """Return a value from the request in a form that fits a line; anybody may have sent it."""
    return summary.shortened(repr(value), 120)


def _refused(request: Request, decision: str, policy: str, *, code: int, reason: str, message: str) -> Answer:
    status = {"code": code, "reason": reason, "message": inert_line(message)}
    return _answer(request, decision, policy, {"allowed": False, "status": status})


def _answer(request: Request, decision: str, policy: str, response: dict[str, Any]) -> Answer:
    body = {"apiVersion": REVIEW_API_VERSION, "kind": REVIEW_KIND, "response": {"uid": request.uid, **response}}
    return Answer(request=request, decision=decision, policy=policy, body=body)

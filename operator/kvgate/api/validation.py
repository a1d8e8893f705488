"""A document → InferenceDeployment, or findings: every error of the schema at once, with what to do about it."""

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain, islice
from reprlib import Repr
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvgate.api.kubernetes_types import ERROR as OF_KUBERNETES_TYPE
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.findings.finding import Finding, SettingName, words
from kvgate.rules.repository import INVALID_FIELD
from kvgate.text.json_values import MAX_DEPTH, NOT_UNICODE, has_lone_surrogate, is_nested_beyond

MAX_FINDINGS = 50
"""Errors of one document that are reported; the last finding says how many more there are."""

_MORE_COUNTED = 100
"""Findings beyond MAX_FINDINGS that are counted; counting takes as long as reporting."""


class InvalidDocument(ValueError):
    """The document is no InferenceDeployment; `findings` has one finding for each error."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(finding.message for finding in findings))
        self.findings = findings


def parse_document(document: Mapping[str, Any]) -> InferenceDeployment:
    """Return the typed object, without its status: a status that another release of kvgate wrote makes no object unreadable.

    Raise InvalidDocument with all findings.
    """
    if is_nested_beyond(document, MAX_DEPTH):
        message = f"the document is nested deeper than {MAX_DEPTH} levels"
        raise InvalidDocument(
            (INVALID_FIELD.finding("", message, "no field is nested so deeply: remove the part that is"),)
        )
    if isinstance(document, Mapping):
        document = {key: _without_nulls(value) for key, value in document.items() if key != "status"}
    try:
        deployment = InferenceDeployment.from_document(document)
    except ValidationError as error:
        of_schema = schema_findings(error, InferenceDeployment, "see `kubectl explain infd.spec`")
        found = chain(_metadata_findings(document), of_schema, _rules_of_the_rest(document, error))
        raise InvalidDocument(_first(found)) from None
    if broken := _first(chain(_metadata_findings(document), _broken_rules(deployment))):
        raise InvalidDocument(broken)
    return deployment


def _first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return as many findings as a person reads; a document of a megabyte may have a hundred thousand."""
    rest = iter(findings)
    reported = tuple(islice(rest, MAX_FINDINGS))
    left = sum(1 for _ in islice(rest, _MORE_COUNTED))
    if not left:
        return reported
    beyond = " or beyond" if left == _MORE_COUNTED else ""
    return (*reported, INVALID_FIELD.finding("", f"and {left} more errors{beyond}: correct these first"))


def _broken_rules(deployment: InferenceDeployment) -> Iterator[Finding]:
    return (INVALID_FIELD.finding(path, message) for path, message in deployment.broken_rules())


def _without_nulls(value: Any) -> Any:
    """Leave out null fields, as the API server does before it fills in defaults."""
    if not isinstance(value, Mapping):
        return value
    return {key: _without_nulls(child) for key, child in value.items() if child is not None}


def _metadata_findings(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the metadata as the API server does for every kind, before any schema."""
    metadata = document.get("metadata", {}) if isinstance(document, Mapping) else None
    if not isinstance(metadata, Mapping):
        return
    if not (metadata.get("name") or metadata.get("generateName")):
        yield _about("metadata.name", "is required", "add metadata.name")
    if has_lone_surrogate({part: value for part, value in metadata.items() if part != "managedFields"}):
        yield _about("metadata", f"cannot be stored: {NOT_UNICODE}", "write the character itself")
    for part in ("labels", "annotations"):
        values = metadata.get(part)
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if not isinstance(value, str):
                path = f"metadata.{part}.{key}"
                yield _about(path, f"is {_shown(value)}; it must be text", f'write it in quotes: "{_shown(value)}"')


def unknown_metadata(document: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Report fields of metadata that Kubernetes does not have, for documents that no API server has read yet.

    Only the command line asks this: an object from an API server may have a field that a later Kubernetes has added.
    """
    metadata = document.get("metadata")
    unknown = [str(key) for key in metadata if key not in _METADATA] if isinstance(metadata, Mapping) else []
    names = sorted(_METADATA)
    matching = {key: _written_alike(key, names) or _nearest(key, names) for key in unknown}
    return tuple(
        _about(
            f"metadata.{key}",
            "is not a field",
            f"did you mean {matches[0]}?" if matches else "remove it, or write it under metadata.annotations",
        )
        for key, matches in matching.items()
    )


_METADATA = frozenset({
    "name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "uid", "resourceVersion",
    "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink",
})  # fmt: skip
"""Fields of ObjectMeta (Kubernetes 1.34 to 1.37)."""


def _rules_of_the_rest(document: Mapping[str, Any], error: ValidationError) -> Iterator[Finding]:
    """Check the rules over several fields on the document without its wrong fields; where a required field is missing, check nothing."""
    if error.error_count() > MAX_FINDINGS:
        return
    rest = deepcopy(document)
    for location in sorted((detail["loc"] for detail in error.errors() if detail["loc"]), key=str, reverse=True):
        _remove(rest, location)
    try:
        yield from _broken_rules(InferenceDeployment.from_document(rest))
    except ValidationError:
        return


def _remove(node: Any, location: tuple[int | str, ...]) -> None:
    """Remove the value at a path. The path may have markers of union members, which are no part of the document."""
    for part in location[:-1]:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(node, dict):
        node.pop(location[-1], None)
    elif isinstance(node, list) and isinstance(location[-1], int):
        del node[location[-1] :]


def schema_findings(error: ValidationError, model: type[BaseModel], see: str) -> Iterator[Finding]:
    """Yield one finding for each error; `see` is the remedy where there is no better one."""
    for detail in _details(error):
        path = _path(detail["loc"])
        if detail["type"] == "extra_forbidden":
            written, fields = str(detail["loc"][-1]), detail.get("ctx", {}).get("fields")
            remedy = _suggestion(detail["loc"], model) if fields is None else _field_instead(written, fields)
            yield _about(path, "is not a field", remedy)
        else:
            predicate, remedy = _wording(detail, path)
            yield _about(path, predicate, remedy or see)


def _details(error: ValidationError) -> Iterator[ErrorDetails]:
    """Yield all errors, those inside of a value of Kubernetes' own type as well."""
    for detail in error.errors(include_url=False):
        if detail["type"] != OF_KUBERNETES_TYPE:
            yield detail
            continue
        for inner in detail["ctx"]["details"]:
            value = _Withheld(inner["input"]) if isinstance(inner["input"], dict | list) else inner["input"]
            loc = (*detail["loc"], *inner["loc"])
            yield ErrorDetails(type=inner["type"], loc=loc, msg=inner["msg"], input=value, ctx=inner["ctx"])


_NOT_YOURS = {
    "securityContext": "remove it: every container of the pod has kvgate's, which passes the restricted Pod Security Standard",
    "nfs": "remove it, and mount the share by a PersistentVolumeClaim, or by csi",
}
"""Fields of Kubernetes' types that the spec leaves out, and what to write instead."""


def _field_instead(written: str, fields: list[str]) -> str:
    """Return what to write in the place of a field that a type of Kubernetes lacks here."""
    if written in _NOT_YOURS:
        return _NOT_YOURS[written]
    matches = _written_alike(written, fields) or _nearest(written, fields)
    return f"did you mean {matches[0]}?" if matches else f"remove it; the fields here are {', '.join(fields)}"


def _about(path: str, predicate: str, remedy: str) -> Finding:
    """A finding whose sentence begins with the field; `predicate` is the rest of it."""
    subject = SettingName(path) if path else "the document"
    return INVALID_FIELD.finding(path, words("{subject} {predicate}", subject=subject, predicate=predicate), remedy)


def _may_be_secret(path: str, value: Any) -> bool:
    """Return whether a value may be a secret, which no message repeats: messages are in the logs of CI and of the API server."""
    is_variable = ".env" in path and path.startswith("spec.template.") and not path.endswith(".name") and value != ""
    is_or_holds = path.startswith("spec.vllm.extraArgs") or (
        path != "" and any(each.startswith(path) for each in ("spec.template.env", "spec.vllm.extraArgs"))
    )
    return is_variable or (is_or_holds and bool(value) and not isinstance(value, int | float))


class _Withheld:
    """A value of which messages show the type alone."""

    def __init__(self, value: Any) -> None:
        kinds: dict[type[Any], str] = {str: "text", dict: "an object", list: "a list"}
        self._kind = kinds.get(type(value), type(value).__name__)

    def __repr__(self) -> str:
        return f"{self._kind} (not shown)"


_MUST_BE = {
    "model_type": "an object",
    "dict_type": "an object",
    "tuple_type": "a list",
    "list_type": "a list",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
"""Pydantic's type of an error → the type that the value must have."""


def _path(location: tuple[int | str, ...]) -> str:
    """Return a path such as `spec.vllm.extraArgs[1]`, without pydantic's markers of union members."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part not in ("[key]", "int", "str") and not part.startswith("constrained-"):
            text += f".{part}" if text else part
    return text


_RELEASE_HELP, _IMAGE_HELP = (
    'write a release, such as "0.33.0"',
    "write an image's reference, such as registry.example.com/team/vllm:v0.33.0",
)
_PATTERN_HELP = {
    "gpuMemoryUtilization": 'write a decimal string above 0 and up to 1, such as "0.90"',
    "version": _RELEASE_HELP,
    "vllmVersion": _RELEASE_HELP,
    "image": _IMAGE_HELP,
    "reference": _IMAGE_HELP,
    "fields": "write the path of a field, such as llm.model.id or models[0].name",
}
"""Remedies for texts of the wrong form, by the field."""


def _wording(detail: ErrorDetails, path: str) -> tuple[str, str]:
    """(predicate, remedy) in the words of a Kubernetes user; the predicate follows the path."""
    value, context = detail["input"], detail.get("ctx", {})
    if _may_be_secret(path, value):
        value = _Withheld(value)
    field = "fields" if ".fields." in path else path.rsplit(".", 1)[-1] or "document"
    match detail["type"]:
        case "missing":
            return "is required", f"add {path}"
        case "literal_error" | "enum":
            return f"is {_shown(value)}", f"use one of {context.get('expected')}"
        case "string_pattern_mismatch":
            return f"is {_shown(value)}, which is not of the right form", _PATTERN_HELP.get(
                field, f"it must match {context.get('pattern')}"
            )
        case "greater_than_equal" | "less_than_equal":
            bound = context.get("ge", context.get("le"))
            return f"is {_shown(value)}", f"use {bound} or {'more' if 'ge' in context else 'less'}"
        case "int_type" | "int_from_float" | "int_parsing":
            return (
                f"is {_shown(value)}; it must be a whole number",
                "write it without quotes, units or a decimal point",
            )
        case "string_type":
            is_number = isinstance(value, int | float)
            return (
                f"is {_shown(value)}; it must be text",
                f'write it in quotes: "{value}"' if is_number else "write text in quotes",
            )
        case kind if kind in _MUST_BE:
            return f"is {_shown(value)}; it must be {_MUST_BE[kind]}", ""
        case _:
            return (
                f"is {_shown(value)}: {detail['msg'][0].lower()}{detail['msg'][1:]}",
                "",
            )


_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 8, 200, 200, 200
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = 60
"""A `repr` that stops early: the one of Python would write a megabyte, of which sixty characters are shown."""


def _shown(value: Any) -> str:
    text = _SHORT.repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _suggestion(location: tuple[int | str, ...], root: type[BaseModel]) -> str:
    """Return the field of the same object that is written alike, the same field of another object, or the nearest one."""
    fields, written = list(_fields(root)), str(location[-1])
    here = re.sub(r"\[[0-9]+\]", "[]", _path(location[:-1]))
    names = [name for above, name in fields if above == here]
    outside_lists = (f"{above}.{name}".lstrip(".") for above, name in fields if "[" not in above)
    matches = _written_alike(written, names) or _written_alike(written, outside_lists) or _nearest(written, names)
    if matches:
        return f"did you mean {matches[0]}?"
    return f"remove it; the fields here are {', '.join(names)}" if names else "remove it"


def _nearest(written: str, names: list[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(written, names, n=1, cutoff=0.5)


def _written_alike(written: str, paths: Iterable[str]) -> list[str]:
    """Return the paths to a field that has the letters of `written`: `max_model_len`, `--max-model-len` and `maxModelLen` are alike."""
    letters = "".join(filter(str.isalnum, written)).casefold()
    return [path for path in paths if "".join(filter(str.isalnum, path.rpartition(".")[2])).casefold() == letters]


def _fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of the object (`[]` stands for the items of a list) and the name of each field of a model and of those in it."""
    for key, field in model.model_fields.items():
        name = field.alias or key
        yield above, name
        inside = f"{above}.{name}".lstrip(".") + ("[]" if _is_list(field.annotation) else "")
        for inner in _models_in(field.annotation):
            yield from _fields(inner, inside)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_is_list, get_args(annotation)))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)

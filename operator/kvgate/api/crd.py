"""Pydantic models → the structural schema of a CustomResourceDefinition. A type that cannot be expressed raises, with its path."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from kvgate.api import GROUP, KIND, PLURAL, SHORT_NAME, VERSION
from kvgate.api.status import RECORD_KIND, RECORD_PLURAL, AdmissionRecordSpec, InferenceDeploymentStatus
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget.answers.figures import FIGURES

_KEYWORDS = frozenset({
    "type", "format", "description", "default", "properties", "items", "additionalProperties", "required", "enum",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern",
    "minItems", "maxItems", "minProperties", "maxProperties", "multipleOf",
})  # fmt: skip
_UNTYPED = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")


class NotStructural(ValueError):
    """A model cannot be expressed as a structural schema; the message names the path."""


class _Generator(GenerateJsonSchema):
    """Pydantic's generator without titles, and with absence in place of null."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        generated = super().default_schema(schema)
        if "default" in generated and (default := _without_nulls(generated.pop("default"))) not in (None, []):
            generated["default"] = default
        return generated


def _without_nulls(value: Any) -> Any:
    """The API server refuses a whole CRD for one null in a nested default."""
    if isinstance(value, dict):
        return {key: _without_nulls(child) for key, child in value.items() if child not in (None, [], ())}
    return value


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema with references resolved, and with keywords of apiextensions/v1 only. Raise NotStructural."""
    schema = model.model_json_schema(schema_generator=_Generator)
    return _structural(schema, schema.pop("$defs", {}), model.__name__, ())


def _structural(node: dict[str, Any], definitions: dict[str, Any], path: str, seen: tuple[str, ...]) -> dict[str, Any]:
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in seen:
            raise NotStructural(f"{path}: {name} is recursive")
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _structural({**definitions[name], **rest}, definitions, path, (*seen, name))
    node = _draft4({key: value for key, value in node.items() if key != "title"})
    if "properties" in node:
        node["properties"] = {
            name: _structural(child, definitions, f"{path}.{name}", seen) for name, child in node["properties"].items()
        }
    for keyword in ("items", "additionalProperties"):
        if isinstance(node.get(keyword), dict):
            node[keyword] = _structural(node[keyword], definitions, f"{path}[]", seen)
    if node.get("type") == "number":
        raise NotStructural(f"{path}: no floats in the API; use a decimal string")
    unknown = [key for key in node if key not in _KEYWORDS and not key.startswith("x-kubernetes-")]
    if unknown:
        raise NotStructural(f"{path}: {', '.join(unknown)} not allowed")
    if "type" not in node and not any(node.get(key) for key in _UNTYPED):
        raise NotStructural(f"{path}: no type")
    return node


def _draft4(node: dict[str, Any]) -> dict[str, Any]:
    """apiextensions keeps draft-4 spellings; pruning stands in for additionalProperties: false."""
    if "const" in node:
        node["enum"] = [node.pop("const")]
    for bound, keyword in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in node:
            node[keyword], node[bound] = node[bound], True
    if node.get("additionalProperties") is False:
        del node["additionalProperties"]
    node.pop("propertyNames", None)
    return node


def _column(name: str, kind: str, path: str, *, wide: bool = False) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}


def _condition(name: str, *, wide: bool = False, part: str = "status", title: str = "") -> dict[str, Any]:
    return _column(title or name, "string", f'.status.conditions[?(@.type=="{name}")].{part}', wide=wide)


_COLUMNS = [
    _column("Model", "string", ".spec.model.name"),
    _column("GPU", "string", ".spec.accelerator.type"),
    _column("TP", "integer", ".spec.vllm.tensorParallelSize"),
    _column("MaxLen", "integer", ".status.effective.maxModelLen"),
    _column("Seqs", "integer", ".status.effective.maxNumSeqs"),
    _column("Headroom%", "integer", ".status.budget.headroomPercent"),
    _condition("Accepted"),
    _condition("Ready"),
    _condition("Ready", part="reason", title="Why"),
    _column("Age", "date", ".metadata.creationTimestamp"),
    _column("PP", "integer", ".spec.vllm.pipelineParallelSize", wide=True),
    _column("KV", "string", ".status.effective.kvCacheDtype", wide=True),
    _column("Policy", "string", ".spec.admission.policy", wide=True),
    _column("Capacity", "string", ".spec.admission.capacity", wide=True),
    _condition("Accepted", wide=True, part="reason", title="Reason"),
    _column("Tokens", "integer", ".status.budget.capacityTokens", wide=True),
    _column("TokensToday", "integer", ".status.recalibrated.capacityTokens", wide=True),
    _column("VerdictToday", "string", ".status.recalibrated.verdict", wide=True),
]


_RECORD_COLUMNS = [
    _column("InferenceDeployment", "string", ".spec.inferenceDeployment"),
    _column("Decision", "string", ".spec.decision"),
    _column("Verdict", "string", ".spec.verdict"),
    _column("MaxLen", "integer", ".spec.effective.maxModelLen"),
    _column("Seqs", "integer", ".spec.effective.maxNumSeqs"),
    _column("Tokens", "integer", ".spec.figures.capacityTokens.expected"),
    _column("Age", "date", ".metadata.creationTimestamp"),
    _column("Kvgate", "string", ".spec.kvgateVersion", wide=True),
]


def _definition(
    kind: str, plural: str, schema: dict[str, Any], columns: list[dict[str, Any]], *,
    categories: list[str], short_names: dict[str, list[str]], more: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                **short_names,
                "categories": categories,
            },
            "versions": [{
                "name": VERSION,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": schema},
                **more,
                "additionalPrinterColumns": columns,
            }],
        },
    }  # fmt: skip


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD as it is committed under crds/ and installed by the chart."""
    schema = structural_schema(InferenceDeployment)
    status = schema["properties"]["status"] = structural_schema(InferenceDeploymentStatus)
    for row in FIGURES.values():  # the meaning of a figure is added to the field that shows it
        if row.status:
            node = status
            for name in row.status.split("."):
                node = node["properties"][name]
            node["description"] = row.help
    schema["properties"].update(apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"})
    # An object that nobody has looked at yet is InProgress for kstatus (Helm, Flux, kubectl), and not Current.
    status["default"] = {"observedGeneration": -1}
    schema["required"] = ["spec"]
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    selectable = (".spec.model.name", ".spec.accelerator.type", ".spec.admission.policy")
    return _definition(
        KIND, PLURAL, schema, _COLUMNS, categories=["kvgate", "inference"], short_names={"shortNames": [SHORT_NAME]},
        more={
            "subresources": {"status": {}, "scale": scale},
            "selectableFields": [{"jsonPath": path} for path in selectable],
        },
    )  # fmt: skip


def record_definition() -> dict[str, Any]:
    """Return the CRD of the records of admissions, which never change; fields of a later release stay in them."""
    one_owner = {"x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic"}  # few managedFields
    properties = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": structural_schema(AdmissionRecordSpec) | one_owner,
    }
    schema = {"type": "object", "properties": properties, "required": ["spec"]}
    return _definition(
        RECORD_KIND, RECORD_PLURAL, schema, _RECORD_COLUMNS, categories=["kvgate"], short_names={}, more={}
    )

"""The generated parts of charts/kvgate: pure functions from the CRD and the permissions to the text of templates."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from kvgate.cluster.permissions import Permission

CRD_TEMPLATE = "charts/kvgate/templates/crds/inferencedeployments.yaml"
RULES_TEMPLATE = "charts/kvgate/templates/_controller_rules.tpl"

_CRD_HEAD = """\
{{{{- /* Generated from operator/kvgate/api: change it there, then make generate. */ -}}}}
{{{{- if .Values.crds.enabled -}}}}
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {name}
  labels: {{{{- include "kvgate.labels" (list . "crds") | nindent 4 }}}}
  {{{{- if .Values.crds.keep }}}}
  annotations:
    helm.sh/resource-policy: keep
  {{{{- end }}}}
"""
_END = "{{- end }}\n"
_OWN_LEASE = '  resourceNames: [{{ include "kvgate.leaseName" . }}]\n'
_RULES_HEAD = """\
{{- /* Generated from operator/kvgate/cluster/permissions.py: change it there, then make generate. */ -}}
{{- define "kvgate.controllerRules" -}}
"""


def crd_template(crd: Mapping[str, Any]) -> str:
    """The CRD under `crds.enabled`, kept by Helm under `crds.keep`."""
    body = yaml.safe_dump({"spec": crd["spec"]}, sort_keys=False, allow_unicode=True, width=120)
    return _CRD_HEAD.format(name=crd["metadata"]["name"]) + literal(body) + _END


def rules_template(permissions: Iterable[Permission], own: Iterable[Permission], lease: Iterable[Permission]) -> str:
    """The rules of the controller's roles, each under the reason for it."""
    every = _RULES_HEAD + "".join(map(_rule, permissions)) + _END
    return every + _defined("ownNamespaceRules", own) + _defined("leaseRules", lease)


def _defined(name: str, permissions: Iterable[Permission]) -> str:
    return f'{{{{- define "kvgate.{name}" -}}}}\n' + "".join(map(_rule, permissions)) + _END


def _rule(permission: Permission) -> str:
    rule = {
        "apiGroups": [permission.group],
        "resources": list(permission.resources),
        "verbs": list(permission.verbs),
    }
    text = f"# {permission.why}\n" + literal(yaml.safe_dump([rule], sort_keys=False, default_flow_style=None))
    return text + (_OWN_LEASE if permission.on_own_lease else "")


def literal(text: str) -> str:
    """Braces that Helm would take for a template's stay what they are."""
    return text.replace("{{", '{{ "{{" }}')

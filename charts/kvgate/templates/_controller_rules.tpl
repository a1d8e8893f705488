{{- /* Generated from operator/kvgate/cluster/permissions.py: change it there, then make generate. */ -}}
{{- define "kvgate.controllerRules" -}}
# the InferenceDeployments; only their status is ever written
- apiGroups: [kvgate.io]
  resources: [inferencedeployments]
  verbs: [get, list, watch]
# conditions, effective values and the budget
- apiGroups: [kvgate.io]
  resources: [inferencedeployments/status]
  verbs: [patch]
# children hold their owner in a deletion in the foreground, for which some clusters (OpenShift) want this right
- apiGroups: [kvgate.io]
  resources: [inferencedeployments/finalizers]
  verbs: [update]
# the admissions; patch adopts them after a restore, and one that another takes the place of is deleted
- apiGroups: [kvgate.io]
  resources: [admissionrecords]
  verbs: [get, list, create, patch, delete]
# the engines; server-side apply of a new object needs create as well
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
# the address of the engines
- apiGroups: ['']
  resources: [services]
  verbs: [get, list, watch, create, patch]
# the devices that the engines claim, by spec.accelerator.resourceClaim
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [list, create, patch]
# evictions of engines that run side by side; one is deleted where one replica is left, or the spec wants none
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# which engines are ready, at which address, and why one ended
- apiGroups: ['']
  resources: [pods]
  verbs: [list, watch]
# the cause for which an engine of ours did not start, where its termination message is too short for it
- apiGroups: ['']
  resources: [pods/log]
  verbs: [get]
# the owner of a pod: labels can be copied, but owner references lead from the pod over its ReplicaSet to the Deployment
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get, list]
# config.json of models, by spec.model.configFrom
- apiGroups: ['']
  resources: [configmaps]
  verbs: [get]
# one event per new reason, counted; list, for one pod at a time, why it waits on its node without a word in its status
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch, list]
{{- end }}
{{- define "kvgate.ownNamespaceRules" -}}
# observed starts, which correct predictions, in ConfigMaps; an apply that creates one states its name
- apiGroups: ['']
  resources: [configmaps]
  verbs: [get, create, patch]
  resourceNames: [{{ include "kvgate.fullname" . }}-calibration, {{ include "kvgate.fullname" . }}-calibration-0, {{ include "kvgate.fullname" . }}-calibration-1, {{ include "kvgate.fullname" . }}-calibration-2, {{ include "kvgate.fullname" . }}-calibration-3, {{ include "kvgate.fullname" . }}-calibration-4, {{ include "kvgate.fullname" . }}-calibration-5, {{ include "kvgate.fullname" . }}-calibration-6, {{ include "kvgate.fullname" . }}-calibration-7, {{ include "kvgate.fullname" . }}-calibration-8, {{ include "kvgate.fullname" . }}-calibration-9, {{ include "kvgate.fullname" . }}-calibration-10, {{ include "kvgate.fullname" . }}-calibration-11, {{ include "kvgate.fullname" . }}-calibration-12, {{ include "kvgate.fullname" . }}-calibration-13, {{ include "kvgate.fullname" . }}-calibration-14, {{ include "kvgate.fullname" . }}-calibration-15]
{{- end }}
{{- define "kvgate.modelRules" -}}
# models that were fetched from the hub, in a ConfigMap
- apiGroups: ['']
  resources: [configmaps]
  verbs: [get, create, patch]
  resourceNames: [{{ include "kvgate.fullname" . }}-models]
{{- end }}
{{- define "kvgate.nodeRules" -}}
# labels with the driver and the product of the GPUs that an engine ran on
- apiGroups: ['']
  resources: [nodes]
  verbs: [get]
{{- end }}
{{- define "kvgate.nodeWatchRules" -}}
# GPUs, their memory, taints and labels of the nodes that can take an engine
- apiGroups: ['']
  resources: [nodes]
  verbs: [list, watch]
# GPUs that drivers of dynamic resource allocation offer
- apiGroups: [resource.k8s.io]
  resources: [resourceslices]
  verbs: [list, watch]
{{- end }}
{{- define "kvgate.certificateRules" -}}
# the webhook's certificate, in the one Secret that it is mounted from
- apiGroups: ['']
  resources: [secrets]
  verbs: [get, create, patch]
  resourceNames: [{{ include "kvgate.fullname" . }}-webhook-cert]
{{- end }}
{{- define "kvgate.webhookRules" -}}
# the CA of that certificate, in the configuration of this release's webhook
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations]
  verbs: [get, patch]
  resourceNames: [{{ include "kvgate.clusterName" (list . "webhook") }}]
{{- end }}
{{- define "kvgate.leaseRules" -}}
# the other controllers of the same namespaces; create cannot be limited to a name
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list, create]
# the confirmation, every two seconds, that this controller works
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [update]
  resourceNames: [{{ include "kvgate.leaseName" . }}]
{{- end }}

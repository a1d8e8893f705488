{{/* What the names of a release's objects begin with: the release's name, with -kvgate behind it where it does not say kvgate.
A long name, or one with a dot, is cut and carries a hash, so that every name made of it fits the 63 characters of a Service. */}}
{{- define "kvgate.fullname" -}}
{{- $name := ternary .Release.Name (printf "%s-kvgate" .Release.Name) (contains "kvgate" .Release.Name) -}}
{{- $plain := $name | replace "." "-" -}}
{{- if or (ne $plain $name) (gt (len $name) 40) -}}
{{- printf "%s-%s" ($plain | trunc 31 | trimSuffix "-") ($name | sha256sum | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end }}

{{/* Name of an object outside of the release's namespace; the argument is a list of the root context and the component. Releases of
one name may live in several namespaces, so it carries the namespace as well. */}}
{{- define "kvgate.clusterName" -}}
{{- $root := index . 0 -}}
{{- printf "%s-%s.%s" (include "kvgate.fullname" $root) (index . 1) $root.Release.Namespace -}}
{{- end }}

{{/* Labels of every object; the argument is a list of the root context and the component. Helm adds managed-by. */}}
{{- define "kvgate.labels" -}}
{{ include "kvgate.selectorLabels" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end }}

{{/* What selects the pods of a component: it never changes, because a Deployment's selector cannot. */}}
{{- define "kvgate.selectorLabels" -}}
app.kubernetes.io/name: kvgate
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "kvgate.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- printf "%s%s%s" .Values.image.repository (ternary "@" ":" (hasPrefix "sha256:" $tag)) $tag -}}
{{- end }}

{{/* What both pods have in common: the restricted Pod Security Standard, and where they run. */}}
{{- define "kvgate.podSettings" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Pods of a component on different nodes, if it has several; the argument is a list of the root context and the component. */}}
{{- define "kvgate.spread" -}}
{{- if gt (int (index (index . 0).Values (index . 1)).replicas) 1 -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "kvgate.selectorLabels" . | nindent 8 }}
{{- end }}
{{- end }}

{{- define "kvgate.disruptionBudget" -}}
{{- $root := index . 0 -}}
{{- if gt (int (index $root.Values (index . 1)).replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "kvgate.fullname" $root }}-{{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "kvgate.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "kvgate.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end }}

{{- define "kvgate.containerSecurityContext" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Name of the Lease of the served namespaces, as kvgate.cluster.leases makes it. */}}
{{- define "kvgate.leaseName" -}}
{{- if .Values.watchNamespaces -}}
{{- printf "kvgate-controller-%s" (.Values.watchNamespaces | uniq | sortAlpha | join "," | sha256sum | trunc 10) -}}
{{- else -}}
kvgate-controller
{{- end -}}
{{- end }}

{{/* Whose observed starts teach; both processes must agree. */}}
{{- define "kvgate.trustArguments" -}}
- --calibration-scope={{ .Values.calibration.scope }}
{{- range .Values.calibration.images | default (list "") }}
- --calibration-image={{ . }}
{{- end }}
{{- end }}

{{/* Whether the controller watches nodes: "true" or nothing. */}}
{{- define "kvgate.watchesNodes" -}}
{{- $watch := toString .Values.nodes.watch }}
{{- if or (eq $watch "true") (and (eq $watch "auto") (not .Values.watchNamespaces)) }}true{{ end }}
{{- end }}

{{/* Whether the controller asks a hub for models: "true" or nothing. YAML takes off without quotes for false. */}}
{{- define "kvgate.resolves" -}}
{{- if eq (toString .Values.models.resolve) "hub" }}true{{ end -}}
{{- end }}

{{/* Destinations of a rule of a NetworkPolicy: these CIDRs, or without any all addresses; the argument is the list. */}}
{{- define "kvgate.destinations" -}}
{{- if . -}}
to:
  {{- range . }}
  - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
{{- end }}
{{- end }}

{{/* Rule of a NetworkPolicy for the port of the metrics. Without scrapers there is no rule: one with an empty `from` lets everybody in. */}}
{{- define "kvgate.scraped" -}}
{{- with .Values.monitoring.scrapers -}}
- ports:
    - {port: metrics, protocol: TCP}
  from: {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{/* Liveness and readiness, on the port that also serves the metrics. */}}
{{- define "kvgate.probes" -}}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end }}

{{/* The Secret that the webhook serves TLS with. */}}
{{- define "kvgate.certSecretName" -}}
{{- if eq .Values.webhook.certs.mode "provided" -}}
{{ .Values.webhook.certs.secretName }}
{{- else if eq .Values.webhook.certs.mode "auto" -}}
{{ include "kvgate.fullname" . }}-webhook-cert
{{- else -}}
{{ include "kvgate.fullname" . }}-webhook-tls
{{- end -}}
{{- end }}

{{/* Findings about the certificate's values, all at once. */}}
{{- define "kvgate.checkCerts" -}}
{{- $certs := .Values.webhook.certs -}}
{{- $findings := list -}}
{{- if eq $certs.mode "provided" -}}
  {{- if not $certs.secretName -}}
    {{- $findings = append $findings "webhook.certs.secretName is empty: mode provided needs the name of a Secret of type kubernetes.io/tls" -}}
  {{- end -}}
  {{- if not $certs.caBundle -}}
    {{- $findings = append $findings "webhook.certs.caBundle is empty: mode provided needs the CA's certificate as PEM text; pass --set-file webhook.certs.caBundle=ca.crt" -}}
  {{- else if not (contains "-----BEGIN CERTIFICATE-----" $certs.caBundle) -}}
    {{- $findings = append $findings "webhook.certs.caBundle holds no PEM certificate (-----BEGIN CERTIFICATE-----); it is not base64 of one" -}}
  {{- end -}}
{{- else -}}
  {{- range $name := list "secretName" "caBundle" -}}
    {{- if index $certs $name -}}
      {{- $findings = append $findings (printf "webhook.certs.%s is set, but mode %s does not use it: remove it, or set webhook.certs.mode=provided" $name $certs.mode) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if $findings -}}
  {{- fail (printf "\n%s" (join "\n" $findings)) -}}
{{- end -}}
{{- end }}

{{/* What both processes push, and with which words. */}}
{{- define "kvgate.otlpArguments" -}}
{{- with .Values.monitoring.otlp }}
{{- if .endpoint }}
- --otlp-endpoint={{ .endpoint }}
- --otlp-seconds={{ .intervalSeconds }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kvgate.variables" -}}
{{- $attributes := list (printf "k8s.namespace.name=%s" .Release.Namespace) -}}
{{- range $name, $value := .Values.monitoring.otlp.resourceAttributes }}
{{- $attributes = append $attributes (printf "%s=%s" $name $value) -}}
{{- end }}
{{- with .Values.monitoring.otlp }}
{{- if .endpoint -}}
- {name: OTEL_EXPORTER_OTLP_COMPRESSION, value: gzip}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: {{ join "," $attributes | quote }}}
{{- if .headersSecret.name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef: {name: {{ .headersSecret.name }}, key: {{ .headersSecret.key }}}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.data.configMap }}
- {name: KVGATE_DATA, value: /data/bundle.zip}
{{- end }}
{{- end }}

{{/* Rules of a NetworkPolicy for DNS and for the receiver; a Service is replaced by its pods before a policy looks, so ports are theirs. */}}
{{- define "kvgate.dnsEgress" -}}
# DNS
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end }}

{{- define "kvgate.otlpEgress" -}}
{{- with .Values.monitoring.otlp }}
{{- $host := (urlParse .endpoint).host -}}
{{- $usual := ternary "443" "80" (hasPrefix "https:" .endpoint) -}}
{{- $port := regexFind ":[0-9]+$" $host | trimPrefix ":" | default $usual -}}
# the OpenTelemetry receiver
- ports:
    {{- range .egress.ports | default (list $port) }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with include "kvgate.destinations" .egress.cidrs }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Findings about the values of monitoring. */}}
{{- define "kvgate.checkMonitoring" -}}
{{- if and .Values.monitoring.podMonitor.inEachNamespace (not .Values.watchNamespaces) -}}
  {{- fail "\nmonitoring.podMonitor.inEachNamespace is true, but watchNamespaces is empty: name the namespaces that get a PodMonitor" -}}
{{- end -}}
{{- end }}

{{/* Labels of what the operator of Prometheus and Grafana's sidecar look for; the user's win, because a key may stand there once only. */}}
{{- define "kvgate.monitoringLabels" -}}
{{ merge (dict) .Values.monitoring.labels (include "kvgate.labels" (list . "monitoring") | fromYaml) | toYaml }}
{{- end }}

{{/* Beginning of each runbook's address: the user's, or that of this release's webhook, which answers with the runbooks. */}}
{{- define "kvgate.runbooks" -}}
{{ .Values.monitoring.prometheusRule.runbooks | default (printf "http://%s-webhook-metrics.%s.svc:8080/runbooks" (include "kvgate.fullname" .) .Release.Namespace) }}
{{- end }}

{{/* Where the pods of vLLM are: everywhere, or where the controller works. */}}
{{- define "kvgate.engineNamespaces" -}}
namespaceSelector:
  {{- if .Values.watchNamespaces }}
  matchNames: {{- toYaml .Values.watchNamespaces | nindent 4 }}
  {{- else }}
  any: true
  {{- end }}
{{- end }}

{{/* Any field of the spec but replicas, which may be scaled as well, without a verdict. */}}
{{- define "kvgate.specChanged" -}}
request.operation == 'CREATE'
|| object.spec.exists(key, key != 'replicas' && !(key in oldObject.spec && object.spec[key] == oldObject.spec[key]))
|| oldObject.spec.exists(key, key != 'replicas' && !(key in object.spec))
{{- end -}}

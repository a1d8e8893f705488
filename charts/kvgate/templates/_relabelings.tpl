{{- /* Generated from operator/kvgate/monitoring: change it there, then make generate. */ -}}
{{- define "kvgate.engineRelabelings" -}}
- sourceLabels: [__meta_kubernetes_pod_label_kvgate_io_inferencedeployment]
  targetLabel: inferencedeployment
{{- end }}
{{- define "kvgate.otherEngineRelabelings" -}}
- sourceLabels: [__meta_kubernetes_pod_container_image]
  regex: .*vllm.*
  action: keep
- sourceLabels: [__meta_kubernetes_pod_container_port_number]
  regex: '8000'
  action: keep
- sourceLabels: [__meta_kubernetes_pod_label_app_kubernetes_io_instance, __meta_kubernetes_pod_label_app_kubernetes_io_name,
    __meta_kubernetes_pod_label_app, __meta_kubernetes_pod_name]
  regex: ;*([^;]+).*
  targetLabel: workload
{{- end }}
{{- define "kvgate.engineMetricRelabelings" -}}
- sourceLabels: [__name__]
  regex: vllm_(.+)
  targetLabel: __name__
  replacement: vllm:$1
{{- end }}

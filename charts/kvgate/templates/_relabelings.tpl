{{- /* Generated from tools/mixin: change it there, then make generate. */ -}}
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
{{- if eq .Values.monitoring.engineMetrics "used" }}
- sourceLabels: [__name__]
  regex: vllm:(cache_config_info|kv_cache_usage_perc|gpu_cache_usage_perc|num_requests_running|num_requests_waiting|num_preemptions_total|prefix_cache_queries_total|gpu_prefix_cache_queries_total|prefix_cache_hits_total|gpu_prefix_cache_hits_total|prompt_tokens_total|generation_tokens_total|time_to_first_token_seconds_(bucket|sum|count)|inter_token_latency_seconds_(bucket|sum|count)|time_per_output_token_seconds_(bucket|sum|count)|e2e_request_latency_seconds_(bucket|sum|count)|request_queue_time_seconds_(bucket|sum|count)|request_success_total|external_prefix_cache_queries_total|external_prefix_cache_hits_total|kv_offload_load_bytes_total|kv_offload_store_bytes_total|kv_offload_cpu_cache_usage_perc|kv_offload_allocation_failure_total|kv_offload_tiering_chunk_queries_total|kv_offload_tiering_chunk_hits_total|nixl_xfer_time_seconds_(bucket|sum|count)|nixl_bytes_transferred_(bucket|sum|count)|nixl_num_failed_transfers_total|nixl_num_kv_expired_reqs_total|lora_requests_info)|http_requests_total
  action: keep
{{- end }}
{{- end }}
{{- define "kvgate.engineLimits" -}}
sampleLimit: 200000
labelLimit: 128
labelNameLengthLimit: 1024
labelValueLengthLimit: 65536
{{- end }}

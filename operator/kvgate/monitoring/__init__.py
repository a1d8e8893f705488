"""Dashboards, recording rules and alerts as data, put together from the names of metrics/registry.py and vllm_metrics.py."""

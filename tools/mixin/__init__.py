"""Dashboards, recording rules and alerts as data, put together from the names of metrics/registry.py and vllm/metric_names.py."""

FLEET = "kvgate-fleet"
DEPLOYMENT = "kvgate-deployment"
PROCESSES = "kvgate-self"

DASHBOARDS = (FLEET, DEPLOYMENT, PROCESSES)
"""Their uids, which never change: bookmarks and links point at them."""
